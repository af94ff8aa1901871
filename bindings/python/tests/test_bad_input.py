"""Nothing that a caller passes ends the interpreter, and every refusal is one that is documented.

Runs `_hostile.py`, which says what is tried, in processes of its own. `MC_STORE_SEED` repeats a
run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from _cluster import Cluster, run_python

SCRIPT = Path(__file__).with_name("_hostile.py")


@pytest.mark.parametrize("state", ["new", "open", "closed"])
def test_no_call_ends_the_interpreter(
    state: str, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    seed = int(os.environ.get("MC_STORE_SEED", random.randrange(2**32)))
    call = tmp_path / "call"
    call.touch()
    cluster = new_cluster(nodes=1)
    done = run_python(
        SCRIPT,
        *(state, str(seed), cluster.address, cluster.nodes[0].dummy_address, str(call)),
        cwd=tmp_path,
        seconds=300,
        check=False,
    )
    assert done.returncode == 0, f"MC_STORE_SEED={seed}, in {call.read_text()}: {done}"
    assert int(done.stdout.splitlines()[-1]) > 1000
    assert cluster.master.is_running
    assert cluster.nodes[0].is_running
