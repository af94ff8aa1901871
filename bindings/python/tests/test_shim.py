"""`import mooncake`: for one process, by `install_as_mooncake`, and for good, by a distribution."""

from __future__ import annotations

import importlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from _cluster import REPOSITORY, Program, binary, run_python

PROVIDED = REPOSITORY / "bindings" / "python" / "mooncake-shim" / "src"

INSTALL = "from mc_store import install_as_mooncake; install_as_mooncake()\n"

#: Top-level modules of older releases.
OLDER = ["distributed_object_store", "mooncake_vllm_adaptor"]


def write_stranger(folder: Path) -> Path:
    """A package `mooncake` that is not ours."""
    package = folder / "mooncake"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("origin = 'stranger'\n")
    (package / "store.py").write_text("class MooncakeDistributedStore: origin = 'stranger'\n")
    return folder


@pytest.fixture(params=["installed by a call", "provided by a distribution"])
def preamble(request: pytest.FixtureRequest) -> str:
    if "call" in request.param:
        return INSTALL
    return f"import sys; sys.path.insert(0, {str(PROVIDED)!r})\n"


def test_modules_are_the_same_objects(preamble: str) -> None:
    run_python(
        preamble
        + """
import mooncake, mooncake.store
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake.mooncake_config import MooncakeConfig
from mooncake.async_store import MooncakeDistributedStoreAsync
from mooncake import BufferPool, RegisteredBufferPool
import mooncake.mooncake_store_service, mooncake.http_metadata_server, mooncake.buffer_pool
from mooncake.structured_object_store import MooncakeBundleTransfer
from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer

import mc_store.mooncake.store, mc_store.mooncake.mooncake_config
import mc_store.mooncake.structured_object_store as structured
assert MooncakeBundleTransfer is structured.MooncakeBundleTransfer
assert mooncake.store is mc_store.mooncake.store
assert MooncakeDistributedStore is mc_store.mooncake.store.MooncakeDistributedStore
assert MooncakeConfig is mc_store.mooncake.mooncake_config.MooncakeConfig
assert issubclass(MooncakeDistributedStoreAsync, MooncakeDistributedStore)
assert BufferPool is RegisteredBufferPool is mooncake.buffer_pool.BufferPool
"""
    )


def test_older_modules_have_the_same_classes(preamble: str) -> None:
    run_python(
        preamble
        + """
from distributed_object_store import DistributedObjectStore
import mooncake_vllm_adaptor as mva

from mc_store.mooncake import distributed_object_store, mooncake_vllm_adaptor
assert DistributedObjectStore is distributed_object_store.DistributedObjectStore
assert mva.MooncakeDistributedStore is DistributedObjectStore
assert mva.mooncake_vllm_adaptor is mooncake_vllm_adaptor.mooncake_vllm_adaptor
try:
    import distributed_object_store.nothing
except ModuleNotFoundError as error:
    assert error.name == "distributed_object_store.nothing"
else:
    raise AssertionError("there is nothing in it")
"""
    )


@pytest.mark.parametrize("name", OLDER)
def test_older_modules_are_there_when_asked_for_only(name: str) -> None:
    missing = run_python(f"import mc_store.mooncake.store, {name}", check=False)
    assert f"ModuleNotFoundError: No module named {name!r}" in missing.stderr
    run_python(INSTALL + f"import sys; assert {name!r} not in sys.modules; import {name}")


def test_specs_are_found_as_connectors_look_for_them(preamble: str) -> None:
    run_python(
        preamble
        + """
import importlib, importlib.util, sys
assert importlib.util.find_spec("mooncake") is not None
spec = importlib.util.find_spec("mooncake.store")
assert spec is not None and spec.origin.endswith("store.py"), spec
assert "mc_store.mooncake.store" not in sys.modules, "looking is not importing"
assert importlib.util.find_spec("mooncake.ep") is None
try:
    import mooncake.ep
except ModuleNotFoundError as error:
    assert error.name == "mooncake.ep"
else:
    raise AssertionError("there is no such module")
import mooncake.engine
assert mooncake.engine.TransferEngine.__module__ == "mc_store.mooncake.engine"
assert sys.modules["mc_store.mooncake.engine"] is mooncake.engine
try:
    from mooncake import nothing
except ImportError:
    pass
module = importlib.import_module("mooncake.mooncake_config")
assert importlib.util.find_spec("mooncake.mooncake_config") is not None
assert importlib.reload(module) is module
"""
    )


def test_modules_run_as_programs(preamble: str) -> None:
    done = run_python(
        preamble
        + """
import runpy, sys
sys.argv = ["service", "--help"]
runpy.run_module("mooncake.mooncake_store_service", run_name="__main__", alter_sys=True)
"""
    )
    assert "--max-wait-time" in done.stdout


def test_installing_twice_and_late_imports() -> None:
    run_python(
        INSTALL
        + """
import mooncake
before = mooncake
install_as_mooncake()
install_as_mooncake(force=True)
import mooncake
assert mooncake is before
import sys
assert sum(type(finder).__module__ == "mc_store._shim" for finder in sys.meta_path) == 1
"""
    )


def test_installing_imports_nothing_large() -> None:
    run_python(
        INSTALL
        + """
import sys
large = {"numpy", "torch", "asyncio", "aiohttp", "ctypes", "json", "mc_store.mooncake.store"}
assert not large & set(sys.modules), large & set(sys.modules)
"""
    )


