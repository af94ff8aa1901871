"""Memory over HTTP: what this node contributes while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mc_store._service.access import SHM_DIRECTORY, Access, host_memory
from mc_store._service.bodies import MAX_SETTINGS_BYTES, Bodies
from mc_store._service.files import NotPermitted, opened
from mc_store._service.requests import (
    BadRequest,
    Refused,
    StoreFailed,
    check_is_json,
    json_object,
    segment_ids_field,
    success,
    text_field,
    whole_field,
)
from mc_store._service.threads import Threads
from mc_store.mooncake.store import MooncakeDistributedStore

_MAX_SIZE = (1 << 63) - 1

_INVALID_PARAMS = -600

# Each costs the master and every client some memory.
_MAX_MOUNTS = 256

# A grace period holds its request up: for minutes if need be, not for hours because a caller
# takes the unit for milliseconds.
_MAX_GRACE_SECONDS = 3600

_log = logging.getLogger(__name__)


class Segments:
    """The routes below ``/api`` that mount and unmount memory.

    In mode *decode* the node serves a shared segment that ``/api/reconfigure`` mounted, in mode
    *prefill* it serves none.
    """

    def __init__(
        self,
        store: MooncakeDistributedStore,
        threads: Threads,
        bodies: Bodies,
        protocol: str,
        access: Access,
    ) -> None:
        self._store = store
        self._threads = threads
        self._bodies = bodies
        self._protocol = protocol
        self._directories = access.segment_dirs
        self._mounts = _Mounts(access.max_mounted)
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
        body = await self._body(request)
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
        mounted = await self._mount_file(place)
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
        body = await self._body(request)
        name = body.get("name")
        path = _shm_path(name) if isinstance(name, str) else None
        if path is None or body.get("size") is None:
            raise BadRequest("Missing or invalid name or size")
        place = self._place(path, body)
        mounted = await self._mount_file(place)
        code = mounted["ret"]
        if code != 0:
            raise StoreFailed(f"Mount failed, ret={code}", code)
        return success(segment_ids=list(mounted["segment_ids"]))

    async def unmount_shm(self, request: web.Request) -> web.Response:
        """Take back what `/api/mount_shm` or `/api/reconfigure` mounted."""
        body = await self._body(request)
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
        body = await self._body(request)
        size = body.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _MAX_SIZE:
            raise BadRequest("Invalid size, must be a positive integer")
        protocol = text_field(body, "protocol", self._protocol)
        location = text_field(body, "location", "")
        with self._mounts.room_for(size) as mount:
            mounted = await self._threads.run(
                self._store.allocate_and_mount_segment, size, protocol, location
            )
            code = mounted["ret"]
            if code != 0:
                raise StoreFailed(f"Allocate and mount failed, ret={code}", code)
            mount.ids = mounted["segment_ids"]
            mount.size = mounted["allocated_size"]
        return success(
            segment_ids=list(mounted["segment_ids"]), allocated_size=mounted["allocated_size"]
        )

    async def unmount(self, request: web.Request) -> web.Response:
        """Take back what `/api/mount` mounted, and free it."""
        body = await self._body(request)
        ids = segment_ids_field(body)
        code = await self._threads.run(self._store.unmount_and_free_segment, ids, _grace(body))
        if code != 0:
            raise StoreFailed(f"Unmount and free failed, ret={code}", code)
        self._mounts.forget(ids)
        return success()

    async def unmount_local_disk(self, request: web.Request) -> web.Response:
        """Stop offering this node's disk; meant for a hook before the end of a pod."""
        grace = _grace(await self._body(request))
        code = await self._threads.run(self._store.unmount_local_disk_segment, grace)
        if code != 0:
            raise StoreFailed(f"Unmount local disk failed, ret={code}", code)
        return success()

    async def _body(self, request: web.Request) -> dict[str, Any]:
        check_is_json(request)
        return json_object(await self._bodies.read(request, MAX_SETTINGS_BYTES))

    async def _mount_file(self, place: tuple[str, int, int, str, str]) -> dict[str, Any]:
        """Mounts a file and returns the store's answer. Raises ``Refused`` for a file that must not
        be mounted."""
        path, size, offset, protocol, location = place

        def mount() -> dict[str, Any]:
            with opened(path, self._directories) as file:
                return self._store.mount_segment(file, size, offset, protocol, location)

        with self._mounts.room_for(0) as made:
            try:
                mounted = await self._threads.run(mount)
            except NotPermitted as problem:
                raise Refused(403, f"Mount refused: {problem}") from None
            except OSError as problem:
                _log.error("cannot open %r: %s", path, problem)
                mounted = {"ret": _INVALID_PARAMS, "segment_ids": []}
            made.ids = mounted["segment_ids"]
        return mounted

    async def _unmount(self, id: str, grace: int = 0) -> int:
        # One by one: the result for several ids only describes the first failure.
        code = await self._threads.run(self._store.unmount_segment, [id], grace)
        if code == 0:
            self._mounts.forget([id])
        return code

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
    return f"{SHM_DIRECTORY}/{name}"


@dataclass(eq=False)
class _Mount:
    """The segments of one request, and the bytes of new memory that they took."""

    size: int
    ids: Sequence[str] = ()


class _Mounts:
    """The mounts of requests, which have limits."""

    def __init__(self, max_size: int | None) -> None:
        self._max_size = host_memory() if max_size is None else max_size
        self._mounts: set[_Mount] = set()

    @contextmanager
    def room_for(self, size: int) -> Iterator[_Mount]:
        """Counts a mount of ``size`` bytes, which stays counted if it has ids at the end.

        Raises ``BadRequest`` if the limits do not allow it.
        """
        if len(self._mounts) >= _MAX_MOUNTS:
            raise BadRequest(f"No more than {_MAX_MOUNTS} segments can be mounted; unmount some")
        left = self._max_size - sum(mount.size for mount in self._mounts)
        if size > left:
            raise BadRequest(
                f"Invalid size, {left} of {self._max_size} bytes are left; see --max-mounted"
            )
        mount = _Mount(size)
        self._mounts.add(mount)
        try:
            yield mount
        finally:
            if not mount.ids:
                self._mounts.discard(mount)

    def forget(self, ids: Sequence[str]) -> None:
        """Ends the count of mounts with these ids, of which the segments are unmounted."""
        for mount in list(self._mounts):
            if mount.ids and set(mount.ids) <= set(ids):
                self._mounts.discard(mount)
