"""Fixtures of the connectors' tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest
from _cluster import Cluster

from connectors._sources import Release
from connectors._stubs import prepare
from connectors.engines import Engine

StartPair = Callable[..., tuple[Engine, Engine]]

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


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


@pytest.fixture
def start() -> Iterator[StartPair]:
    """Starts two interpreters of an engine, with the connectors' own files of a release and with
    variables of their environment."""
    with ExitStack() as opened:

        def start(name: str, release: Release, **environment: str) -> tuple[Engine, Engine]:
            root = str(release.fetch())

            def engine(sockets: str) -> Engine:
                variables = {"SOCKETS": sockets, **environment}
                return opened.enter_context(closing(Engine(prepare, name, root, variables)))

            # Sockets have short paths.
            folders = [opened.enter_context(TemporaryDirectory(prefix="mc-")) for _ in range(2)]
            with ThreadPoolExecutor(2) as pool:
                first, second = pool.map(engine, folders)
            return first, second

        yield start


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
