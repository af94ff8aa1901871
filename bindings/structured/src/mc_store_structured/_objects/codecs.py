"""The encodings of columns, by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .._tensor import arrays
from .columns import Codec, Scalars, TextLike
from .errors import StructuredFormatError
from .media import MediaBytes, MediaLists
from .ragged import RaggedTensors, TypedRagged
from .tensor_dicts import RaggedTensorDicts

RECURSIVE = "structured_recursive"


def codec_of(name: str, dtype: str | None = None, keys: Iterable[str] | None = None) -> Codec:
    """The encoding ``name``, for elements of ``dtype`` and dicts of ``keys`` if it has a choice.

    Raises ``ValueError`` for another name.
    """
    if name == "ndarray":
        return Scalars(dtype)
    if name == "typed_ragged":
        return TypedRagged(dtype)
    if name == "ragged_tensor_dict":
        return RaggedTensorDicts(keys)
    if name == "msgpack_ragged":
        return TextLike(name, _pack, _unpack)
    try:
        return _PLAIN[name]
    except KeyError:
        known = sorted([*_PLAIN, "ndarray", "typed_ragged", "msgpack_ragged", "ragged_tensor_dict"])
        message = f"unsupported schema codec: {name!r}; use 'auto' or one of {known}"
        raise ValueError(message) from None


def has_msgpack() -> bool:
    """Whether the package msgpack is installed, which ``msgpack_ragged`` needs."""
    return arrays.imported("msgpack") is not None


def is_plain(value: object, depth: int = 32) -> bool:
    """Whether ``value`` is made of None, bool, int, float, str, lists, and dicts with str keys."""
    if value is None or isinstance(value, str | int | float):
        return type(value) in (type(None), str, int, float, bool)
    if not depth:
        return False
    if type(value) is list:
        return all(is_plain(item, depth - 1) for item in value)
    if type(value) is dict:
        return all(type(key) is str and is_plain(item, depth - 1) for key, item in value.items())
    return False


def _pack(value: object) -> bytes:
    packed: bytes = _msgpack().packb(value, use_bin_type=True)
    return packed


def _unpack(data: bytes) -> Any:
    return _msgpack().unpackb(data, raw=False, strict_map_key=True, ext_hook=_refuse_extension)


def _refuse_extension(code: int, _: bytes) -> Any:
    raise StructuredFormatError(f"a msgpack extension of type {code}")


def _msgpack() -> Any:
    msgpack = arrays.imported("msgpack")
    if msgpack is None:
        raise ImportError("columns of msgpack need it: pip install msgpack")
    return msgpack


def _dump_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a row of text is a {type(value).__name__}")
    return value.encode()


def _dump_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a row of bytes is a {type(value).__name__}")
    return bytes(value)


_PLAIN: dict[str, Codec] = {
    "utf8_ragged": TextLike("utf8_ragged", _dump_text, lambda data: data.decode()),
    "bytes_ragged": TextLike("bytes_ragged", _dump_bytes, bytes),
    "json_ragged": TextLike(
        "json_ragged",
        lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(),
        json.loads,
    ),
    "ragged_tensor": RaggedTensors(),
    "media_bytes": MediaBytes(),
    "media_list_ragged": MediaLists(),
}
