"""vllm-ascend's backend: whole blocks, and sessions that move them layer by layer."""

from __future__ import annotations

from contextlib import closing
from multiprocessing.managers import RemoteError
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster

from connectors.conftest import ConfigFile
from connectors.engines import Engine

if TYPE_CHECKING:
    from connectors.ascend import Backend

LAYERS = 4
PAGE = 4096
NOT_FOUND = -704


def start(engine: Engine, config: str, blocks: int = 3) -> closing[Backend]:
    return closing(engine.make("connectors.ascend:Backend", config, blocks=blocks))


@pytest.fixture
def keys(key: str) -> list[str]:
    return [f"Qwen@layerwise_pp_v1@pp_rank:0@{key}{block}@0" for block in range(3)]


def test_setup_tells_that_it_knows_about_ssds(prefill: Engine) -> None:
    # The answer is `True`, through a proxy.
    assert str(prefill.make("connectors.ascend:supports_ssd_offload")) == "True"


def test_blocks_go_from_rank_to_rank(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, keys: list[str]
) -> None:
    config = config_file(cluster, local_buffer_size=0)
    with start(prefill, config) as writer, start(decode, config) as reader:
        for block, name in enumerate(keys):
            writer.compute(block, name)
        assert writer.put(keys[:2]) == [0, 0]
        assert reader.exists(keys) == [1, 1, 0]
        assert reader.get(keys) == [LAYERS * PAGE, LAYERS * PAGE, NOT_FOUND]
        assert reader.holds(0, keys[0])
        assert reader.holds(1, keys[1])


def test_sessions_move_layers(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, keys: list[str]
) -> None:
    config = config_file(cluster)
    with start(prefill, config) as writer, start(decode, config) as reader:
        for block, name in enumerate(keys):
            writer.compute(block, name)
        assert writer.batch_put_session_start(keys) == [0] * 3
        for layer in range(LAYERS):
            assert writer.put_layer(keys, layer) == [PAGE] * 3
            # An incomplete object does not exist.
            assert reader.exists(keys) == [0] * 3
        assert writer.batch_put_session_end(keys) == [0] * 3
        assert reader.exists(keys) == [1] * 3

        assert reader.batch_get_session_start(keys) == [0] * 3
        for layer in range(LAYERS):
            assert reader.get_layer(keys, layer) == [PAGE] * 3
        assert reader.batch_get_session_end(keys) == 0
        assert all(reader.holds(block, name) for block, name in enumerate(keys))


def test_a_revoked_session_leaves_nothing(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, keys: list[str]
) -> None:
    config = config_file(cluster)
    with start(prefill, config) as writer, start(decode, config) as reader:
        assert writer.batch_put_session_start(keys) == [0] * 3
        assert writer.put_layer(keys, 0) == [PAGE] * 3
        # As when the range of one key failed: it alone is revoked.
        assert writer.batch_put_session_revoke(keys[1:2]) == [0]
        for layer in range(1, LAYERS):
            assert writer.put_layer([keys[0]], layer) == [PAGE]
        assert writer.batch_put_session_end(keys[:1]) == [0]
        assert reader.exists(keys) == [1, 0, 0]
        assert writer.batch_put_session_revoke(keys[2:]) == [0]
        # Its key can be put again.
        assert writer.batch_put_session_start(keys[1:]) == [0, 0]
        assert writer.batch_put_session_revoke(keys[1:]) == [0, 0]
        assert reader.exists(keys) == [1, 0, 0]


def test_sessions_that_were_not_started_fail(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, keys: list[str]
) -> None:
    with start(prefill, config_file(cluster)) as backend:
        assert all(code < 0 for code in backend.put_layer(keys, 0))
        assert all(code < 0 for code in backend.batch_put_session_end(keys))
        assert backend.batch_get_session_start(keys) == [NOT_FOUND] * 3
        assert all(code < 0 for code in backend.get_layer(keys, 0))
        assert backend.exists(keys) == [0] * 3


def test_a_protocol_that_is_not_there_is_refused(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine
) -> None:
    with pytest.raises(RemoteError, match=r"Initialize mooncake failed\."):
        start(prefill, config_file(cluster, protocol="ascend"))
