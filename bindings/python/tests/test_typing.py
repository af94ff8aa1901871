"""The types of the package, as mypy sees them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mc_store
import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

TESTS = Path(__file__).parent

#: Where the stub does not say what is there: the module exports all that it has; `setup` takes a
#: dict in place of its first arguments; and the method is there from Python 3.12 on.
KNOWN = [
    r"mc_store\._native\.__all__",
    r"mc_store\._native\.Store\.setup",
    r"mc_store\._native\.Buffer(Handle)?\.__buffer__",
]


def mypy(*arguments: str | Path, cwd: Path) -> None:
    command = [sys.executable, "-m", *map(str, arguments)]
    package = Path(mc_store.__file__).parents[1]
    environment = dict(os.environ)
    # What is installed it finds by itself.
    if package.name not in ("site-packages", "dist-packages"):
        environment |= {"MYPYPATH": str(package), "PYTHONPATH": str(package)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_have_the_types_that_they_should(tmp_path: Path) -> None:
    mypy("mypy", "--strict", "--cache-dir", tmp_path, TESTS / "_typed.py", cwd=tmp_path)


def test_the_stub_of_the_native_part_is_true(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text("\n".join(KNOWN))
    mypy(
        "mypy.stubtest",
        "mc_store._native",
        "--allowlist",
        allowed,
        "--ignore-unused-allowlist",
        cwd=tmp_path,
    )
