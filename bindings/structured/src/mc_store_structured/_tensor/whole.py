"""Methods for tensors that are stored as one object each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import memory
from .arrays import (
    Elements,
    Like,
    alias_tensor,
    check_like,
    elements_of,
    metadata_at,
    read_tensor,
)
from .byte_store import (
    INVALID_PARAMS,
    OBJECT_NOT_FOUND,
    ByteStore,
    attempt,
    checked_keys,
    checked_list,
    refused,
)
from .layout import TensorError
from .writes import Part, Write, config_of, group_ids_fit, object_write, whole_write, write

if TYPE_CHECKING:
    from mc_store import ReplicateConfig

    _Base = ByteStore
else:
    _Base = object


class WholeTensorMethods(_Base):
    """Tensors as one object each: put, upserted, read, from and into memory of the caller."""

    def put_tensor(self, key: str, tensor: object) -> int:
        """Stores a tensor: anything of torch, numpy, DLPack or the buffer protocol, in host memory
        or not.

        Contiguous host memory is sent as it lies; the call holds it until it returns. Returns 0
        (also if the key exists, whose tensor then stays), -600 if this is no tensor that can be
        stored, or the code of the put.
        """
        return self._write_tensors("put_tensor", [key], [tensor], None, update=False)[0]

    def pub_tensor(self, key: str, tensor: object, config: ReplicateConfig | None = None) -> int:
        """`put_tensor` with a `ReplicateConfig`."""
        return self._write_tensors("pub_tensor", [key], [tensor], config, update=False)[0]

    def upsert_tensor(self, key: str, tensor: object) -> int:
        """`put_tensor` that replaces what the key has."""
        return self._write_tensors("upsert_tensor", [key], [tensor], None, update=True)[0]

    def upsert_pub_tensor(
        self, key: str, tensor: object, config: ReplicateConfig | None = None
    ) -> int:
        """`upsert_tensor` with a `ReplicateConfig`."""
        return self._write_tensors("upsert_pub_tensor", [key], [tensor], config, update=True)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[object]) -> list[int]:
        """`put_tensor` for many: a code for each, all -600 if the lists differ in length."""
        return self._write_tensors("batch_put_tensor", keys, tensors_list, None, update=False)

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[object],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """`batch_put_tensor` with a `ReplicateConfig`, whose group ids are one for each key."""
        return self._write_tensors("batch_pub_tensor", keys, tensors_list, config, update=False)

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[object]) -> list[int]:
        """`batch_put_tensor` that replaces what the keys have."""
        return self._write_tensors("batch_upsert_tensor", keys, tensors_list, None, update=True)

    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[object],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """`batch_upsert_tensor` with a `ReplicateConfig`, whose group ids are one each."""
        name = "batch_upsert_pub_tensor"
        return self._write_tensors(name, keys, tensors_list, config, update=True)

    def _write_tensors(
        self,
        operation: str,
        keys: Sequence[str],
        tensors: Sequence[object],
        config: ReplicateConfig | None,
        *,
        update: bool,
    ) -> list[int]:
        names, values = checked_keys(keys), checked_list(tensors, "tensors_list")
        codes = [INVALID_PARAMS] * len(names)
        if len(values) != len(names) or not group_ids_fit(config, len(names)):
            refused(operation, names, "not as many tensors or group ids as keys")
            return codes
        places: list[int] = []
        writes: list[Write] = []
        for place, (key, value) in enumerate(zip(names, values, strict=True)):
            try:
                writes.append(whole_write(key, elements_of(value)))
            except TensorError as error:
                refused(operation, key, error)
            else:
                places.append(place)
        written = write(self, writes, config_of(config, places), update=update)
        for place, code in zip(places, written, strict=True):
            codes[place] = code
        return codes

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Stores the tensor object (its header, then its elements) of `size` bytes at `buffer_ptr`.

        Returns 0, -600 if no such object lies there, or the code of the put.
        """
        return self._write_objects(
            "put_tensor_from", [key], [buffer_ptr], [size], None, update=False
        )[0]

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from` that replaces what the key has."""
        return self._write_objects(
            "upsert_tensor_from", [key], [buffer_ptr], [size], None, update=True
        )[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`put_tensor_from` for many: a code for each, all -600 if one of them is refused."""
        name = "batch_put_tensor_from"
        return self._write_objects(name, keys, buffer_ptrs, sizes, None, update=False)

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`batch_put_tensor_from` that replaces what the keys have."""
        name = "batch_upsert_tensor_from"
        return self._write_objects(name, keys, buffer_ptrs, sizes, None, update=True)

    def _write_objects(
        self,
        operation: str,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None,
        *,
        update: bool,
    ) -> list[int]:
        names = checked_keys(keys)
        codes = [INVALID_PARAMS] * len(names)
        parts = checked_parts(buffer_ptrs, sizes)
        if parts is None or len(parts) != len(names) or not group_ids_fit(config, len(names)):
            refused(operation, names, "not as many buffers or group ids as keys")
            return codes
        try:
            for part in parts:
                metadata_at(*part)
        except TensorError as error:
            refused(operation, names, error)
            return codes
        writes = [object_write(key, part) for key, part in zip(names, parts, strict=True)]
        return write(self, writes, config, update=update)

    def get_tensor(self, key: str, *, like: Like | None = None) -> Any:
        """The tensor of a key in memory of its own, or `None` if there is none.

        It is a `torch.Tensor` where torch can be imported and a `numpy.ndarray` elsewhere, or what
        `like` says. Raises `TypeError` where that library has no elements of this type (bfloat16
        and float8 in numpy without ml_dtypes; unsigned integers and float8 in old versions of
        torch), and `ImportError` where there is no such library.
        """
        check_like(like)
        return self._read("get_tensor", key, self.get_buffer(key), like)

    def batch_get_tensor(self, keys: Sequence[str], *, like: Like | None = None) -> list[Any]:
        """`get_tensor` for many: a tensor or `None` for each."""
        check_like(like)
        names = checked_keys(keys)
        found = list(self.batch_get_buffer(names)) if names else []
        found.reverse()
        # Each buffer goes as soon as it is copied.
        return [self._read("batch_get_tensor", name, found.pop(), like) for name in names]

    def _read(self, operation: str, key: str, found: Any, like: Like | None) -> Any:
        if found is None:
            return None
        return attempt(operation, key, lambda: read_tensor(memoryview(found), like), None)

    def get_tensor_into(
        self, key: str, buffer_ptr: int, size: int, *, like: Like | None = None
    ) -> Any:
        """Reads the tensor object of a key into `size` bytes at `buffer_ptr`.

        Returns a tensor (see `get_tensor`) over the elements in that memory, which the caller keeps
        alive, or `None` if there is none or it does not fit; the memory then has any content.
        """
        check_like(like)
        address, room = memory.checked(buffer_ptr, size)
        if address == 0:
            return None
        return self._alias("get_tensor_into", key, address, self.get_into(key, address, room), like)

    def batch_get_tensor_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        like: Like | None = None,
    ) -> list[Any]:
        """`get_tensor_into` for many: a tensor or `None` for each.

        Each is -600 if there are not as many buffers as keys, or one of them is a null pointer.
        """
        check_like(like)
        names = checked_keys(keys)
        parts = checked_parts(buffer_ptrs, sizes)
        if parts is None or len(parts) != len(names) or any(part.address == 0 for part in parts):
            refused("batch_get_tensor_into", names, "not as many buffers as keys, or null pointers")
            return [INVALID_PARAMS] * len(names)
        if not names:
            return []
        codes = self.batch_get_into(
            names, [part.address for part in parts], [part.size for part in parts]
        )
        return [
            self._alias("batch_get_tensor_into", name, part.address, code, like)
            for name, part, code in zip(names, parts, codes, strict=True)
        ]

    def _alias(self, operation: str, key: str, address: int, code: int, like: Like | None) -> Any:
        if code < 0:
            return None
        return attempt(operation, key, lambda: alias_tensor(address, code, like), None)

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Reads the tensor of a key into a contiguous CUDA tensor of torch of the same type and
        shape.

        Returns 0, -704 if there is no such tensor, or -600 if this is no such CUDA tensor.
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
            refused("get_tensor_into_cuda", key, "the target is no CUDA tensor")
            return INVALID_PARAMS
        source = self.get_tensor(key, like="torch")
        if source is None:
            return OBJECT_NOT_FOUND
        if source.dtype != tensor.dtype or source.shape != tensor.shape:
            refused("get_tensor_into_cuda", key, "the target has another type or shape")
            return INVALID_PARAMS
        tensor.detach().copy_(source)
        return 0

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[str], tensors_list: Sequence[Any]
    ) -> list[int]:
        """`get_tensor_into_cuda` for many: a code for each."""
        names, targets = checked_keys(keys), checked_list(tensors_list, "tensors_list")
        if len(names) != len(targets):
            refused("batch_get_tensor_into_cuda", names, "not as many tensors as keys")
            return [INVALID_PARAMS] * len(names)
        return [
            self.get_tensor_into_cuda(name, target)
            for name, target in zip(names, targets, strict=True)
        ]


def checked_parts(buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[Part] | None:
    """The buffers of a batch, or `None` if there are not as many addresses as sizes.

    Raises `TypeError` and `OverflowError` for numbers that are no addresses or sizes.
    """
    addresses, lengths = checked_list(buffer_ptrs, "buffer_ptrs"), checked_list(sizes, "sizes")
    if len(addresses) != len(lengths):
        return None
    return [
        Part(*memory.checked(address, length))
        for address, length in zip(addresses, lengths, strict=True)
    ]


def elements_at(address: int, size: int) -> Elements:
    """The elements of the object of `size` bytes at `address`; `TensorError` if it is no tensor."""
    metadata = metadata_at(address, size)
    start = address + metadata.data_offset
    return Elements(metadata.element, metadata.local_shape, start, metadata.data_bytes, None)
