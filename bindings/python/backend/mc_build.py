"""Builds the package with maturin, as a PEP 517 backend that adds:

* The program `mc-store`, which has the others in it, built by cargo, as a script of the wheel,
  which installers put into the environment's `bin`; and `mc-master`, `mc-node`, `mc-ctl` and
  `mc-client`, the former name of `mc-node`, each a small program that becomes it.
* Wheels for older hosts and for other machines, with the linker and the headers of Zig.
* A source distribution of the whole workspace, because the package needs all of its crates.

Settings, with pip `--config-settings NAME=VALUE`:

* `profile`: the cargo profile, instead of `wheel`; `dev` builds fastest.
* `glibc`: the oldest glibc that the wheel must run with, `2.17` for example.
* `target`: the Rust target, `aarch64-unknown-linux-gnu` for example; needs `glibc`.
* `programs`: the absolute path of a directory with `mc-store` and `mc-link` as cargo has built
  them before.
* `native`: the absolute path of the package's library as cargo has built it before, such as
  `target/debug/lib_native.so`, with whatever profile and features. With `programs`, nothing is
  compiled. Not together with `glibc` and `target`.
* `rdma`: `on` for a package whose clients can use RDMA devices. Needs the headers of libibverbs
  and librdmacm and libclang to build; the package runs on hosts without them, too.

What was built before is packed without what is for debuggers alone, if this host has `strip`.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import maturin

#: Has all programs in it.
PROGRAM = "mc-store"
#: A copy of it becomes one of them, the one whose name it has; in a wheel there are no links.
LINK = "mc-link"
NAMES = ("mc-master", "mc-node", "mc-ctl", "mc-client")

PROJECT = Path(__file__).resolve().parents[1]
WORKSPACE = PROJECT.parents[1]
#: What maturin puts into the wheel beside the modules; `tool.maturin.data` names it too.
DATA = PROJECT / "build" / "data"

Config = Mapping[str, Any] | None


@dataclass(frozen=True)
class Built:
    """The outputs of cargo: a directory with the programs, and the library of the package, which is
    `None` where maturin has cargo build it."""

    programs: Path
    native: Path | None


@dataclass(frozen=True)
class Settings:
    """The settings of a build."""

    profile: str
    target: str | None
    glibc: str | None
    programs: Path | None
    native: Path | None
    rdma: bool

    @classmethod
    def of(cls, config: Config, *, profile: str) -> Settings:
        """Reads the caller's settings; `profile` is the default profile.

        Raises:
            ValueError: a setting is unknown, malformed, or lacks another one.
        """
        rest = dict(config or {})
        settings = cls(
            profile=rest.pop("profile", profile),
            target=rest.pop("target", None),
            glibc=rest.pop("glibc", None),
            programs=_built("programs", rest.pop("programs", None)),
            native=_built("native", rest.pop("native", None)),
            rdma=_switch("rdma", rest.pop("rdma", "off")),
        )
        if rest:
            known = "profile, glibc, target, programs, native, rdma"
            raise ValueError(f"unknown settings: {', '.join(rest)}; known are {known}")
        if settings.glibc is not None and not re.fullmatch(r"\d+\.\d+", settings.glibc):
            raise ValueError(f"glibc must be a version, as 2.17, and not {settings.glibc!r}")
        if settings.target is not None and settings.glibc is None:
            raise ValueError("target needs glibc: the oldest version that the wheel must run with")
        if settings.native is not None and settings.glibc is not None:
            raise ValueError("native is packed as it was built: leave out glibc and target")
        return settings

    @property
    def rust_target(self) -> str | None:
        """The target for cargo; `None` for this host and its glibc."""
        if self.glibc is None:
            return None
        return self.target or f"{os.uname().machine}-unknown-linux-gnu"

    def maturin(self) -> dict[str, str]:
        """Returns maturin's form of these settings."""
        arguments = ["--profile", self.profile]
        if self.rdma:
            arguments += ["--features", "rdma"]
        if self.rust_target is not None and self.glibc is not None:
            tag = f"manylinux_{self.glibc.replace('.', '_')}"
            arguments += ["--zig", "--target", self.rust_target, "--compatibility", tag]
        return {"build-args": " ".join(arguments)}

    def lay_out_programs(self, built: Built) -> None:
        """Copies the programs to maturin's data directory."""
        copy = shutil.copy if self.programs is None else _copy_stripped
        scripts = DATA / "scripts"
        shutil.rmtree(DATA, ignore_errors=True)
        scripts.mkdir(parents=True)
        copy(built.programs / PROGRAM, scripts / PROGRAM)
        for name in NAMES:
            copy(built.programs / LINK, scripts / name)

    @contextmanager
    def library(self, native: Path | None) -> Iterator[None]:
        """Has maturin pack `native`, if there is one: meanwhile what maturin starts as `cargo` says
        that it has built it, and is cargo in all else.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is not the package's library.
        """
        if native is None:
            yield
            return
        _check_library(native)
        before = os.environ.get("CARGO")
        cargo = before or "cargo"
        with tempfile.TemporaryDirectory() as scratch:
            # A copy, because maturin moves what cargo has built.
            library = Path(scratch, native.name)
            copy = shutil.copy if self.native is None else _copy_stripped
            copy(native, library)
            messages = Path(scratch, "messages")
            messages.write_text(
                "".join(f"{json.dumps(said)}\n" for said in _of_a_build(cargo, library))
            )
            instead = Path(scratch, "cargo")
            instead.write_text(
                f"#!/bin/sh\n"
                f'[ "$1" != rustc ] || exec cat {shlex.quote(str(messages))}\n'
                f'exec {shlex.quote(cargo)} "$@"\n'
            )
            instead.chmod(0o700)
            os.environ["CARGO"] = str(instead)
            try:
                yield
            finally:
                if before is None:
                    del os.environ["CARGO"]
                else:
                    os.environ["CARGO"] = before

    def build(self) -> Built:
        """Builds what no setting names, the programs and the library in one go where that can be:
        apart they would have other features, and cargo would compile most crates twice."""
        if self.programs is not None:
            return Built(self.programs, self.native)
        packages = ["mc-programs"]
        # maturin knows how to build for other machines and for interpreters without a stable ABI.
        if self.native is None and self.glibc is None and not _has_no_gil():
            packages.append("mc-python")
        command = ["cargo", "build"]
        if self.rust_target is not None:
            command = ["cargo-zigbuild", "zigbuild", "--target", f"{self.rust_target}.{self.glibc}"]
        command += ["--locked", "--profile", self.profile]
        # Without replay, stress, c2c and bench.
        command += ["--no-default-features"]
        for package in packages:
            command += ["--package", package]
            if self.rdma:
                command += ["--features", f"{package}/rdma"]
        command += ["--message-format", "json-render-diagnostics"]
        print("Running", " ".join(command), flush=True)
        cargo = subprocess.run(command, cwd=WORKSPACE, check=True, stdout=subprocess.PIPE)
        native = self.native
        for message in map(json.loads, cargo.stdout.splitlines()):
            if message["reason"] != "compiler-artifact":
                continue
            if message["target"]["name"] == "_native":
                native = Path(message["filenames"][0])
            elif message["executable"] and message["target"]["name"] == PROGRAM:
                programs = Path(message["executable"]).parent
        return Built(programs, native)


