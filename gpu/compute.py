"""Work of the GPU alone, and beside endless puts from its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cluster import Pool
from memory import Driver, large_device_block, torch_version
from rates import MIB, NoSpace, Refused, Sizes, Values, put
from rows import ABSENT, REFUSED, WRONG, Phase, median

#: Highest ratio of the time beside puts to the time alone.
SLOWED = 1.03
FRAGMENT = 64 << 10
TURNS = 7
#: Cycles of the GPU within which the work is queued, some 20 ms.
LEAD = 40_000_000


class Puts:
    """A thread that puts values from a GPU's memory and removes them, without an end."""

    def __init__(self, driver: Driver, store: Any, values: Values, base: int) -> None:
        self._driver, self._store = driver, store
        self._batches = values.batches(base, values.sources, "beside")
        self._stop, self.bytes, self.refused = threading.Event(), 0, ""
        self._per_call = values.bytes // len(self._batches)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._driver.make_current()
        try:
            while not self._stop.is_set():
                for batch in self._batches:
                    try:
                        put(self._store, [batch])
                        self.bytes += self._per_call
                    except NoSpace:
                        time.sleep(0.01)
                    self._store.batch_remove(batch[0], True)
        except Refused as error:
            self.refused = str(error)

    def __enter__(self) -> Puts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


def works(torch: Any) -> dict[str, Callable[[], object]]:
    """Kernels that take about a tenth of a second together when queued at once."""
    one, two = (
        torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16),
        torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16),
    )
    product, wide = torch.empty_like(one), torch.randn(256 << 20, device="cuda")

    def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                call()

        return run

    return {
        "a product of matrices": repeated(lambda: torch.mm(one, two, out=product), 60),
        "a kernel that spins": repeated(lambda: torch.cuda._sleep(2_000_000), 60),
        "a kernel bound by the GPU's memory": repeated(lambda: wide.mul_(1.0), 100),
    }


def timed(torch: Any, work: Callable[[], object]) -> float:
    """Milliseconds on the GPU, all of the work queued before it begins."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(LEAD)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def run(phase: Phase, driver: Driver, directory: str, seed: int, kind: str) -> None:
    """Measures each work in turns, alone and beside."""
    del kind
    sizes = Sizes.of(small=phase.small)
    sizes = Sizes(min(sizes.volume, 256 * MIB), sizes.value, 1)
    with Pool(directory, 2 * sizes.volume) as pool:
        store = pool.store(min(sizes.volume, 512 * MIB))
        block = large_device_block(driver, sizes.volume)
        if store.register_buffer(block.address, block.size) != 0:
            phase.add("register_buffer", REFUSED)
        values = Values(sizes, FRAGMENT, seed)
        version = torch_version()
        if version is None:
            beside_a_pause(phase, driver, store, values, block.address)
        else:
            beside_kernels(phase, driver, store, values, block.address)
        key, value = "after", bytes(range(256)) * 4096
        block.write(value)
        code = store.put_from(key, block.address, len(value))
        if code == 0 and store.get(key) != value:
            phase.add("a put after all others", WRONG, note="other bytes were stored")
        store.close()


def beside_a_pause(phase: Phase, driver: Driver, store: Any, values: Values, base: int) -> None:
    with Puts(driver, store, values, base) as puts:
        time.sleep(1)
    if puts.refused:
        phase.add("endless puts", REFUSED, note=puts.refused)
    else:
        phase.measure("endless puts", puts.bytes / 1e9, "GB", note="within a second")
    phase.add("kernels beside puts", ABSENT, note="no PyTorch that can use the GPU")


def beside_kernels(phase: Phase, driver: Driver, store: Any, values: Values, base: int) -> None:
    import torch

    for what, work in works(torch).items():
        work()
        timed(torch, work)
        alone: list[float] = []
        beside: list[float] = []
        rates: list[float] = []
        for _ in range(TURNS):
            alone.append(timed(torch, work))
            with Puts(driver, store, values, base) as puts:
                time.sleep(0.1)
                before, began = puts.bytes, time.perf_counter()
                beside.append(timed(torch, work))
                rates.append((puts.bytes - before) / (time.perf_counter() - began))
            if puts.refused:
                phase.add(what, REFUSED, note=puts.refused)
                return
        phase.measure(
            f"{what}: time beside puts, to alone",
            median(beside) / median(alone),
            "",
            target=SLOWED,
            at_most=True,
            note=f"{median(beside):.2f} against {median(alone):.2f} ms,"
            f" puts of {median(rates) / 1e9:.2f} GB/s",
            details={"alone_ms": alone, "beside_ms": beside, "puts": rates},
        )
