"""Calls everything that `Client` and `AsyncClient` have with what it should not be called with.

    python _hostile_clients.py STATE SEED MASTER CALL_FILE

The STATE of the clients is `open` or `closed`. Each call may raise one of `REFUSALS`, or return
something; nothing else. As `_hostile.py` otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import mmap
import operator
import random
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import mc_store
from _hostile import REFUSALS, Calls, guarded, hostile
from mc_store.exceptions import StoreError

#: Bytes of memory that can be read and that no machine has.
VAST = 1 << 40


class Hinting:
    """An iterable that says that it has more items than there is memory for."""

    def __init__(self, items: list[object], length: int) -> None:
        self.items = items
        self.length = length

    def __length_hint__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[object]:
        return Hinting(self.items[:], self.length)

    def __next__(self) -> object:
        if not self.items:
            raise StopIteration
        return self.items.pop()


class Broken:
    """An iterable, and a mapping, that ends with an exception."""

    def __iter__(self) -> Iterator[object]:
        yield "k"
        raise OverflowError("as iterators do")


class Map(Mapping[object, object]):
    """A mapping whose items are what one likes."""

    def __init__(self, items: object) -> None:
        self.given = items

    def __len__(self) -> int:
        return 2**62

    def __iter__(self) -> Iterator[object]:
        return iter(["k"])

    def __getitem__(self, key: object) -> object:
        return key

    def items(self) -> Any:
        return self.given


def vast() -> mmap.mmap:
    """A buffer that is too large to be sent or read."""
    without_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | without_reserve
    return mmap.mmap(-1, VAST, flags, mmap.PROT_READ)


def hostile_to_clients() -> list[object]:
    memory = vast()
    return [
        *hostile(guarded()),
        *(memory, [memory] * 3, {"k": memory}, [("k", memory)] * 3),
        *(Hinting(["k"], 2**40), Hinting([("k", b"v")], sys.maxsize), Hinting([b"v"], -1)),
        *(Broken(), Map(None), Map([None]), Map(["k"]), Map([("k", b"v", 1)]), Map(Broken())),
        *([("k", b"v"), ("k",)], {1: b"v"}, {"k": "v"}, {"\ud800": b"v"}, {"": b"v"}),
        ["k"] * 2_000,
        *("1XB", "-1", "99999999999999999999TB", "1e400", "0x10"),
    ]


class Attack:
    def __init__(self, state: str, seed: int, master: str, call_file: Path) -> None:
        self.state = state
        self.random = random.Random(seed)
        self.master = master
        self.calls = Calls(call_file, (*REFUSALS, MemoryError, StoreError), lambda answer: None)
        self.hostile = hostile_to_clients()
        self.loop = asyncio.new_event_loop()

    def client(self) -> mc_store.Client:
        client = mc_store.Client(self.master, segment_size="8MB", local_buffer="8MB")
        if self.state == "closed":
            client.close()
        return client

    def async_client(self) -> mc_store.AsyncClient:
        connecting = mc_store.AsyncClient.connect(
            self.master, segment_size="8MB", local_buffer="8MB"
        )
        client: mc_store.AsyncClient = self.finished(connecting)
        if self.state == "closed":
            self.finished(client.close())
        return client

    def finished(self, call: Any) -> Any:
        async def until_it_ends() -> Any:
            return await call

        return self.loop.run_until_complete(until_it_ends())

    def good(self, name: str) -> object:
        """Something that a parameter of this name takes."""
        if name.endswith(("_id", "_ids")):
            any_id = str(uuid.UUID(int=self.random.getrandbits(128)))
            return [any_id] if name.endswith("s") else any_id
        known: dict[str, object] = {
            "key": "k",
            "keys": ["k", "l"],
            "value": b"value",
            "parts": [b"val", b"ue"],
            "items": {"k": bytearray(b"value")},
            "buffer": bytearray(8),
            "start": 0,
            "stop": 1,
            "targets": ["elsewhere"],
            "source": "here",
            "target": "there",
            "timeout": 0.1,
            "grace": 0.0,
            "pattern": "^k$",
            "limit": 10,
            "size": "1MB",
            "master": self.master,
            "local_buffer": "1MB",
        }
        return known.get(name)

    def arguments(
        self, method: Callable[..., object]
    ) -> Iterator[tuple[list[object], dict[str, object]]]:
        """Each parameter wrong while the others are good, and then all of them wrong."""
        parameters = inspect.signature(method).parameters.values()
        named = {it.name for it in parameters if it.kind is it.KEYWORD_ONLY}
        names = [it.name for it in parameters]
        required = {it.name: self.good(it.name) for it in parameters if it.default is it.empty}
        if "master" in names:
            required["master"] = self.master

        def split(values: dict[str, object]) -> tuple[list[object], dict[str, object]]:
            # Parameters before a positional one must be there as well.
            positional = [name for name in names if name not in named]
            while positional and positional[-1] not in values:
                positional.pop()
            return (
                [values.get(name, self.good(name)) for name in positional],
                {name: value for name, value in values.items() if name in named},
            )

        yield [], {}
        yield [None] * (len(names) + 1), {}
        yield split(required)[0], {"no such keyword": 1}
        for name in names:
            for value in self.hostile:
                yield split(required | {name: value})
        for _ in range(50):
            yield split({name: self.random.choice(self.hostile) for name in names})

    def run(self) -> None:
        self.attack(mc_store.Client, self.client, lambda client: client.close())
        self.attack(
            mc_store.AsyncClient,
            self.async_client,
            lambda client: self.finished(client.close()),
        )

    def attack(
        self, owner: type, connect: Callable[[], Any], close: Callable[[Any], object]
    ) -> None:
        methods = [
            name
            for name, member in vars(owner).items()
            if callable(member) and not name.startswith("_") and inspect.isroutine(member)
            if not isinstance(vars(owner)[name], staticmethod)
        ]
        assert len(methods) > 30, methods
        for name in methods:
            client = connect()
            called = getattr(client, name)
            for arguments, keywords in self.arguments(called):
                self.call(f"{owner.__name__}.{name}", called, arguments, keywords)
            close(client)

    def call(
        self,
        name: str,
        method: Callable[..., object],
        arguments: list[object],
        keywords: dict[str, object],
    ) -> object:
        def ended(*arguments: object, **keywords: object) -> object:
            answer = method(*arguments, **keywords)
            return self.finished(answer) if isinstance(answer, Coroutine) else answer

        return self.calls.make(name, ended, arguments, keywords)

    def run_connects(self) -> None:
        """Calls the functions that make clients, which are closed at once."""
        for name, connect in (
            ("Client", mc_store.Client),
            ("Client.from_env", mc_store.Client.from_env),
            ("local", mc_store.local),
            ("AsyncClient.connect", mc_store.AsyncClient.connect),
            ("AsyncClient.from_env", mc_store.AsyncClient.from_env),
            ("AsyncClient.local", mc_store.AsyncClient.local),
        ):
            for arguments, keywords in self.arguments(connect):
                client = self.call(name, connect, arguments, keywords)
                if isinstance(client, mc_store.Client):
                    client.close()
                elif isinstance(client, mc_store.AsyncClient):
                    self.finished(client.close())

    def run_mapping(self) -> None:
        client = self.client()
        for value in self.hostile:
            self.calls.make("client[…]", operator.getitem, (client, value))
            self.calls.make("del client[…]", operator.delitem, (client, value))
            self.calls.make("… in client", operator.contains, (client, value))
            self.calls.make("client[…] = …", operator.setitem, (client, value, b"value"))
            self.calls.make("client[…] = …", operator.setitem, (client, "k", value))
        client.close()

    def run_endless(self) -> None:
        """An endless iterable is not read to its end."""
        client = self.client()
        for name, items in (
            ("exists_many", itertools.repeat("k")),
            ("exists_many", itertools.repeat("k" * 1_000_000)),
            ("put_many", itertools.repeat(("k", b"v"))),
            ("put_many", Map(itertools.repeat(("k", b"v")))),
        ):
            self.calls.make(name, getattr(client, name), (items,))
        client.close()

    def still_works(self) -> None:
        self.state = "open"
        client = self.client()
        client["last"] = b"word"
        assert bytes(client["last"]) == b"word"
        client.close()


def main() -> None:
    state, seed, master, call_file = sys.argv[1:]
    attack = Attack(state, int(seed), master, Path(call_file))
    attack.run()
    attack.run_mapping()
    attack.run_endless()
    if state == "open":
        attack.run_connects()
    attack.still_works()
    attack.loop.close()
    attack.calls.report()


if __name__ == "__main__":
    main()
