"""The harness itself: what the other tests take for granted."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from collections.abc import Callable

import pytest
from _cluster import Cluster, Program, binary, free_port, run_python, wait_until


def ctl(cluster: Cluster, *words: str) -> str:
    command = [str(binary("mc-ctl")), f"--master_server_address={cluster.address}", *words]
    return subprocess.check_output(command, text=True, timeout=30)


def test_cluster_holds_objects(cluster: Cluster, key: str) -> None:
    ctl(cluster, "put", key, "value")
    assert ctl(cluster, "get", key).strip() == "value"
    with urllib.request.urlopen(f"{cluster.http}/health", timeout=30) as answer:
        assert answer.status == 200


def test_cluster_survives_a_node_and_ends_whole(new_cluster: Callable[..., Cluster]) -> None:
    with new_cluster(nodes=2) as cluster:
        first, second = cluster.nodes
        first.kill()
        assert not first.is_running
        assert second.stop() == 0
        assert cluster.add_node().is_running
    assert not cluster.master.is_running
    assert not any(node.is_running for node in cluster.nodes)


def test_program_that_is_not_ready_is_not_left_behind() -> None:
    with pytest.raises(RuntimeError, match="ended without 'ready'"):
        Program(["sh", "-c", "echo no"]).expect("ready")
    waits = Program(["sh", "-c", "echo no; exec sleep 1000"])
    with pytest.raises(RuntimeError, match="ran 0 s without 'ready'"):
        waits.expect("ready", seconds=0)
    assert not waits.is_running


def test_run_python_tells_how_it_ended() -> None:
    assert run_python("import sys; print(sys.argv[1])", "word").stdout == "word\n"
    with pytest.raises(AssertionError, match="NameError"):
        run_python("nothing")
    crashed = run_python("import ctypes; ctypes.string_at(0)", check=False)
    assert crashed.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in crashed.stderr
    with pytest.raises(TimeoutError, match="in <module>"):
        run_python("while True: pass", seconds=1)


def test_waiting_ends() -> None:
    with pytest.raises(TimeoutError, match="nothing"):
        wait_until(lambda: False, seconds=0, what="nothing")
    assert free_port() > 0
