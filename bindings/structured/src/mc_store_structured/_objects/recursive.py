"""Columns whose rows are dicts and lists with arrays, bytes or images in them.

Each place in the structure is a column of its own: a leaf with the encoding of its values, or a
node, which is a dict or a list in some of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .codecs import RECURSIVE, codec_of
from .columns import ColumnSource, EncodedColumn, check_length
from .errors import StructuredFormatError
from .inference import (
    MAX_DEPTH,
    MISSING,
    InferredLeaf,
    InferredNode,
    child_path,
    infer_structure,
)
from .memory import require_numpy
from .slices import Rows

_VERSION = 1


def encode(path: str, values: Sequence[Any]) -> EncodedColumn:
    """Encodes rows. Raises ``ValueError`` for what cannot be stored."""
    leaves: list[InferredLeaf] = []
    nodes: list[InferredNode] = []
    infer_structure(path, list(values), leaves, nodes)
    payloads: dict[str, Any] = {}
    metadata: dict[str, Any] = {
        "schema_source": "inferred_from_runtime_values",
        "structure_version": _VERSION,
        "root_path": path,
        "nodes": [_encode_node(number, node, payloads) for number, node in enumerate(nodes)],
        "leaves": [_encode_leaf(number, leaf, payloads) for number, leaf in enumerate(leaves)],
    }
    return EncodedColumn(RECURSIVE, len(values), payloads, metadata)


def _encode_node(number: int, node: InferredNode, payloads: dict[str, Any]) -> dict[str, Any]:
    name = f"node.{number}"
    payloads[f"{name}.missing"] = _missing_of(node.values)
    payloads[f"{name}.row_mask"] = require_numpy().array(node.row_mask, bool)
    content = {
        "id": number,
        "path": node.path,
        "node_type": node.node_type,
        "children": node.children,
        "missing_payload": f"{name}.missing",
        "row_mask_payload": f"{name}.row_mask",
    }
    if node.lengths is not None:
        payloads[f"{name}.lengths"] = require_numpy().array(node.lengths, "<i8")
        content["lengths_payload"] = f"{name}.lengths"
    return content


def _encode_leaf(number: int, leaf: InferredLeaf, payloads: dict[str, Any]) -> dict[str, Any]:
    values = [None if value is MISSING else value for value in leaf.values]
    column = codec_of(leaf.decision.codec).encode(values)
    column.payloads["missing"] = _missing_of(leaf.values)
    names = {name: f"leaf.{number}.{name}" for name in column.payloads}
    payloads.update({names[name]: value for name, value in column.payloads.items()})
    return {
        "id": number,
        "path": leaf.path,
        "codec": column.codec,
        "rows": column.rows,
        "metadata": {**column.metadata, **leaf.decision.metadata()},
        "payload_members": names,
    }


def _missing_of(values: Sequence[Any]) -> Any:
    numpy = require_numpy()
    return numpy.fromiter((value is MISSING for value in values), bool, len(values))


def decode(source: ColumnSource, rows: Rows) -> list[Any]:
    """The values of ``rows``."""
    metadata = source.metadata
    root = metadata.get("root_path")
    if metadata.get("structure_version") != _VERSION or not isinstance(root, str):
        raise StructuredFormatError("a structured column of another version")
    decoder = _Decoder(source, rows)
    return [None if value is MISSING else value for value in decoder.column(root, 0)]


class _Decoder:
    def __init__(self, source: ColumnSource, rows: Rows) -> None:
        self._source = source
        self._rows = rows
        self._leaves = _by_path(source.metadata.get("leaves"))
        self._nodes = _by_path(source.metadata.get("nodes"))

    def column(self, path: str, depth: int) -> list[Any]:
        """The value of each row at ``path``."""
        if depth > MAX_DEPTH:
            raise StructuredFormatError(f"a structured column is deeper than {MAX_DEPTH}")
        # Taken, so that no place is read twice.
        leaf, node = self._leaves.pop(path, None), self._nodes.pop(path, None)
        if leaf is not None:
            return self._leaf(leaf)
        if node is None:
            raise StructuredFormatError(f"a structured column has nothing at {path!r}")
        children = node.get("children")
        if not isinstance(children, list):
            raise StructuredFormatError(f"a structured column has no children at {path!r}")
        is_dict = node.get("node_type") == "dict"
        if not all(type(child) is (str if is_dict else int) for child in children):
            raise StructuredFormatError(f"a structured column has wrong children at {path!r}")
        columns = {child: self.column(child_path(path, child), depth + 1) for child in children}
        missing = self._marks(node, "missing_payload", "|b1")
        mask = self._marks(node, "row_mask_payload", "|b1")
        found: list[Any]
        if is_dict:
            found = [_dict_of(columns, place) for place in range(len(self._rows))]
        else:
            lengths = self._marks(node, "lengths_payload", "<i8")
            ordered = [columns[place] for place in sorted(columns)]
            found = [
                _list_of(ordered, int(lengths[row]), place) for place, row in enumerate(self._rows)
            ]
        return [
            MISSING if missing[row] else value if mask[row] else None
            for row, value in zip(self._rows, found, strict=True)
        ]

    def _leaf(self, leaf: Mapping[str, Any]) -> list[Any]:
        names, metadata, codec = (
            leaf.get("payload_members"),
            leaf.get("metadata"),
            leaf.get("codec"),
        )
        if not isinstance(names, dict) or not isinstance(metadata, dict):
            raise StructuredFormatError("a leaf of a structured column is not described")
        if not isinstance(codec, str) or codec == RECURSIVE:
            raise StructuredFormatError(f"a leaf of a structured column has codec {codec!r}")
        part = _LeafSource(self._source, names, metadata)
        values = codec_of(codec).decode(part, self._rows)
        if "missing" not in names:
            return values
        missing = part.array("missing", "|b1")
        check_length(missing, self._source.rows, "missing")
        return [
            MISSING if missing[row] else value
            for row, value in zip(self._rows, values, strict=True)
        ]

    def _marks(self, node: Mapping[str, Any], key: str, dtype: str) -> Any:
        name = node.get(key)
        if not isinstance(name, str):
            raise StructuredFormatError(f"a node of a structured column has no {key}")
        marks = self._source.array(name, dtype)
        check_length(marks, self._source.rows, name)
        return marks


class _LeafSource:
    """The payloads of a leaf within those of the whole column."""

    def __init__(
        self, source: ColumnSource, names: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> None:
        self._source = source
        self._names = names
        self.metadata = metadata

    @property
    def rows(self) -> int:
        return self._source.rows

    def array(self, name: str, dtype: str | None = None) -> Any:
        return self._source.array(self._name(name), dtype)

    def size(self, name: str) -> int:
        return self._source.size(self._name(name))

    def spans(self, name: str, spans: Sequence[tuple[int, int]]) -> list[Any]:
        return self._source.spans(self._name(name), spans)

    def _name(self, name: str) -> str:
        found = self._names.get(name)
        if not isinstance(found, str):
            raise StructuredFormatError(f"a leaf of a structured column has no payload {name!r}")
        return found


def _by_path(entries: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in entries
    ):
        raise StructuredFormatError("a structured column does not describe its parts")
    return {entry["path"]: entry for entry in entries}


def _dict_of(columns: Mapping[Any, list[Any]], place: int) -> dict[str, Any]:
    return {key: column[place] for key, column in columns.items() if column[place] is not MISSING}


def _list_of(columns: Sequence[list[Any]], length: int, place: int) -> list[Any]:
    if not 0 <= length <= len(columns):
        raise StructuredFormatError(f"a list of {length} in a column of at most {len(columns)}")
    return [None if (value := column[place]) is MISSING else value for column in columns[:length]]
