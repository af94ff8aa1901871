"""The store under the module name of older releases of Mooncake, ``distributed_object_store``."""

from __future__ import annotations

from mc_store.mooncake.store import MooncakeDistributedStore

__all__ = ["DistributedObjectStore", "distributed_object_store"]


class DistributedObjectStore(MooncakeDistributedStore):
    """``MooncakeDistributedStore`` as older releases of Mooncake name and describe it.

    Every method of ``MooncakeDistributedStore`` is here, ``initAll``, ``isExist``, ``getSize`` and
    the other older spellings among them.

    raise_key_error: ``get`` raises ``KeyError`` instead of returning ``b""``. The oldest
        description of the class promises that; newer releases, and the engines written for them,
        expect ``b""``.
    """

    def __init__(self, *, raise_key_error: bool = False) -> None:
        super().__init__()
        self._raise_key_error = raise_key_error

    def get(self, key: str) -> bytes:
        """Returns the key's value.

        A key without a value, or with one that cannot be read, gives ``b""``, or raises
        ``KeyError`` if the store was made with ``raise_key_error=True``. No key has the value
        ``b""``.
        """
        value = super().get(key)
        if not value and self._raise_key_error:
            raise KeyError(key)
        return value

    def isExist(self, key: str) -> int:
        """Returns 1 if the key has a value, 0 if it has none, and -1 for every error.

        ``is_exist`` returns the error's own number.
        """
        return max(self.is_exist(key), -1)


distributed_object_store = DistributedObjectStore
"""The class as the first releases call it: ``from distributed_object_store import
distributed_object_store``."""
