"""A metadata server: small values by key, in memory, over HTTP.

Mooncake's clients find each other's transfer endpoints through it; mc-store's clients do
not need it (``P2PHANDSHAKE``). ``GET``, ``PUT`` and ``DELETE`` of ``/metadata?key=...``.

Every client that can connect can change every value. The server listens on this host's loopback
address unless it is given another one; Mooncake's listens on all addresses, ``0.0.0.0``.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_MAX_VALUE_BYTES = 1 << 20

# Limits of reading a value that is too large, before its connection is closed.
_MAX_PASSED_OVER_BYTES = 64 << 20
_PASS_OVER_SECONDS = 5.0

# All keys and values together, each key with what Python needs to keep it.
_MAX_BYTES = 256 << 20
_BYTES_PER_KEY = 512

# Each has a thread, and a value that is under way.
_MAX_CONNECTIONS = 256

# With too many connections, one is closed whose last answer or beginning is this long ago.
_KEPT_SECONDS = 1.0

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

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
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


class _Values:
    """Values by key, with a limit for all bytes together."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Returns the value of ``key``, or ``None``."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: str, value: bytes) -> tuple[int, str]:
        """Stores a value, and returns the status and the text of the answer."""
        with self._lock:
            before = self._values.get(key)
            # Two processes of one name would take each other's traffic.
            if "rpc_meta" in key and before is not None:
                return 400, "Duplicate rpc_meta key not allowed"
            size = self._bytes + _cost(key, value) - (0 if before is None else _cost(key, before))
            if size > _MAX_BYTES:
                return 507, "there is no room for more metadata"
            self._values[key] = value
            self._bytes = size
            return 200, "metadata updated"

    def delete(self, key: str) -> bool:
        """Removes a value, and returns whether there was one."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is None:
                return False
            self._bytes -= _cost(key, value)
            return True


def _cost(key: str, value: bytes) -> int:
    # A character has up to four bytes in memory.
    return 4 * len(key) + len(value) + _BYTES_PER_KEY


class _Connections:
    """The open connections, whose number is limited."""

    def __init__(self) -> None:
        # Each with the time of its last answer, or of its beginning.
        self._open: dict[socket.socket, float] = {}
        self._answered: set[socket.socket] = set()
        self._changed = threading.Condition()

    def begin(self, connection: socket.socket) -> None:
        """Waits for a place: until a connection ends, or until one can be closed for it.

        Connections without any answer make way first, and then those that are idle for longest.
        """
        with self._changed:
            while len(self._open) >= _MAX_CONNECTIONS:
                oldest = min(self._open, key=lambda it: (it in self._answered, self._open[it]))
                left = self._open[oldest] + _KEPT_SECONDS - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                self._forget(oldest)
                try:
                    oldest.shutdown(socket.SHUT_RDWR)  # Its thread reads the end.
                except OSError:
                    pass
            self._open[connection] = time.monotonic()

    def answered(self, connection: socket.socket) -> None:
        """Notes that the connection was answered."""
        with self._changed:
            if connection in self._open:
                self._open[connection] = time.monotonic()
                self._answered.add(connection)

    def end(self, connection: socket.socket) -> None:
        """Gives the connection's place to another one."""
        with self._changed:
            self._forget(connection)
            self._changed.notify_all()

    def _forget(self, connection: socket.socket) -> None:
        self._open.pop(connection, None)
        self._answered.discard(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # A whole cluster starts at the same moment.
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.values = _Values()
        self.connections = _Connections()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.begin(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.connections.end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # As a rule the caller is gone.
        _log.debug("connection of %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True
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
        value = self.server.values.get(key)
        if value is None:
            self._say(404, "metadata not found")
        else:
            self._answer(200, value, "application/json")

    def _put(self, key: str, body: bytes) -> None:
        self._say(*self.server.values.put(key, body))

    def _delete(self, key: str, body: bytes) -> None:
        if self.server.values.delete(key):
            self._say(200, "metadata deleted")
        else:
            self._say(404, "metadata not found")

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
            self._pass_over(int(length))
            return None
        return self.rfile.read(int(length))

    def _pass_over(self, length: int) -> None:
        """Read and drop a body, so that its sender gets to read the answer: closing a socket with
        unread bytes resets the connection. Ends after some bytes and some time."""
        left = min(length, _MAX_PASSED_OVER_BYTES)
        ends = time.monotonic() + _PASS_OVER_SECONDS
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (wait := ends - time.monotonic()) > 0:
                self.connection.settimeout(wait)
                got = len(self.rfile.read1(min(left, 1 << 16)))
                if got == 0:
                    return
                left -= got
        except OSError:
            # The sender has left, or is slow.
            return

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
        self.server.connections.answered(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("%s " + format, self.address_string(), *args)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``mooncake_http_metadata_server``; ends by SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        description="HTTP metadata server", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all addresses"
    )
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
