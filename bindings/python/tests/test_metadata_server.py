"""The metadata servers, a program's own and that of `mc-master`: values by key over HTTP."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from _cluster import Master, Program, free_port, wait_until
from mc_store.mooncake import http_metadata_server
from mc_store.mooncake.http_metadata_server import KVBootstrapServer, KVPoll

FLAGS = (
    "--enable_http_metadata_server=true",
    "--http_metadata_server_host=127.0.0.1",
)


@pytest.fixture(params=["of its own", "of mc-master"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "of its own":
        server = KVBootstrapServer(0, "127.0.0.1")
        server.run()
        yield server.port
        server.close()
        return
    master = Master([*FLAGS, "--http_metadata_server_port=0"])
    try:
        yield int(master.expect(r"metadata server at http://127.0.0.1:(\d+)/metadata")[1])
    finally:
        master.kill()


@pytest.fixture
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    yield connection
    connection.close()


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, str]:
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_life_of_a_value(connection: http.client.HTTPConnection) -> None:
    path = "/metadata?key=mooncake%2Fram%2F10.0.0.1%3A1"
    assert ask(connection, "GET", path) == (404, "metadata not found")
    assert ask(connection, "DELETE", path) == (404, "metadata not found")
    assert ask(connection, "PUT", path, b'{"a": 1}') == (200, "metadata updated")
    assert ask(connection, "GET", path) == (200, '{"a": 1}')
    assert ask(connection, "PUT", path, b"") == (200, "metadata updated")
    assert ask(connection, "GET", path) == (200, "")
    assert ask(connection, "DELETE", path) == (200, "metadata deleted")
    assert ask(connection, "GET", path) == (404, "metadata not found")


def test_rpc_meta_is_written_once(connection: http.client.HTTPConnection) -> None:
    path = "/metadata?key=mooncake/rpc_meta/node"
    assert ask(connection, "PUT", path, b"1") == (200, "metadata updated")
    assert ask(connection, "PUT", path, b"2") == (400, "Duplicate rpc_meta key not allowed")
    assert ask(connection, "GET", path) == (200, "1")
    assert ask(connection, "DELETE", path) == (200, "metadata deleted")
    assert ask(connection, "PUT", path, b"2") == (200, "metadata updated")


@pytest.mark.parametrize(
    "path", ["/metadata", "/metadata?key=", "/metadata?key=%20", "/metadata?k=1"]
)
def test_key_is_required(connection: http.client.HTTPConnection, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert ask(connection, method, path, b"x") == (400, "metadata key is required")


def test_what_is_not_there(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "POST", "/metadata?key=a", b"x") == (405, "Method not allowed")
    assert ask(connection, "GET", "/other?key=a") == (404, "not found")


def test_bodies(connection: http.client.HTTPConnection) -> None:
    largest = bytes(1 << 20)
    assert ask(connection, "PUT", "/metadata?key=a", largest)[0] == 200
    connection.putrequest("PUT", "/metadata?key=a")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    answer.read()
    # The connection went; the next request takes a new one.
    assert ask(connection, "GET", "/metadata?key=a", b"ignored") == (200, largest.decode())
    assert ask(connection, "GET", "/metadata?key=a") == (200, largest.decode())


def test_length_is_required() -> None:
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("PUT", "/metadata?key=a")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()
    server.close()


def test_many_clients(port: int) -> None:
    def write(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        status, _ = ask(connection, "PUT", "/metadata?key=rpc_meta", str(number).encode())
        connection.close()
        return status

    with ThreadPoolExecutor(16) as threads:
        statuses = sorted(threads.map(write, range(32)))
    assert statuses == [200] + [400] * 31


def test_states() -> None:
    server = KVBootstrapServer(0, "127.0.0.1")
    assert server.poll() is KVPoll.Failed
    server.close()
    server.run()
    assert server.poll() is KVPoll.Success
    with pytest.raises(OSError, match="in use"):
        KVBootstrapServer(server.port, "127.0.0.1").run()
    server.close()
    server.close()
    assert server.poll() is KVPoll.Failed


def test_master_whose_port_is_taken() -> None:
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    with pytest.raises(RuntimeError, match=r"check --http_metadata_server_host"):
        Master([*FLAGS, f"--http_metadata_server_port={server.port}"])
    server.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_program(number: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "mc_store.mooncake.http_metadata_server"]
    program = Program([*command, "--host=127.0.0.1", f"--port={port}"])
    try:
        program.expect("started on 127.0.0.1:")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        assert ask(connection, "GET", "/metadata?key=a")[0] == 404
        second = Program([*command, "--host=127.0.0.1", f"--port={port}"])
        second.expect("Address already in use")
        assert second.stop() == 1
        # With a connection open.
        program.signal(number)
        assert program.stop() == 0
        connection.close()
    finally:
        program.kill()


def test_the_server_listens_on_loopback_unless_told() -> None:
    server = KVBootstrapServer(0)
    server.run()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30):
        pass
    # An address of this host that only a socket of all addresses has, too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)
    server.close()
    everywhere = KVBootstrapServer(0, "0.0.0.0")
    everywhere.run()
    with socket.create_connection(("127.0.0.2", everywhere.port), timeout=30):
        pass
    everywhere.close()


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[KVBootstrapServer]:
    """A server with small limits."""
    monkeypatch.setattr(http_metadata_server, "_MAX_BYTES", 100_000)
    monkeypatch.setattr(http_metadata_server, "_MAX_CONNECTIONS", 8)
    server = KVBootstrapServer(0)
    server.run()
    yield server
    server.close()


def test_values_have_a_limit_together(limited: KVBootstrapServer) -> None:
    full = (507, "there is no room for more metadata")
    connection = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=30)
    assert ask(connection, "PUT", "/metadata?key=a", bytes(90_000))[0] == 200
    assert ask(connection, "PUT", "/metadata?key=b", bytes(20_000)) == full
    # One that takes the place of another needs no more than the difference.
    assert ask(connection, "PUT", "/metadata?key=a", bytes(95_000))[0] == 200
    assert ask(connection, "DELETE", "/metadata?key=a")[0] == 200
    assert ask(connection, "PUT", "/metadata?key=b", bytes(20_000))[0] == 200
    # Keys alone fill it as well.
    answers = [ask(connection, "PUT", f"/metadata?key=k{number}", b"")[0] for number in range(300)]
    assert answers[0] == 200
    assert answers[-1] == 507
    assert ask(connection, "GET", "/metadata?key=b") == (200, "\0" * 20_000)
    connection.close()


def test_idle_strangers_keep_no_place(limited: KVBootstrapServer) -> None:
    threads = threading.active_count()
    with ExitStack() as opened:
        user = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=30)
        opened.callback(user.close)
        assert ask(user, "PUT", "/metadata?key=a", b"1")[0] == 200
        used = user.sock
        strangers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", limited.port), timeout=30))
            for _ in range(30)
        ]
        late = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=30)
        opened.callback(late.close)
        assert ask(late, "GET", "/metadata?key=a") == (200, "1")
        # It was not closed: what strangers never used makes way before what is used.
        assert ask(user, "GET", "/metadata?key=a") == (200, "1")
        assert user.sock is used
        # The server ended those that came first, and their threads.
        assert strangers[0].recv(1) == b""
        wait_until(lambda: threading.active_count() <= threads + 8, what="threads to end")


def test_a_burst_of_callers_is_answered_although_there_are_few_places(
    limited: KVBootstrapServer,
) -> None:
    def write(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=30)
        status, _ = ask(connection, "PUT", f"/metadata?key={number}", b"1")
        connection.close()
        return status

    with ThreadPoolExecutor(64) as threads:
        assert set(threads.map(write, range(128))) == {200}


def test_the_sender_of_a_value_that_is_too_large_gets_the_answer() -> None:
    server = KVBootstrapServer(0, "127.0.0.1")
    server.run()
    # More than the buffers of both sides hold: the sender reads the answer when all is sent.
    for size in ((1 << 20) + 1, 16 << 20):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        answer = ask(connection, "PUT", "/metadata?key=a", bytes(size))
        assert answer == (413, "metadata is larger than 1048576 bytes")
        connection.close()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    assert ask(connection, "GET", "/metadata?key=a")[0] == 404
    connection.close()
    server.close()
