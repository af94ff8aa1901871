"""A caller's batch, in its three sections: ``batch``, ``non_tensor_batch`` and ``meta_info``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .fields import FieldSchema
from .memory import TensorObjectBuffer

_SECTIONS = ("batch", "non_tensor_batch", "meta_info")

Schemas = Mapping[str, FieldSchema]


@dataclass
class Batch:
    """The fields of a batch by section. The first two have a value for each of ``size`` rows."""

    size: int = 0
    batch: dict[str, Any] = field(default_factory=dict)
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The fields that have rows."""
        return [*self.batch, *self.non_tensor_batch]


def of_dataproto(data: Any) -> Batch:
    """The batch of an object with the attributes ``batch``, ``non_tensor_batch`` and ``meta_info``,
    or of a dict with these keys only and dicts as values, or with the fields of ``batch``.

    Raises ``ValueError`` for a name in both ``batch`` and ``non_tensor_batch`` and for different
    numbers of rows, ``TypeError`` for a section that has no names.
    """
    if isinstance(data, Mapping):
        is_envelope = (
            bool(data) and set(data) <= set(_SECTIONS) and all(map(_has_names, data.values()))
        )
        parts = [data.get(name) if is_envelope else None for name in _SECTIONS]
        if not is_envelope:
            parts[0] = data
    else:
        parts = [getattr(data, name, None) for name in _SECTIONS]
        if data is not None and not any(hasattr(data, name) for name in _SECTIONS):
            raise TypeError(
                f"a {type(data).__name__} is no batch: it has none of {', '.join(_SECTIONS)}"
            )
    return _sized(Batch(0, *map(_fields, _SECTIONS, parts)))


def _fields(section: str, part: Any) -> dict[str, Any]:
    if part is None:
        return {}
    if not _has_names(part):
        raise TypeError(f"{section} must be a dict of names to values, not a {type(part).__name__}")
    return dict(part.items())


def _has_names(part: Any) -> bool:
    # A TensorDict is no Mapping, but has items.
    return part is None or callable(getattr(part, "items", None))


def of_dict(data: Any, schemas: Schemas | None) -> Batch:
    """The batch of a flat dict.

    Arrays and tensors of numbers become fields of ``batch``, lists with an element for each row
    fields of ``non_tensor_batch``, everything else ``meta_info``; a schema's ``section`` overrides
    that. Raises ``ValueError`` if the number of rows is not certain.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"type='dict' needs a dict, not a {type(data).__name__}")
    result = Batch()
    sequences: dict[str, Any] = {}
    for name, value in data.items():
        section = _section_of(name, schemas)
        if section is None and _is_row_sequence(value):
            sequences[name] = value
        else:
            section = section or ("batch" if _is_numeric_array(value) else "meta_info")
            getattr(result, section)[name] = value
    sizes = {_row_count(name, value) for name, value in _rowed(result)}
    if not sizes:
        sizes = {len(value) for value in sequences.values() if len(value)}
        if len(sizes) > 1:
            raise ValueError(
                f"flat dict fields have ambiguous batch sizes: {sorted(sizes)}; pass FieldSchema "
                "metadata['section'] for list-valued metadata fields"
            )
    for name, value in sequences.items():
        has_rows = len(value) and len(value) in sizes
        (result.non_tensor_batch if has_rows else result.meta_info)[name] = value
    return _sized(result)


def is_object_array(value: Any) -> bool:
    """Whether ``value`` is an array of numpy whose elements are Python objects."""
    return getattr(getattr(value, "dtype", None), "kind", "") == "O"


def as_dict(batch: Mapping[str, Any], columns: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """The flat dict of what was read; columns are lists.

    Raises ``ValueError`` for a name in ``meta`` and in one of the others.
    """
    overlap = sorted(meta.keys() & (batch.keys() | columns.keys()))
    if overlap:
        raise ValueError(
            f"Duplicate keys found across DataProto sections: {overlap}; read them with "
            "type='dataproto', or leave them out by fields or meta_info_keys"
        )
    lists = {
        name: list(value) if is_object_array(value) else value for name, value in columns.items()
    }
    return {**meta, **batch, **lists}


def as_dataproto(
    batch: dict[str, Any], columns: dict[str, Any], meta: dict[str, Any], data_cls: Any
) -> Any:
    """The values that were read, as a dict of sections or as a ``data_cls``."""
    if data_cls is None or data_cls is dict:
        return {"batch": batch, "non_tensor_batch": columns, "meta_info": meta}
    from_dict = getattr(data_cls, "from_dict", None)
    if from_dict is not None:
        return from_dict(batch, columns, meta_info=meta)
    return data_cls(batch=batch, non_tensor_batch=columns, meta_info=meta)


def _sized(batch: Batch) -> Batch:
    overlap = sorted(batch.batch.keys() & batch.non_tensor_batch.keys())
    if overlap:
        raise ValueError(f"DataProto batch and non_tensor_batch fields overlap: {overlap}")
    sizes = {_row_count(name, value) for name, value in _rowed(batch)}
    if len(sizes) > 1:
        raise ValueError(f"DataProto fields have inconsistent batch sizes: {sorted(sizes)}")
    batch.size = sizes.pop() if sizes else 0
    return batch


def _rowed(batch: Batch) -> list[tuple[str, Any]]:
    return [*batch.batch.items(), *batch.non_tensor_batch.items()]


def _row_count(name: str, value: Any) -> int:
    if not isinstance(name, str) or not name:
        raise ValueError(f"a field's name is non-empty text, not {name!r}")
    if isinstance(value, TensorObjectBuffer):
        if value.batch_size is None:
            raise TypeError(f"{name}: tensor_object_buffer requires batch_size for a batch")
        return value.batch_size
    try:
        return len(value)
    except TypeError:
        raise TypeError(f"field {name!r} has no rows: it is a {type(value).__name__}") from None


def _section_of(name: str, schemas: Schemas | None) -> str | None:
    schema = (schemas or {}).get(name)
    section = schema.metadata.get("section") if schema else None
    if section is not None and section not in _SECTIONS:
        raise ValueError(
            f"FieldSchema for {name!r} metadata['section'] must be one of {sorted(_SECTIONS)}"
        )
    return section


def _is_row_sequence(value: Any) -> bool:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return False
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.ndim == 1 and is_object_array(value)
    return isinstance(value, Sequence)


def _is_numeric_array(value: Any) -> bool:
    if isinstance(value, TensorObjectBuffer):
        return True
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return bool(value.ndim)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return bool(value.ndim and value.dtype.kind in "biufc")
    return False
