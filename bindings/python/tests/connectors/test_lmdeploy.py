"""lmdeploy's connector."""

from __future__ import annotations

from contextlib import closing
from multiprocessing.managers import RemoteError
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster

from connectors.conftest import ConfigFile
from connectors.engines import Engine

if TYPE_CHECKING:
    from connectors.lmdeploy import Worker


def start(engine: Engine, config: str) -> closing[Worker]:
    return closing(engine.make("connectors.lmdeploy:Worker", config, blocks=16))


def test_answers_are_plain_integers_one_for_each_key(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    blocks = {block: f"{key}{block}" for block in range(16)}
    with start(prefill, config) as writer, start(decode, config) as reader:
        for block, name in blocks.items():
            writer.compute(block, name)
        first = {block: blocks[block] for block in range(12)}
        assert writer.save(first) == [0] * 12
        assert reader.exists(list(blocks.values())) == [1] * 12 + [0] * 4
        assert reader.load(blocks) == {12, 13, 14, 15}
        assert all(reader.holds(block, name) for block, name in first.items())
        assert not reader.holds(12, blocks[12])


def test_nothing_in_nothing_out(cluster: Cluster, config_file: ConfigFile, prefill: Engine) -> None:
    with start(prefill, config_file(cluster)) as worker:
        assert worker.exists([]) == []
        assert worker.save({}) == []
        assert worker.load({}) == set()


def test_a_worker_that_cannot_start_closes_its_store(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    config = config_file(cluster, master_server_address="127.0.0.1:1")
    with pytest.raises(RemoteError, match="setup failed with return code -"):
        start(prefill, config)
