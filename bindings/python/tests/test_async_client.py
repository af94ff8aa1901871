"""`mc_store.AsyncClient`: coroutines on event loops of asyncio and uvloop."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import mc_store
import pytest
from _cluster import wait_until

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

NEEDS_UVLOOP = pytest.mark.skipif(
    importlib.util.find_spec("uvloop") is None, reason="uvloop is not installed"
)


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=NEEDS_UVLOOP)])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a coroutine in a new loop of either kind."""
    if request.param == "asyncio":
        return asyncio.run
    import uvloop

    return uvloop.run  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    """Where a master with a segment of 64 MB is, in this process."""
    with mc_store.local(segment_size="64MB", lease=0.01) as store:
        yield store.master_addr


def connect(master: str, **settings: Any) -> mc_store._native.Connecting:
    return mc_store.AsyncClient.connect(master, **settings)


def test_the_constructor_connects(run: Run[None], master: str, key: str) -> None:
    async def main() -> None:
        async with mc_store.AsyncClient(master, segment_size="1MB") as client:
            assert await client.put(key, b"value")
            assert client.segment_name
        assert client.closed
        other = await mc_store.AsyncClient(master)
        assert isinstance(other, mc_store.AsyncClient)
        await other.close()
        with pytest.raises(TypeError, match="segment_sise"):
            mc_store.AsyncClient(master, segment_sise="1MB")  # type: ignore[call-arg]
        with pytest.raises(mc_store.StoreError):
            await mc_store.AsyncClient("127.0.0.1:1")

    run(main())


def test_calls_are_those_of_the_blocking_client(run: Run[None], master: str, key: str) -> None:
    async def main() -> None:
        async with connect(master) as client:
            assert await client.put(key, b"one")
            assert not await client.put(key, b"two")
            assert await client.get(key) == b"one"
            assert await client.upsert(key, bytearray(b"two")) is None  # type: ignore[func-returns-value]
            assert bytes(await client.get(key)) == b"two"
            assert await client.get(key + "missing", None) is None
            with pytest.raises(KeyError):
                await client.get(key + "missing")
            with pytest.raises(mc_store.InvalidArgument):
                await client.put("", b"")
            target = bytearray(4)
            assert await client.get_into(key, target) == 3
            assert target == b"two\x00"
            assert await client.put_many({key + "a": b"1", key + "b": b"2"}) == [True, True]
            assert await client.get_many([key + "a", "missing"]) == [b"1", None]
            assert await client.longest_prefix([key + "a", key + "b", key + "c"]) == 2
            assert await client.remove(key + "a", force=True) is None  # type: ignore[func-returns-value]
            assert (await client.describe(key)).size == 3
            assert (await client.cluster_report()).clients >= 1
            assert await client.ping() > 0
            assert client.segments() == []
            assert client.metrics().operations["put"].calls == 3
            assert client.role == "client"

    run(main())


def test_every_call_of_the_blocking_client_is_there() -> None:
    only_blocking = {"__contains__", "__getitem__", "__setitem__", "__delitem__", "__iter__"}
    only_blocking |= {"__enter__", "__exit__", "__new__"}
    missing = set(vars(mc_store.Client)) - set(vars(mc_store.AsyncClient)) - only_blocking
    assert missing == set()


def test_calls_are_made_tasks_in_every_way_that_coroutines_are(run: Run[None], master: str) -> None:
    async def main() -> None:
        async with connect(master) as client:
            call = client.ping()
            assert asyncio.iscoroutine(call)
            assert await asyncio.create_task(call) > 0
            assert await asyncio.ensure_future(client.ping()) > 0
            assert await asyncio.wait_for(client.ping(), 30) > 0
            assert len(await asyncio.gather(*(client.ping() for _ in range(1000)))) == 1000
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(client.exists("k")) for _ in range(10)]
            assert [task.result() for task in tasks] == [False] * 10
            with pytest.raises(RuntimeError, match="already awaited"):
                await call

    run(main())


def test_connections_are_made_in_every_way(run: Run[None], master: str) -> None:
    async def main() -> None:
        client = await connect(master)
        async with client as same:
            assert same is client
            states = [client.closed]
        states.append(client.closed)
        assert states == [False, True]
        async with await connect(master, segment_size="1MB", listen="127.0.0.1:0") as both:
            assert both.role == "both"
        connecting = connect(master)
        async with connecting as third:
            await third.ping()
        assert third.closed
        never = connect(master)
        with pytest.raises(AttributeError, match="'put'; await what connects it"):
            never.put("k", b"v")  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="never entered"):
            never.__aexit__()
        never.close()
        with pytest.raises(mc_store.InvalidArgument, match="no master"):
            await mc_store.AsyncClient.connect()
        with pytest.raises(ConnectionError):
            await connect(
                "127.0.0.1:1", config={"rpc_connect_timeout_ms": 200, "rpc_timeout_ms": 200}
            )

    run(main())


def test_a_cluster_in_this_process(run: Run[str]) -> None:
    async def main() -> str:
        async with mc_store.AsyncClient.local(segment_size="1MB", lease=600) as store:
            await store.put("k", b"v")
            async with connect(store.master_addr) as other:
                assert await other.get("k") == b"v"
            with pytest.raises(mc_store.Leased):
                await store.remove("k")
            return store.master_addr

    for _ in range(5):
        address = run(main())
        with pytest.raises(mc_store.Unreachable):
            mc_store.Client(address, config={"rpc_connect_timeout_ms": 200, "rpc_timeout_ms": 200})


