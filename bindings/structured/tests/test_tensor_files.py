"""The safetensors format."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from _tensors import GOLDENS, NEEDS_A_LIBRARY

from mc_store_structured._tensor.layout import ELEMENT_TYPES, TensorError, element_type
from mc_store_structured._tensor.safetensors import FileTensor, read_file, write_file

FLOAT32 = element_type("float32")


def file_of(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@NEEDS_A_LIBRARY
def test_files_are_those_of_the_reference(tmp_path: Path) -> None:
    golden = GOLDENS["safetensors shape 4x6"]
    elements = GOLDENS["shape 4x6"][304:]

    write_file(str(tmp_path / "ours"), FileTensor("shape 4x6", FLOAT32, (4, 6), elements))
    (tmp_path / "theirs").write_bytes(golden)
    found = read_file(str(tmp_path / "theirs"), "shape 4x6")

    assert (tmp_path / "ours").read_bytes() == golden
    assert (found.name, found.element, found.shape) == ("shape 4x6", FLOAT32, (4, 6))
    assert bytes(found.data) == elements


@NEEDS_A_LIBRARY
@pytest.mark.parametrize("element", ELEMENT_TYPES, ids=lambda element: str(element.name))
def test_every_type_of_elements_has_a_spelling(tmp_path: Path, element: Any) -> None:
    path = str(tmp_path / "file")
    data = bytes(range(2 * element.size))

    write_file(path, FileTensor("ключ/\ud800", element, (2,), data))
    found = read_file(path, "ключ/\ud800")

    assert found._replace(data=bytes(found.data)) == ("ключ/\ud800", element, (2,), data)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    with pytest.raises(BufferError):
        write_file(str(path), FileTensor("k", FLOAT32, (1,), memoryview(b"1234").cast("c")[::2]))
    with pytest.raises(OSError, match="No such"):
        write_file(str(tmp_path / "missing" / "file"), FileTensor("k", FLOAT32, (0,), b""))

    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


@NEEDS_A_LIBRARY
def test_the_first_tensor_is_the_one_that_lies_first(tmp_path: Path) -> None:
    path = tmp_path / "file"
    header = {
        "__metadata__": {"format": "pt"},
        "late": entry("U8", [1], [1, 2]),
        "early": entry("U8", [1], [0, 1]),
    }
    path.write_bytes(file_of(header, b"ab"))

    assert bytes(read_file(str(path), "late").data) == b"b"
    assert read_file(str(path), "other").name == "early"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff" * 100, id="huge header"),
        pytest.param((1 << 62).to_bytes(8, "little") + b"{}", id="header beyond the end"),
        pytest.param(b"\2\0\0\0\0\0\0\0{]", id="no JSON"),
        pytest.param(b"\1\0\0\0\0\0\0\0\xff", id="no UTF-8"),
        pytest.param(b"\x40\x9c\0\0\0\0\0\0" + b"[" * 40000, id="deep JSON"),
        pytest.param(file_of([]), id="a list"),
        pytest.param(file_of({}), id="no tensor"),
        pytest.param(file_of({"__metadata__": {}}), id="metadata alone"),
        pytest.param(file_of({"k": 3}, bytes(8)), id="an entry that is a number"),
        pytest.param(file_of({"k": {}}, bytes(8)), id="an empty entry"),
        pytest.param(file_of({"k": entry("F31")}, bytes(8)), id="unknown type"),
        pytest.param(file_of({"k": entry(dtype=["F32"])}, bytes(8)), id="type that is a list"),
        pytest.param(file_of({"k": entry(shape=2)}, bytes(8)), id="shape that is a number"),
        pytest.param(file_of({"k": entry(shape=[-2])}, bytes(8)), id="negative extent"),
        pytest.param(file_of({"k": entry(shape=[2.0])}, bytes(8)), id="extent with a fraction"),
        pytest.param(file_of({"k": entry(shape=[True, 2])}, bytes(8)), id="extent true"),
        pytest.param(file_of({"k": entry(shape=[1 << 70])}, bytes(8)), id="huge extent"),
        pytest.param(file_of({"k": entry(offsets=[0])}, bytes(8)), id="one offset"),
        pytest.param(file_of({"k": entry(offsets=[8, 0])}, bytes(8)), id="offsets backwards"),
        pytest.param(file_of({"k": entry(offsets=[-8, 0])}, bytes(8)), id="negative offset"),
        pytest.param(file_of({"k": entry(offsets=[1, 9])}, bytes(8)), id="beyond the end"),
        pytest.param(
            file_of({"k": entry("U8", [1 << 50], [0, 1 << 50])}, b"a"), id="far beyond the end"
        ),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(TensorError):
        read_file(str(path), "k")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match="No such file"):
        read_file(str(tmp_path / "missing"), "k")
    with pytest.raises(TensorError, match="directory"):
        read_file(str(tmp_path), "k")


@NEEDS_A_LIBRARY
def test_damaged_files_are_refused_or_read_within_their_bounds(tmp_path: Path) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = tmp_path / "file"
    read = 0
    for _ in range(1_000):
        data = bytearray(GOLDENS["safetensors shape 4x6"])
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.choice(b'\0 0123456789{}[]:,"U8FI')
        path.write_bytes(data)
        try:
            found = read_file(str(path), "shape 4x6")
        except TensorError:
            continue
        read += 1
        assert len(found.data) <= len(data)
    assert read
