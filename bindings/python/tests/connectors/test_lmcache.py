"""LMCache's connector, with headers in the objects and without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from _cluster import Cluster, wait_until

from connectors.conftest import ConfigFile
from connectors.engines import Engine
from connectors.memory import content

if TYPE_CHECKING:
    from connectors.lmcache import Connector

CHUNK = 256 << 10
NO_ROOM = -200


def start(engine: Engine, config: str, **settings: object) -> closing[Connector]:
    return closing(
        engine.make("connectors.lmcache:Connector", config, chunk_bytes=CHUNK, **settings)
    )


def test_chunks_without_metadata(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    chunks = {f"vllm@model@1@0@{at:x}{key}": content(f"{key}{at}", CHUNK) for at in range(8)}
    # The last chunk of a prompt is shorter; the buffer for it is not.
    chunks[f"last{key}"] = content("last", 1000)
    with start(prefill, config) as writer, start(decode, config) as reader:
        assert writer.is_registered()
        assert reader.is_registered()
        for name, chunk in chunks.items():
            assert not reader.exists(name)
            assert writer.put(name, chunk) == 0
            assert reader.exists(name)
        names = [*chunks, f"missing{key}"]
        assert reader.get_batch(names) == [*chunks.values(), None]


def test_chunks_with_metadata(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    chunks = {f"{key}{at}": content(f"{key}{at}", 1000 * at + 1) for at in range(8)}
    with start(prefill, config) as writer, start(decode, config) as reader:
        for name, chunk in chunks.items():
            assert writer.put_with_metadata(name, chunk) == 0
        names = [f"missing{key}", *chunks]
        assert reader.get_batch_with_metadata(names) == [None, *chunks.values()]
        assert reader.get_batch_with_metadata([]) == []


def test_a_chunk_that_is_there_is_not_put_again(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    with start(prefill, config) as writer, start(decode, config) as reader:
        assert writer.put(key, b"first") == 0
        assert reader.put(key, b"second") == 0
        assert reader.put_with_metadata(key, b"third") == 0
        assert reader.get_batch([key]) == [b"first"]


def test_local_memory_is_preferred(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    names = [f"{key}{at}" for at in range(8)]
    with start(decode, config_file(cluster)) as reader:
        local = config_file(cluster, global_segment_size=16 << 20)
        with start(prefill, local, prefer_local_alloc=True) as writer:
            for name in names:
                assert writer.put(name, content(name, 1000)) == 0
            assert reader.get_batch(names) == [content(name, 1000) for name in names]
        # All of them were in the memory that has just left, and none in that of the two nodes.
        wait_until(
            lambda: not any(reader.exists(name) for name in names),
            what="the chunks of the segment to be gone",
        )


def test_a_chunk_that_does_not_fit_into_the_buffer_is_not_got(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    with start(prefill, config) as writer, start(decode, config) as reader:
        assert writer.put(f"{key}big", content(key, CHUNK + 1)) == 0
        assert writer.put(f"{key}fits", content(key, CHUNK)) == 0
        assert reader.get_batch([f"{key}big", f"{key}fits"]) == [None, content(key, CHUNK)]


def test_a_full_pool_refuses_and_keeps_what_is_in_use(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine, decode: Engine
) -> None:
    # Looked-up keys stay for their lease, and nothing is evicted before the pool is full.
    flags = ["--default_kv_lease_ttl=600000", "--eviction_high_watermark_ratio=1"]
    cluster = new_cluster(size="16MB", master_flags=flags)
    config = config_file(cluster)
    chunk = content("chunk", CHUNK)
    with start(prefill, config) as writer, start(decode, config) as reader:
        stored = 0
        while (code := writer.put(f"chunk{stored}", chunk)) == 0:
            assert reader.exists(f"chunk{stored}")
            stored += 1
            assert stored <= 64
        assert code == NO_ROOM
        assert stored > 32
        assert not reader.exists(f"chunk{stored}")
        assert reader.get_batch([f"chunk{stored - 1}", f"chunk{stored}"]) == [chunk, None]


def test_without_a_master_calls_fail_and_nothing_else(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, key: str
) -> None:
    # The connector does not look at what setup answers: its calls are those of a store that is
    # not set up.
    config = config_file(cluster, master_server_address="127.0.0.1:1")
    with start(prefill, config) as writer:
        assert writer.put(key, b"x") < 0
        assert writer.put_with_metadata(key, b"x") < 0
        assert writer.get_batch([key]) == [None]
        assert writer.get_batch_with_metadata([key]) == [None]
