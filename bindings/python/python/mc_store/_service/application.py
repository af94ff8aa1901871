"""The routes of a node, put together."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from mc_store._service.access import Access
from mc_store._service.bodies import Bodies
from mc_store._service.connections import Connections
from mc_store._service.objects import Objects
from mc_store._service.requests import Refused, StoreFailed, error
from mc_store._service.segments import Segments
from mc_store._service.threads import Threads
from mc_store.mooncake.store import MooncakeDistributedStore

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEALTH = {0: (200, "ok"), 1: (503, "store not set up"), 2: (503, "master unreachable")}

_log = logging.getLogger(__name__)


def application(
    store: MooncakeDistributedStore,
    threads: Threads,
    protocol: str,
    *,
    access: Access,
    connections: Connections,
) -> web.Application:
    """The REST service of ``store``, whose calls run on ``threads``."""
    bodies = Bodies()

    async def health(request: web.Request) -> web.Response:
        """Whether this node can reach its master."""
        code = await threads.run(store.health_check)
        status, text = _HEALTH.get(code, (503, f"code {code}"))
        return web.json_response({"status": text}, status=status)

    async def index(request: web.Request) -> web.Response:
        """This description."""
        return web.json_response(description)

    @web.middleware
    async def permitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Checks a request, keeps its connection, and counts its bodies."""
        access.check(request)
        try:
            with connections.in_use(request):
                return await handler(request)
        finally:
            bodies.release(request)

    routes = [
        web.get("/", index),
        web.get("/health", health),
        *Objects(store, threads, bodies).routes(),
        *Segments(store, threads, bodies, protocol, access).routes(),
    ]
    description = _describe(routes)
    app = web.Application(middlewares=[_failures_as_json, permitted])
    app.add_routes(routes)
    return app


@web.middleware
async def _failures_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure as ``{"error": "..."}`` with a status."""
    try:
        return await handler(request)
    except Refused as problem:
        return error(problem.status, str(problem), problem.headers)
    except StoreFailed as problem:
        _log.error("%s %s: %s", request.method, request.path, problem.body)
        return web.json_response(problem.body, status=500)
    except web.HTTPException as problem:
        if problem.status < 400:
            raise
        response = error(problem.status, problem.reason)
        if "Allow" in problem.headers:
            response.headers["Allow"] = problem.headers["Allow"]
        return response
    except Exception as problem:
        _log.exception("%s %s", request.method, request.path)
        return error(500, str(problem))


def _describe(routes: list[web.RouteDef]) -> dict[str, Any]:
    """Return an OpenAPI description of the routes, without schemas."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r"\{(\w+):.*\}", r"{\1}", route.path)
        operation: dict[str, Any] = {
            "summary": inspect.getdoc(route.handler),
            "responses": {"default": {"description": "JSON, or the bytes of a value"}},
        }
        if "{key}" in path:
            operation["parameters"] = [
                {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths.setdefault(path, {})[route.method.lower()] = operation
    info = {"title": "mc-store REST service", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
