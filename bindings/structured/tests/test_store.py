"""The store and this package: which of them knows the other, and how they meet."""

from __future__ import annotations

import ast
import inspect
import pydoc
from pathlib import Path

from _cluster import run_python
from mc_store.mooncake import dataproto_catalog as forwarded_catalog
from mc_store.mooncake import store
from mc_store.mooncake import structured_object_store as forwarded_objects

import mc_store_structured
from mc_store_structured import dataproto_catalog, structured_object_store, tensors
from mc_store_structured.tensor_methods import TensorMethods

#: All that this package may import of the store: what programs use too, and locks for forks.
MAY_IMPORT = {
    ("mc_store", "ReplicateConfig"),
    ("mc_store.mooncake._fork", "own_lock"),
}
Store = store.MooncakeDistributedStore


def test_little_of_the_store_is_imported() -> None:
    found = set()
    for path in Path(mc_store_structured.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {(name.name, "") for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {(node.module or "", name.name) for name in node.names}
    ours = {it for it in found if it[0].partition(".")[0] == "mc_store"}
    assert ours == MAY_IMPORT


def test_the_store_has_every_tensor_method() -> None:
    names = [name for name in dir(TensorMethods) if not name.startswith("_")]
    assert len(names) > 40
    for name in names:
        assert getattr(Store, name) is getattr(TensorMethods, name)
    code = """
import sys
from mc_store.mooncake.store import MooncakeDistributedStore
print(*(name for name in dir(MooncakeDistributedStore) if "tensor" in name))
assert "mc_store_structured" not in sys.modules
"""
    assert run_python(code).stdout.split() == names


def test_methods_of_the_store_show_their_arguments_and_descriptions() -> None:
    # In a process of its own: no other test has asked for one of them.
    code = """
import pydoc
from mc_store.mooncake.store import MooncakeDistributedStore
print(pydoc.plain(pydoc.render_doc(MooncakeDistributedStore)))
"""
    shown = run_python(code).stdout
    assert shown.rstrip() == pydoc.plain(pydoc.render_doc(Store)).rstrip()
    assert "put_tensor(self, key: 'str', tensor: 'object') -> 'int'" in shown
    for name in ("put_tensor", "batch_upsert_tensor_with_parallelism"):
        assert inspect.getdoc(getattr(Store, name)) == inspect.getdoc(getattr(TensorMethods, name))


def test_the_first_tensor_method_that_is_asked_for_may_be_any() -> None:
    code = """
from mc_store.mooncake.store import MooncakeDistributedStore

class Counting(MooncakeDistributedStore):
    def upsert_tensor(self, key, tensor):
        return super().upsert_tensor(key, tensor) - 1

print(Counting().upsert_tensor("key", object()))
print(Counting().save_tensor_to_safetensor("../key"))
"""
    done = run_python(code)
    assert done.stdout.split() == ["-601", "-600"]


def test_modules_of_mooncake_have_the_same_names() -> None:
    for here, there in (
        (structured_object_store, forwarded_objects),
        (dataproto_catalog, forwarded_catalog),
    ):
        assert there.__all__ == here.__all__
        for name in here.__all__:
            assert getattr(there, name) is getattr(here, name)
    for name in tensors.__all__:
        assert name in store.__all__
        assert name in dir(store)
        assert getattr(store, name) is getattr(tensors, name)
