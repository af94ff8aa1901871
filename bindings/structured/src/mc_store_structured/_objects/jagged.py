"""Jagged tensors of torch: tensors whose rows differ in the length of one dimension.

A jagged tensor has a tensor with the elements of all rows one after the other, one with the places
where the rows begin, and some have one with the rows' lengths. Each is a tensor object of Mooncake,
and the member is their bytes, one after the other. Its description::

    {"encoding": "torch_tensor", "dtype": "torch.int64", "nested": true, "format": "tensor_parts",
     "part_bytes": [336, 328], "has_lengths": false, "ragged_idx": 1}
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._tensor import arrays, memory
from .._tensor.layout import TensorError, parse
from .errors import StructuredFormatError

_PARTS = "tensor_parts"


def is_nested(tensor: Any) -> bool:
    """Returns whether a torch tensor is nested, jagged or not."""
    return bool(getattr(tensor, "is_nested", False))


def is_jagged(spec: Mapping[str, Any]) -> bool:
    """Returns whether a member with this description is a nested tensor."""
    return bool(spec.get("nested"))


def encode_jagged(tensor: Any, name: str) -> tuple[dict[str, Any], bytes]:
    """Returns the description and the bytes of a jagged tensor.

    Raises ``ValueError`` for a nested tensor of another layout, ``TypeError`` for elements that
    cannot be stored.
    """
    jagged = getattr(sys.modules["torch"], "jagged", None)
    if jagged is None or tensor.layout != jagged:
        raise ValueError(f"{name}: structured nested tensor fields require torch.jagged layout")
    lengths = tensor.lengths()
    tensors = [tensor.values(), tensor.offsets(), *([] if lengths is None else [lengths])]
    try:
        parts = [_tensor_object(part) for part in tensors]
    except TensorError as error:
        raise TypeError(f"{name}: {error}") from None
    spec = {
        "encoding": "torch_tensor",
        "dtype": str(tensor.dtype),
        "nested": True,
        "format": _PARTS,
        "part_bytes": [len(part) for part in parts],
        "has_lengths": lengths is not None,
        "ragged_idx": int(getattr(tensor, "_ragged_idx", 1)),
    }
    return spec, b"".join(parts)


def _tensor_object(tensor: Any) -> bytes:
    elements = arrays.elements_of(tensor)
    header = elements.metadata().pack()
    if not elements.size:
        return header
    return header + bytes(memory.view(elements.address, elements.size, elements.owner))


@dataclass(frozen=True)
class JaggedParts:
    """The tensors that a jagged tensor consists of.

    values: the elements of all rows, along the dimension ``ragged_idx - 1``.
    offsets: where each row begins in that dimension, and where the last one ends.
    lengths: of the rows, unless each row ends where the next one begins.
    """

    values: Any
    offsets: Any
    lengths: Any
    ragged_idx: int

    @classmethod
    def parse(cls, data: memoryview, spec: Mapping[str, Any], name: str) -> JaggedParts:
        """Returns the parts, over the memory of ``data``.

        Raises ``StructuredFormatError`` if they do not fit each other, ``TypeError`` without torch.
        """
        if spec.get("format") != _PARTS:
            raise StructuredFormatError(
                f"structured nested tensor {name} has the format {spec.get('format')!r}, which is "
                "pickled and not read; move the tensor to the CPU before it is stored"
            )
        _require_torch()
        sizes = spec.get("part_bytes")
        count = 3 if spec.get("has_lengths") else 2
        if (
            not isinstance(sizes, list)
            or len(sizes) != count
            or not all(type(size) is int and size > 0 for size in sizes)
            or sum(sizes) != data.nbytes
        ):
            raise StructuredFormatError(f"structured nested tensor {name} has no valid parts")
        tensors, place = [], 0
        for size in sizes:
            part = data[place : place + size]
            # The first part keeps its memory; others may begin at an odd address.
            tensors.append(_tensor_of(part if not place else bytearray(part), name))
            place += size
        ragged_idx = spec.get("ragged_idx", 1)
        if type(ragged_idx) is not int or not 1 <= ragged_idx <= tensors[0].dim():
            raise StructuredFormatError(f"structured nested tensor {name} has no ragged dimension")
        parts = cls(tensors[0], tensors[1], tensors[2] if count == 3 else None, ragged_idx)
        parts._check(name)
        return parts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tensor(self) -> Any:
        """Returns the jagged tensor. Raises ``TypeError`` if torch is too old to have them."""
        torch = _require_torch()
        make = getattr(torch.nested, "nested_tensor_from_jagged", None)
        if make is None:
            raise TypeError(
                f"jagged tensors need torch 2.4 or newer, not {torch.__version__}; upgrade it"
            )
        lengths = self._lengths()
        shortest, longest = (int(lengths.min()), int(lengths.max())) if len(self) else (0, 0)
        return make(
            self.values,
            offsets=self.offsets,
            lengths=self.lengths,
            jagged_dim=self.ragged_idx,
            min_seqlen=shortest,
            max_seqlen=longest,
        )

    def select(self, rows: Iterable[int]) -> JaggedParts:
        """Returns the parts of these rows, with their own memory."""
        torch = _require_torch()
        dim = self.ragged_idx - 1
        chosen = list(rows)
        starts = self.offsets[:-1][chosen].tolist()
        lengths = self._lengths()[chosen]
        values = [
            self.values.narrow(dim, start, length)
            for start, length in zip(starts, lengths.tolist(), strict=True)
        ]
        offsets = torch.zeros(len(chosen) + 1, dtype=self.offsets.dtype)
        offsets[1:] = torch.cumsum(lengths, 0)
        joined = torch.cat(values, dim) if values else self.values.narrow(dim, 0, 0).clone()
        return JaggedParts(joined, offsets, None, self.ragged_idx)

    def _lengths(self) -> Any:
        return self.offsets.diff() if self.lengths is None else self.lengths

    def _check(self, name: str) -> None:
        """Raises ``StructuredFormatError`` unless each row lies within the values."""
        indices = [self.offsets, *([] if self.lengths is None else [self.lengths])]
        integers = (sys.modules["torch"].int64, sys.modules["torch"].int32)
        shapes_fit = all(part.dim() == 1 and part.dtype in integers for part in indices)
        if not shapes_fit or not len(self.offsets):
            raise StructuredFormatError(f"structured nested tensor {name} has no valid offsets")
        lengths = self._lengths()
        room = self.values.shape[self.ragged_idx - 1]
        if len(lengths) != len(self) or (
            len(self)
            and (
                int(self.offsets.min()) < 0
                or int(lengths.min()) < 0
                or int((self.offsets[:-1] + lengths).max()) > room
                or int(self.offsets.max()) > room
            )
        ):
            raise StructuredFormatError(
                f"structured nested tensor {name} has rows outside of its values"
            )


def _require_torch() -> Any:
    """The module torch. Raises ``TypeError`` if it is not installed."""
    torch = arrays.imported("torch")
    if torch is None:
        raise TypeError("jagged tensors need torch, which is not installed: pip install torch")
    return torch


def _tensor_of(data: memoryview | bytearray, name: str) -> Any:
    try:
        metadata = parse(data, len(data))
        return arrays.array_of(metadata, memoryview(data)[metadata.data_offset :], "torch")
    except TensorError as error:
        raise StructuredFormatError(f"structured nested tensor {name}: {error}") from None
