"""Arrays of every library as bytes of objects, and back."""

from __future__ import annotations

import array
import ctypes
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from _cluster import run_python
from _tensors import GOLDENS, NEEDS_A_LIBRARY

from mc_store_structured import tensors
from mc_store_structured._tensor import memory
from mc_store_structured._tensor.arrays import alias_tensor, array_library, elements_of, read_tensor
from mc_store_structured._tensor.layout import ELEMENT_TYPES, METADATA_SIZE, TensorError

LIBRARIES = ["numpy", "torch"]


def held(owner: Any) -> bytes:
    """The object that would be stored for an array."""
    found = elements_of(owner)
    return found.metadata().pack() + bytes(memory.view(found.address, found.size))


def has_type(library: Any, name: str) -> bool:
    if library.__name__ == "numpy" and name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return find_spec("ml_dtypes") is not None
    return library.__name__ == "numpy" or hasattr(library, name)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("element", ELEMENT_TYPES, ids=lambda element: str(element.name))
def test_every_type_goes_there_and_back(library: str, element: Any) -> None:
    module = pytest.importorskip(library)
    golden = GOLDENS[f"elements {element.name}"]
    if not has_type(module, element.name):
        with pytest.raises(TypeError, match=element.name):
            read_tensor(golden, library)  # type: ignore[arg-type]
        return

    found = read_tensor(golden, library)  # type: ignore[arg-type]

    assert [float(number) for number in found] == [0.0, 1.0]
    assert held(found) == golden


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [name for name in GOLDENS if name.startswith("shape")])
def test_every_shape_goes_there_and_back(library: str, name: str) -> None:
    pytest.importorskip(library)

    found = read_tensor(GOLDENS[name], library)  # type: ignore[arg-type]

    extents = name.removeprefix("shape ").replace("none", "").split("x")
    assert tuple(found.shape) == tuple(int(extent) for extent in extents if extent)
    assert held(found) == GOLDENS[name]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tensor_that_is_read_is_a_copy_to_write_to(library: str) -> None:
    pytest.importorskip(library)
    data = bytearray(GOLDENS["shape 4x6"])

    found = read_tensor(data, library)  # type: ignore[arg-type]
    found[0, 0] = 7
    data[METADATA_SIZE:] = bytes(len(data) - METADATA_SIZE)

    assert found[0, 0] == 7
    assert found[3, 5] == 23


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_alias_shares_the_memory_of_the_caller(library: str) -> None:
    pytest.importorskip(library)
    data = ctypes.create_string_buffer(GOLDENS["shape 4x6"], 400)

    found = alias_tensor(ctypes.addressof(data), 400, library)  # type: ignore[arg-type]
    found[0, 0] = 1

    assert data.raw[METADATA_SIZE : METADATA_SIZE + 4] == b"\0\0\x80\x3f"


def test_contiguous_tensors_of_torch_are_not_copied() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3)

    assert elements_of(tensor).address == tensor.data_ptr()
    assert elements_of(tensor[1]).address == tensor[1].data_ptr()


def test_contiguous_arrays_of_numpy_are_not_copied() -> None:
    numpy = pytest.importorskip("numpy")
    whole = numpy.arange(6.0)

    assert elements_of(whole).address == whole.ctypes.data
    assert elements_of(whole[2:]).address == whole[2:].ctypes.data


def test_writable_buffers_are_not_copied() -> None:
    numbers = array.array("i", [1, 2])

    assert elements_of(numbers).address == numbers.buffer_info()[0]


def test_what_is_not_contiguous_is_gathered() -> None:
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    columns = numpy.arange(24, dtype="f4").reshape(6, 4).T

    assert held(columns) == held(columns.copy(order="C"))
    assert held(torch.from_numpy(columns)) == held(columns.copy(order="C"))
    assert held(memoryview(columns)) == held(columns.copy(order="C"))
    assert held(columns[::-1, ::2]) == held(columns[::-1, ::2].copy(order="C"))


