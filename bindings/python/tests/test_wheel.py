"""The wheel itself: what is in it, and that it needs nothing but an interpreter and libc.

`MC_STORE_WHEEL` names it; `./test` builds one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from _cluster import run_python
from test_import import import_seconds

pytestmark = pytest.mark.skipif(
    "MC_STORE_WHEEL" not in os.environ, reason="MC_STORE_WHEEL names no wheel to test"
)

PROGRAMS = ["mc-client", "mc-ctl", "mc-master", "mc-node", "mc-store"]
#: Former names of programs, and the names of today.
RENAMED = {"mc-client": "mc-node"}

#: What glibc itself consists of, and the unwinder of gcc, which every distribution installs.
LIBC = r"(linux-vdso|ld-linux[\w-]*|lib(c|m|dl|rt|pthread|util|gcc_s))\.so[.\d]*"


@pytest.fixture(scope="module")
def wheel() -> Path:
    return Path(os.environ["MC_STORE_WHEEL"])


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel and nothing else, not even a compiler."""
    root = tmp_path_factory.mktemp("wheel")
    venv.create(root, symlinks=True)
    scripts = root / "bin"
    install = ["--no-index", "--no-deps", "--only-binary", ":all:", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(scripts / "python")]
    subprocess.run([*pip, "install", *install], env={"PATH": str(scripts)}, check=True, timeout=120)
    return scripts


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA")))
    tops = {name.partition("/")[0].partition("-")[0] for name in names}
    assert tops == {"mc_store"}
    assert sorted(n.rpartition("/")[2] for n in names if ".data/scripts/" in n) == PROGRAMS
    inside = {name.rpartition("/")[2] for name in names}
    assert {"py.typed", "_native.pyi", "LICENSE-MIT", "LICENSE-APACHE"} <= inside
    assert not [name for name in names if "__pycache__" in name or "/test" in name]
    assert b"Provides-Extra: service" in metadata
    assert len([name for name in names if name.endswith(".so")]) == 1


def test_one_wheel_is_for_all_interpreters(wheel: Path) -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("the stable ABI has no free-threaded interpreters before 3.15")
    assert re.fullmatch(r"mc_store-[\d.]+-cp311-abi3-\w+\.whl", wheel.name)


def test_needs_libc_only(scripts: Path) -> None:
    code = "import mc_store._native as native; print(native.__file__)"
    extension = run_python(code, python=scripts / "python", inherit=False).stdout.strip()
    for binary in [extension, *(str(scripts / name) for name in PROGRAMS)]:
        listed = subprocess.check_output(["ldd", binary], text=True, timeout=30)
        libraries = re.findall(r"^\t(?:\S*/)?(\S+\.so\S*)", listed, re.MULTILINE)
        assert libraries
        assert [name for name in libraries if not re.fullmatch(LIBC, name)] == []


def test_programs_run(scripts: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    for name in PROGRAMS:
        said = subprocess.check_output([scripts / name, "--version"], env={}, text=True, timeout=30)
        assert said.split() == [RENAMED.get(name, name), version]


def test_imports_fast_without_anything_else(scripts: Path) -> None:
    assert import_seconds("mc_store", python=scripts / "python", inherit=False) < 0.1


def test_stores_with_what_it_brings(scripts: Path) -> None:
    code = """
import subprocess, sys
from pathlib import Path
from mc_store.mooncake.store import MooncakeDistributedStore

master = Path(sys.executable).with_name("mc-master")
command = [master, "--rpc_address=127.0.0.1", "--rpc_port=0", "--metrics_port=0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
    try:
        for line in running.stdout:
            _, found, address = line.strip().partition("listening on ")
            if found:
                break
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "", 64 << 20, 16 << 20, "tcp", "", address) == 0
        assert store.put("key", b"value") == 0
        print(store.get("key"))
        store.close()
    finally:
        running.terminate()
assert running.returncode == 0, running.returncode
"""
    done = run_python(code, python=scripts / "python", inherit=False)
    assert done.stdout == "b'value'\n"
