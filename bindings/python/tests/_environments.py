"""Python environments with chosen distributions, and what they take from the package index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import mc_store
import pytest
from _cluster import REPOSITORY, Finished, run_python

#: Where files from the package index stay for the next run.
FETCHED = REPOSITORY / "target" / "fetched"


def fetch_wheel(project: str, version: str) -> Path:
    """The wheel of a release for this interpreter. Skips the test if no package index has it."""
    folder = FETCHED / f"{project}-{version}-{sys.implementation.cache_tag}"
    if not folder.is_dir():
        FETCHED.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: another run may fetch it at the same time, or be stopped.
        with tempfile.TemporaryDirectory(dir=FETCHED) as scratch:
            there = Path(scratch, "wheel")
            options = ["--quiet", "--no-deps", "--only-binary=:all:", "--retries=1", "--timeout=20"]
            try:
                pip("download", *options, f"--dest={there}", f"{project}=={version}")
            except subprocess.CalledProcessError as failed:
                lines = failed.stderr.strip().splitlines() or ["pip says nothing"]
                pytest.skip(f"no package index gives {project} {version}: {lines[-1]}")
            try:
                there.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    (wheel,) = folder.iterdir()
    return wheel


def pip(*arguments: str | Path) -> None:
    """Runs pip.

    Raises:
        subprocess.CalledProcessError: pip failed; its `stderr` says why.
    """
    # A note in pip's cache fails another pip that builds the same at the same time.
    options = ["--disable-pip-version-check", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", *options, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


class Environment:
    """A virtual environment that has `mc_store` as the running interpreter has it, and what is
    installed into it."""

    def __init__(self, root: Path) -> None:
        venv.create(root, symlinks=True)
        self._python = root / "bin" / "python"
        packages = self.run("import sysconfig; print(sysconfig.get_path('purelib'))").stdout
        #: The folder of its packages.
        self.packages = Path(packages.strip())
        # A folder of its own: pip removes one that only has files which it is to remove, and does
        # not look behind a link.
        (self.packages / "mc_store").mkdir()
        for path in Path(mc_store.__path__[0]).iterdir():
            (self.packages / "mc_store" / path.name).symlink_to(path)

    def install(self, wheel: Path, *options: str) -> None:
        only = ["--no-deps", "--no-index", "--no-compile", *options]
        pip("--python", self._python, "install", *only, wheel)

    def uninstall(self, *distributions: str) -> None:
        pip("--python", self._python, "uninstall", "--yes", *distributions)

    def run(self, code: str, *, check: bool = True) -> Finished:
        """Runs `code` in it, without this process's environment variables."""
        return run_python(code, python=self._python, inherit=False, check=check)
