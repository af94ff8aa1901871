"""Objects that one model puts are converted for another, whichever way they are put."""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from _cluster import Cluster, wait_until
from _fixtures import NewStore
from mc_store import AsyncClient, Client
from mc_store.exceptions import InvalidArgument, NotFound, Unsupported
from mc_store.mooncake.store import MooncakeDistributedStore

DATA = Path(__file__).parents[3] / "mc-c2c/tests/data"
SOURCE = (DATA / "src.bf16").read_bytes()
CONVERTED = {
    "k": (DATA / "tgt_key.bf16").read_bytes(),
    "v": (DATA / "tgt_value.bf16").read_bytes(),
}


@pytest.fixture
def cluster(new_cluster: Callable[..., Cluster], tmp_path: Path) -> Cluster:
    rules = {
        "models": [
            {"model_id": "a", "num_layers": 3, "num_kv_heads": 2, "head_dim": 4},
            {"model_id": "b", "num_layers": 2, "num_kv_heads": 3, "head_dim": 2},
        ],
        "rules": [
            {
                "source_model": "a",
                "target_model": "b",
                "source_model_name": "org/A",
                "target_model_name": "org/B",
                "projector_file": str(DATA / "projector.bin"),
                "round": "truncate",
            }
        ],
    }
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules))
    flags = ("--enable_c2c=true", "--c2c_workers=2", f"--c2c_config_file={file}")
    return new_cluster(master_flags=flags)


def check(reader: Client, *blocks: str) -> None:
    for block in blocks:
        for part, expected in CONVERTED.items():
            key = f"org/B_{block}_0_{part}"
            wait_until(partial(reader.exists, key), what=key)
            assert reader[key] == expected


def test_each_way_to_put_is_converted(cluster: Cluster, new_store: NewStore) -> None:
    data = ctypes.create_string_buffer(SOURCE, len(SOURCE))
    address, size = ctypes.addressof(data), len(SOURCE)

    def keys(block: str) -> list[str]:
        return [f"org/A_{block}_0_{part}" for part in "kv"]

    thin = MooncakeDistributedStore()
    assert thin.setup_dummy(16 << 20, 16 << 20, cluster.nodes[0].dummy_address) == 0
    for name, store in (("store", new_store(cluster)), ("thin", thin)):
        memory, span = (address, [address] * 2)
        if name == "thin":
            memory = store.alloc_from_mem_pool(size)
            ctypes.memmove(memory, address, size)
            span = [memory] * 2
        else:
            assert store.register_buffer(memory, size) == 0
        assert store.batch_put_from(keys(f"{name}1"), span, [size] * 2) == [0, 0]
        assert store.put_batch(keys(f"{name}2"), [SOURCE] * 2) == 0
        pieces = [[memory, memory + 80]] * 2
        lengths = [[80, size - 80]] * 2
        assert store.batch_put_from_multi_buffers(keys(f"{name}3"), pieces, lengths) == [0, 0]
    with Client(cluster.address) as client:
        check(client, *(f"{name}{way}" for name in ("store", "thin") for way in (1, 2, 3)))
        client.put_many(dict.fromkeys(keys("many"), SOURCE))
        check(client, "many")
    assert thin.close() == 0


def test_conversion_on_request(cluster: Cluster) -> None:
    with Client(cluster.address) as client:
        client["org/A_x_0_k"] = SOURCE
        check_one = "org/B_x_0_k"
        wait_until(lambda: client.exists(check_one), what="the converted object")
        assert client.convert("org/A_x_0_k", "copy") is True
        assert client["copy"] == CONVERTED["k"]
        assert client.convert("org/A_x_0_k", "copy") is False
        with pytest.raises(NotFound):
            client.convert("org/A_y_0_k", "copy")
        with pytest.raises(InvalidArgument, match="no rule applies"):
            client.convert("copy", "other")
        with pytest.raises(InvalidArgument, match="does not use"):
            client.convert("org/A_x_0_k", "other", target=check_one)

    async def convert() -> bool:
        async with AsyncClient(cluster.address) as client:
            return await client.convert("org/A_x_0_k", "again")

    assert asyncio.run(convert())


def test_a_master_without_rules_says_so(new_cluster: Callable[..., Cluster]) -> None:
    with Client(new_cluster().address) as client:
        client["org/A_x_0_k"] = SOURCE
        with pytest.raises(Unsupported, match="--enable_c2c"):
            client.convert("org/A_x_0_k", "copy")
