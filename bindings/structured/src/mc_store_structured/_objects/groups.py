"""The group of a batch: a store evicts all objects of a group, or none."""

from __future__ import annotations

import copy
import uuid
from typing import Any


def group_of_new_batch(config: Any) -> str | None:
    """Returns the group that ``config`` names, or else a new one; ``None``, for no group, if it
    names ``""``.

    Raises ``ValueError`` if it names several, or something else than text.
    """
    named = _named(config)
    return f"structured-{uuid.uuid4().hex}" if named is None else named or None


def in_group(config: Any, group: str | None) -> Any:
    """``config`` for the objects of a batch in ``group``; the caller's own if that is ``None``.

    Raises ``ValueError`` if it names another group.
    """
    if group is None:
        return config
    named = _named(config)
    if named and named != group:
        raise ValueError(
            "config.group_ids conflicts with the DataProto storage group: "
            f"{named!r} is not {group!r}"
        )
    if config is None:
        from mc_store import ReplicateConfig

        return ReplicateConfig(group_ids=[group])
    return _with_groups(config, [group])


def for_keys(config: Any, count: int) -> Any:
    """``config`` for a call with ``count`` keys: a store wants one group for each key.

    Raises ``ValueError`` if it names several groups.
    """
    named = _named(config)
    if named is None or (count == 1 and config.group_ids == [named]):
        return config
    return _with_groups(config, [named] * count)


def _named(config: Any) -> str | None:
    """The group of ``config``, if it has one."""
    groups = getattr(config, "group_ids", None)
    if groups is None or isinstance(groups, str):
        return groups
    try:
        groups = list(groups)
    except TypeError:
        groups = [groups]
    if len(groups) > 1:
        raise ValueError(
            "structured object store config.group_ids must contain exactly one logical group id; "
            "it is expanded across internal Mooncake keys"
        )
    if not all(isinstance(group, str) for group in groups):
        raise ValueError("structured object store config.group_ids must contain strings")
    return groups[0] if groups else None


def _with_groups(config: Any, groups: list[str]) -> Any:
    config = copy.copy(config)
    config.group_ids = groups
    return config
