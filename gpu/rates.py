"""Rates of puts and gets in fragments, and the time of one get, against the GPU's own copies."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster import Pool, mapped_of_peers
from memory import Block, Copies, Driver, HostAlloc, Plain, large_device_block, same
from rows import BROKEN, EQUAL, MISSED, REFUSED, WRONG, Phase, median, seconds, size_name

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FRAGMENTS = (4 * KIB, 8 * KIB, 28 * KIB, 64 * KIB, 512 * KIB, 2 * MIB)
#: Lowest shares of one large pinned copy.
SHARES = {8 * KIB: 0.80, 64 * KIB: 0.95, 512 * KIB: 0.95, 2 * MIB: 0.95}
#: Highest ratio of a get of 2 MiB to a copy and a get into memory of the host.
LATENCY = 1.3
#: Lowest ratio of the rate of a GPU's memory to that of the host's, over TCP.
OVER_TCP = 0.9
#: Bytes of one call.
BATCH = 256 * MIB
#: The pieces of one value that every release of the package takes.
PIECES = 1024
NO_SPACE = -200
#: Seconds that are kept for what follows the rates.
RESERVE = 25.0


@dataclass(frozen=True)
class Sizes:
    """Bytes of all values of a round and of one value, and how often a round is repeated."""

    volume: int
    value: int
    rounds: int

    @classmethod
    def of(cls, *, small: bool) -> Sizes:
        return cls(16 * MIB, 4 * MIB, 2) if small else cls(GIB, 32 * MIB, 5)


class Refused(Exception):
    """The package does not take this memory."""


class NoSpace(Exception):
    """The pool still keeps what was removed: a read of it may not be over."""


class Values:
    """Values whose fragments lie in no order in the memory that they are put from and got into."""

    def __init__(self, sizes: Sizes, fragment: int, seed: int, pieces: int | None = None) -> None:
        self.fragment = fragment
        per_value = pieces or sizes.value // fragment
        # With pieces of 28 KiB a value has some less than its usual length.
        self.value = per_value * fragment
        self.count = sizes.volume // (sizes.value if pieces is None else self.value)
        self.bytes = self.count * self.value
        order = random.Random(seed)
        slots = range(sizes.volume // fragment)
        self.sources = order.sample(slots, per_value * self.count)
        self.targets = order.sample(slots, per_value * self.count)
        self._per_value = per_value

    def _addresses(self, base: int, slots: Sequence[int]) -> list[list[int]]:
        places = [base + slot * self.fragment for slot in slots]
        return [places[at : at + self._per_value] for at in range(0, len(places), self._per_value)]

    def batches(self, base: int, slots: Sequence[int], tag: str) -> list[tuple[Any, Any, Any]]:
        """The arguments of the calls: keys, addresses and sizes of several values each."""
        addresses = self._addresses(base, slots)
        sizes = [[self.fragment] * self._per_value] * self.count
        keys = [f"{tag}/{nth}" for nth in range(self.count)]
        step = max(BATCH // self.value, 1)
        return [
            (keys[at : at + step], addresses[at : at + step], sizes[at : at + step])
            for at in range(0, self.count, step)
        ]

    def arrived(self, source: Block, target: Block) -> bool:
        """Whether each fragment is where it belongs, in memory of the host."""
        size, one, other = self.fragment, source.address, target.address
        return all(
            same(one + at * size, other + to * size, size)
            for at, to in zip(self.sources, self.targets, strict=True)
        )


def put(store: Any, batches: list[tuple[Any, Any, Any]]) -> None:
    for keys, addresses, sizes in batches:
        codes = store.batch_put_from_multi_buffers(keys, addresses, sizes)
        if NO_SPACE in codes:
            raise NoSpace
        if any(codes):
            raise Refused(f"batch_put_from_multi_buffers returned {codes}")


def timed_puts(store: Any, batches: list[tuple[Any, Any, Any]]) -> float:
    """The time of puts, which are repeated for a while if the pool still keeps what was removed."""
    for _ in range(20):
        try:
            return seconds(lambda: put(store, batches))
        except NoSpace:
            for keys, _, _ in batches:
                store.batch_remove(keys, True)
            time.sleep(0.1)
    raise Refused("no space, two seconds after everything was removed")


def get(store: Any, batches: list[tuple[Any, Any, Any]]) -> None:
    for keys, addresses, sizes in batches:
        codes = store.batch_get_into_multi_buffers(keys, addresses, sizes)
        if any(code != sum(lengths) for code, lengths in zip(codes, sizes, strict=True)):
            raise Refused(f"batch_get_into_multi_buffers returned {codes}")


class Side:
    """A source and a target of one kind of memory, and random bytes in the source."""

    def __init__(self, source: Block, target: Block, truth: Block, readback: Block) -> None:
        self.source, self.target, self.truth, self.readback = source, target, truth, readback

    def check(self, values: Values, copies: Copies | None) -> bool:
        """Whether the target has the fragments of the source."""
        if copies is None:
            return values.arrived(self.truth, self.target)
        copies.to_host(self.target.size)
        return values.arrived(self.truth, self.readback)


def fill_random(block: Block, seed: int) -> None:
    """Random bytes, no part of them like another one."""
    source, step = random.Random(seed), 16 * MIB
    for at in range(0, block.size, step):
        block.write(source.randbytes(min(step, block.size - at)), at)


def measure(
    phase: Phase,
    store: Any,
    sides: dict[str, tuple[Side, Copies | None]],
    values: Values,
    rounds: int,
    budget: float,
) -> dict[str, tuple[float, float]] | None:
    """The rates of all sides, or `None` if one of them has none."""
    rates = {}
    for label, (side, copies) in sides.items():
        reached = measure_side(phase, store, side, copies, values, rounds, label, budget)
        if reached is None:
            return None
        rates[label] = reached
    return rates


def measure_side(
    phase: Phase,
    store: Any,
    side: Side,
    copies: Copies | None,
    values: Values,
    rounds: int,
    label: str,
    budget: float,
) -> tuple[float, float] | None:
    """The medians of the rates of puts and gets in bytes a second; `None` if a byte was wrong or a
    call refused, which is reported."""
    times: tuple[list[float], list[float]] = ([], [])
    what = f"fragments of {size_name(values.fragment)}, values of {values.value / MIB:.3g} MiB"
    began = time.monotonic()
    # The first round pays for pages that nothing has touched.
    for nth in range(rounds + 1):
        tag = f"{label}-{values.fragment}-{values.value}-{nth}"
        to = values.batches(side.target.address, values.targets, tag)
        puts = values.batches(side.source.address, values.sources, tag)
        side.target.fill()
        try:
            took = [timed_puts(store, puts), seconds(lambda: get(store, to))]  # noqa: B023
        except Refused as error:
            phase.add(what, REFUSED, kind=label, note=str(error))
            return None
        finally:
            for keys, _, _ in puts:
                store.batch_remove(keys, True)
        if not side.check(values, copies):
            phase.add(what, WRONG, kind=label, note="a fragment did not arrive as it was")
            return None
        if nth:
            for kept, one in zip(times, took, strict=True):
                kept.append(one)
        if nth and time.monotonic() - began > budget:
            break
    phase.add(what, EQUAL, kind=label, details={"rounds": len(times[0]), "seconds": times})
    return values.bytes / median(times[0]), values.bytes / median(times[1])


def pinned_copies(phase: Phase, copies: Copies, size: int, rounds: int) -> tuple[float, float]:
    """The rates of one large pinned copy from the GPU and to it."""
    rates = []
    for what, call in (("from", copies.to_host), ("to", copies.to_device)):
        call(size)
        rate = size / median(seconds(lambda: call(size)) for _ in range(rounds))  # noqa: B023
        phase.measure(f"one pinned copy {what} the GPU", rate / 1e9, "GB/s", kind=size_name(size))
        rates.append(rate)
    return rates[0], rates[1]


def run(phase: Phase, driver: Driver, directory: str, seed: int, kind: str) -> None:
    """Shares of one large copy, through shared memory; with the kind `tcp` ratios to the host's
    memory, over TCP on loopback."""
    over_tcp = kind == "tcp"
    sizes = Sizes.of(small=phase.small)
    if over_tcp and not phase.small:
        sizes = Sizes(sizes.volume // 2, sizes.value, 3)
    with Pool(directory, 2 * sizes.volume) as pool:
        store = pool.store(min(sizes.volume, 512 * MIB))
        truth, readback = HostAlloc(driver, sizes.volume), HostAlloc(driver, sizes.volume)
        fill_random(truth, seed)
        source, target = (
            large_device_block(driver, sizes.volume),
            large_device_block(driver, sizes.volume),
        )
        Copies(driver, source, truth).to_device(sizes.volume)
        copies = Copies(driver, target, readback)
        large = pinned_copies(phase, copies, sizes.volume, sizes.rounds + 2)
        device = Side(source, target, truth, readback)
        register(phase, store, device)
        host: Side | None = None
        if over_tcp:
            plain, into = Plain(driver, sizes.volume), Plain(driver, sizes.volume)
            for at in range(0, sizes.volume, 16 * MIB):
                plain.write(truth.read(at, min(16 * MIB, sizes.volume - at)), at)
            host = Side(plain, into, truth, readback)
            register(phase, store, host)
        sides: dict[str, tuple[Side, Copies | None]] = {"device": (device, copies)}
        if host is not None:
            sides["host"] = (host, None)
        for nth, fragment in enumerate(FRAGMENTS):
            values = Values(sizes, fragment, seed + fragment)
            # The rest of the time is for the sizes to come, all of their sides, and the latency.
            budget = (phase.remaining() - RESERVE) / (len(FRAGMENTS) - nth) / len(sides)
            reached = measure(phase, store, sides, values, sizes.rounds, budget)
            if reached is None and sizes.value // fragment > PIECES:
                # Shorter values, which engines with such blocks would have to use then.
                values = Values(sizes, fragment, seed + fragment, PIECES)
                reached = measure(phase, store, sides, values, sizes.rounds, budget)
            if reached is None:
                continue
            if host is None:
                of_what, bounds, share = "of one pinned copy", large, SHARES.get(fragment)
            else:
                of_what, bounds, share = "of the host's memory", reached["host"], OVER_TCP
            report(phase, values, reached["device"], bounds, of_what, share)
        if not over_tcp:
            latency(phase, store, device, copies)
        report_mapping(phase, sizes, over_tcp)
        store.close()


def register(phase: Phase, store: Any, side: Side) -> None:
    """Registers both blocks; calls work without it, slower."""
    for block in (side.source, side.target):
        code = store.register_buffer(block.address, block.size)
        if code != 0:
            phase.add("register_buffer", REFUSED, note=f"returned {code}")


def report(
    phase: Phase,
    values: Values,
    reached: tuple[float, float],
    bounds: tuple[float, float],
    of_what: str,
    target: float | None,
) -> None:
    for call, rate, bound in zip(("put", "get"), reached, bounds, strict=True):
        what = f"{call} in {size_name(values.fragment)}: share {of_what}"
        note = f"{rate / 1e9:.2f} of {bound / 1e9:.2f} GB/s, values of {values.value / MIB:.3g} MiB"
        details = {"rate": rate, "bound": bound, "call": call}
        details |= {"fragment": values.fragment, "value": values.value}
        phase.measure(what, rate / bound, "", target=target, note=note, details=details)


def latency(phase: Phase, store: Any, side: Side, copies: Copies) -> None:
    """One get of 2 MiB into a GPU's memory against its two parts."""
    size, count = 2 * MIB, 20 if phase.small else 300
    key, host = "latency", Plain(side.source.driver, size)
    side.target.fill()
    if store.register_buffer(host.address, size) != 0:
        phase.add("a get of 2 MiB", BROKEN, note="register_buffer refused memory of the host")
        return
    if (code := store.put_from(key, side.truth.address, size)) != 0:
        phase.add("a get of 2 MiB", REFUSED, note=f"put_from pinned memory returned {code}")
        return

    def get_into(address: int) -> None:
        code = store.get_into(key, address, size)
        if code != size:
            raise Refused(f"get_into returned {code}")

    parts: dict[str, list[float]] = {"device": [], "host": [], "copy": []}
    try:
        # In turns, so that each has the same conditions.
        for nth in range(count + 10):
            took = {
                "device": seconds(lambda: get_into(side.target.address)),
                "host": seconds(lambda: get_into(host.address)),
                "copy": seconds(lambda: copies.to_device(size, at=size)),
            }
            if nth >= 10:
                for part, one in took.items():
                    parts[part].append(one)
    except Refused as error:
        phase.add("a get of 2 MiB", REFUSED, note=str(error))
        return
    wanted = side.truth.read(0, size)
    if not side.target.holds(wanted, 0) or not host.holds(wanted, 0):
        phase.add("a get of 2 MiB", WRONG, note="other bytes arrived")
        return
    device, in_host, copy = (median(parts[part]) * 1e6 for part in ("device", "host", "copy"))
    phase.measure(
        "p50 of a get of 2 MiB over copy + get into the host",
        device / (in_host + copy),
        "",
        target=LATENCY,
        at_most=True,
        note=f"{device:.1f} µs against {copy:.1f} + {in_host:.1f} µs",
        details={"device_us": device, "host_us": in_host, "copy_us": copy},
    )


def report_mapping(phase: Phase, sizes: Sizes, over_tcp: bool) -> None:
    """The way that the bytes took: a pool is mapped whole, or not at all."""
    mapped = mapped_of_peers() >= sizes.volume
    if mapped == over_tcp:
        note = (
            "shared memory was used" if over_tcp else "the pool is not mapped: bytes went over TCP"
        )
        phase.add("the way of the bytes", BROKEN if over_tcp else MISSED, note=note)
