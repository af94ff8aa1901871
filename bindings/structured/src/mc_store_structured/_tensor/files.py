"""Methods that carry tensors between the store and files in the safetensors format."""

from __future__ import annotations

import os
from typing import Any

from .arrays import Elements, Like, array_of, check_like, elements_of
from .byte_store import FILE_NOT_FOUND, INVALID_PARAMS, attempt, checked_key, refused
from .layout import TensorError, parse
from .parts import PartTensorMethods
from .safetensors import FileTensor, read_file, write_file
from .writes import whole_write, write


class FileTensorMethods(PartTensorMethods):
    """Tensors to and from files, without the safetensors package."""

    def save_tensor_to_safetensor(
        self, key: str, file_name: str | os.PathLike[str] | None = None
    ) -> int:
        """Writes the tensor of a key into a safetensors file of that name, or of the name of the
        key, below the working directory.

        The file appears whole or not at all. Returns 0, -1100 if there is no such tensor, or -600
        if the file cannot be written, or has no name and the key leads out of the directory.
        """
        name = checked_key(key)
        if file_name is None and _leads_out(name):
            reason = "the key leads out of the working directory; pass a file_name"
            refused("save_tensor_to_safetensor", name, reason)
            return INVALID_PARAMS
        path = os.fspath(name if file_name is None else file_name)
        found = self.get_buffer(name)
        if found is None:
            return FILE_NOT_FOUND
        data = memoryview(found)
        try:
            metadata = parse(data, len(data))
        except TensorError as error:
            refused("save_tensor_to_safetensor", name, error)
            return FILE_NOT_FOUND
        elements = data[metadata.data_offset :]
        try:
            write_file(path, FileTensor(name, metadata.element, metadata.local_shape, elements))
        except (OSError, ValueError) as error:
            refused("save_tensor_to_safetensor", name, error)
            return INVALID_PARAMS
        return 0

    def load_tensor_from_safetensor(
        self,
        key: str | None = None,
        file_name: str | os.PathLike[str] | None = None,
        *,
        like: Like | None = None,
    ) -> Any:
        """Stores a tensor of a safetensors file under a key (or the name of the file), and returns
        it.

        It is the tensor that the file has under that key, else the first one in it. Returns `None`
        if there is no such file, no tensor in it, or the put failed. Raises `TypeError` without a
        file name.
        """
        check_like(like)
        if file_name is None:
            raise TypeError("load_tensor_from_safetensor() needs a file_name")
        path = os.fspath(file_name)
        name = path if key is None else checked_key(key)
        return attempt(
            "load_tensor_from_safetensor", path, lambda: self._load(name, path, like), None
        )

    def _load(self, key: str, path: str, like: Like | None) -> Any:
        tensor = read_file(path, key)
        if tensor.name != key:
            refused(
                "load_tensor_from_safetensor", key, f"stored {tensor.name!r}, as {path} has no such"
            )
        memory = elements_of(tensor.data)
        whole = Elements(tensor.element, tensor.shape, memory.address, memory.size, memory.owner)
        (code,) = write(self, [whole_write(key, whole)], None, update=False)
        return None if code else array_of(whole.metadata(), tensor.data, like)


def _leads_out(key: str) -> bool:
    """Returns whether a file with the key as name lies outside the working directory. Other clients
    choose keys, and a directory below may be a link."""
    if not key or key.startswith("/") or ".." in key.split("/"):
        return True
    here = os.path.realpath(".")
    return os.path.commonpath([here, os.path.realpath(os.path.dirname(key) or ".")]) != here