def test_big_endian_arrays_are_turned() -> None:
    numpy = pytest.importorskip("numpy")

    assert held(numpy.array([0, 1], dtype=">f4")) == GOLDENS["elements float32"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: bytes([0, 1]), "uint8"),
        (lambda: bytearray([0, 1]), "uint8"),
        (lambda: memoryview(bytes([0, 1])), "uint8"),
        (lambda: array.array("b", [0, 1]), "int8"),
        (lambda: array.array("H", [0, 1]), "uint16"),
        (lambda: array.array("l", [0, 1]), "int64"),
        (lambda: array.array("f", [0, 1]), "float32"),
        (lambda: array.array("d", [0, 1]), "float64"),
        (lambda: memoryview(bytearray([0, 1])).cast("?"), "bool"),
        (lambda: (ctypes.c_uint32 * 2)(0, 1), "uint32"),
        (lambda: (ctypes.c_double * 2)(0, 1), "float64"),
    ],
)
def test_buffers_say_what_they_hold(make: Callable[[], object], name: str) -> None:
    assert held(make()) == GOLDENS[f"elements {name}"]


def test_buffers_keep_their_shape() -> None:
    grid = memoryview(bytearray(24)).cast("B").cast("I", (2, 3))

    assert elements_of(grid).shape == (2, 3)
    assert elements_of(bytearray()).shape == (0,)


def test_a_single_number_of_numpy_is_a_tensor() -> None:
    numpy = pytest.importorskip("numpy")

    assert held(numpy.float32(3.5)) == GOLDENS["shape none"]
    assert held(numpy.array(3.5, dtype="f4")) == GOLDENS["shape none"]


class Exporter:
    """An array that shows itself by DLPack alone."""

    def __init__(self, hidden: Any) -> None:
        self._hidden = hidden

    def __dlpack__(self, **options: Any) -> Any:
        return self._hidden.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._hidden.__dlpack_device__()


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_are_taken_by_dlpack(library: str) -> None:
    pytest.importorskip(library)
    whole = read_tensor(GOLDENS["shape 4x6"], library)  # type: ignore[arg-type]

    assert held(Exporter(whole)) == GOLDENS["shape 4x6"]


@NEEDS_A_LIBRARY
def test_a_broken_export_by_dlpack_is_refused() -> None:
    class Broken:
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("not today")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    with pytest.raises(TensorError, match="DLPack"):
        elements_of(Broken())


def test_parameters_and_views_with_a_sign_are_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()

    assert held(torch.nn.Parameter(torch.tensor(3.5))) == GOLDENS["shape none"]
    assert held(conjugate.imag) == held(torch.tensor([-2.0, 4.0]))


@pytest.mark.parametrize("refused", [None, 1, 1.5, "text", [1.0], {1: 2}, object()])
def test_what_is_no_array_is_refused(refused: object) -> None:
    with pytest.raises(TensorError):
        elements_of(refused)


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.ones(2, dtype=torch.complex64),
        lambda torch: torch.eye(2).to_sparse(),
        lambda torch: torch.ones(2, device="meta"),
        lambda torch: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        lambda torch: torch.ones((1,) * 9),
    ],
    ids=["complex", "sparse", "meta", "quantised", "9 dimensions"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch itself, about quantisation
def test_tensors_of_torch_without_layout_are_refused(make: Callable[[Any], object]) -> None:
    tensor = make(pytest.importorskip("torch"))

    with pytest.raises(TensorError):
        elements_of(tensor)


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "U3", "O", "f4,i4", "S3"])
def test_arrays_of_numpy_without_layout_are_refused(dtype: str) -> None:
    numpy = pytest.importorskip("numpy")

    with pytest.raises(TensorError):
        elements_of(numpy.zeros(2, dtype=dtype))


def test_arrays_of_numpy_with_a_mask_are_refused() -> None:
    numpy = pytest.importorskip("numpy")

    with pytest.raises(TensorError, match="mask"):
        elements_of(numpy.ma.array([1.0, 2.0], mask=[True, False]))


def test_tensors_of_torch_without_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    subclasses = pytest.importorskip("torch._subclasses")
    with subclasses.FakeTensorMode():
        fake = torch.ones(2)

    with pytest.raises(TensorError):
        elements_of(fake)


def test_buffers_without_layout_are_refused() -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("left", ctypes.c_int), ("right", ctypes.c_float))

    with pytest.raises(TensorError):
        elements_of((Pair * 2)())
    with pytest.raises(TensorError):
        elements_of((ctypes.c_uint16.__ctype_be__ * 2)(0, 1))
    with pytest.raises(TensorError):
        elements_of((ctypes.c_void_p * 2)())


