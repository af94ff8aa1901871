"""The connections of callers, whose number is limited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

_MAX_CONNECTIONS = 512

IDLE_SECONDS = 60.0
"""A connection without a request is closed after this time."""


class Connections:
    """Lets every caller in, and closes connections while there are too many.

    Those make way that have no permitted request under way: first the ones that never had any, the
    oldest before the others, and then the ones whose last request ended longest ago.
    """

    def __init__(self) -> None:
        self._busy: dict[asyncio.BaseProtocol, int] = {}
        # When the last permitted request of a connection ended, on the loop's clock.
        self._used: dict[asyncio.BaseProtocol, float] = {}
        self._closing: set[asyncio.BaseProtocol] = set()

    def admit(self, server: web.Server) -> asyncio.BaseProtocol:
        """Returns the protocol for a connection that was accepted."""
        loop = asyncio.get_running_loop()
        # The connection is among those of the server one turn of the loop from now.
        loop.call_soon(loop.call_soon, self._make_room, server)
        return server()

    def _make_room(self, server: web.Server) -> None:
        connected = server.connections
        self._used = {it: self._used[it] for it in connected if it in self._used}
        self._closing = {it for it in connected if it in self._closing}
        too_many = len(connected) - len(self._closing) - _MAX_CONNECTIONS
        if too_many <= 0:
            return
        idle = [it for it in connected if it not in self._busy and it not in self._closing]
        # Sorting keeps the order of those that are alike, which is that of their arrival.
        for connection in sorted(idle, key=lambda it: self._used.get(it, 0.0))[:too_many]:
            self._closing.add(connection)
            connection.force_close()

    @contextmanager
    def in_use(self, request: web.Request) -> Iterator[None]:
        """Keeps the connection of a permitted request while the context lasts."""
        connection = request.protocol
        self._busy[connection] = self._busy.get(connection, 0) + 1
        try:
            yield
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]
            self._used[connection] = asyncio.get_running_loop().time()
