"""Memory over HTTP: what this node contributes while it runs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from mc_store._service.requests import (
    BadRequest,
    StoreFailed,
    json_object,
    segment_ids_field,
    success,
    text_field,
    whole_field,
)
from mc_store._service.threads import Threads
from mc_store.mooncake.store import MooncakeDistributedStore

_MAX_SIZE = (1 << 63) - 1

# A grace period holds its request up: for minutes if need be, not for hours because somebody
# thought that the unit is milliseconds.
_MAX_GRACE_SECONDS = 3600

_log = logging.getLogger(__name__)


class Segments:
    """The routes below ``/api`` that mount and unmount memory.

    In mode *decode* the node serves a shared segment that ``/api/reconfigure`` mounted, in mode
    *prefill* it serves none.
    """

    def __init__(self, store: MooncakeDistributedStore, threads: Threads, protocol: str) -> None:
        self._store = store
        self._threads = threads
        self._protocol = protocol
        self._mode = "prefill"
        self._mounted: list[str] = []
        # Changes of mode wait for each other; each is several calls.
        self._changing = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/api/reconfigure", self.reconfigure),
            web.post("/api/mount_shm", self.mount_shm),
            web.post("/api/unmount_shm", self.unmount_shm),
            web.post("/api/mount", self.mount),
            web.post("/api/unmount", self.unmount),
            web.post("/api/unmount_local_disk", self.unmount_local_disk),
        ]

    async def reconfigure(self, request: web.Request) -> web.Response:
        """Switch to `mode` "decode", with the file at `path` as segment, or to "prefill"."""
        body = await json_object(request)
        mode = text_field(body, "mode", "").lower()
        if mode == "prefill":
            async with self._changing:
                return await self._to_prefill()
        if mode != "decode":
            raise BadRequest("Invalid mode. Use 'decode' or 'prefill'")
        path = text_field(body, "path", "")
        if not path or body.get("size") is None:
            raise BadRequest("Missing path or size for decode mode")
        place = self._place(path, body)
        async with self._changing:
            return await self._to_decode(place)

    async def _to_decode(self, place: tuple[str, int, int, str, str]) -> web.Response:
        """Mount the new segment before unmounting the old one, so that a failure loses nothing."""
        mounted = await self._threads.run(self._store.mount_segment, *place)
        code = mounted["ret"]
        if code != 0:
            if self._mounted:
                outcome = "keeping previous decode segments"
            else:
                outcome = "rolled back to prefill"
                self._mode = "prefill"
            raise StoreFailed(f"Mount failed, ret={code}; {outcome}", code, mode=self._mode)
        # Those that cannot be unmounted now stay listed, for the next unmount to try again.
        stuck = [id for id in self._mounted if await self._unmount(id) != 0]
        if stuck:
            _log.warning("decode: segments %s of before could not be unmounted", stuck)
        self._mounted = [*mounted["segment_ids"], *stuck]
        self._mode = "decode"
        return success(mode=self._mode, segment_ids=self._mounted)

    async def _to_prefill(self) -> web.Response:
        for id in list(self._mounted):
            code = await self._unmount(id)
            if code != 0:
                raise StoreFailed(f"Unmount failed, ret={code}", code)
            self._mounted.remove(id)
        self._mode = "prefill"
        return success(mode=self._mode)

    async def mount_shm(self, request: web.Request) -> web.Response:
        """Contribute `size` bytes of the POSIX shared memory `name`."""
        body = await json_object(request)
        name = body.get("name")
        path = _shm_path(name) if isinstance(name, str) else None
        if path is None or body.get("size") is None:
            raise BadRequest("Missing or invalid name or size")
        place = self._place(path, body)
        mounted = await self._threads.run(self._store.mount_segment, *place)
        code = mounted["ret"]
        if code != 0:
            raise StoreFailed(f"Mount failed, ret={code}", code)
        return success(segment_ids=list(mounted["segment_ids"]))

    async def unmount_shm(self, request: web.Request) -> web.Response:
        """Take back what `/api/mount_shm` or `/api/reconfigure` mounted."""
        body = await json_object(request)
        ids = segment_ids_field(body)
        grace = _grace(body)
        failed: list[str] = []
        last_code = 0
        async with self._changing:
            for id in ids:
                code = await self._unmount(id, grace)
                if code != 0:
                    failed.append(id)
                    last_code = code
                elif id in self._mounted:
                    self._mounted.remove(id)
            if not self._mounted:
                self._mode = "prefill"
        if failed:
            raise StoreFailed(
                "Unmount failed for one or more segments", last_code, failed_segment_ids=failed
            )
        return success()

    async def mount(self, request: web.Request) -> web.Response:
        """Contribute `size` bytes of new memory."""
        body = await json_object(request)
        size = body.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _MAX_SIZE:
            raise BadRequest("Invalid size, must be a positive integer")
        mounted = await self._threads.run(
            self._store.allocate_and_mount_segment,
            size,
            text_field(body, "protocol", self._protocol),
            text_field(body, "location", ""),
        )
        code = mounted["ret"]
        if code != 0:
            raise StoreFailed(f"Allocate and mount failed, ret={code}", code)
        return success(
            segment_ids=list(mounted["segment_ids"]), allocated_size=mounted["allocated_size"]
        )

    async def unmount(self, request: web.Request) -> web.Response:
        """Take back what `/api/mount` mounted, and free it."""
        body = await json_object(request)
        ids = segment_ids_field(body)
        code = await self._threads.run(self._store.unmount_and_free_segment, ids, _grace(body))
        if code != 0:
            raise StoreFailed(f"Unmount and free failed, ret={code}", code)
        return success()

    async def unmount_local_disk(self, request: web.Request) -> web.Response:
        """Stop offering this node's disk; meant for a hook before the end of a pod."""
        grace = _grace(await json_object(request))
        code = await self._threads.run(self._store.unmount_local_disk_segment, grace)
        if code != 0:
            raise StoreFailed(f"Unmount local disk failed, ret={code}", code)
        return success()

    async def _unmount(self, id: str, grace: int = 0) -> int:
        # One by one: the result for several ids only describes the first failure.
        return await self._threads.run(self._store.unmount_segment, [id], grace)

    def _place(self, path: str, body: dict[str, Any]) -> tuple[str, int, int, str, str]:
        return (
            path,
            whole_field(body, "size", least=1, most=_MAX_SIZE),
            whole_field(body, "offset", least=0, most=_MAX_SIZE, default=0),
            text_field(body, "protocol", self._protocol),
            text_field(body, "location", ""),
        )


def _grace(body: dict[str, Any]) -> int:
    return whole_field(body, "grace_period_seconds", least=0, most=_MAX_GRACE_SECONDS, default=0)


def _shm_path(name: str) -> str | None:
    """The file of a POSIX shared memory object, unless the name leaves its directory."""
    name = name.removeprefix("/")
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        return None
    return f"/dev/shm/{name}"