def test_an_unknown_library_is_an_error() -> None:
    with pytest.raises(ValueError, match="'torch' or 'numpy'"):
        array_library("jax")  # type: ignore[arg-type]


@pytest.mark.parametrize("address", [0, 1, 64, (1 << 47) + 1, (1 << 64) - 1])
def test_an_address_without_memory_is_an_error_and_no_crash(address: int) -> None:
    with pytest.raises(TensorError):
        memory.peek(address, METADATA_SIZE)
    with pytest.raises(TensorError):
        memory.poke(address, b"x")


def test_memory_that_is_read_only_stays_as_it_is() -> None:
    import mmap

    page = mmap.mmap(-1, 2 * mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page[:] = b"x" * len(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    second = address + mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    protect = libc.mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(second, mmap.PAGESIZE, mmap.PROT_READ) == 0
    with pytest.raises(TensorError, match="cannot write memory at"):
        memory.poke(second, b"abc")
    assert memory.peek(second - 1, 4) == b"xxxx"
    # Bytes are written up to the page that is read-only.
    with pytest.raises(TensorError, match=f"cannot write memory at {second:#x}: Bad address"):
        memory.poke(second - 1, b"abc")
    assert memory.peek(second - 1, 4) == b"axxx"
    memory.poke(address, b"abc")
    assert memory.peek(address, 4) == b"abcx"


UNDUMPABLE = """
import ctypes, os
from mc_store_structured._tensor import memory
if os.geteuid() == 0:  # Root may read what others may not.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
data = bytearray(b"before")
address = ctypes.addressof(ctypes.c_char.from_buffer(data))
memory.poke(address, b"af")
assert memory.peek(address, 6) == b"affore"
"""


def test_memory_is_read_and_written_in_a_process_that_cannot_be_dumped() -> None:
    run_python(UNDUMPABLE)


@pytest.mark.parametrize(
    ("address", "size", "error"),
    [
        (-1, 8, OverflowError),
        (8, -1, OverflowError),
        (1 << 64, 8, OverflowError),
        (8, 1 << 64, OverflowError),
        ("8", 8, TypeError),
        (8, 1.0, TypeError),
        (None, 8, TypeError),
    ],
)
def test_addresses_and_sizes_are_numbers(address: Any, size: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        memory.checked(address, size)


def test_serialize_gives_the_header_and_the_place_of_the_elements() -> None:
    numbers = array.array("f", [0, 1])

    header, address, size, owner = tensors._serialize_tensor(numbers)

    assert header + ctypes.string_at(address, size) == GOLDENS["elements float32"]
    assert len(header) == tensors._tensor_metadata_size() == 304
    assert owner is not None
    with pytest.raises(ValueError, match="unsupported tensor for Mooncake tensor serialization"):
        tensors._serialize_tensor("text")
    with pytest.raises(ValueError, match="unsupported tensor for Mooncake tensor serialization"):
        tensors._serialize_tensor(memoryview(bytearray(1)).cast("B", (1,) * 9))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_deserialize_reads_any_bytes(library: str, kind: Callable[[bytes], Any]) -> None:
    module = pytest.importorskip(library)

    found = tensors._deserialize_tensor(kind(GOLDENS["shape 4x6"]), like=library)  # type: ignore[arg-type]

    assert type(found) is (module.Tensor if library == "torch" else module.ndarray)
    assert held(found) == GOLDENS["shape 4x6"]


@pytest.mark.parametrize("data", [b"", b"x", bytes(304), GOLDENS["shape 4x6"][:-1]])
def test_deserialize_refuses_other_bytes(data: bytes) -> None:
    with pytest.raises(ValueError, match="invalid serialized Mooncake tensor payload"):
        tensors._deserialize_tensor(data)


def test_importing_the_methods_imports_no_library() -> None:
    script = (
        "import sys; import mc_store_structured.tensors, mc_store_structured.tensor_methods; "
        "print({'numpy', 'torch', 'ctypes', 'json', 'logging', 'asyncio'} & set(sys.modules))"
    )

    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )

    assert printed.stdout.strip() == "set()"
