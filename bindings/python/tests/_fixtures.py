"""Fixtures: clusters of real processes, and stores that joined them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from _cluster import REPOSITORY, Cluster

if TYPE_CHECKING:
    from mc_store.mooncake.store import MooncakeDistributedStore


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A master and two nodes of 64 MB, for tests that use keys of their own and leave the rest
    alone. It has the defaults: what was looked at is leased, so that it is not removed, for 5 s."""
    with Cluster.start(nodes=2) as shared:
        yield shared


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., Cluster]]:
    """`Cluster.start`, for tests that fill a cluster, break it, or need flags."""
    with ExitStack() as opened:
        yield lambda **settings: opened.enter_context(Cluster.start(**settings))


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test has."""
    return f"{request.node.nodeid}/"


class NewStore(Protocol):
    def __call__(
        self, cluster: Cluster, *, segment: int = ..., local_buffer: int = ...
    ) -> MooncakeDistributedStore: ...


@pytest.fixture
def new_store() -> Iterator[NewStore]:
    """Makes `MooncakeDistributedStore`s that are set up with a cluster, and closes them."""
    from mc_store.mooncake.store import MooncakeDistributedStore

    with ExitStack() as opened:

        def start(
            cluster: Cluster, *, segment: int = 0, local_buffer: int = 16 << 20
        ) -> MooncakeDistributedStore:
            store = MooncakeDistributedStore()
            opened.callback(store.close)
            code = store.setup(
                "127.0.0.1", "P2PHANDSHAKE", segment, local_buffer, "tcp", "", cluster.address
            )
            assert code == 0, f"setup answered {code}"
            return store

        yield start


@pytest.fixture
def store(cluster: Cluster, new_store: NewStore) -> MooncakeDistributedStore:
    """A store that uses the shared cluster and contributes no memory of its own."""
    return new_store(cluster)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the stand-in for NVIDIA's driver, under the driver's name."""
    target = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")
    library = "libmc_cuda_standin.so"
    built = sorted(target.glob(f"*/deps/{library}"), key=lambda it: it.stat().st_mtime)
    assert built, f"no {library} in {target}: cargo build -p mc-cuda-standin"
    directory = tmp_path_factory.mktemp("driver")
    (directory / "libcuda.so.1").symlink_to(built[-1])
    return directory
