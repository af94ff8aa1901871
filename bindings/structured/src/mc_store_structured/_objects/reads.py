"""Reads payloads, whole or ranges of them.

What a manifest says about sizes is believed only as far as 64 MiB: before more memory is allocated
the store is asked for the size of every chunk, if it has ``get_size``. So a manifest makes no
reader allocate memory for bytes that such a store does not have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .errors import StructuredTransferError
from .manifest import Chunk, Payload
from .memory import Buffer, Results, address_of
from .policy import BundleStore

#: Payloads up to this size are read together, many with one call, and then copied.
_SMALL = 1 << 20

#: Bytes and keys of one such call.
_TOGETHER_BYTES = 256 << 20
_TOGETHER_KEYS = 256

#: Memory that is allocated on a manifest's word.
_TRUSTED = 64 << 20


class Range(NamedTuple):
    """Bytes of a payload: ``size`` of them from ``start`` on."""

    start: int
    size: int


class Reader:
    """Reads from ``store`` into memory of ``results``."""

    def __init__(self, store: BundleStore, results: Results) -> None:
        self._store = store
        self._results = results

    def whole(self, payloads: Sequence[Payload]) -> list[memoryview]:
        """The bytes of each payload, in writable memory of its own.

        Raises ``StructuredTransferError`` if one is missing or has another size.
        """
        found: dict[int, memoryview] = {}
        for group in _small_groups(payloads):
            chunks = [payloads[place].chunks[0] for place in group]
            for place, value in zip(group, self._values(chunks), strict=True):
                found[place] = self._copy(value)
        for place, payload in enumerate(payloads):
            if place not in found:
                self._vouch(payload.chunks, payload.size)
                found[place] = self._results.allocate(payload.size)
                self.into(payload, found[place])
        return [found[place] for place in range(len(payloads))]

    def into(self, payload: Payload, target: memoryview) -> None:
        """Reads the payload into ``target``, which has exactly its size.

        Raises ``StructuredTransferError`` as :meth:`whole`; the content of ``target`` is then
        undefined.
        """
        batch_get_into = getattr(self._store, "batch_get_into", None)
        address = address_of(target) if batch_get_into is not None else 0
        for offset, chunks in _large_groups(payload.chunks):
            if batch_get_into is None:
                for chunk, value in zip(chunks, self._values(chunks), strict=True):
                    target[offset : offset + chunk.size] = memoryview(value).cast("B")
                    offset += chunk.size
            else:
                ends = accumulate((chunk.size for chunk in chunks), initial=address + offset)
                counts = batch_get_into(
                    [chunk.key for chunk in chunks],
                    list(ends)[:-1],
                    [chunk.size for chunk in chunks],
                )
                for chunk, count in zip(chunks, counts, strict=True):
                    _check(chunk, count)

    def ranges(self, payload: Payload, ranges: Sequence[Range]) -> memoryview:
        """The bytes of the ranges, one after the other, in writable memory of its own.

        Raises ``ValueError`` if a range exceeds the payload, ``StructuredTransferError`` as
        :meth:`whole`.
        """
        total = sum(size for _, size in ranges)
        pieces = list(_pieces(payload, ranges))
        self._vouch([payload.chunks[place] for place in {piece.chunk for piece in pieces}], total)
        target = self._results.allocate(total)
        self._pieces_into(payload, pieces, target)
        return target

    def ranges_into(self, payload: Payload, ranges: Sequence[Range], target: memoryview) -> None:
        """As :meth:`ranges`, into ``target``, which has exactly the size of all ranges."""
        self._pieces_into(payload, list(_pieces(payload, ranges)), target)

    def _pieces_into(self, payload: Payload, pieces: list[_Piece], target: memoryview) -> None:
        by_chunk: dict[int, list[_Piece]] = {}
        for piece in pieces:
            by_chunk.setdefault(piece.chunk, []).append(piece)
        # A call of this package's store; Mooncake's want registered memory.
        get_ranges = getattr(self._store, "_get_ranges_of", None)
        if get_ranges is None:
            for place, parts in by_chunk.items():
                value = memoryview(self._values([payload.chunks[place]])[0]).cast("B")
                for _, source, size, offset in parts:
                    target[offset : offset + size] = value[source : source + size]
        elif by_chunk:
            self._with_ranges(get_ranges, payload, by_chunk, address_of(target))

    def _with_ranges(
        self, call: Any, payload: Payload, by_chunk: dict[int, list[_Piece]], address: int
    ) -> None:
        chunks = [payload.chunks[place] for place in by_chunk]
        counts = call(
            [chunk.key for chunk in chunks],
            None,
            [[address + piece.target for piece in parts] for parts in by_chunk.values()],
            [[piece.source for piece in parts] for parts in by_chunk.values()],
            [[piece.size for piece in parts] for parts in by_chunk.values()],
        )
        for chunk, parts, read in zip(chunks, by_chunk.values(), counts, strict=True):
            wanted = [piece.size for piece in parts]
            if list(read) != wanted:
                code = min(read, default=None)
                raise StructuredTransferError(
                    f"get failed for ranges of {chunk.key}: expected {wanted[:3]}, "
                    f"got {list(read)[:3]}",
                    chunk.key,
                    code if code is not None and code < 0 else None,
                )

    def _values(self, chunks: Sequence[Chunk]) -> list[Buffer]:
        """The value of each chunk, of the size that the manifest says."""
        keys = [chunk.key for chunk in chunks]
        batch_get_buffer = getattr(self._store, "batch_get_buffer", None)
        values: list[Buffer]
        if batch_get_buffer is None:
            values = [self._store.get(key) for key in keys]
        else:
            values = batch_get_buffer(keys)
        for chunk, value in zip(chunks, values, strict=True):
            _check(chunk, 0 if value is None else len(value))
        return values

    def _copy(self, value: Buffer) -> memoryview:
        target = self._results.allocate(len(value))
        target[:] = memoryview(value).cast("B")
        return target

    def _vouch(self, chunks: Sequence[Chunk], size: int) -> None:
        get_size = getattr(self._store, "get_size", None)
        if size <= _TRUSTED or get_size is None:
            return
        for chunk in chunks:
            _check(chunk, get_size(chunk.key))


class _Piece(NamedTuple):
    """A part of a range within one chunk: where it lies there, and where it goes."""

    chunk: int
    source: int
    size: int
    target: int


def _pieces(payload: Payload, ranges: Sequence[Range]) -> Iterator[_Piece]:
    starts = list(accumulate((chunk.size for chunk in payload.chunks), initial=0))
    target = 0
    for start, size in ranges:
        if start < 0 or size < 0 or start + size > payload.size:
            raise ValueError(
                f"range of {size} bytes at {start} exceeds the {payload.size} bytes of "
                f"{payload.key}"
            )
        while size:
            chunk = bisect_right(starts, start) - 1
            part = min(size, starts[chunk + 1] - start)
            yield _Piece(chunk, start - starts[chunk], part, target)
            start, size, target = start + part, size - part, target + part


def _small_groups(payloads: Sequence[Payload]) -> Iterator[list[int]]:
    """Places of payloads that are read with one call."""
    group: list[int] = []
    size = 0
    for place, payload in enumerate(payloads):
        if len(payload.chunks) != 1 or payload.size > _SMALL:
            continue
        if len(group) == _TOGETHER_KEYS or size + payload.size > _TOGETHER_BYTES:
            yield group
            group, size = [], 0
        group.append(place)
        size += payload.size
    if group:
        yield group


def _large_groups(chunks: Sequence[Chunk]) -> Iterator[tuple[int, list[Chunk]]]:
    """Chunks that are read with one call, and the offset of the first one. A call may stage what it
    reads, so a payload of many gigabytes takes several."""
    offset = size = 0
    group: list[Chunk] = []
    for chunk in chunks:
        if group and size + chunk.size > _TOGETHER_BYTES:
            yield offset, group
            offset, size, group = offset + size, 0, []
        if chunk.size:
            group.append(chunk)
            size += chunk.size
    if group:
        yield offset, group


def _check(chunk: Chunk, count: int) -> None:
    if count != chunk.size:
        raise StructuredTransferError(
            f"get failed for {chunk.key}: expected {chunk.size} bytes, got {count}",
            chunk.key,
            count if count < 0 else None,
        )
