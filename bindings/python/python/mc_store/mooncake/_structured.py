"""The way to the package mc-store-structured, which has a part of the store's interface: tensors,
and objects of many members.

That package depends on this one, and not the other way, so that a store of bytes needs no other
package. It is imported when one of its calls is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_PACKAGE = "mc_store_structured"

_TENSOR_METHODS = """
    batch_get_tensor batch_get_tensor_into batch_get_tensor_into_cuda
    batch_get_tensor_with_parallelism batch_get_tensor_with_parallelism_into
    batch_get_tensor_with_tp batch_get_tensor_with_tp_into batch_pub_tensor batch_pub_tensor_with_tp
    batch_put_tensor batch_put_tensor_from batch_put_tensor_with_parallelism
    batch_put_tensor_with_parallelism_from batch_put_tensor_with_tp batch_put_tensor_with_tp_from
    batch_upsert_pub_tensor batch_upsert_tensor batch_upsert_tensor_from
    batch_upsert_tensor_with_parallelism batch_upsert_tensor_with_parallelism_from get_tensor
    get_tensor_into get_tensor_into_cuda get_tensor_with_parallelism
    get_tensor_with_parallelism_into get_tensor_with_tp get_tensor_with_tp_into
    load_tensor_from_safetensor pub_tensor pub_tensor_with_tp put_tensor put_tensor_from
    put_tensor_with_parallelism put_tensor_with_parallelism_from put_tensor_with_tp
    put_tensor_with_tp_from save_tensor_to_safetensor upsert_pub_tensor upsert_tensor
    upsert_tensor_from upsert_tensor_with_parallelism upsert_tensor_with_parallelism_from
""".split()


def is_installed() -> bool:
    """Returns whether the package is installed, without importing it."""
    return find_spec(_PACKAGE) is not None


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Makes imports of the package in the block raise an error that names the package to install.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:
            raise
        lacking = f"{what} needs the package mc-store-structured: pip install mc-store-structured"
        raise ModuleNotFoundError(lacking, name=_PACKAGE) from None


def of_tensors(name: str) -> Any:
    """Returns the object with this name in the package's module for tensors.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    with needed_for(name):
        return getattr(import_module(f"{_PACKAGE}.tensors"), name)


if TYPE_CHECKING:
    from mc_store_structured.tensor_methods import TensorMethods as TensorMethods
else:

    class _Method:
        """A tensor method that has not been used yet. The first access to any of them replaces all
        of them in the class by the package's functions."""

        def __set_name__(self, owner, name):
            def lacking(self, /, *args, **kwargs):
                """Needs the package mc-store-structured."""
                with needed_for(f"{name}()"):
                    import_module(_PACKAGE)
                return getattr(self, name)(*args, **kwargs)  # installed in the meantime

            lacking.__name__ = name
            lacking.__qualname__ = f"{owner.__name__}.{name}"
            self._name, self._lacking = name, lacking

        def __get__(self, store, owner=None):
            try:
                methods = import_module(f"{_PACKAGE}.tensor_methods").TensorMethods
            except ModuleNotFoundError as error:
                if error.name != _PACKAGE:
                    raise
                return self._lacking.__get__(store, owner)
            for base in reversed(methods.__mro__[:-1]):
                for name, value in vars(base).items():
                    if not name.startswith("__"):
                        setattr(TensorMethods, name, value)
            return vars(TensorMethods)[self._name].__get__(store, owner)

    class TensorMethods:
        """Tensors, by the package mc-store-structured. Without it these methods raise
        ``ModuleNotFoundError``."""

        vars().update((name, _Method()) for name in _TENSOR_METHODS)
