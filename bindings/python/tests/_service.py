"""The REST service as a process, and requests to it."""

from __future__ import annotations

import http.client
import json
import re
import sys
from pathlib import Path
from typing import Any

from _cluster import Cluster, Program


class Service:
    """A running service, and requests to it."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *flags: str,
        program: tuple[str, ...] = ("-m", "mc_store.service"),
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.config = folder / "service.json"
        written = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "master_server_address": cluster.address,
            "global_segment_size": "16MB",
            "local_buffer_size": "16MB",
            "protocol": "tcp",
            "device_name": "",
        }
        self.config.write_text(json.dumps(written | settings))
        where = ("--config", str(self.config), "--host", "127.0.0.1", "--port", "0")
        self.program = Program([sys.executable, *program, *where, *flags], env)
        try:
            self.port = int(self.program.expect(r"REST API started on port (\d+)")[1])
        except BaseException:
            self.program.kill()
            raise

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer, parsed if it is JSON; `body` is sent as JSON unless it is bytes."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | (headers or {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if (answer.headers["Content-Type"] or "").startswith("application/json"):
                return answer.status, json.loads(content)
            return answer.status, content
        finally:
            connection.close()

    def put(self, key: object, value: object) -> tuple[int, Any]:
        return self.ask("PUT", "/api/put", {"key": key, "value": value})


def capacity(cluster: Cluster) -> float:
    """Bytes that are mounted."""
    host = cluster.http.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
    finally:
        connection.close()
    found = re.search(r"^master_total_capacity_bytes (\S+)$", metrics, re.MULTILINE)
    assert found is not None, metrics
    return float(found[1])
