"""How workers of vLLM's MooncakeConnector find each other: its bootstrap server, which the engine
has with FastAPI, and as much of the third-party package httpx as the connector asks it with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


@dataclass(frozen=True)
class RegisterWorkerPayload:
    engine_id: str
    dp_rank: int
    tp_rank: int
    pp_rank: int
    addr: str

    model_dump = asdict


class _Answer(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        worker = RegisterWorkerPayload(
            **json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        )
        new: dict[str, Any] = {"engine_id": worker.engine_id, "worker_addr": {}}
        engine = self.server.engines.setdefault(worker.dp_rank, new)
        engine["worker_addr"].setdefault(worker.tp_rank, {})[worker.pp_rank] = worker.addr
        self._send({"status": "ok"})

    def do_GET(self) -> None:
        self._send(self.server.engines)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing."""

    def _send(self, answer: object) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), _Answer)
        self.engines: dict[int, dict[str, Any]] = {}


class MooncakeBootstrapServer:
    def __init__(self, host: str, port: int) -> None:
        self._server = _Server(host, port)

    def start(self) -> None:
        Thread(target=self._server.serve_forever, daemon=True).start()

    def shutdown(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class AsyncClient:
    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, url: str) -> SimpleNamespace:
        return await asyncio.to_thread(self._ask, Request(url))

    async def post(self, url: str, json: object) -> SimpleNamespace:
        return await asyncio.to_thread(self._ask, Request(url, _encoded(json)))

    def _ask(self, request: Request) -> SimpleNamespace:
        """The answer; other statuses than those of success are raised here already."""
        with urlopen(request, timeout=self._timeout) as response:
            content = response.read()
        return SimpleNamespace(json=lambda: json.loads(content), raise_for_status=lambda: None)


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()


httpx = SimpleNamespace(
    AsyncClient=AsyncClient,
    ConnectError=OSError,
    RequestError=OSError,
    TimeoutException=TimeoutError,
    HTTPStatusError=HTTPError,
)
