"""Which objects a request to write a part of a tensor comes to."""

from __future__ import annotations

from typing import Any, TypeAlias

from .arrays import Elements, elements_of, metadata_at
from .axes import (
    Axes,
    WriterPartition,
    axes_of,
    parallelism_manifest_key,
    part_key,
    tensor_axis,
    with_tensor_rank,
    writer_key,
    writer_manifest_key,
)
from .layout import Manifest, TensorError, TensorMetadata
from .shards import shard_range, with_dim
from .whole import elements_at
from .writes import (
    Part,
    Write,
    cut_write,
    object_write,
    part_write,
    whole_write,
    write_of,
)

# Objects that are written together; the next stage follows when all of them are there.
Stages: TypeAlias = list[list[Write]]


def tensor_stages(key: str, tensor: object, parallelism: Any, writer_partition: Any) -> Stages:
    """The objects for a tensor that is given as an array.

    With tensor parallelism as the only axis the array is the part itself. With further axes, and
    for a writer partition, it is the whole tensor, of which the part is cut. Without tensor
    parallelism it is stored as it is. `TensorError` if the array or the request is refused.
    """
    whole = elements_of(tensor)
    request = _request(parallelism, writer_partition)
    if request is None:
        return [[whole_write(key, whole)]]
    if isinstance(request, WriterPartition):
        return _writer_stages(key, whole, request)
    cut = tensor_axis(request)
    name = part_key(key, request)
    if cut is None:
        return [[part_write(name, whole, whole.shape, request)]]
    if len(request) > 1:
        shape = whole.shape
        part = cut_write(name, whole, request)
    else:
        split_dim = _split_dim(cut.split_dim, whole)
        shape = with_dim(whole.shape, split_dim, whole.shape[split_dim] * cut.size)
        part = part_write(name, whole, shape, request)
    manifest = Manifest(whole.element, shape, _split_dim(cut.split_dim, whole), cut.size)
    return [[part], [_manifest_write(parallelism_manifest_key(key), manifest)]]


def object_stages(
    key: str, address: int, size: int, parallelism: Any, writer_partition: Any
) -> Stages:
    """The objects for a tensor object of `size` bytes at `address`.

    With tensor parallelism it is a whole tensor, which is cut into the parts of all ranks; for a
    writer partition it is one, of which the part is cut. Otherwise it is stored as it is.
    `TensorError` if there is no such object, or if the request is refused.
    """
    metadata = metadata_at(address, size)
    request = _request(parallelism, writer_partition)
    if request is None:
        return [[object_write(key, Part(address, size))]]
    stored = elements_at(address, size)
    if isinstance(request, WriterPartition):
        return _writer_stages(key, _whole(stored, metadata), request)
    cut = tensor_axis(request)
    if cut is None:
        return [[part_write(part_key(key, request), stored, metadata.global_shape, request)]]
    whole = _whole(stored, metadata)
    shard_range(whole.shape, _split_dim(cut.split_dim, whole), 0, cut.size)
    parts = [with_tensor_rank(request, rank, cut.size) for rank in range(cut.size)]
    return [[cut_write(part_key(key, part), whole, part) for part in parts]]


def _request(parallelism: Any, writer_partition: Any) -> Axes | WriterPartition | None:
    if writer_partition is None:
        return None if parallelism is None else axes_of(parallelism)
    if parallelism is not None:
        raise TensorError("a writer partition and a parallelism exclude each other")
    return WriterPartition.of(writer_partition)


def _whole(stored: Elements, metadata: TensorMetadata) -> Elements:
    if metadata.local_shape != metadata.global_shape:
        raise TensorError("the buffer holds a part of a tensor, which cannot be cut again")
    return stored


def _writer_stages(key: str, whole: Elements, writer: WriterPartition) -> Stages:
    manifest = Manifest(whole.element, whole.shape, writer.split_dim, writer.size)
    part = cut_write(writer_key(key, *writer), whole, writer.axes)
    return [[part], [_manifest_write(writer_manifest_key(key), manifest)]]


def _manifest_write(key: str, manifest: Manifest) -> Write:
    return write_of(key, manifest.pack(), [], None)


def _split_dim(split_dim: int | None, whole: Elements) -> int:
    if split_dim is None or not 0 <= split_dim < len(whole.shape):
        raise TensorError(f"no dimension {split_dim} among {len(whole.shape)}")
    return split_dim
