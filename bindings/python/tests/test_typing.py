"""The types of the package, as mypy sees them from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mc_store
import mc_stub
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
    # The type checker finds installed packages by itself.
    if package.name not in ("site-packages", "dist-packages"):
        environment |= {"MYPYPATH": str(package), "PYTHONPATH": str(package)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names_have_the_types_that_they_should(tmp_path: Path) -> None:
    mypy("mypy", "--strict", "--cache-dir", tmp_path, TESTS / "_typed.py", cwd=tmp_path)


def test_the_stub_has_the_calls_as_they_are_defined() -> None:
    written = mc_stub.STUB.read_text()
    assert mc_stub.with_calls(written) == written, "run backend/mc_stub.py"
    # An empty table would change nothing either.
    assert written.count("    def ") > 250


def test_a_call_with_a_type_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(mc_stub.TYPES, "Texts")
    with pytest.raises(KeyError, match="Texts"):
        mc_stub.with_calls(mc_stub.STUB.read_text())


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
