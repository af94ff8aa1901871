"""Calls as parts of the program's own trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from _cluster import Cluster, run_python

bodies: list[bytes] = []


class Collector(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    bodies.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("sampled", [True, False])
def test_calls_are_parts_of_the_program_s_own_span(
    cluster: Cluster, collector: str, sampled: bool
) -> None:
    code = f"""
import asyncio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from mc_store import AsyncClient
from mc_store.mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", {cluster.address!r}) == 0
context = SpanContext(0x1122334455667788, 0x99AABBCCDDEEFF00, True, TraceFlags({int(sampled)}))
with trace.use_span(NonRecordingSpan(context)):
    assert store.put("traced", b"x") == 0
    assert store.get("traced") == b"x"

async def main():
    async with AsyncClient.connect({cluster.address!r}) as client:
        with trace.use_span(NonRecordingSpan(context)):
            assert await client.exists("traced")

asyncio.run(main())
"""
    run_python(code, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector}, cwd=Path(__file__).parent)
    told = b"".join(bodies)
    trace = (0x1122334455667788).to_bytes(16, "big")
    parent = (0x99AABBCCDDEEFF00).to_bytes(8, "big")
    if not sampled:
        assert parent not in told
        assert trace not in told
        return
    # The numbers of fields and lengths of `trace_id`, `parent_span_id`, and of a name.
    assert b"\x0a\x10" + trace in told
    assert b"\x22\x08" + parent in told
    for name in [b"batch_put", b"get", b"exist", b"BatchPutStart", b"transfer"]:
        assert b"\x2a" + bytes([len(name)]) + name in told, name
    assert b"mc-store-python" in told


def test_a_program_without_a_span_of_its_own_is_traced(cluster: Cluster, collector: str) -> None:
    code = f"""
from mc_store.mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "", 0, 16 << 20, "tcp", "", {cluster.address!r}) == 0
assert store.is_exist("nothing") == 0
"""
    run_python(code, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector}, cwd=Path(__file__).parent)
    assert b"\x2a\x05exist" in b"".join(bodies)
