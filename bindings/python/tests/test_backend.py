"""The build backend: what it refuses, and the wheel of what was built before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import mc_store._native as native
import pytest
from _cluster import REPOSITORY

if TYPE_CHECKING:
    import mc_build
else:
    mc_build = pytest.importorskip("mc_build", reason="maturin is not installed")

PROJECT = REPOSITORY / "bindings" / "python"


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"profil": "dev"}, "unknown settings: profil; known are profile, "),
        ({"glibc": "new"}, "glibc must be a version, as 2.17, and not 'new'"),
        ({"target": "aarch64-unknown-linux-gnu"}, "target needs glibc"),
        ({"rdma": "yes"}, "rdma must be on or off, and not 'yes'"),
        ({"programs": "target/debug"}, "programs must be an absolute path"),
        ({"native": "lib_native.so"}, "native must be an absolute path, and not 'lib_native.so'"),
        ({"native": "/lib_native.so", "glibc": "2.17"}, "leave out glibc and target"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        mc_build.Settings.of(settings, profile="wheel")


@pytest.mark.parametrize("content", [b"", b"text", Path("/proc/self/exe").read_bytes()])
def test_native_must_be_the_library_of_the_package(tmp_path: Path, content: bytes) -> None:
    library = tmp_path / "lib_native.so"
    settings = mc_build.Settings.of({"native": str(library)}, profile="wheel")
    with pytest.raises(FileNotFoundError, match=r"no file .*; build it with: cargo build"):
        settings.library(library).__enter__()
    library.write_bytes(content)
    with pytest.raises(ValueError, match=r"not the shared library .*; build it with: cargo build"):
        settings.library(library).__enter__()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, so that a build beside the test is not disturbed."""
    workspace = tmp_path / "workspace"
    (workspace / "bindings").mkdir(parents=True)
    for path in REPOSITORY.iterdir():
        if path.name not in ("bindings", "target", ".git"):
            (workspace / path.name).symlink_to(path)
    copy = workspace / "bindings" / "python"
    shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns("build", "dist", "__pycache__"))
    return copy


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")
def test_what_was_built_is_packed_and_nothing_is_compiled(project: Path, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (mc_build.PROGRAM, mc_build.LINK):
        (programs / name).write_text(f"#!/bin/sh\necho {name}\n")
        (programs / name).chmod(0o755)
    cargo = tmp_path / "cargo"
    cargo.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/commands\nexec cargo "$@"\n')
    cargo.chmod(0o755)
    built = Path(native.__file__).read_bytes()

    settings = {"profile": "dev", "native": native.__file__, "programs": str(programs)}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}"]
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    environment = {**os.environ, "CARGO": str(cargo)}
    done = subprocess.run(
        [*command, project], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set((tmp_path / "commands").read_text().split()) <= {"metadata"}
    (wheel,) = tmp_path.glob("mc_store-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            folder, _, name = entry.filename.rpartition("/")
            if folder.endswith(".data/scripts"):
                source = mc_build.PROGRAM if name == mc_build.PROGRAM else mc_build.LINK
                assert archive.read(entry) == (programs / source).read_bytes()
                assert entry.external_attr >> 16 & 0o111
        assert b"PyInit__native" in archive.read("mc_store/_native.abi3.so")
    assert Path(native.__file__).read_bytes() == built, "it is where it was"