def _has_no_gil() -> bool:
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _switch(name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{name} must be on or off, and not {value!r}")
    return value == "on"


def _built(name: str, value: str | None) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.is_absolute():
        raise ValueError(f"{name} must be an absolute path, and not {value!r}")
    return path


def _check_library(path: Path) -> None:
    """Checks that maturin can pack the file for this interpreter.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not the package's library, or this interpreter needs another one.
    """
    build = "build it with: cargo build --package mc-python --lib"
    if not path.is_file():
        raise FileNotFoundError(f"native: there is no file {path}; {build}")
    content = path.read_bytes()
    if not content.startswith(b"\x7fELF") or b"PyInit__native" not in content:
        raise ValueError(f"native: {path} is not the shared library of the package; {build}")
    if _has_no_gil():
        raise ValueError("native: it has the stable ABI, which this interpreter has not")


def _of_a_build(cargo: str, library: Path) -> list[dict[str, Any]]:
    """The messages of the `cargo rustc` that has built `library`."""
    command = [cargo, "metadata", "--format-version", "1", "--no-deps"]
    described = json.loads(subprocess.check_output(command, cwd=PROJECT))
    manifest = str(PROJECT / "Cargo.toml")
    [package] = [it for it in described["packages"] if it["manifest_path"] == manifest]
    [target] = [it for it in package["targets"] if it["kind"] == ["cdylib"]]
    profile = {
        "opt_level": "0",
        "debuginfo": 0,
        "debug_assertions": False,
        "overflow_checks": False,
        "test": False,
    }
    built = {
        "reason": "compiler-artifact",
        "package_id": package["id"],
        "manifest_path": manifest,
        "target": target,
        "profile": profile,
        "features": [],
        "filenames": [str(library)],
        "executable": None,
        "fresh": True,
    }
    return [built, {"reason": "build-finished", "success": True}]


def _copy_stripped(source: Path, target: Path) -> None:
    """Copies a program or a library without what is for debuggers alone, in some profiles most of
    it; as it is, if there is no `strip` that can read it."""
    shutil.copy(source, target)
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", target], capture_output=True, check=False)


@contextmanager
def _in_project() -> Iterator[None]:
    """Changes to the project's directory, where maturin works: in a source distribution the
    caller's directory is the workspace. maturin always requires the data directory."""
    DATA.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(PROJECT)
    try:
        yield
    finally:
        os.chdir(before)


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    with _in_project():
        requires = list(maturin.get_requires_for_build_wheel())
    if Settings.of(config_settings, profile="wheel").rust_target is not None:
        requires += ["cargo-zigbuild>=0.24,<1", "ziglang>=0.15,<1"]
    return requires


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Config = None) -> list[str]:
    with _in_project():
        return list(maturin.get_requires_for_build_sdist())


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Config = None
) -> str:
    settings = Settings.of(config_settings, profile="wheel")
    directory = Path(metadata_directory).resolve()
    with _in_project():
        return str(maturin.prepare_metadata_for_build_wheel(str(directory), settings.maturin()))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    settings = Settings.of(config_settings, profile="wheel")
    directory = Path(wheel_directory).resolve()
    built = settings.build()
    settings.lay_out_programs(built)
    with settings.library(built.native), _in_project():
        return str(maturin.build_wheel(str(directory), settings.maturin()))


