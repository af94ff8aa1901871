"""A store without the package mc-store-structured, which has the tensors and structured objects."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from _cluster import REPOSITORY, run_python
from _environments import Environment

REMEDY = "needs the package mc-store-structured: pip install mc-store-structured"

#: A statement, and what needs the package.
USES = [
    ("MooncakeDistributedStore().put_tensor('key', object())", "put_tensor()"),
    ("MooncakeDistributedStore().get_tensor('key')", "get_tensor()"),
    ("MooncakeDistributedStore.batch_put_tensor", ""),
    ("from mc_store.mooncake.store import TensorParallelism", "TensorParallelism"),
    (
        "import mc_store.mooncake.structured_object_store",
        "mc_store.mooncake.structured_object_store",
    ),
    ("import mc_store.mooncake.dataproto_catalog", "mc_store.mooncake.dataproto_catalog"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.mark.parametrize(("statement", "needs"), USES)
def test_calls_say_what_to_install(environment: Environment, statement: str, needs: str) -> None:
    store = "from mc_store.mooncake.store import MooncakeDistributedStore\n"

    done = environment.run(store + statement, check=False)

    if needs:
        assert f"ModuleNotFoundError: {needs} {REMEDY}" in done.stderr
    else:
        assert not done.stderr


def test_the_store_is_whole_without_it(environment: Environment) -> None:
    done = environment.run(
        """
from mc_store.mooncake.store import *
from mc_store.mooncake import store
from mc_store.mooncake.async_store import MooncakeDistributedStoreAsync
made = MooncakeDistributedStore()
assert "put_tensor" in dir(made) and "async_put_tensor" in dir(MooncakeDistributedStoreAsync())
assert not hasattr(store, "no_such_name")
help(MooncakeDistributedStore)
"""
    )
    assert "Needs the package mc-store-structured" in done.stdout


def test_the_store_finds_it_when_it_is_installed_later(environment: Environment) -> None:
    done = environment.run(
        f"""
import sys
from mc_store.mooncake.store import MooncakeDistributedStore
put = MooncakeDistributedStore().put_tensor
sys.path.append({str(REPOSITORY / "bindings/structured/src")!r})
print(put("key", object()))
print(MooncakeDistributedStore().put_tensor("key", object()))
"""
    )
    assert done.stdout.split() == ["-600", "-600"]


def test_the_store_loads_it_when_it_is_used_first() -> None:
    run_python(
        """
import sys
from mc_store.mooncake.store import MooncakeDistributedStore
made = MooncakeDistributedStore()
assert made.get("key") == b""
assert not [name for name in sys.modules if name.startswith("mc_store_structured")]
assert made.put_tensor("key", object()) == -600
assert "mc_store_structured" in sys.modules
"""
    )


def dependencies(project: Path) -> list[str]:
    described = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    return [*described["dependencies"]] if "dependencies" in described else []


def test_the_package_that_is_mooncake_brings_both() -> None:
    bindings = REPOSITORY / "bindings"
    brought = " ".join(dependencies(bindings / "python" / "mooncake-shim"))
    assert "mc-store>=" in brought
    assert "mc-store-structured>=" in brought
    # The arrow points one way.
    assert dependencies(bindings / "python") == []
    assert dependencies(bindings / "structured") == ["mc-store>=0.1,<0.2"]
