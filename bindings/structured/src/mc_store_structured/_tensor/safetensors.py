"""The safetensors format: the length of a header (u64, little-endian), the header, the data."""

from __future__ import annotations

import math
import os
from typing import Any, BinaryIO, NamedTuple

from .layout import ElementType, Shape, TensorError, element_type
from .shards import new_buffer

_LONGEST_HEADER = 100_000_000  # the format's own limit
_ALIGNMENT = 8

_ELEMENT_OF = {
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "BOOL": "bool",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_SPELLING_OF = {name: spelling for spelling, name in _ELEMENT_OF.items()}


class FileTensor(NamedTuple):
    """A tensor in a file: its elements are a buffer of bytes in row-major order."""

    name: str
    element: ElementType
    shape: Shape
    data: Any


def write_file(path: str, tensor: FileTensor) -> None:
    """Writes a file of one tensor, which appears whole or not at all. Raises `OSError`,
    or `ValueError` for an impossible path."""
    import json

    size = memoryview(tensor.data).nbytes
    described = {
        "dtype": _SPELLING_OF[tensor.element.name],
        "shape": tensor.shape,
        "data_offsets": [0, size],
    }
    header = json.dumps({tensor.name: described}, separators=(",", ":"), ensure_ascii=False)
    head = header.encode("utf-8", "surrogatepass")
    head += b" " * (-len(head) % _ALIGNMENT)
    unfinished = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        with open(unfinished, "xb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            file.write(tensor.data)
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise


def read_file(path: str, name: str) -> FileTensor:
    """The tensor of that name in a file, or else the first one in it.

    Raises `TensorError` if there is no such file or no tensor in it. Reads no more than the file
    has.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = _header(file, size)
            start = file.tell()
            found = name if name in header else _first(header)
            element, shape, begin, end = _described(header[found])
            if not 0 <= begin <= end <= size - start:
                raise TensorError(f"{found!r} lies beyond the end of {path}")
            data = new_buffer(end - begin)
            file.seek(start + begin)
            if file.readinto(data) != end - begin:
                raise TensorError(f"{path} became shorter")
    except (OSError, ValueError) as error:  # the latter is for a path with a NUL
        raise TensorError(str(error)) from None
    return FileTensor(found, element, shape, data)


def _header(file: BinaryIO, size: int) -> dict[str, Any]:
    import json

    length = int.from_bytes(file.read(8), "little")
    if length > min(_LONGEST_HEADER, size - 8):
        raise TensorError("no safetensors file")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise TensorError(f"no safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise TensorError("no safetensors file")
    header.pop("__metadata__", None)
    return header


def _first(header: dict[str, Any]) -> str:
    if not header:
        raise TensorError("no tensor in the file")
    return min(header, key=lambda name: _described(header[name])[2])


def _described(entry: Any) -> tuple[ElementType, Shape, int, int]:
    try:
        element = element_type(_ELEMENT_OF[entry["dtype"]])
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise TensorError(f"an entry that is no tensor: {error!r}") from None
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise TensorError("an entry with impossible numbers")
    if element.size * math.prod(shape) != end - begin:
        raise TensorError("an entry whose shape needs another number of bytes")
    return element, shape, begin, end
