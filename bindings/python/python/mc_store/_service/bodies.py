"""The bodies of requests and answers, which share an amount of memory."""

from __future__ import annotations

import asyncio

from aiohttp import web

from mc_store._service.requests import Refused

MAX_BODY_BYTES = 100 << 20
"""The most bytes of a value, in a body of JSON or as the body."""

MAX_SETTINGS_BYTES = 1 << 20
"""The most bytes of a request about memory."""

_MAX_HELD_BYTES = 1 << 30
_SILENCE_SECONDS = 30.0

# An answer may take the silence and, for each of these many bytes, a second.
_SLOWEST_BYTES_PER_SECOND = 1 << 20

_HELD = "mc_store.held"


class Bodies:
    """Reads and writes bodies. All that are held at the same time have a gigabyte at most."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, request: web.Request, limit: int = MAX_BODY_BYTES) -> bytearray:
        """Returns the body of ``request``, which is held until :meth:`release`.

        Raises ``Refused`` for more than ``limit`` bytes, if too many are held, or if no further
        ones arrive in time.
        """
        too_large = Refused(413, f"Request body is larger than {limit} bytes")
        if (request.content_length or 0) > limit:
            raise too_large
        body = bytearray()
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    part = await request.content.readany()
            except TimeoutError:
                raise Refused(408, "Request body did not arrive in time") from None
            if not part:
                return body
            if len(body) + len(part) > limit:
                raise too_large
            self._hold(request, len(part))
            body += part

    async def answer(self, request: web.Request, value: bytes) -> web.StreamResponse:
        """Sends ``value`` as it is, and disconnects a caller that does not read it."""
        self._hold(request, len(value))
        response = web.Response(body=value, content_type="application/octet-stream")
        try:
            async with asyncio.timeout(_SILENCE_SECONDS + len(value) / _SLOWEST_BYTES_PER_SECOND):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def release(self, request: web.Request) -> None:
        """Ends the count of the bodies of ``request``."""
        self._held -= request.get(_HELD, 0)
        request[_HELD] = 0

    def _hold(self, request: web.Request, size: int) -> None:
        own = request.get(_HELD, 0)
        # A value that is larger than the limit is sent when no other bytes are held.
        if self._held > own and self._held + size > _MAX_HELD_BYTES:
            text = "Too many bytes of other requests are held; try again"
            raise Refused(503, text, {"Retry-After": "1"})
        self._held += size
        request[_HELD] = own + size
