"""The types that checkers are to see for the public names; `test_typing.py` checks them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, assert_type

import mc_store


def blocking(store: mc_store.Client) -> None:
    assert_type(store.put("k", b"v", replicas=2, preferred_segments=["a"]), bool)
    assert_type(store.put("k", memoryview(b"v")), bool)
    assert_type(store.upsert_many({"k": bytearray(1)}), list[None])
    assert_type(store.put_many([("k", b"v")]), list[bool])
    assert_type(
        store.put_many([("k", b"v")], return_exceptions=True), list[bool | mc_store.StoreError]
    )
    assert_type(store.get("k"), mc_store.Buffer)
    assert_type(store.get("k", None), mc_store.Buffer | None)
    assert_type(store.get("k", default=b""), mc_store.Buffer | bytes)
    assert_type(store.get_many(["k"]), list[mc_store.Buffer | None])
    assert_type(store.get_into("k", bytearray(1)), int)
    assert_type(store["k"], mc_store.Buffer)
    assert_type(bytes(store["k"]), bytes)
    assert_type(store["k"][0], int)
    assert_type(store["k"][1:], mc_store.Buffer)
    assert_type(memoryview(store["k"]), memoryview[int])
    assert_type(store.longest_prefix(f"{n}" for n in range(3)), int)
    assert_type(store.cluster_report().segments[0].name, str)
    assert_type(store.describe("k").replicas[0].offset, int)
    assert_type(store.wait_for_task("id", 1).done, bool)
    assert_type(store.metrics().operations["get"].p50, float | None)
    assert_type(store.master_addr, str)
    with mc_store.Client("host:1", config={"put_wait_ms": 250, "listen": "0.0.0.0:0"}) as other:
        assert_type(other, mc_store.Client)
    with mc_store.local("16MB", lease=1.0, config="client.toml") as local:
        local["k"] = b"v"
        del local["k"]
        assert_type("k" in local, bool)


async def asynchronous(master: str) -> None:
    async with mc_store.AsyncClient(master, segment_size=1 << 20) as opened:
        assert_type(opened, mc_store.AsyncClient)
    async with mc_store.AsyncClient.connect(master, segment_size=1 << 20) as client:
        assert_type(client, mc_store.AsyncClient)
        assert_type(await client.put("k", b"v", soft_pin=True), bool)
        assert_type(await client.get("k"), mc_store.Buffer)
        assert_type(await client.get("k", None), mc_store.Buffer | None)
        assert_type(await client.get_many(["k"]), list[mc_store.Buffer | None])
        assert_type(await asyncio.create_task(client.exists("k")), bool)
        first, second = await asyncio.gather(client.size("k"), client.ping())
        assert_type(first, int)
        assert_type(second, float)
        call: Coroutine[Any, Any, bool] = client.exists("k")
        later: Awaitable[bool] = call
        assert_type(await later, bool)
    async with await mc_store.AsyncClient.from_env() as again:
        assert_type(again.id, str)


def errors(error: mc_store.StoreError) -> None:
    assert_type(error.code, int)
    assert_type(error.key, str | None)
    as_key_error: KeyError = mc_store.NotFound("message")
    as_value_error: ValueError = mc_store.InvalidArgument("message")
    as_connection_error: ConnectionError = mc_store.Unreachable("message")
    as_timeout: TimeoutError = mc_store.Timeout("message")
    as_permission: PermissionError = mc_store.PermissionDenied("message")
    as_no_space: mc_store.NoSpace = mc_store.AllLeased("message")
    print(as_key_error, as_value_error, as_connection_error, as_timeout, as_permission, as_no_space)
