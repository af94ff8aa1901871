"""Objects over HTTP: put, get, exist, remove."""

from __future__ import annotations

from aiohttp import web

from mc_store._service.bodies import Bodies
from mc_store._service.requests import (
    BadRequest,
    StoreFailed,
    check_is_json,
    error,
    json_object,
    key_of,
    success,
)
from mc_store._service.threads import Threads
from mc_store.mooncake.store import MooncakeDistributedStore


class Objects:
    """The routes below ``/api`` that are about objects."""

    def __init__(self, store: MooncakeDistributedStore, threads: Threads, bodies: Bodies) -> None:
        self._store = store
        self._threads = threads
        self._bodies = bodies

    def routes(self) -> list[web.RouteDef]:
        # A key may have any characters, among them slashes (as %2F or not) and ends of lines.
        key = "{key:(?s:.+)}"
        return [
            web.put("/api/put", self.put),
            web.put(f"/api/put/{key}", self.put_bytes),
            web.get(f"/api/get/{key}", self.get),
            web.get(f"/api/exist/{key}", self.exist),
            web.delete(f"/api/remove/{key}", self.remove),
            web.delete("/api/remove_all", self.remove_all),
        ]

    async def put(self, request: web.Request) -> web.Response:
        """Store the text `value` under `key`; a key that is there already keeps its value."""
        check_is_json(request)
        body = json_object(await self._bodies.read(request))
        key, value = body.get("key"), body.get("value")
        if not key or value is None:
            raise BadRequest("Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadRequest("Invalid key or value, must be strings")
        return await self._put(key, value)

    async def put_bytes(self, request: web.Request) -> web.Response:
        """Store the bytes of the request's body under the key."""
        return await self._put(key_of(request), await self._bodies.read(request))

    async def _put(self, key: str, value: str | bytearray) -> web.Response:
        try:
            key.encode()
            content = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as problem:
            # JSON can spell half of a surrogate pair.
            raise BadRequest("Invalid key or value, must be Unicode text") from problem
        code = await self._threads.run(self._store.put, key, content)
        if code != 0:
            raise StoreFailed("PUT operation failed", code)
        return success()

    async def get(self, request: web.Request) -> web.StreamResponse:
        """The value as bytes, or 404."""
        key = key_of(request)
        value = await self._threads.run(self._store.get, key)
        if not value and not await self._threads.run(self._is_empty, key):
            return error(404, "Key not found")
        return await self._bodies.answer(request, value)

    def _is_empty(self, key: str) -> bool:
        """Whether a `get` without bytes found an object; the store answers both alike."""
        if not self._exists(key):
            return False
        size = self._store.get_size(key)
        if size != 0:
            raise StoreFailed("GET operation failed", min(size, 0))
        return True

    async def exist(self, request: web.Request) -> web.Response:
        """Whether a get would find the key."""
        return web.json_response({"exists": await self._threads.run(self._exists, key_of(request))})

    def _exists(self, key: str) -> bool:
        found = self._store.is_exist(key)
        if found < 0:
            raise StoreFailed("Exist check failed", found)
        return found > 0

    async def remove(self, request: web.Request) -> web.Response:
        """Remove an object, unless a lease protects it."""
        code = await self._threads.run(self._store.remove, key_of(request))
        if code != 0:
            raise StoreFailed("Remove operation failed", code)
        return success()

    async def remove_all(self, request: web.Request) -> web.Response:
        """Remove all objects without a lease, and return their number."""
        count = await self._threads.run(self._store.remove_all)
        if count < 0:
            raise StoreFailed("RemoveAll operation failed", count)
        return web.json_response({"status": f"success removed {count} keys"})