def test_nothing_is_done_before_it_is_awaited(run: Run[None], master: str, key: str) -> None:
    async def main() -> None:
        async with connect(master) as client:
            call = client.put(key, b"v")
            assert not await client.exists(key)
            call.close()
            assert not await client.exists(key)
            with pytest.warns(RuntimeWarning, match=r"AsyncClient\.put' was never awaited"):
                client.put(key, b"v")

    run(main())


def test_a_cancelled_call_is_given_up(run: Run[None], master: str) -> None:
    async def main() -> None:
        async with connect(master) as client:
            # No client does this task: its wait can only end by being cancelled.
            waiting = asyncio.create_task(endless(client))
            await client.ping()
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await endless(client)
            # And one that is cancelled before it has begun.
            unbegun = asyncio.create_task(client.ping())
            unbegun.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unbegun
            assert await client.ping() > 0

    run(main())


async def endless(client: mc_store.AsyncClient) -> None:
    """A put that waits for room that there never is."""
    async with mc_store.AsyncClient.local(segment_size="1MB", put_wait=1000) as full:
        await full.put("kept", bytes(900 << 10))
        # Under lease for as long as it is renewed.
        while True:
            await full.get("kept")
            await client.ping()


def test_a_put_that_waits_for_room_can_be_cancelled(run: Run[None]) -> None:
    async def main() -> None:
        async with mc_store.AsyncClient.local("1MB", lease=600, put_wait=600) as store:
            await store.put("leased", bytes(900 << 10))
            await store.get("leased")
            lent = bytearray(900 << 10)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await store.put("k", lent)

            async def is_given_back() -> None:
                while True:
                    await store.ping()
                    try:
                        lent.append(0)
                    except BufferError:
                        continue
                    return

            await asyncio.wait_for(is_given_back(), 30)
            assert not await store.exists("k")

    run(main())


def test_several_loops_in_several_threads_use_one_client(master: str, key: str) -> None:
    client = asyncio.run(keep(connect(master)))
    failures: list[BaseException] = []

    async def work(thread: int) -> None:
        for turn in range(3):
            keys = [f"{key}{thread}/{turn}/{n}" for n in range(50)]
            await asyncio.gather(*(client.put(key, key.encode()) for key in keys))
            values = await asyncio.gather(*(client.get(key) for key in keys))
            assert [bytes(value).decode() for value in values] == keys

    def loops(thread: int) -> None:
        try:
            for _ in range(5):
                asyncio.run(work(thread))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loops, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []
    asyncio.run(keep(client.close()))


async def keep(call: Coroutine[Any, Any, T]) -> T:
    return await call


def test_a_loop_may_be_closed_before_its_calls_have_ended(master: str, key: str) -> None:
    client = asyncio.run(keep(connect(master)))
    loops = []
    for _ in range(20):
        loop = asyncio.new_event_loop()
        loops.append(weakref.ref(loop))
        tasks = [loop.create_task(client.put(f"{key}{n}", bytes(10_000))) for n in range(10)]
        # One turn, in which all begin.
        loop.run_until_complete(asyncio.sleep(0))
        for task in tasks:
            # The loop would complain of tasks that it is to forget.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        del tasks, task, loop
    gc.collect()
    assert [loop() for loop in loops] == [None] * 20
    assert asyncio.run(keep(client.ping())) > 0
    asyncio.run(keep(client.close()))


def test_a_loop_that_is_forgotten_is_collected(master: str) -> None:
    client = asyncio.run(keep(connect(master)))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.ping())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None
    asyncio.run(keep(client.close()))


def test_a_client_is_closed_with_calls_under_way(run: Run[None], master: str) -> None:
    async def main() -> None:
        for _ in range(5):
            client = await connect(master)
            calls = [asyncio.create_task(client.exists("k")) for _ in range(100)]
            await asyncio.sleep(0)
            await asyncio.gather(client.close(), client.close())
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {bool, mc_store.Closed}
            with pytest.raises(mc_store.Closed):
                await client.exists("k")
            with pytest.raises(mc_store.Closed):
                client.metrics()

    run(main())


def test_large_values_hold_up_no_loop(run: Run[None], master: str, key: str) -> None:
    async def main() -> None:
        async with connect(master) as client:
            value = bytes(range(256)) * (1 << 14)
            assert await client.put(key, value)
            target = bytearray(len(value))
            assert await client.get_into(key, target) == len(value)
            assert target == value
            assert await client.put_parts(key + "parts", [value, b"end"])
            assert await client.size(key + "parts") == len(value) + 3

    run(main())


def test_without_a_loop_a_call_says_so(master: str) -> None:
    client = asyncio.run(keep(connect(master)))
    with pytest.raises(RuntimeError, match="no running event loop"):
        client.ping().send(None)
    asyncio.run(keep(client.close()))


def test_a_coroutine_tells_what_it_is(master: str) -> None:
    call = connect(master)
    assert call.__qualname__ == "AsyncClient.connect"
    assert call.__name__ == "connect"
    assert "not awaited" in repr(call)
    call.close()
    assert "over" in repr(call)
    with pytest.raises(ZeroDivisionError):
        connect(master).throw(ZeroDivisionError())


def test_no_threads_are_made_for_calls(master: str) -> None:
    def threads() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    async def main() -> None:
        async with connect(master) as client:
            await client.ping()
            before = threads()
            await asyncio.gather(*(client.exists(f"{n}") for n in range(500)))
            assert threads() <= before

    before = threads()
    asyncio.run(main())
    wait_until(lambda: threads() <= before, what="the threads of the client to end")
