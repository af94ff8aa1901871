"""SGLang's HiCache storage, with memory of its own and with a store service beside it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from contextlib import closing
from multiprocessing.managers import RemoteError
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster, free_port, wait_until

from connectors.conftest import ConfigFile
from connectors.engines import Engine

if TYPE_CHECKING:
    from connectors.sglang import HiCacheStore

PAGE = 2 * 8192
NOT_FOUND = -704


def start(engine: Engine, config: str, **settings: object) -> closing[HiCacheStore]:
    return closing(engine.make("connectors.sglang:HiCacheStore", config, **settings))


def pages(key: str, count: int = 8) -> dict[int, str]:
    return {page: f"{key}{page:02x}" for page in range(count)}


@pytest.mark.parametrize("group_semantics", [False, True])
def test_pages_go_from_rank_to_rank(
    cluster: Cluster,
    config_file: ConfigFile,
    prefill: Engine,
    decode: Engine,
    key: str,
    group_semantics: bool,
) -> None:
    config = config_file(cluster)
    stored = pages(key)
    with (
        start(
            prefill, config, check_server=cluster.http, group_semantics=group_semantics
        ) as writer,
        start(decode, config, group_semantics=group_semantics) as reader,
    ):
        assert writer.uses_groups() == group_semantics
        assert reader.batch_exists(list(stored.values())) == 0
        for page, name in stored.items():
            writer.compute(page, name)
        assert writer.batch_set(stored) == [True] * 8
        # Half of them are there already.
        assert reader.batch_set({page: name for page, name in stored.items() if page < 4}) == (
            [True] * 4
        )

        asked = {page: f"{key}{page:02x}" for page in range(10)}
        assert reader.batch_exists(list(asked.values())) == 8
        assert reader.batch_get(asked) == [True] * 8 + [False] * 2
        assert all(reader.holds(page, name) for page, name in stored.items())


def test_pages_of_several_places(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    stored = pages(key)
    with start(prefill, config) as writer, start(decode, config) as reader:
        for page, name in stored.items():
            writer.compute(page, name)
        assert writer.batch_set_gathered(stored) == [0] * 8
        asked = {page: f"{key}{page:02x}" for page in range(9)}
        assert reader.batch_get_scattered(asked) == [PAGE] * 8 + [NOT_FOUND]
        assert all(reader.holds(page, name) for page, name in stored.items())


def test_a_store_service_works_for_a_rank_without_memory(
    new_cluster: Callable[..., Cluster],
    config_file: ConfigFile,
    prefill: Engine,
    decode: Engine,
    key: str,
) -> None:
    cluster = new_cluster(nodes=2)
    config = config_file(cluster)
    stored = pages(key)
    beside = [node.dummy_address for node in cluster.nodes]
    with (
        start(prefill, config, standalone=beside[0]) as writer,
        start(decode, config, standalone=beside[1]) as reader,
    ):
        for page, name in stored.items():
            writer.compute(page, name)
        assert writer.batch_set(stored) == [True] * 8
        asked = {page: f"{key}{page:02x}" for page in range(9)}
        assert reader.batch_exists(list(asked.values())) == 8
        assert reader.batch_get(asked) == [True] * 8 + [False]
        assert all(reader.holds(page, name) for page, name in stored.items())


def test_a_keyword_that_setup_does_not_know_is_named(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    with start(
        prefill,
        config_file(cluster),
        setup_kwargs={"enable_client_http_server": False, "numa_affinity": "strict"},
    ) as store:
        # And only it: the others are kept.
        assert store.unsupported() == ["numa_affinity"]


def test_a_client_has_a_page_of_metrics(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    port = free_port()
    with start(
        prefill,
        config_file(cluster),
        setup_kwargs={"enable_client_http_server": True, "client_http_port": port},
    ) as store:
        assert store.unsupported() == []
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert answer.status == 200
            assert answer.read()


def test_clear_forgets_what_is_not_in_use(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine
) -> None:
    cluster = new_cluster(master_flags=["--default_kv_lease_ttl=100"])
    stored = pages("clear")
    with start(prefill, config_file(cluster)) as store:
        assert store.batch_set(stored) == [True] * 8

        def is_clear() -> bool:
            # Looking leases, so that it takes another turn when this one came too early.
            store.clear()
            return store.batch_exists(list(stored.values())) == 0

        wait_until(is_clear)


def test_a_full_pool_is_told_for_each_page(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine
) -> None:
    cluster = new_cluster(size="16MB", master_flags=["--default_kv_lease_ttl=600000"])
    leased = {page: f"leased{page}" for page in range(24)}
    more = {page: f"more{page}" for page in range(24)}
    with start(prefill, config_file(cluster), pages=24, half_bytes=256 << 10) as store:
        assert all(store.batch_set(leased))
        # Keys that were asked for have a lease.
        assert store.batch_exists(list(leased.values())) == 24
        done = store.batch_set(more)
        assert not all(done)
        # Refused keys are not there; stored ones may have been evicted since.
        got = store.batch_get(more)
        assert not any(there and not stored for there, stored in zip(got, done, strict=True))
        assert all(store.batch_get(leased))


def test_without_a_master_there_is_no_storage(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    config = config_file(cluster, master_server_address="127.0.0.1:1")
    with pytest.raises(RemoteError, match="Failed to setup Mooncake store, error code: -"):
        start(prefill, config)
    with pytest.raises(RemoteError, match="Failed to setup Mooncake store, error code: -"):
        start(prefill, config, standalone=f"127.0.0.1:{free_port()}")
