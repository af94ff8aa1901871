"""Between arrays (torch, numpy, DLPack, the buffer protocol) and the bytes of a tensor object.

torch and numpy are imported where they are needed: neither is a dependency, one of them is enough,
and importing this module imports none.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from . import memory
from .layout import (
    MAX_DIMS,
    METADATA_SIZE,
    Buffer,
    ElementType,
    Shape,
    TensorError,
    TensorMetadata,
    element_type,
    parse,
)

if TYPE_CHECKING:
    from types import ModuleType

Like: TypeAlias = Literal["torch", "numpy"]

_EXTENSION_TYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_FORMAT_KINDS = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("cBHILQN", "uint"),
    **dict.fromkeys("efd", "float"),
    "?": "bool",
}


class Elements(NamedTuple):
    """The elements of an array in row-major order, in host memory while `owner` lives."""

    element: ElementType
    shape: Shape
    address: int
    size: int
    owner: object

    def metadata(self) -> TensorMetadata:
        """The header for these elements as a whole tensor."""
        return TensorMetadata.whole(self.element, self.shape)


def elements_of(array: object) -> Elements:
    """The elements of anything that holds numbers: a tensor of torch, an array of numpy, DLPack, a
    buffer.

    Contiguous host memory is taken as it lies; anything else is copied into such memory first.
    Raises `TensorError` for what has no layout: no array, more than 8 dimensions, complex or
    quantised numbers.
    """
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    if torch is not None and isinstance(array, torch.Tensor):
        found = _of_torch(array, torch)
    elif numpy is not None and isinstance(array, numpy.ndarray):
        found = _of_numpy(array, numpy)
    elif hasattr(array, "__dlpack__"):
        found = _of_dlpack(array)
    else:
        found = _of_buffer(array)
    if len(found.shape) > MAX_DIMS:
        raise TensorError(f"{len(found.shape)} dimensions, and at most {MAX_DIMS} have a place")
    return found


def _of_torch(tensor: Any, torch: ModuleType) -> Elements:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise TensorError("a sparse, quantised or meta tensor")
    element = element_type(str(tensor.dtype).removeprefix("torch."))
    try:
        host = tensor.detach().resolve_neg().to("cpu").contiguous()
        address, size = host.data_ptr(), host.numel() * host.element_size()
    except RuntimeError as error:  # of tensors without memory, and of devices
        raise TensorError(f"torch does not give its elements: {error}") from None
    if size and not address:
        raise TensorError("a tensor without memory")
    return Elements(element, tuple(host.shape), address if size else 0, size, host)


def _of_numpy(array: Any, numpy: ModuleType) -> Elements:
    if isinstance(array, numpy.ma.MaskedArray):
        raise TensorError("an array with a mask, which has no place")
    element = element_type(array.dtype.name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy(order="C")
    address = array.__array_interface__["data"][0]
    return Elements(element, array.shape, address if array.nbytes else 0, array.nbytes, array)


def _of_dlpack(array: Any) -> Elements:
    library = array_library()
    try:
        imported = library.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise TensorError(f"{library.__name__} cannot import it by DLPack: {error}") from None
    return elements_of(imported)


def _of_buffer(array: Any) -> Elements:
    try:
        buffer = memoryview(array)
    except TypeError:
        raise TensorError(f"{type(array).__name__} holds no tensor") from None
    element = _element_of_format(buffer.format, buffer.itemsize)
    shape = tuple(buffer.shape or ())
    if buffer.nbytes == 0:
        return Elements(element, shape, 0, 0, array)
    from ctypes import addressof, c_char

    # Only a writable buffer tells its address without a library; a copy of any other has one.
    taken = buffer.c_contiguous and not buffer.readonly
    pinned = (c_char * buffer.nbytes).from_buffer(array if taken else bytearray(buffer.tobytes()))
    return Elements(element, shape, addressof(pinned), buffer.nbytes, pinned)


def _element_of_format(spelling: str, size: int) -> ElementType:
    order, code = spelling[:-1], spelling[-1:]
    kind = _FORMAT_KINDS.get(code)
    swapped = order in (">", "!") and size > 1 and sys.byteorder == "little"
    if kind is None or order not in ("", "@", "=", "<", ">", "!") or swapped:
        raise TensorError(f"no layout for elements of format {spelling!r}")
    return element_type(kind if kind == "bool" else f"{kind}{8 * size}")


def array_library(like: Like | None = None) -> ModuleType:
    """torch or numpy: the one that `like` names, else torch if it can be imported, else numpy.

    Raises `ValueError` for another name and `ImportError` if the library, or each of them, is
    missing.
    """
    check_like(like)
    return _first_of(("torch", "numpy") if like is None else (like,))


def check_like(like: Like | None) -> None:
    """Raises `ValueError` if `like` names no library."""
    if like not in (None, "torch", "numpy"):
        raise ValueError(f"like is 'torch' or 'numpy', not {like!r}")


def byte_library() -> ModuleType:
    """The library to move bytes with: numpy, which copies without the GIL, or torch."""
    return _first_of(("numpy", "torch"))


def _first_of(names: tuple[str, ...]) -> ModuleType:
    for name in names:
        library = imported(name)
        if library is not None:
            return library
    raise ImportError(f"tensors need {' or '.join(names)}, which cannot be imported")


@cache
def imported(name: str) -> ModuleType | None:
    """The module `name`, or `None` if it cannot be imported."""
    try:
        return import_module(name)
    except ImportError:
        return None


def read_tensor(data: Buffer, like: Like | None) -> Any:
    """The tensor in the object `data`, in memory of its own, as an array of `like`.

    Raises `TensorError` if `data` is no tensor, `TypeError` if the library has no such elements.
    """
    metadata = parse(data, len(data))
    return array_of(metadata, copied(memoryview(data)[metadata.data_offset :]), like)


def alias_tensor(address: int, size: int, like: Like | None) -> Any:
    """The tensor in the object of `size` bytes at `address`, as an array over that very memory."""
    metadata = metadata_at(address, size)
    data = memory.view(address + metadata.data_offset, metadata.data_bytes)
    return array_of(metadata, data, like)


def metadata_at(address: int, size: int) -> TensorMetadata:
    """The header of the object of `size` bytes at `address`; `TensorError` if it is no tensor."""
    return parse(memory.peek(address, min(size, METADATA_SIZE)), size)


def copied(data: memoryview) -> Any:
    """A writable buffer of its own with the bytes of `data`."""
    numpy = imported("numpy")
    if numpy is None:
        return bytearray(data)
    # Unlike bytearray, numpy copies without holding the interpreter's lock.
    return numpy.frombuffer(data, dtype=numpy.uint8).copy()


def array_of(metadata: TensorMetadata, data: Any, like: Like | None) -> Any:
    """An array of the local shape of `metadata` over the buffer `data`, which it keeps alive."""
    library = array_library(like)
    dtype = _dtype(metadata.element.name, library)
    if metadata.data_bytes == 0:
        return library.empty(metadata.local_shape, dtype=dtype)
    return library.frombuffer(data, dtype=dtype).reshape(metadata.local_shape)


def _dtype(name: str, library: ModuleType) -> Any:
    if library.__name__ == "torch":
        dtype = getattr(library, name, None)
        if dtype is None:
            raise TypeError(
                f"torch {library.__version__} has no {name}: "
                "ask with like='numpy' or use a newer torch"
            )
        return dtype
    if name in _EXTENSION_TYPES:
        extension = imported("ml_dtypes")
        if extension is None:
            raise TypeError(f"numpy has no {name}: install ml_dtypes or ask with like='torch'")
        return library.dtype(getattr(extension, name))
    return library.dtype(name)
