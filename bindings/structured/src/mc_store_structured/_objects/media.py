"""Columns of images and of bytes: one for each row, or a list of them.

An image of Pillow is stored as its pixels with mode and size. An image with a palette is refused:
its pixels alone would not bring it back.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .._tensor import arrays
from .columns import (
    ColumnSource,
    EncodedColumn,
    nulls_of,
    offsets_of,
    read_bytes,
    read_nulls,
    read_offsets,
)
from .errors import StructuredFormatError
from .slices import Rows

_SOURCE = {"encode_source": "raw_pixels_from_object"}

#: Bytes of a pixel; 0: eight pixels in a byte, rows of whole bytes.
_PIXEL_BYTES = {
    "1": 0,
    "L": 1,
    "LA": 2,
    "RGB": 3,
    "RGBA": 4,
    "RGBX": 4,
    "CMYK": 4,
    "YCbCr": 3,
    "HSV": 3,
    "LAB": 3,
    "I": 4,
    "F": 4,
    "I;16": 2,
}


def is_media(value: object) -> bool:
    """Whether ``value`` is an image of Pillow."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


class MediaBytes:
    """Rows that are images."""

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        items = [None if value is None else _encode(value) for value in values]
        data = [b"" if item is None else item[0] for item in items]
        payloads = {
            "data": b"".join(data),
            "offsets": offsets_of([len(part) for part in data]),
            "nulls": nulls_of(values),
        }
        kinds = [{"kind": "bytes"} if item is None else item[1] for item in items]
        return EncodedColumn("media_bytes", len(values), payloads, _metadata(kinds))

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        nulls = read_nulls(source)
        offsets = read_offsets(source, "offsets", source.rows, source.size("data"))
        kinds = _kinds(source, source.rows)
        spans = [(int(offsets[row]), int(offsets[row + 1])) for row in rows]
        parts = read_bytes(source, spans)
        return [
            None if nulls[row] else _decode(part, kinds[row])
            for row, part in zip(rows, parts, strict=True)
        ]


class MediaLists:
    """Rows that are lists of images or bytes."""

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        items = [_encode(item) for value in values if value is not None for item in value]
        payloads = {
            "data": b"".join(data for data, _ in items),
            "row_offsets": offsets_of([0 if value is None else len(value) for value in values]),
            "byte_offsets": offsets_of([len(data) for data, _ in items]),
            "nulls": nulls_of(values),
        }
        metadata = _metadata([kind for _, kind in items])
        return EncodedColumn("media_list_ragged", len(values), payloads, metadata)

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        nulls = read_nulls(source)
        count = max(0, len(source.array("byte_offsets", "<i8").reshape(-1)) - 1)
        items = read_offsets(source, "byte_offsets", count, source.size("data"))
        firsts = read_offsets(source, "row_offsets", source.rows, count)
        kinds = _kinds(source, count)
        places = [range(int(firsts[row]), int(firsts[row + 1])) for row in rows]
        flat = [place for row in places for place in row]
        spans = [(int(items[place]), int(items[place + 1])) for place in flat]
        parts = iter(read_bytes(source, spans))
        return [
            None if nulls[row] else [_decode(next(parts), kinds[place]) for place in row_places]
            for row, row_places in zip(rows, places, strict=True)
        ]


def _encode(item: object) -> tuple[bytes, dict[str, Any]]:
    if is_media(item):
        image: Any = item
        if image.mode not in _PIXEL_BYTES:
            raise ValueError(f"an image of mode {image.mode} cannot be stored: convert it to RGB")
        kind = {"kind": "pil_raw", "mode": image.mode, "size": list(image.size), "format": None}
        return image.tobytes(), kind
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item), {"kind": "bytes"}
    raise TypeError(f"a list of media has a {type(item).__name__}")


def _metadata(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    metadata: dict[str, Any] = {**_SOURCE, "media_encodings": kinds}
    if any(kind["kind"] != "bytes" for kind in kinds):
        metadata["media_types"] = ["image/raw"]
    return metadata


def _kinds(source: ColumnSource, count: int) -> list[Mapping[str, Any]]:
    kinds = source.metadata.get("media_encodings")
    if (
        not isinstance(kinds, list)
        or len(kinds) != count
        or not all(isinstance(kind, Mapping) for kind in kinds)
    ):
        raise StructuredFormatError(f"column of media does not describe its {count} items")
    return kinds


def _decode(data: memoryview, kind: Mapping[str, Any]) -> Any:
    if kind.get("kind") == "bytes":
        return bytes(data)
    mode, size = kind.get("mode"), kind.get("size")
    if (
        kind.get("kind") != "pil_raw"
        or mode not in _PIXEL_BYTES
        or not isinstance(size, list)
        or len(size) != 2
        or not all(type(length) is int and length >= 0 for length in size)
    ):
        raise StructuredFormatError(f"unknown kind of media: {dict(kind)!r:.200}")
    width, height = size
    # Before Pillow allocates an image of that size.
    if height * (width * _PIXEL_BYTES[mode] or (width + 7) // 8) != len(data):
        raise StructuredFormatError(f"an image of {width}x{height} {mode} has {len(data)} bytes")
    pillow = arrays.imported("PIL.Image")
    if pillow is None:
        raise ImportError("a column of images needs Pillow: pip install pillow")
    return pillow.frombytes(mode, (width, height), bytes(data))
