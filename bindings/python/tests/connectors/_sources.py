"""Files of the engines' own releases, out of the wheels on the package index.

The files are other projects' and stay out of the repository: the first run fetches them into
`target/fetched`. Of a wheel, which is a zip archive of up to hundreds of megabytes, only its
directory and the named files are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import urllib.request
import zipfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from _environments import FETCHED

#: SHA-256 and path of each file, as `sha256sum` prints and checks them in `FETCHED`.
SUMS = Path(__file__).with_name("sources.sha256")

#: Bounds of what is read: the index's page of a project, a file, and a step in a wheel, in bytes.
PAGE_LIMIT = 64 << 20
FILE_LIMIT = 1 << 20
STEP = 256 << 10

#: What goes wrong without an index, or with one that cannot give parts of files.
UNAVAILABLE = (OSError, HTTPException, LookupError, ValueError, zipfile.BadZipFile)

#: How long the index may be silent, in seconds.
SILENCE = 20


@dataclass(frozen=True)
class Release:
    """A release of an engine, and the files of it that are run as they are."""

    project: str
    version: str
    #: The end of the wheel's name: the Python and the platform that it is for. The files are the
    #: same in all.
    tags: str

    @property
    def _name(self) -> str:
        return f"{self.project}-{self.version}"

    def files(self) -> dict[str, str]:
        """The paths in the wheel of the files that are run as they are, and their SHA-256."""
        lines = [line.split() for line in SUMS.read_text().splitlines()]
        prefix = f"{self._name}/"
        return {p.removeprefix(prefix): total for total, p in lines if p.startswith(prefix)}

    def fetch(self) -> Path:
        """Returns a folder with the files, fetched now or before. Skips the test if no package
        index gives them.

        Raises:
            AssertionError: a file is not the one that was tested.
        """
        folder = FETCHED / self._name
        files = self.files()
        missing = [path for path in files if not (folder / path).is_file()]
        if missing:
            try:
                self._fetch_into(folder, missing)
            except UNAVAILABLE as error:
                pytest.skip(f"no package index gives {self.project} {self.version}: {error!r}")
        for path, expected in files.items():
            found = hashlib.sha256((folder / path).read_bytes()).hexdigest()
            assert found == expected, (
                f"{path} of {self.project} {self.version} has the SHA-256 {found}: it is not the "
                f"file that was tested. See what is new in {folder / path}, then record the sum in "
                f"{SUMS}"
            )
        return folder

    def _fetch_into(self, folder: Path, paths: list[str]) -> None:
        wheel = f"{self.project.replace('-', '_')}-{self.version}-{self.tags}.whl"
        with zipfile.ZipFile(io.BufferedReader(_find(self.project, wheel))) as archive:
            for path in paths:
                if archive.getinfo(path).file_size > FILE_LIMIT:
                    raise ValueError(f"{path} is larger than {FILE_LIMIT} bytes")
                content = archive.read(path)
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                # Renamed when it is whole: another run may fetch it at the same time.
                partial = target.with_name(f"{target.name}.{os.getpid()}")
                partial.write_bytes(content)
                partial.rename(target)


def _find(project: str, wheel: str) -> _Remote:
    """The wheel of that name, by the index's list of a project's files in the form of PEP 691.

    Raises:
        LookupError: it is not in the list.
    """
    page = f"{os.environ.get('PIP_INDEX_URL', 'https://pypi.org/simple').rstrip('/')}/{project}/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    for file in json.loads(_read(page, accept, 200, PAGE_LIMIT))["files"]:
        if file["filename"] == wheel:
            return _Remote(urljoin(page, file["url"]), file["size"])
    raise LookupError(f"{wheel} is not in the index's list")


def _read(url: str, headers: dict[str, str], status: int, limit: int) -> bytes:
    """The answer to a request.

    Raises:
        OSError: it did not come, or has another status than `status`.
        ValueError: it has more than `limit` bytes.
    """
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=SILENCE) as response:
        if response.status != status:
            raise OSError(f"status {response.status} instead of {status}")
        content: bytes = response.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"an answer of more than {limit} bytes")
    return content


class _Remote(io.RawIOBase):
    """A file on a server that gives ranges of it, read in steps, each of them once."""

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._size = size
        self._position = 0
        self._steps: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        number, offset = divmod(self._position, STEP)
        data = self._step(number)[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _step(self, number: int) -> bytes:
        first = number * STEP
        last = min(first + STEP, self._size) - 1
        if last < first:
            return b""
        if number not in self._steps:
            # A server without ranges answers 200, with all of it.
            headers = {"Range": f"bytes={first}-{last}"}
            self._steps[number] = _read(self._url, headers, 206, STEP)
        return self._steps[number]
