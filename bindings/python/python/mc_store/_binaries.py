"""The programs of the package: ``mc-master``, ``mc-node``, ..."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

_DISTRIBUTION = "mc-store"


def find(name: str) -> Path:
    """Return the program ``name`` installed with this package, or else the first on ``PATH``.

    Raises ``FileNotFoundError``, with the searched places, if there is none.
    """
    places: list[Path] = []
    for candidate in _candidates(name):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
        if candidate.parent not in places:
            places.append(candidate.parent)
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    looked = ", ".join(map(str, places))
    raise FileNotFoundError(
        f"the program {name} is neither in {looked} nor on PATH; "
        f"it comes with the wheel: pip install --force-reinstall {_DISTRIBUTION}"
    )


def execute(name: str) -> NoReturn:
    """Become the program ``name`` with this process's arguments; the process id stays.

    Exits with status 127 and a message if there is no such program.
    """
    try:
        program = find(name)
    except FileNotFoundError as problem:
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        raise SystemExit(127) from None
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, [str(program), *sys.argv[1:]])


def master() -> NoReturn:
    """The console script ``mooncake_master``."""
    execute("mc-master")


def client() -> NoReturn:
    """The console script ``mooncake_client``."""
    execute("mc-node")


def _candidates(name: str) -> Iterator[Path]:
    # The installer's record is right also for --user, --target and --prefix.
    try:
        for file in importlib.metadata.files(_DISTRIBUTION) or ():
            if file.name == name:
                yield Path(str(file.locate())).resolve()
    except importlib.metadata.PackageNotFoundError:
        pass  # Run from the sources.
    yield Path(sysconfig.get_path("scripts")) / name
    yield Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))) / name
    yield Path(sys.executable).parent / name