def build_editable(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    settings = Settings.of(config_settings, profile="dev")
    directory = Path(wheel_directory).resolve()
    built = settings.build()
    settings.lay_out_programs(built)
    with settings.library(built.native), _in_project():
        return str(maturin.build_editable(str(directory), settings.maturin()))


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    """Packs the workspace's files in git, with a `pyproject.toml` at the root that refers to this
    backend, and the metadata."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=WORKSPACE, check=True, capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory() as scratch:
        info = prepare_metadata_for_build_wheel(scratch)
        metadata = Path(scratch, info, "METADATA").read_bytes()
    root = info.removesuffix(".dist-info")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    leads_here = "\n".join(
        [
            "[build-system]",
            f"requires = {project['build-system']['requires']}",
            'build-backend = "mc_build"',
            f'backend-path = ["{Path(__file__).resolve().parent.relative_to(WORKSPACE)}"]',
            "",
        ]
    )

    archive = Path(sdist_directory).resolve() / f"{root}.tar.gz"
    # No times and no owners: the same sources give the same archive.
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):

        def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            return entry

        for name in sorted(filter(None, listed.stdout.split("\0"))):
            if os.path.lexists(WORKSPACE / name):
                tar.add(WORKSPACE / name, f"{root}/{name}", filter=anonymous)
        for name, content in (
            ("PKG-INFO", metadata),
            ("pyproject.toml", leads_here.encode()),
        ):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.name
