"""Fixtures of the connectors' tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest
from _cluster import Cluster

from connectors.engines import Engine


@pytest.fixture(scope="module")
def prefill() -> Iterator[Engine]:
    """The interpreter of an engine that computes blocks and puts them."""
    with closing(Engine()) as engine:
        yield engine


@pytest.fixture(scope="module")
def decode() -> Iterator[Engine]:
    """The interpreter of an engine that gets them."""
    with closing(Engine()) as engine:
        yield engine


class ConfigFile(Protocol):
    def __call__(self, cluster: Cluster, **settings: object) -> str: ...


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., str]:
    """Writes a file such as MOONCAKE_CONFIG_PATH names, for a cluster, and returns its path."""

    def write(cluster: Cluster, **settings: object) -> str:
        path = tmp_path / f"mooncake-{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"master_server_address": cluster.address, **settings}))
        return str(path)

    return write
