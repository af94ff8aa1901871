"""Calls everything that a store has with what it should not be called with.

    python _hostile.py STATE SEED MASTER DUMMY_SERVER CALL_FILE

The STATE of the store is `new`, `open` or `closed`. Each call may raise one of `REFUSALS`, or
return something whose negative numbers are documented codes; nothing else. The call under way is
in CALL_FILE, for a process that does not survive it. A call that takes long ends the process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import inspect
import mmap
import os
import random
import re
import reprlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from mc_store.mooncake import store as module

#: What tells a caller that an argument is wrong. UnicodeEncodeError is a ValueError.
REFUSALS = (TypeError, ValueError, OverflowError, BufferError, AttributeError)
#: What an allocator raises when there is no such memory.
EXHAUSTED = (MemoryError, RuntimeError)

#: Of Mooncake, by their hundreds: -1 … -1702.
CODES = {
    *(-1, -10, -100, -101, -102, -103, -200, -300, -400, -500, -600, -601),
    *range(-714, -699),
    *(-800, -801, -900, -901),
    *range(-1012, -999),
    *range(-1106, -1099),
    *range(-1203, -1199),
    *(-1300, -1301, -1400, -1401, -1402),
    *range(-1503, -1499),
    *range(-1605, -1599),
    *(-1700, -1701, -1702),
}

#: Seconds that one call may take, or one less.
PATIENCE = 60
#: Bytes of a call that are kept.
LONGEST = 4096

#: Calls after which a store may be in another state.
SETUPS = ("setup", "setup_dummy", "init_all", "initAll")

PAGE = mmap.PAGESIZE
SIZE = 16 * PAGE


def guarded() -> int:
    """The address of `SIZE` bytes that can be written, before a page that cannot be touched."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = libc.mmap(None, SIZE + PAGE, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
    assert libc.mprotect(address + SIZE, PAGE, 0) == 0
    return address


