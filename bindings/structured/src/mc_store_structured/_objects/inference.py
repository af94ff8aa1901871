"""Finds the encoding of a column from its values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .codecs import has_msgpack, is_plain
from .media import is_media

#: The deepest nesting of dicts and lists that have arrays in them.
MAX_DEPTH = 32


class _Missing:
    def __repr__(self) -> str:
        return "<MISSING>"


MISSING: Any = _Missing()
"""A key that the dict of a row does not have, or an element beyond the end of its list."""


@dataclass(frozen=True)
class CodecDecision:
    """The encoding for a column, and why; or why there is none."""

    accepted: bool
    codec: str = ""
    reason: str = ""
    normalized_type: str = ""

    def metadata(self) -> dict[str, Any]:
        """The decision as it is stored."""
        return {
            "schema_source": "inferred_from_runtime_values",
            "decision_reason": self.reason,
            "normalized_type": self.normalized_type,
        }


@dataclass
class InferredLeaf:
    """A place in the rows' structure with an encoding of its own."""

    path: str
    values: list[Any]
    decision: CodecDecision


@dataclass
class InferredNode:
    """A dict or a list in the rows' structure.

    row_mask: the rows that have it, and neither ``None`` nor nothing.
    lengths: of a list, its length in each row.
    """

    path: str
    node_type: str
    children: list[Any]
    lengths: list[int] | None
    row_mask: list[bool]
    values: list[Any] = field(default_factory=list, repr=False)


def decide(values: Sequence[Any]) -> CodecDecision:
    """The encoding for rows with these values, of which some may be ``None``."""
    given = [value for value in values if value is not None]
    if not given:
        return CodecDecision(False, reason="all rows are null")
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and all(isinstance(value, torch.Tensor) for value in given):
        types = sorted({str(value.dtype) for value in given})
        if len(types) > 1:
            return CodecDecision(False, reason=f"mixed tensor dtype: {types}")
        return _accept("ragged_tensor", "all non-null rows are Tensor", "torch.Tensor")
    if all(map(is_media, given)):
        return _accept("media_bytes", "all rows are media", "media")
    if numpy is not None and all(isinstance(value, numpy.ndarray) for value in given):
        if any(value.dtype.kind not in "biufc" for value in given):
            return CodecDecision(False, reason="object ndarray rows")
        return _accept("typed_ragged", "all rows are numeric ndarray", "numeric sequence")
    if all(isinstance(value, bytes | bytearray | memoryview) for value in given):
        return _accept("bytes_ragged", "all rows are bytes-like", "bytes-like")
    if all(isinstance(value, str) for value in given):
        return _accept("utf8_ragged", "all rows are str", "str")
    if all(map(_is_number, given)):
        return _accept("ndarray", "all rows are numeric scalar", "numeric scalar")
    if all(isinstance(value, list | tuple) for value in given):
        items = [item for value in given for item in value]
        if all(map(_is_number, items)):
            return _accept("typed_ragged", "all rows are numeric sequences", "numeric sequence")
        if all(is_media(item) or isinstance(item, bytes | bytearray) for item in items):
            return _accept("media_list_ragged", "all rows are media lists", "media list")
    if all(map(is_plain, given)) and any(isinstance(value, dict | list) for value in given):
        if has_msgpack():
            return _accept("msgpack_ragged", "all rows are msgpack-like", "msgpack")
        return _accept("json_ragged", "all rows are JSON-like", "json")
    return CodecDecision(False, reason="no codec matched")


def infer_structure(
    path: str,
    values: list[Any],
    leaves: list[InferredLeaf],
    nodes: list[InferredNode],
    *,
    _depth: int = 0,
) -> None:
    """Adds the dicts and lists in the rows ``values`` to ``nodes``, and what has an encoding to
    ``leaves``, with paths that begin with ``path``.

    Raises ``ValueError`` for what cannot be stored.
    """
    present = [value for value in values if value is not None and value is not MISSING]
    if not present:
        empty = _accept("json_ragged", "all rows are null or missing", "json")
        leaves.append(InferredLeaf(path, values, empty))
        return
    decision = decide(present)
    if decision.accepted:
        leaves.append(InferredLeaf(path, values, decision))
        return
    if _depth == MAX_DEPTH:
        raise ValueError(f"{path}: more than {MAX_DEPTH} dicts or lists in one another")
    mask = [value is not None and value is not MISSING for value in values]
    if all(isinstance(value, dict) for value in present):
        keys = {key for value in present for key in value}
        if not all(isinstance(key, str) for key in keys):
            raise ValueError(f"{path}: a dict with keys that are no strings")
        node = InferredNode(path, "dict", sorted(keys), None, mask, values)
        children = [
            (child_path(path, key), [_of_dict(value, key) for value in values])
            for key in node.children
        ]
    elif all(isinstance(value, list | tuple) for value in present):
        lengths = [len(value) if given else 0 for value, given in zip(values, mask, strict=True)]
        node = InferredNode(path, "list", list(range(max(lengths))), lengths, mask, values)
        children = [
            (child_path(path, place), [_of_list(value, place) for value in values])
            for place in node.children
        ]
    else:
        raise ValueError(f"unsupported structured field {path}: {decision.reason}")
    nodes.append(node)
    for child, child_values in children:
        infer_structure(child, child_values, leaves, nodes, _depth=_depth + 1)


def child_path(path: str, key: str | int) -> str:
    """The path of a child: ``path.key`` or ``path[0]``, with ``\\``, ``.`` and ``[`` of a key
    escaped."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    escaped = key.replace("\\", "\\\\").replace(".", "\\.").replace("[", "\\[")
    return f"{path}.{escaped}"


def _of_dict(value: Any, key: str) -> Any:
    if value is None or value is MISSING:
        return None
    return value.get(key, MISSING)


def _of_list(value: Any, place: int) -> Any:
    if value is None or value is MISSING:
        return None
    return value[place] if place < len(value) else MISSING


def _accept(codec: str, reason: str, normalized_type: str) -> CodecDecision:
    return CodecDecision(True, codec, reason, normalized_type)


def _is_number(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    if isinstance(value, bool | int | float):
        return True
    return numpy is not None and isinstance(value, numpy.number | numpy.bool_)
