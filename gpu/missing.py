"""Checks that wait for the package to offer what they check."""

from __future__ import annotations

import re

from memory import Driver
from rows import ABSENT, Phase

#: The check, and the names of calls by which the package would offer its subject.
WAITING = {
    "an engine that is killed while a node copies from its memory by CUDA IPC": r"ipc",
    "a segment of 64 GiB that is pinned in the background": r"pin\w*_segment|segment\w*_pin|pinned",
}


def run(phase: Phase, driver: Driver, directory: str, seed: int, kind: str) -> None:
    """Looks for the calls."""
    del driver, directory, seed, kind
    import mc_store
    from mc_store.mooncake.engine import TransferEngine
    from mc_store.mooncake.store import MooncakeDistributedStore

    places = (mc_store, mc_store.Client, MooncakeDistributedStore, TransferEngine)
    for what, pattern in WAITING.items():
        names = {name for place in places for name in dir(place) if re.search(pattern, name, re.I)}
        note = f"offered now ({', '.join(sorted(names))}): write this check" if names else ""
        phase.add(what, ABSENT, note=note)
