"""Nothing that a caller passes ends the interpreter, and every refusal is one that is documented.

Runs `_hostile.py` and `_hostile_clients.py`, which say what is tried, in processes of their own.
`MC_STORE_SEED` repeats a run, as does `MC_TEST_SEED`, the seed of all tests.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from _cluster import Cluster, run_python

HERE = Path(__file__).parent


@pytest.mark.parametrize("state", ["new", "open", "closed"])
def test_no_call_ends_the_interpreter(
    state: str, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=1)
    server = cluster.nodes[0].dummy_address
    attack("_hostile.py", state, cluster.address, server, directory=tmp_path)
    assert cluster.master.is_running
    assert cluster.nodes[0].is_running


@pytest.mark.parametrize("state", ["open", "closed"])
def test_no_call_of_a_client_ends_the_interpreter(
    state: str, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=1)
    attack("_hostile_clients.py", state, cluster.address, directory=tmp_path)
    assert cluster.master.is_running
    assert cluster.nodes[0].is_running


def attack(script: str, state: str, *addresses: str, directory: Path) -> None:
    given = os.environ.get("MC_STORE_SEED") or os.environ.get("MC_TEST_SEED")
    seed = int(given or random.randrange(2**32))
    call = directory / "call"
    call.touch()
    done = run_python(
        HERE / script,
        *(state, str(seed), *addresses, str(call)),
        cwd=directory,
        seconds=300,
        check=False,
    )
    assert done.returncode == 0, f"MC_STORE_SEED={seed}, in {call.read_text()}: {done}"
    assert int(done.stdout.splitlines()[-1]) > 1000