class Liar:
    """A sequence that claims more items than there is memory for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: object) -> object:
        raise TypeError("there is none")


class Endless:
    """A sequence that is longer each time."""

    def __init__(self) -> None:
        self.length = 0

    def __len__(self) -> int:
        self.length += 1
        return self.length

    def __getitem__(self, index: int) -> int:
        if index > 100:
            raise IndexError
        return index


def hostile(memory: int) -> list[object]:
    """Values that are wrong for every parameter, or for most. Numbers are no address of memory
    that anything lives in: what a caller says is its memory may be written."""
    return [
        *(None, True, False, 0, 1, -1, 3.5, float("nan"), float("inf"), 1j),
        *(
            2**31,
            2**32,
            2**47,
            2**62,
            2**63 - 1,
            2**63,
            2**64 - 1,
            2**64,
            10**30,
            -(2**63),
            -(10**30),
        ),
        *(memory + SIZE, memory + SIZE - 1),
        *("", "\0", "a\0b", "\ud800", "k" * 1_000_000, "*[", "(" * 5_000, "../..", "\U0010ffff"),
        *(b"", b"\xff\xfe", bytearray(b"x"), memoryview(b"abcdef")[::2], memoryview(b"")),
        *([], [None], [[]], [[None]], [-1], [2**70], ["k", 3], [["k"]], [b"k"], ["\ud800"]),
        *([memory + SIZE], [[memory + SIZE]], [[[]]], [[[-1]]], [[[2**70]]], (), ("k",), {}, set()),
        *(
            {"k": 1},
            object(),
            type,
            len,
            iter(["k"]),
            range(3),
            Endless(),
            Liar(2**40),
            Liar(2**62),
        ),
    ]


class Calls:
    """Makes calls, and keeps those that end as none may."""

    def __init__(
        self,
        call_file: Path,
        refusals: tuple[type[BaseException], ...],
        judge: Callable[[object], str | None],
    ) -> None:
        self.refusals = refusals
        self.judge = judge
        self.call_file = os.open(call_file, os.O_WRONLY)
        self.watched_since = 0.0
        self.made = 0
        #: The first faulty call of each method, by its answer.
        self.faults: dict[tuple[str, str], str] = {}

    def make(
        self,
        name: str,
        method: Callable[..., object],
        arguments: Sequence[object],
        keywords: Mapping[str, object] = MappingProxyType({}),
        *,
        also: tuple[type[BaseException], ...] = (),
    ) -> object:
        """Calls it, which may raise what all may and `also` that, and returns its answer if it has
        one."""
        self.made += 1
        parts = [short(argument) for argument in arguments]
        parts += [f"{keyword}={short(value)}" for keyword, value in keywords.items()]
        said = f"{name}({', '.join(parts)})"
        # Padded, because to truncate a file takes longer than most calls.
        os.pwrite(self.call_file, ascii(said).encode().ljust(LONGEST)[:LONGEST], 0)
        self.watch()
        answer, fault = None, None
        try:
            answer = method(*arguments, **keywords)
            fault = self.judge(answer)
        except (*self.refusals, *also):
            pass
        except BaseException as error:  # a panic is no Exception
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            self.faults.setdefault((name, fault), said)
        return answer

    def watch(self) -> None:
        """Ends the process if it is not called again for some `PATIENCE`."""
        # A watch is a thread, which takes longer than most calls.
        if time.monotonic() - self.watched_since > 1:
            self.watched_since = time.monotonic()
            faulthandler.dump_traceback_later(PATIENCE, exit=True)

    def report(self) -> NoReturn:
        """Prints the faults, and ends the process."""
        for (_, fault), said in self.faults.items():
            print(f"{ascii(said)[:300]}: {fault}")
        print(self.made)
        sys.exit(bool(self.faults))


class Attack:
    def __init__(self, state: str, seed: int, master: str, server: str, call_file: Path) -> None:
        self.state = state
        self.random = random.Random(seed)
        self.master = master
        self.server = server
        self.calls = Calls(call_file, REFUSALS, faulty)
        self.memory = guarded()
        self.hostile = hostile(self.memory)
        self.store = module.MooncakeDistributedStore()
        self.reset()

    def reset(self) -> None:
        """Brings the store back into its state, after a call that may have changed that."""
        self.store.close()
        if self.state == "new":
            self.store = module.MooncakeDistributedStore()
            return
        settings = ("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 16 << 20, "tcp", "", self.master)
        assert self.store.setup(*settings) == 0
        if self.state == "closed":
            self.store.close()

    def good(self, name: str) -> object:
        """Something that a parameter of this name takes."""
        known: dict[str, object] = {
            "key": "k",
            "keys": ["k", "l"],
            "value": b"value",
            "values": [b"value", b"value"],
            "buffer": b"value",
            "buffer_ptr": self.memory,
            "buffer_ptrs": [self.memory, self.memory + PAGE],
            "all_buffer_ptrs": [[self.memory], [self.memory + PAGE, self.memory + 2 * PAGE]],
            "all_sizes": [[PAGE], [PAGE, PAGE]],
            "metadata_buffer_ptr": self.memory + PAGE,
            "metadata_size": 16,
            "size": PAGE,
            "sizes": [PAGE, PAGE],
            "config": module.ReplicateConfig(),
            "force": False,
            "regex_pattern": "^k$",
            "segment_name": "",
            "path": "no-such-file",
            "segment_ids": [],
            "tp_rank": 0,
            "tp_size": 1,
            "split_dim": 0,
            "master_server_addr": self.master,
            "server_address": self.server,
        }
        return known.get(name, 0)

    def arguments(self, method: Any) -> Iterator[tuple[object, ...]]:
        """Each parameter wrong while the others are good, and then all of them wrong."""
        # Defaults may be no literals, which `inspect` does not take.
        signature = getattr(method, "__text_signature__", None) or str(inspect.signature(method))
        names = re.findall(r"[(,] *\*{0,2}([a-z]\w*)", signature.replace("self", "_"))
        good = [self.good(name) for name in names]
        if method.__name__ == "setup":
            for name in names:
                for value in self.hostile:
                    yield (dict(zip(names, good, strict=True)) | {name: value},)
        for length in range(len(good) + 2):
            yield tuple([*good, None][:length])
        for place in range(len(good)):
            for value in self.hostile:
                yield (*good[:place], value, *good[place + 1 :])
        for _ in range(50):
            yield tuple(self.random.choices(self.hostile, k=self.random.randrange(len(good) + 2)))

    def run(self) -> None:
        methods = [name for name in dir(self.store) if not name.startswith("_")]
        assert len(methods) > 50, methods
        for name in methods:
            for arguments in self.arguments(getattr(self.store, name)):
                self.calls.make(name, getattr(self.store, name), arguments)
                # A setup that finds its master works, and one that does not closes an open store.
                if name in SETUPS and (self.store.health_check() == 0) != (self.state == "open"):
                    self.reset()
            self.reset()

    def run_beside(self) -> None:
        """The same with what the module has beside the store."""
        allocator = module.MooncakeHostMemAllocator()
        config = module.ReplicateConfig()
        for name in [name for name in dir(config) if not name.startswith("_")]:
            for value in self.hostile:
                assign = functools.partial(setattr, config, name)
                self.calls.make(f"config.{name} = ", assign, (value,))
        for callee in (
            *(module.MooncakeDistributedStore, module.ReplicateConfig, module.StoreEventInfo),
            *(allocator.alloc, allocator.free, module.bind_to_numa_node),
        ):
            for arguments in self.arguments(callee):
                also = EXHAUSTED if callee == allocator.alloc else ()
                self.calls.make(callee.__name__, callee, arguments, also=also)

    def still_works(self) -> None:
        self.state = "open"
        self.reset()
        assert self.store.put("last", b"word") == 0
        assert self.store.get("last") == b"word"
        self.store.close()


def short(value: object) -> str:
    return reprlib.repr(value)[:200]


def faulty(answer: object) -> str | None:
    """The fault of an answer, if any: negative numbers, however deep, are codes."""
    if isinstance(answer, int) and answer < 0 and answer not in CODES:
        return f"{answer} is no code"
    if isinstance(answer, dict):
        answer = list(answer.values())
    parts = answer if isinstance(answer, list | tuple) else []
    return next(filter(None, map(faulty, parts)), None)


def main() -> None:
    state, seed, master, server, call_file = sys.argv[1:]
    attack = Attack(state, int(seed), master, server, Path(call_file))
    attack.run()
    attack.run_beside()
    attack.still_works()
    attack.calls.report()


if __name__ == "__main__":
    main()
