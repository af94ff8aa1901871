"""vllm-omni's connector, its imports unchanged, by both ways to provide `mooncake`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.managers import RemoteError
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _cluster import REPOSITORY, Cluster, run_python
from _environments import pip

from connectors.engines import Engine, install_as_mooncake, use_distribution

if TYPE_CHECKING:
    from connectors.omni import MooncakeStoreConnector

SHIM = REPOSITORY / "bindings/python/mooncake-shim"


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution `mc-store-mooncake` installed in it."""
    site = tmp_path_factory.mktemp("site")
    pip("install", "--no-input", "--no-deps", "--no-build-isolation", f"--target={site}", SHIM)
    return site


class Stages:
    """Two interpreters, a stage of a pipeline in each."""

    def __init__(self, first: Engine, second: Engine) -> None:
        self._first = first
        self._second = second

    def start(
        self, cluster: Cluster
    ) -> tuple[closing[MooncakeStoreConnector], closing[MooncakeStoreConnector]]:
        """Connectors of both stages, as the runtime's configuration describes them."""
        name = "connectors.omni:MooncakeStoreConnector"
        config = {
            "host": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "master": cluster.address,
            "segment": 16 << 20,
            "localbuf": 32 << 20,
            "proto": "tcp",
        }
        return closing(self._first.make(name, config)), closing(self._second.make(name, config))


@pytest.fixture(scope="module", params=["installed for the process", "installed as distribution"])
def stages(request: pytest.FixtureRequest) -> Iterator[Stages]:
    def engine() -> Engine:
        if request.param == "installed for the process":
            return Engine(install_as_mooncake)
        return Engine(use_distribution, str(request.getfixturevalue("distribution")))

    with closing(engine()) as first, closing(engine()) as second:
        yield Stages(first, second)


def test_a_stage_gets_what_another_put(cluster: Cluster, stages: Stages, key: str) -> None:
    payload = {"hidden": bytes(range(256)) * 4096, "tokens": [1, 2, 3], "final": True}
    first, second = stages.start(cluster)
    with first as thinker, second as talker:
        stored, size, metadata = thinker.put("0", "1", key, payload)
        assert (stored, metadata) == (True, None)
        assert size > 1 << 20
        assert talker.get("0", "1", key) == (payload, size)
        assert thinker.health()["puts"] == 1
        assert thinker.health()["bytes_transferred"] == size
        assert talker.health()["gets"] == 1
        assert talker.health()["status"] == "healthy"
        # The stages are part of the key.
        assert thinker.put("0", "2", key, "for another stage")[0]
        assert talker.get("0", "2", key, None) is not None


def test_a_get_waits_for_the_put(cluster: Cluster, stages: Stages, key: str) -> None:
    first, second = stages.start(cluster)
    with first as thinker, second as talker, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(talker.get, "0", "1", key)
        stored, size, _ = thinker.put("0", "1", key, ["late"])
        assert stored
        assert waiting.result(timeout=30) == (["late"], size)
        assert talker.health()["timeouts"] == 0


def test_a_get_of_what_never_comes_times_out(cluster: Cluster, stages: Stages, key: str) -> None:
    first, second = stages.start(cluster)
    with first, second as talker:
        started = time.monotonic()
        assert talker.get("0", "1", key) is None
        # 19 pauses of 50 ms; a miss itself costs next to nothing.
        assert 0.95 <= time.monotonic() - started < 5
        assert talker.health()["timeouts"] == 1
        assert talker.health()["errors"] == 0


def test_a_closed_connector_refuses(cluster: Cluster, stages: Stages, key: str) -> None:
    first, second = stages.start(cluster)
    with first as thinker, second as talker:
        thinker.cleanup(key)
        thinker.close()
        assert thinker.put("0", "1", key, "x") == (False, 0, None)
        assert thinker.get("0", "1", key) is None
        assert thinker.health() == {"status": "unhealthy", "error": "Store not initialized"}
        thinker.close()
        assert talker.health()["status"] == "healthy"


def test_a_connector_without_a_master_does_not_start() -> None:
    with closing(Engine()) as engine, pytest.raises(RemoteError, match="Mooncake setup failed: -"):
        engine.make("connectors.omni:MooncakeStoreConnector", {"master": "127.0.0.1:1"})


def test_the_distribution_needs_no_word_of_this_package(distribution: Path) -> None:
    path = os.pathsep.join([str(distribution), *filter(None, sys.path)])
    done = run_python(
        "from mooncake.store import MooncakeDistributedStore, ReplicateConfig\n"
        "print(MooncakeDistributedStore.__name__, ReplicateConfig().replica_num)",
        env={"PYTHONPATH": path},
    )
    assert done.stdout == "MooncakeDistributedStore 1\n"
