"""vLLM's connector, prefill in one process and decode in another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from multiprocessing.managers import RemoteError
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster, wait_until

from connectors.conftest import ConfigFile
from connectors.engines import Engine

if TYPE_CHECKING:
    from connectors.vllm import Worker

LAYERS = 2
BLOCK = LAYERS * 4096
NOT_FOUND = -704
NO_ROOM = -200
BAD_PARAMETERS = -600


def hashes(request: str, count: int) -> list[str]:
    return [f"{request}{block:04x}" for block in range(count)]


def start(engine: Engine, config: str, **settings: object) -> closing[Worker]:
    worker: Worker = engine.make("connectors.vllm:Worker", config, **settings)
    return closing(worker)


def test_decode_loads_what_prefill_saved(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompt = hashes("5ea7", 32)
    with (
        start(prefill, config, blocks=32) as writer,
        start(decode, config, blocks=64) as reader,
    ):
        assert writer.registration() == reader.registration() == 0
        assert reader.lookup(prompt) == 0
        for block, block_hash in enumerate(prompt):
            writer.compute(block, block_hash)
        saved = writer.save(dict(enumerate(prompt)))
        assert (saved.stored, saved.present, saved.codes) == (32, 0, [])

        # A longer prompt, of which the store has the beginning.
        assert reader.lookup([*prompt, *hashes("07", 4)]) == 32
        blocks = {63 - block: block_hash for block, block_hash in enumerate(prompt)}
        loaded = reader.load(blocks)
        assert loaded.results == [BLOCK] * 32
        assert loaded.failed_blocks == set()
        assert loaded.tiers == ["memory"] * 32
        assert all(reader.holds(block, block_hash) for block, block_hash in blocks.items())

        again = writer.save(dict(enumerate(prompt)))
        assert (again.stored, again.present) == (0, 32)


def test_blocks_that_are_missing_are_computed_anew(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompt = hashes("a11", 4)
    with (
        start(prefill, config, blocks=4) as writer,
        start(decode, config, blocks=4) as reader,
    ):
        for block in (0, 1, 3):
            writer.compute(block, prompt[block])
        writer.save({block: prompt[block] for block in (0, 1, 3)})
        assert reader.lookup(prompt) == 2
        loaded = reader.load(dict(enumerate(prompt)))
        assert loaded.results == [BLOCK, BLOCK, NOT_FOUND, BLOCK]
        assert loaded.failed_blocks == {2}
        assert loaded.tiers == ["memory", "memory", "unknown", "memory"]
        assert reader.holds(3, prompt[3])


def test_buffers_that_are_too_small_get_nothing(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompt = hashes("5a11", 2)
    with (
        start(prefill, config, blocks=2) as writer,
        start(decode, config, blocks=2) as reader,
    ):
        for block, block_hash in enumerate(prompt):
            writer.compute(block, block_hash)
        writer.save(dict(enumerate(prompt)))
        loaded = reader.load(dict(enumerate(prompt)), layer_bytes=1024)
        assert loaded.results == [BAD_PARAMETERS] * 2
        assert loaded.failed_blocks == {0, 1}


def test_a_full_pool_is_back_pressure(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    # Keys that were looked up are not evicted before the reset, which frees their space at once:
    # there are no readers.
    cluster = new_cluster(nodes=2, size="16MB", master_flags=["--default_kv_lease_ttl=10000"])
    config = config_file(cluster)
    block = {"layer_bytes": 512 << 10}
    leased, more = hashes("1ea5ed", 24), hashes("f111", 24)
    with (
        start(prefill, config, blocks=24, **block) as writer,
        start(decode, config, blocks=24, **block) as reader,
    ):
        assert writer.save(dict(enumerate(leased))).stored == 24
        assert reader.lookup(leased) == 24

        saved = writer.save(dict(enumerate(more)))
        assert 0 < len(saved.codes) < 24
        assert set(saved.codes) == {NO_ROOM}
        assert saved.under_pressure
        assert reader.lookup(leased) == 24

        writer.reset()
        assert reader.lookup(leased) == 0
        assert writer.save(dict(enumerate(leased))).stored == 24

        def saved_again() -> bool:
            saved = writer.save(dict(enumerate(leased)))
            return saved.stored + saved.present == 24

        wait_until(saved_again, what="the end of the leases")


def test_reset_removes_what_is_leased(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    cluster = new_cluster()
    config = config_file(cluster)
    prompt = hashes("4e5e7", 8)
    with (
        start(prefill, config, blocks=8) as writer,
        start(decode, config, blocks=8) as reader,
    ):
        writer.save(dict(enumerate(prompt)))
        assert reader.lookup(prompt) == 8
        writer.reset()
        assert reader.lookup(prompt) == 0


def test_receiving_threads_share_a_store(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompts = [hashes(f"{request}7ead", 16) for request in range(8)]
    places = [
        {16 * request + at: block_hash for at, block_hash in enumerate(prompt)}
        for request, prompt in enumerate(prompts)
    ]
    with (
        start(prefill, config, blocks=128) as writer,
        start(decode, config, blocks=128) as reader,
    ):
        for blocks in places:
            for block, block_hash in blocks.items():
                writer.compute(block, block_hash)
            assert writer.save(blocks).codes == []
        for blocks, loaded in zip(places, reader.load_in_threads(places, 4), strict=True):
            assert loaded.results == [BLOCK] * 16
            assert all(reader.holds(block, block_hash) for block, block_hash in blocks.items())


def test_a_rank_contributes_memory_until_it_closes(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    cluster = new_cluster(nodes=0)
    prompt = hashes("e3bedded", 4)
    with start(decode, config_file(cluster), blocks=4) as reader:
        with start(prefill, config_file(cluster, global_segment_size=16 << 20), blocks=4) as writer:
            for block, block_hash in enumerate(prompt):
                writer.compute(block, block_hash)
            assert writer.save(dict(enumerate(prompt))).stored == 4
            assert reader.load(dict(enumerate(prompt))).results == [BLOCK] * 4
            assert reader.holds(0, prompt[0])
        wait_until(lambda: reader.lookup(prompt) == 0, what="the segment's blocks to be gone")


def test_prefixes_and_models_keep_apart(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompt = hashes("a9a47", 2)
    with (
        start(prefill, config, blocks=2, cache_prefix="blue/1") as blue,
        start(decode, config, blocks=2, cache_prefix="green/1") as green,
    ):
        assert blue.save(dict(enumerate(prompt))).stored == 2
        assert green.lookup(prompt) == 0
        assert blue.lookup(prompt) == 2


def test_caches_in_memory_of_gpus_are_stored_and_loaded(
    cluster: Cluster, config_file: ConfigFile, driver: Path
) -> None:
    config, library = config_file(cluster), str(driver / "libcuda.so.1")
    prompt = hashes("9b0", 40)
    # Engines of their own: those of other tests stay without the driver.
    with ExitStack() as opened:
        workers = []
        for _ in range(2):
            engine = Engine()
            opened.callback(engine.close)
            workers.append(opened.enter_context(start(engine, config, blocks=40, gpu=library)))
        writer, reader = workers
        assert (writer.registration(), reader.registration()) == (0, 0)
        for block, block_hash in enumerate(prompt):
            writer.compute(block, block_hash)
        assert writer.save(dict(enumerate(prompt))).stored == 40
        assert reader.lookup(prompt) == 40
        # In another order than they were stored.
        places = dict(enumerate(reversed(prompt)))
        assert reader.load(places).results == [BLOCK] * 40
        assert all(reader.holds(block, block_hash) for block, block_hash in places.items())


def test_memory_of_a_device_is_refused(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    config = config_file(cluster)
    prompt = dict(enumerate(hashes("de71ce", 2)))
    with (
        start(prefill, config, blocks=2) as writer,
        start(decode, config, blocks=2, on_device=True) as reader,
    ):
        writer.save(prompt)
        # It is logged there, and tried nevertheless.
        assert reader.registration() < 0
        loaded = reader.load(prompt)
        assert loaded.failed_blocks == {0, 1}
        assert reader.save(dict(enumerate(hashes("de71cf", 2)))).stored == 0
        assert reader.lookup([*prompt.values()]) == 2


def test_without_a_master_a_worker_does_not_start(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    config = config_file(cluster, master_server_address="127.0.0.1:1")
    with pytest.raises(RemoteError, match="Initialize MooncakeDistributedStore failed"):
        start(prefill, config, blocks=1)
