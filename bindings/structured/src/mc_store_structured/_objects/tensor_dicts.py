"""Columns whose rows are dicts of torch tensors: a column of tensors for each key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .columns import ColumnSource, EncodedColumn, check_length, nulls_of
from .errors import StructuredFormatError
from .ragged import RaggedTensors
from .slices import Rows

_CODEC = "ragged_tensor_dict"
_NULLS = "null_mask"


class RaggedTensorDicts:
    """Rows that are dicts of tensors, or ``None``. A row may lack keys that others have.

    keys: all keys that a row may have; by default those that the rows have.
    """

    def __init__(self, keys: Iterable[str] | None = None) -> None:
        self._keys = None if keys is None else _checked(keys)

    def encode(self, values: Sequence[Any]) -> EncodedColumn:
        """As :meth:`Codec.encode`."""
        found: set[str] = set()
        for row, value in enumerate(values):
            if value is not None:
                found.update(self._keys_of(row, value))
        keys = sorted(found) if self._keys is None else self._keys
        payloads: dict[str, Any] = {_NULLS: nulls_of(values)}
        codecs: dict[str, Any] = {}
        for key in keys:
            try:
                column = RaggedTensors().encode(
                    [None if value is None else value.get(key) for value in values]
                )
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"failed to encode ragged_tensor_dict key {key!r}: {error}"
                ) from error
            payloads |= {f"{key}.{name}": value for name, value in column.payloads.items()}
            codecs[key] = column.metadata
        return EncodedColumn(_CODEC, len(values), payloads, {"keys": keys, "key_codecs": codecs})

    def decode(self, source: ColumnSource, rows: Rows) -> list[Any]:
        """As :meth:`Codec.decode`."""
        nulls = source.array(_NULLS, "|b1")
        check_length(nulls, source.rows, _NULLS)
        keys, codecs = source.metadata.get("keys"), source.metadata.get("key_codecs")
        if not isinstance(keys, list) or not isinstance(codecs, Mapping):
            raise StructuredFormatError("a ragged_tensor_dict column does not describe its keys")
        try:
            keys = _checked(keys)
        except (TypeError, ValueError) as error:
            raise StructuredFormatError(str(error)) from None
        columns = {
            key: RaggedTensors().decode(_KeySource(source, key, codecs.get(key)), rows)
            for key in keys
        }
        found: list[Any] = []
        for place, row in enumerate(rows):
            values = {key: column[place] for key, column in columns.items()}
            given = {key: value for key, value in values.items() if value is not None}
            found.append(None if nulls[row] else given)
        return found

    def _keys_of(self, row: int, value: object) -> list[str]:
        if not isinstance(value, Mapping):
            raise TypeError(
                f"ragged_tensor_dict rows must be mappings or None; row {row} is "
                f"{type(value).__name__}"
            )
        keys = _checked(value)
        empty = sorted(key for key in keys if value[key] is None)
        if empty:
            raise TypeError(
                "ragged_tensor_dict rows cannot contain explicit None tensor values; "
                f"row {row} has explicit None for {empty}"
            )
        extra = [] if self._keys is None else sorted(set(keys) - set(self._keys))
        if extra:
            raise ValueError(
                "ragged_tensor_dict rows contain keys not declared in FieldSchema "
                f"metadata['keys']; row {row} has keys not declared: {extra}"
            )
        return keys


class _KeySource:
    """The payloads of one key, as those of a column."""

    def __init__(self, source: ColumnSource, key: str, metadata: object) -> None:
        if not isinstance(metadata, Mapping):
            raise StructuredFormatError(
                f"a ragged_tensor_dict column does not describe its key {key!r}"
            )
        self.rows = source.rows
        self.metadata: Mapping[str, Any] = metadata
        self._source = source
        self._key = key

    def array(self, name: str, dtype: str | None = None) -> Any:
        return self._source.array(f"{self._key}.{name}", dtype)

    def size(self, name: str) -> int:
        return self._source.size(f"{self._key}.{name}")

    def spans(self, name: str, spans: Sequence[tuple[int, int]]) -> list[Any]:
        return self._source.spans(f"{self._key}.{name}", spans)


def _checked(keys: Iterable[object]) -> list[str]:
    """``keys`` themselves, if each can be a part of a member's name and none occurs twice."""
    checked: list[str] = []
    for key in keys:
        if not isinstance(key, str):
            raise TypeError("ragged_tensor_dict keys must be strings")
        if not key:
            raise ValueError("ragged_tensor_dict keys must not be empty")
        if any(separator in key for separator in "./\\"):
            raise ValueError("ragged_tensor_dict keys must not contain '.', '/', or '\\'")
        checked.append(key)
    if len(set(checked)) != len(checked):
        raise ValueError("ragged_tensor_dict keys contain a key twice")
    return checked
