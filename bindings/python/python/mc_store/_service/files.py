"""Opens the files that become segments, in the directories that are permitted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class NotPermitted(Exception):
    """The file must not become a segment, for the reason in the text."""


@contextmanager
def opened(path: str, directories: Sequence[str]) -> Iterator[str]:
    """Yields a path to the file at ``path``, in one of the ``directories``. The path leads to that
    very file as long as the context lasts, whatever happens to the names on the way to it.

    Raises ``NotPermitted`` if the file is in no such directory, if it or a directory on the way to
    it is a link, if it has further names, is not a regular file or belongs to another user, and
    ``OSError`` if it cannot be opened.
    """
    directory, names = _place(path, directories)
    # The directory itself may be a link: the operator named it.
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for place, name in enumerate(names, start=1):
            last = place == len(names)
            inside = _open_in(at, name, path, is_directory=not last)
            os.close(at)
            at = inside
        _check(os.fstat(at), path)
        yield f"/proc/self/fd/{at}"
    finally:
        os.close(at)


def _place(path: str, directories: Sequence[str]) -> tuple[str, list[str]]:
    for directory in directories:
        root = directory.rstrip("/") + "/"
        names = [name for name in path.removeprefix(root).split("/") if name not in ("", ".")]
        if path.startswith(root) and names and ".." not in names and "\0" not in path:
            return root, names
    allowed = ", ".join(directories)
    raise NotPermitted(f"{path!r} is not below a segment directory ({allowed}); see --segment-dir")


def _open_in(directory: int, name: str, path: str, *, is_directory: bool) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | (os.O_DIRECTORY if is_directory else 0), dir_fd=directory)
    except NotADirectoryError:
        raise NotPermitted(f"{name!r} in {path!r} is a link or not a directory") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPermitted(f"{name!r} in {path!r} is a link") from None
        raise


def _check(file: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(file.st_mode):
        raise NotPermitted(f"{path!r} is a link")
    if not stat.S_ISREG(file.st_mode):
        raise NotPermitted(f"{path!r} is not a regular file")
    if file.st_nlink != 1:
        # One of them can lie outside the directory.
        raise NotPermitted(f"{path!r} has {file.st_nlink} names; it must have this one only")
    if file.st_uid != os.geteuid():
        raise NotPermitted(f"{path!r} belongs to user {file.st_uid}, not to user {os.geteuid()}")
