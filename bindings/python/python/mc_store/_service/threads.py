"""Calls of the store, which block, away from the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Threads:
    """A pool of threads, started on demand.

    It has many, because an unmount with a grace period occupies a thread for that time.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(64, thread_name_prefix="mc-store-service")

    async def run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """``call(*args, **kwargs)``; if this is cancelled, the call still runs to its end."""
        bound = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, bound)

    def close(self) -> None:
        """End the threads, once their calls are done."""
        self._executor.shutdown()
