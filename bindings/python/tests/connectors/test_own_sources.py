"""The connectors' own files, unmodified, against a real cluster: one interpreter puts, another one
gets.

The files are of releases on the package index; the rest of each engine is a stand-in. The other
tests of this folder ask more of each call; these show that the connectors make no other ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.managers import RemoteError
from pathlib import Path
from typing import Any

import pytest
from _cluster import Cluster, wait_until

from connectors import _releases
from connectors.conftest import StartPair, needs_torch
from connectors.engines import Engine


def write_config(folder: Path, cluster: Cluster) -> str:
    """Writes the file that MOONCAKE_CONFIG_PATH names."""
    path = folder / "mooncake.json"
    settings = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": cluster.address,
        "global_segment_size": 16 << 20,
        "local_buffer_size": 16 << 20,
        "protocol": "tcp",
        "device_name": "",
        "transfer_timeout": 30,
    }
    path.write_text(json.dumps(settings))
    return str(path)


@pytest.fixture
def config_path(tmp_path: Path, cluster: Cluster) -> str:
    return write_config(tmp_path, cluster)


def collect(rank: Any, *, saves: int = 0, loads: int = 0) -> set[int]:
    """Waits until as many transfers have ended, and returns the blocks that were not loaded."""
    saved = loaded = 0
    failed: set[int] = set()

    def done() -> bool:
        nonlocal saved, loaded
        more_saved, more_loaded, more_failed = rank.finished()
        saved += more_saved
        loaded += more_loaded if isinstance(more_loaded, int) else len(more_loaded)
        failed.update(more_failed)
        return saved >= saves and loaded >= loads

    wait_until(done, what=f"{saves} saves and {loads} loads")
    assert (saved, loaded) == (saves, loads)
    return failed


def test_vllm_omni(start: StartPair, cluster: Cluster, key: str) -> None:
    config = {
        "host": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master": cluster.address,
        "segment": 16 << 20,
        "localbuf": 16 << 20,
    }
    first, second = (
        engine.make("connectors._stubs.omni:connector", config)
        for engine in start("omni", _releases.OMNI)
    )
    payload = {"hidden": bytes(range(256)) * 4096, "tokens": [1, 2, 3]}
    stored, size, _ = first.put("0", "1", key, payload)
    assert stored
    assert second.get("0", "1", key) == (payload, size)
    assert second.get("0", "2", key) is None
    assert first.health()["errors"] == second.health()["errors"] == 0
    first.close()
    assert first.health()["status"] == "unhealthy"
    second.close()


@needs_torch
def test_lmcache(start: StartPair, config_path: str, key: str) -> None:
    engines = start("lmcache", _releases.LMCACHE, MOONCAKE_CONFIG_PATH=config_path)
    for save_chunk_meta in (False, True):
        hand_chunks_over(engines, f"{key}{save_chunk_meta}/", save_chunk_meta=save_chunk_meta)


def hand_chunks_over(engines: tuple[Engine, Engine], key: str, *, save_chunk_meta: bool) -> None:
    """From one rank of LMCache to another, without and with a header before each."""
    first, second = (
        engine.make("connectors._stubs.lmcache:Rank", save_chunk_meta=save_chunk_meta)
        for engine in engines
    )
    assert first.is_registered()
    assert second.is_registered()
    alone, together = [f"{key}a"], [f"{key}{number}" for number in range(5)]
    first.put(alone, at_once=False)
    first.put(together, at_once=True)
    assert second.contains([*alone, *together, f"{key}absent"]) == 6
    assert second.get([*alone, f"{key}absent", *together]) == [True, None, *[True] * 5]
    first.close()
    second.close()


@needs_torch
def test_vllm(start: StartPair, new_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    # One of its own, which it empties.
    config_path = write_config(tmp_path, new_cluster())
    first, second = (
        engine.make("connectors._stubs.vllm:Rank", blocks=16)
        for engine in start("vllm", _releases.VLLM, MOONCAKE_CONFIG_PATH=config_path)
    )
    names = [f"block {number}" for number in range(6)]
    first.save("a", dict(enumerate(names, 1)))
    collect(first, saves=1)
    # The prefix is there; the rest is put.
    first.save("b", dict(enumerate([*names, "tail"], 1)))
    collect(first, saves=1)
    operations = first.operations()
    assert operations["save_put_total_keys"] == 7
    assert operations["save_put_failed_keys"] == 0
    assert second.lookup([*names, "tail", "absent"]) == 7
    second.load("c", dict(enumerate([*names, "tail"], 5)))
    assert collect(second, loads=1) == set()
    assert all(second.holds(block, name) for block, name in enumerate([*names, "tail"], 5))
    second.load("d", {1: "absent", 2: names[1]})
    assert collect(second, loads=1) == {1}
    assert second.holds(2, names[1])
    assert first.reset()
    assert second.lookup(names) == 0
    first.close()
    second.close()


@needs_torch
def test_lmdeploy(start: StartPair, config_path: str, key: str) -> None:
    engines = start("lmdeploy", _releases.LMDEPLOY, MOONCAKE_CONFIG_PATH=config_path)
    try:
        first, second = (
            engine.make("connectors._stubs.lmdeploy:Rank", blocks=16) for engine in engines
        )
    except RemoteError as error:
        if "cannot determine the local hostname" not in str(error):
            raise
        pytest.skip("this host has no route to other hosts, from which lmdeploy takes its address")
    names = [f"{key}{number}" for number in range(6)]
    first.save(dict(enumerate(names)))
    collect(first, saves=1)
    # Again: all is there.
    first.save(dict(enumerate(names, 6)))
    collect(first, saves=1)
    assert second.lookup([*names, f"{key}absent"]) == 6
    second.load(dict(enumerate(names, 3)))
    assert collect(second, loads=1) == set()
    assert all(second.holds(block, name) for block, name in enumerate(names, 3))
    second.load({0: f"{key}absent", 1: names[1]})
    assert collect(second, loads=1) == {0}
    assert second.holds(1, names[1])
    first.close()
    second.close()


@needs_torch
def test_sglang(start: StartPair, cluster: Cluster, key: str) -> None:
    engines = start("sglang", _releases.SGLANG)
    settings = hicache_settings(cluster)
    for groups in (False, True):
        more = {"enable_group_semantics": groups}
        hand_pages_over(engines, f"{key}{groups}/", settings | more)
    for in_parts in (False, True):
        hand_embeddings_over(engines, f"{key}{in_parts}/", settings, in_parts=in_parts)


def hand_pages_over(engines: tuple[Engine, Engine], key: str, settings: dict[str, object]) -> None:
    """From one rank of SGLang's HiCache to another."""
    first, second = (
        engine.make("connectors._stubs.sglang:Rank", settings, pages=16) for engine in engines
    )
    names = [f"{key}{number}" for number in range(6)]
    assert first.backup(dict(enumerate(names))) == [True] * 6
    # The prefix is there; the rest is put.
    assert first.backup(dict(enumerate([*names, f"{key}tail"]))) == [True] * 7
    assert first.counted() == ([], [12, 2])
    assert second.exists([*names, f"{key}tail", f"{key}absent"]) == 7
    assert second.prefetch(dict(enumerate(names, 3))) == [True] * 6
    assert all(second.holds(page, name) for page, name in enumerate(names, 3))
    assert second.prefetch({0: f"{key}absent", 1: f"{key}tail"}) == [False, True]
    assert second.holds(1, f"{key}tail")


def hand_embeddings_over(
    engines: tuple[Engine, Engine], key: str, settings: dict[str, object], *, in_parts: bool
) -> None:
    """From one of SGLang's stores of embeddings to another."""
    first, second = (
        engine.make("connectors._stubs.sglang:Embeddings", settings, count=8) for engine in engines
    )
    names = [f"{key}{number}" for number in range(4)]
    assert first.put(names, in_parts=in_parts) == [True] * 4
    assert second.get([*names, f"{key}absent"], in_parts=in_parts) == [True] * 4 + [False]


def hicache_settings(cluster: Cluster) -> dict[str, object]:
    """The extra settings of HiCache's storage. The connector also waits for the master's page."""
    return {
        "local_hostname": "127.0.0.1",
        "master_server_address": cluster.address,
        "master_metrics_port": int(cluster.http.rpartition(":")[2]),
        "check_server": True,
        "protocol": "tcp",
        "global_segment_size": 16 << 20,
    }
