"""A metadata server: small values by key, in memory, over HTTP.

Mooncake's clients find each other's transfer endpoints through it; mc-store's clients do
not need it (``P2PHANDSHAKE``). ``GET``, ``PUT`` and ``DELETE`` of ``/metadata?key=...``.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_MAX_VALUE_BYTES = 1 << 20

# The time limit for a silent connection, in seconds.
_IDLE_SECONDS = 60.0

_log = logging.getLogger(__name__)


class KVPoll(Enum):
    """The result of :meth:`KVBootstrapServer.poll`."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer:
    """The server, on a separate thread between :meth:`run` and :meth:`close`.

    ``port`` 0 takes a free one; after :meth:`run`, ``port`` is the one it has.
    """

    def __init__(self, port: int, host: str = "0.0.0.0") -> None:
        self.port = port
        self.host = host
        self.thread: threading.Thread | None = None
        self._server: _Server | None = None

    def run(self) -> threading.Thread:
        """Start the server. Raises ``OSError`` if the port cannot be bound."""
        self._server = _Server((self.host, self.port), _Handler)
        self.port = self._server.server_address[1]
        self.thread = threading.Thread(
            target=self._server.serve_forever, name="mc-store-metadata", daemon=True
        )
        self.thread.start()
        _log.info("HTTP metadata server started on %s:%d", self.host, self.port)
        return self.thread

    def close(self) -> None:
        """Stop the server; a second call has no effect."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self.thread is not None:
            self.thread.join()

    def poll(self) -> KVPoll:
        """Return ``Success`` while the server runs, otherwise ``Failed``."""
        running = self.thread is not None and self.thread.is_alive()
        return KVPoll.Success if running else KVPoll.Failed


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # A whole cluster starts at the same moment.
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_PUT(self) -> None:
        self._handle(self._put)

    def do_DELETE(self) -> None:
        self._handle(self._delete)

    def do_POST(self) -> None:
        self._handle(lambda key, body: self._say(405, "Method not allowed"))

    do_HEAD = do_PATCH = do_OPTIONS = do_POST

    def _handle(self, act: Callable[[str, bytes], None]) -> None:
        # Read in any case: the connection's next request follows the body.
        body = self._body()
        if body is None:
            return
        url = urlsplit(self.path)
        if url.path != "/metadata":
            self._say(404, "not found")
            return
        key = parse_qs(url.query).get("key", [""])[0].strip()
        if key:
            act(key, body)
        else:
            self._say(400, "metadata key is required")

    def _get(self, key: str, body: bytes) -> None:
        with self.server.lock:
            value = self.server.values.get(key)
        if value is None:
            self._say(404, "metadata not found")
        else:
            self._answer(200, value, "application/json")

    def _put(self, key: str, body: bytes) -> None:
        with self.server.lock:
            # Two processes of one name would take each other's traffic.
            duplicate = "rpc_meta" in key and key in self.server.values
            if not duplicate:
                self.server.values[key] = body
        if duplicate:
            self._say(400, "Duplicate rpc_meta key not allowed")
        else:
            self._say(200, "metadata updated")

    def _delete(self, key: str, body: bytes) -> None:
        with self.server.lock:
            value = self.server.values.pop(key, None)
        if value is None:
            self._say(404, "metadata not found")
        else:
            self._say(200, "metadata deleted")

    def _body(self) -> bytes | None:
        """Return the body, or ``None`` after an answer that describes the error."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            self._say(411, "Content-Length is required")
            return None
        if int(length) > _MAX_VALUE_BYTES:
            self.close_connection = True
            self._say(413, f"metadata is larger than {_MAX_VALUE_BYTES} bytes")
            return None
        return self.rfile.read(int(length))

    def _say(self, status: int, text: str) -> None:
        self._answer(status, text.encode(), "application/json; charset=utf-8")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("%s " + format, self.address_string(), *args)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``mooncake_http_metadata_server``; ends by SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        description="HTTP metadata server", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument(
        "--log-level",
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        default="INFO",
        help="how much to log",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(message)s")
    ends = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the server's threads start, which then have them blocked, too.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    server = KVBootstrapServer(options.port, options.host)
    try:
        server.run()
    except OSError as problem:
        print(f"{options.host}:{options.port}: {problem}", file=sys.stderr)
        return 1
    signal.sigwait(ends)
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