def test_stranger_that_is_installed(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(write_stranger(tmp_path))}
    refused = run_python(INSTALL, env=env, check=False)
    assert f"ImportError: another package 'mooncake' is installed in {tmp_path}" in refused.stderr
    run_python(
        """
from mc_store import install_as_mooncake
install_as_mooncake(force=True)
from mooncake.store import MooncakeDistributedStore
assert MooncakeDistributedStore.__module__.startswith("mc_store."), MooncakeDistributedStore
""",
        env=env,
    )


def test_stranger_that_is_imported(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(write_stranger(tmp_path))}
    refused = run_python("import mooncake\n" + INSTALL, env=env, check=False)
    assert f"ImportError: another package 'mooncake' is imported from {tmp_path}" in refused.stderr
    run_python(
        """
import mooncake.store
old = mooncake.store.MooncakeDistributedStore
from mc_store import install_as_mooncake
install_as_mooncake(force=True)
import mooncake.store
assert mooncake.store.MooncakeDistributedStore is not old
assert old.origin == "stranger"
""",
        env=env,
    )


def test_stranger_without_its_init(tmp_path: Path) -> None:
    (write_stranger(tmp_path) / "mooncake" / "__init__.py").unlink()
    env = {"PYTHONPATH": str(tmp_path)}
    refused = run_python(INSTALL, env=env, check=False)
    assert f"{tmp_path}/mooncake (incomplete: there is no __init__.py); unins" in refused.stderr


def test_engine_of_a_stranger_is_not_hidden(tmp_path: Path) -> None:
    package = write_stranger(tmp_path) / "mooncake"
    (package / "engine.py").write_text("origin = 'stranger'\n")
    force = "from mc_store import install_as_mooncake; install_as_mooncake(force=True)\n"
    check = """
import mooncake, mooncake.engine, mooncake.store
from mooncake import engine
assert mooncake.engine is engine and engine.origin == "stranger"
assert mooncake.store.__name__ == "mc_store.mooncake.store"
"""
    env = {"PYTHONPATH": str(tmp_path)}
    run_python(force + check, env=env)
    for before in ["import mooncake.engine as before", "from mooncake import engine as before"]:
        run_python(f"{before}\n{force}{check}assert engine is before", env=env)
    # One that is made by the program itself, such as a test's.
    run_python(
        "import sys, types\n"
        "before = sys.modules['mooncake.engine'] = types.ModuleType('mooncake.engine')\n"
        f"before.origin = 'stranger'\n{force}{check}assert engine is before"
    )


@pytest.mark.parametrize("name", OLDER)
def test_stranger_of_an_older_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("MooncakeDistributedStore = 'stranger'\n")
    env = {"PYTHONPATH": str(tmp_path)}
    refused = run_python(INSTALL, env=env, check=False)
    assert f"ImportError: another package {name!r} is installed in {tmp_path}" in refused.stderr
    refused = run_python(f"import {name}\n" + INSTALL, env=env, check=False)
    assert f"ImportError: another package {name!r} is imported from {tmp_path}" in refused.stderr
    for first in ["", f"import {name}\n"]:
        run_python(
            first + "from mc_store import install_as_mooncake; install_as_mooncake(force=True)\n"
            f"import {name}; assert {name}.__name__.startswith('mc_store.'), {name}",
            env=env,
        )


def test_distribution_is_no_stranger() -> None:
    env = {"PYTHONPATH": str(PROVIDED)}
    run_python(INSTALL + "import mooncake.store", env=env)
    for name in ["mooncake", *OLDER]:
        run_python(f"import {name}\n" + INSTALL + f"import {name}", env=env)


def test_distribution_beside_another(tmp_path: Path) -> None:
    write_stranger(tmp_path)
    shutil.copytree(PROVIDED, tmp_path, dirs_exist_ok=True)
    env = {"PYTHONPATH": str(tmp_path)}
    mixed = run_python("import mooncake.store", env=env, check=False)
    assert "ImportError: the package 'mooncake' in" in mixed.stderr
    assert "mc-store-mooncake and an unknown one (with store.py)" in mixed.stderr
    # The stranger's files won.
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    refused = run_python(INSTALL, env=env, check=False)
    assert "ImportError: another package 'mooncake' is installed" in refused.stderr


# ---- programs


def test_console_scripts_lead_somewhere() -> None:
    project = tomllib.loads((PROVIDED.parent / "pyproject.toml").read_text())["project"]
    assert set(project["scripts"]) == {
        "mc_store_rest_server",
        "mooncake_client",
        "mooncake_http_metadata_server",
        "mooncake_master",
    }
    for target in project["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), target


@pytest.mark.parametrize(
    "start",
    [
        "from mc_store._binaries import master; master()",
        "import runpy; runpy.run_module('mc_store.mooncake.cli', run_name='__main__')",
    ],
)
def test_console_script_becomes_the_program(monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.setenv("PATH", f"{binary('mc-master').parent}:{Path(sys.executable).parent}")
    program = Program(
        [
            *(sys.executable, "-c", start),
            *("--rpc_address=127.0.0.1", "--rpc_port=0"),
            *("--metrics_host=127.0.0.1", "--metrics_port=0"),
        ]
    )
    try:
        program.expect("listening on")
        # The process that was started is the server itself.
        called = Path(f"/proc/{program.pid}/cmdline").read_text().partition("\0")[0]
        assert Path(called).name == "mc-master"
        assert program.stop() == 0
    finally:
        program.kill()


def test_program_that_is_nowhere() -> None:
    done = run_python(
        "import sys; sys.argv[0] = 'mooncake_other'\n"
        "from mc_store._binaries import execute; execute('mc-other')",
        check=False,
    )
    assert done.returncode == 127
    assert "mooncake_other: the program mc-other is neither in" in done.stderr
    assert "Traceback" not in done.stderr
