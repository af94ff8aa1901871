"""SGLang's connectors for weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from _cluster import Cluster

from connectors.conftest import ConfigFile
from connectors.engines import Engine

if TYPE_CHECKING:
    from connectors.weights import FileConnector, RawConnector, TensorConnector

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="tensors need torch")


def tensors(engine: Engine, master: str, model: str) -> closing[TensorConnector]:
    return closing(engine.make("connectors.weights:TensorConnector", master, model))


def raw(engine: Engine, config: str, model: str, **settings: str) -> closing[RawConnector]:
    return closing(engine.make("connectors.weights:RawConnector", config, model, **settings))


def files(engine: Engine, config: str) -> closing[FileConnector]:
    return closing(engine.make("connectors.weights:FileConnector", config))


@needs_torch
def test_tensors_arrive_with_type_and_shape(
    cluster: Cluster, prefill: Engine, decode: Engine, key: str
) -> None:
    model = f"{key}llama"
    with (
        tensors(prefill, cluster.address, model) as trainer,
        tensors(decode, cluster.address, model) as server,
    ):
        assert server.load(0, 5) == [False] * 5
        trainer.save(0, 10)
        assert server.load(0, 12) == [True] * 10 + [False] * 2
        assert server.load(1, 2) == [False] * 2
        assert trainer.save_batch(1, 10) == [0] * 10
        assert server.load_batch(1, 11) == [True] * 10 + [False]


@needs_torch
def test_files_of_a_model_are_strings(
    cluster: Cluster, prefill: Engine, decode: Engine, key: str
) -> None:
    with (
        tensors(prefill, cluster.address, key) as trainer,
        tensors(decode, cluster.address, key) as server,
    ):
        trainer.setstr(f"{key}config.json", '{"größe": 7}')
        assert server.getstr(f"{key}config.json") == '{"größe": 7}'
        assert server.getstr(f"{key}missing.json") is None


def test_raw_tensors(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    sizes = {f"{key}{at}": 1000 * at + 1 for at in range(12)}
    with raw(prefill, config, key) as trainer, raw(decode, config, key) as server:
        trainer.batch_put(sizes)
        assert server.batch_get(sizes)
        with pytest.raises(RuntimeError, match="missing: expected 10, got -704"):
            server.batch_get({**sizes, "missing": 10})
        with pytest.raises(RuntimeError, match="1: expected 500, got -600"):
            server.batch_get({f"{key}1": 500})


def test_weights_go_to_the_segments_that_are_preferred(
    new_cluster: Callable[..., Cluster], config_file: ConfigFile, prefill: Engine
) -> None:
    cluster = new_cluster(nodes=2)
    config = config_file(cluster)
    lost, kept = cluster.nodes
    sizes = {f"weight_{at}": 1000 for at in range(8)}
    with (
        raw(prefill, config, "lost", preferred_segments=f"nowhere,{lost.segment}") as first,
        raw(prefill, config, "kept", preferred_segments=f"nowhere,{kept.segment}") as second,
    ):
        first.batch_put(sizes)
        second.batch_put(sizes)
        # Not killed: its memory is shared with this host, and could be read for some time.
        assert lost.stop() == 0
        assert second.batch_get(sizes)
        with pytest.raises(RuntimeError) as failure:
            first.batch_get(sizes)
        assert str(failure.value).count("expected 1000, got -") == 8


def test_strings_have_an_index(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    with raw(prefill, config, key) as trainer, raw(decode, config, key) as server:
        assert server.list() == []
        trainer.setstr("config.json", "{}")
        assert server.list() == [f"{key}/config.json"]
        assert server.getstr("config.json") == "{}"
        assert server.getstr("tokenizer.json") is None


def test_tensors_out_of_files(
    cluster: Cluster, config_file: ConfigFile, prefill: Engine, decode: Engine, key: str
) -> None:
    config = config_file(cluster)
    size = 300_000
    with files(prefill, config) as trainer, files(decode, config) as server:
        trainer.store_file(key, size)
        # The whole, parts over the borders of chunks, and the ends.
        for parts in (
            [(0, size)],
            [(0, 8), (8, 65_528), (65_536, 1), (131_000, 100_000)],
            [(size - 1, 1), (0, 1)],
        ):
            assert server.read(key, parts, size)
        with pytest.raises(RuntimeError, match="get_into_ranges failed"):
            server.read(key, [(0, 8), (10 * size, 8)], 11 * size)
