"""`import mc_store` is cheap, whatever the package can do with other packages."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import sysconfig

import mc_store
import pytest
from _cluster import run_python

# Modules that would make an import slow; each is for some callers only.
HEAVY = ["aiohttp", "asyncio", "ctypes", "json", "multiprocessing", "numpy", "ssl", "torch"]

#: Imports the module named by its argument and prints for how long, in seconds.
TIMED = """
import sys, time
start = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - start)
"""


def import_seconds(module: str, **run: object) -> float:
    """The best of several: the rest is what else the machine was doing."""
    return min(float(run_python(TIMED, module, **run).stdout) for _ in range(7))  # type: ignore[arg-type]


def test_import_is_fast() -> None:
    assert import_seconds("mc_store") < 0.1


@pytest.mark.parametrize("module", ["mc_store", "mc_store.mooncake.store"])
def test_import_brings_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(*sorted(sys.modules))"
    loaded = set(run_python(code).stdout.split())
    assert module in loaded
    assert not loaded.intersection(HEAVY)


def test_every_public_name_is_there() -> None:
    # Those that are imported when they are first asked for, too.
    for name in mc_store.__all__:
        assert getattr(mc_store, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = mc_store.no_such_name  # type: ignore[attr-defined]


def test_every_module_says_what_it_is_for() -> None:
    modules = [info.name for info in pkgutil.walk_packages(mc_store.__path__, "mc_store.")]
    assert "mc_store._native" in modules
    code = """
import importlib, sys
print(*[name for name in sys.argv[1:] if not importlib.import_module(name).__doc__])
"""
    assert run_python(code, *modules).stdout.split() == []


def test_version_is_that_of_the_distribution() -> None:
    try:
        installed = importlib.metadata.version("mc-store")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("mc-store is not installed: the package is used from its sources")
    assert mc_store.__version__ == installed


def test_interpreter_without_a_lock_stays_without() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter has a lock")
    code = "import sys, mc_store.mooncake.store; print(sys._is_gil_enabled())"
    assert run_python(code).stdout == "False\n"
