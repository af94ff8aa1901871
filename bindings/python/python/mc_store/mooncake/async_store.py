"""The store for asyncio: every method ``x`` of the store also as coroutine ``async_x``."""

from __future__ import annotations

import asyncio
import difflib
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mc_store.mooncake._fork import own_lock
from mc_store.mooncake.store import MooncakeDistributedStore

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A :class:`MooncakeDistributedStore` whose methods can be awaited.

    ``await store.async_get(key)`` runs ``store.get(key)`` on a thread of this object's own pool,
    so calls of one event loop overlap and none of them blocks it. Cancelling the await leaves the
    call running to its end.

    ``close`` (and ``async_close``) ends the threads when the calls under way are done. As
    ``async with``, the store is closed on leaving.
    """

    _executor: ThreadPoolExecutor | None = None
    _executor_lock: threading.Lock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own_lock(self, "_executor_lock", threading.Lock)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method_name = name.removeprefix(_PREFIX)
        method = getattr(type(self), method_name, None)
        if method_name == name or method_name.startswith("_") or not callable(method):
            near = difflib.get_close_matches(name, self.__dir__(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}",
                name=name,
                obj=self,
            )

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = functools.partial(getattr(self, method_name), *args, **kwargs)
            return await self._submit(bound)

        call.__name__ = name
        return call

    def __dir__(self) -> list[str]:
        names = list(super().__dir__())
        names += [
            _PREFIX + name
            for name in names
            if not name.startswith("_") and callable(getattr(type(self), name, None))
        ]
        return names

    async def __aenter__(self) -> MooncakeDistributedStoreAsync:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.async_close()

    def close(self) -> int:
        """As the store's ``close``; ends the threads, too. The store can be set up again."""
        try:
            return super().close()
        finally:
            with self._executor_lock:
                executor, self._executor = self._executor, None
            if executor is not None:
                # Not waited for: `async_close` is itself a call on one of these threads.
                executor.shutdown(wait=False)

    def _submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        with self._executor_lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(thread_name_prefix="mc-store-async")
            return asyncio.get_running_loop().run_in_executor(self._executor, call)


__all__ = ["MooncakeDistributedStoreAsync"]
