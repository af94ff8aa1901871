"""A node of the store with its REST service: from setup to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping

from aiohttp import web

from mc_store._service.access import Access, is_loopback
from mc_store._service.application import application
from mc_store._service.connections import IDLE_SECONDS, Connections
from mc_store._service.threads import Threads
from mc_store.mooncake.mooncake_config import MooncakeConfig
from mc_store.mooncake.store import MooncakeDistributedStore

_RETRY_SECONDS = 1.0

# Requests under way at the end may take this long to finish.
_DRAIN_SECONDS = 10.0

_BACKLOG = 128

_log = logging.getLogger(__name__)


class MooncakeStoreService:
    """A store client that contributes memory and answers HTTP requests.

    ``config_path`` is a JSON file as :class:`MooncakeConfig` reads it, or ``None`` for the
    environment; ``cli_config`` overrides single settings. Raises what ``MooncakeConfig`` raises.
    """

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        cli_config: Mapping[str, str] | None = None,
    ) -> None:
        if config_path is None:
            config = MooncakeConfig.load_from_env()
        else:
            config = MooncakeConfig.from_file(config_path)
        self.config = config.replace(cli_config or {})
        self.store: MooncakeDistributedStore | None = None
        self._threads = Threads()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    async def start_store_service(
        self, max_wait_time: float = 60, shutdown_event: asyncio.Event | None = None
    ) -> bool:
        """Join the store, trying again for ``max_wait_time`` seconds.

        False if that did not work in time, or if ``shutdown_event`` came first.
        """
        stop = shutdown_event or asyncio.Event()
        deadline = time.monotonic() + max_wait_time
        while not stop.is_set():
            self.store = MooncakeDistributedStore()
            code = await self._threads.run(self.store.setup, self.config.setup_arguments())
            if code == 0:
                _log.info("joined the store at %s", self.config.master_server_address)
                return not stop.is_set()
            await self._close_store()
            left = deadline - time.monotonic()
            if left <= 0:
                _log.error("store setup failed (code %d); no time left to try again", code)
                return False
            _log.warning("store setup failed (code %d); %.0f s left to try again", code, left)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(_RETRY_SECONDS, left))
        return False

    async def start_http_service(
        self, port: int = 8080, host: str = "127.0.0.1", *, access: Access | None = None
    ) -> bool:
        """Answer requests at ``host:port``; port 0 takes a free one, which is logged.

        Raises ``OSError`` if the port cannot be had.
        """
        access = access or Access()
        if self.store is None:
            raise RuntimeError("start_store_service comes first")
        connections = Connections()
        app = application(
            self.store,
            self._threads,
            self.config.protocol,
            access=access,
            connections=connections,
        )
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            shutdown_timeout=_DRAIN_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
            access_log=None,
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "a runner that is set up has a server"
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: connections.admit(server), host, port, backlog=_BACKLOG
        )
        addresses = [socket.getsockname() for socket in self._listener.sockets]
        if access.token is None and not all(map(is_loopback, addresses)):
            _log.warning(
                "every host that reaches %s can read, write and remove all objects: use "
                "--token-file, or --host 127.0.0.1",
                addresses[0][0],
            )
        _log.info("REST API started on port %d", addresses[0][1])
        return True

    async def stop(self) -> None:
        """Answer the requests under way, leave the store, end the threads."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._close_store()
        self._threads.close()

    async def _close_store(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            # Unmounts what this node contributes.
            await self._threads.run(store.close)


async def serve(
    service: MooncakeStoreService, host: str, port: int, max_wait_time: float, access: Access
) -> bool:
    """Run ``service`` until SIGINT or SIGTERM; whether it came so far as to run."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        if not await service.start_store_service(max_wait_time, stop):
            return stop.is_set()
        await service.start_http_service(port, host, access=access)
        await stop.wait()
        _log.info("shutting down")
        return True
    finally:
        await service.stop()
