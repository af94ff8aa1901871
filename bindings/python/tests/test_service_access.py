"""Access to the REST service: callers, files and limits."""

from __future__ import annotations

import http.client
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from _cluster import Cluster, Program, free_port, run_python, wait_until
from _service import Service, capacity

pytest.importorskip("aiohttp")

MB = 1 << 20
TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The segment directory of the service, which is a link to it."""
    place = tmp_path_factory.mktemp("service")
    (place / "segments" / "below").mkdir(parents=True)
    (place / "link").symlink_to(place / "segments")
    return place / "segments"


@pytest.fixture(scope="module")
def service(cluster: Cluster, folder: Path) -> Iterator[Service]:
    flags = ("--segment-dir", str(folder.parent / "link"), "--max-mounted", "32MB")
    service = Service(cluster, folder.parent, *flags)
    yield service
    assert service.program.stop() == 0


def decode(service: Service, path: Path | str) -> tuple[int, Any]:
    body = {"mode": "decode", "path": str(path), "size": MB}
    return service.ask("POST", "/api/reconfigure", body)


# ---- who


def test_the_service_listens_on_loopback_unless_told(cluster: Cluster, service: Service) -> None:
    port = free_port()
    command = [sys.executable, "-m", "mc_store.service", "--config", str(service.config)]
    program = Program([*command, "--port", str(port)])
    try:
        program.expect("REST API started")
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            pass
        # An address of this host that only a socket of all addresses has, too.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=30)
        assert "can read, write and remove" not in program.output
        assert program.stop() == 0
    finally:
        program.kill()


def test_all_addresses_without_a_token_are_warned_of(cluster: Cluster, tmp_path: Path) -> None:
    service = Service(cluster, tmp_path, "--host", "0.0.0.0", global_segment_size=0)
    try:
        assert "every host that reaches 0.0.0.0 can read" in service.program.output
        with socket.create_connection(("127.0.0.2", service.port), timeout=30):
            pass
        assert service.program.stop() == 0
    finally:
        service.program.kill()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/reconfigure", {"mode": "prefill"}),
        ("PUT", "/api/put/from-a-page", b"x"),
        ("DELETE", "/api/remove_all", None),
        ("GET", "/", None),
    ],
)
def test_requests_of_web_pages_are_refused(
    service: Service, method: str, path: str, body: Any
) -> None:
    refused = (403, {"error": "Requests of web pages are not accepted"})
    headers = {"Origin": "http://pages.example"}
    assert service.ask(method, path, body, headers) == refused
    # As a page of a sandbox sends it, and one whose name leads to this address.
    assert service.ask(method, path, body, {"Origin": "null"}) == refused
    host = {"Host": f"pages.example:{service.port}"}
    refused = (403, {"error": "Host must be localhost or an IP address"})
    assert service.ask(method, path, body, host) == refused
    assert service.ask("GET", "/api/exist/from-a-page") == (200, {"exists": False})


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080", ""])
def test_names_of_this_host_are_accepted(service: Service, host: str) -> None:
    assert service.ask("GET", "/health", None, {"Host": host}) == (200, {"status": "ok"})


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_a_body_of_another_type_than_json_is_refused(service: Service, kind: str) -> None:
    refused = (415, {"error": "Content-Type must be application/json"})
    for method, path in [
        ("PUT", "/api/put"),
        *(("POST", f"/api/{name}") for name in ("mount", "mount_shm", "reconfigure", "unmount")),
    ]:
        assert service.ask(method, path, {"size": MB}, {"Content-Type": kind}) == refused
    right = {"Content-Type": "application/json; charset=utf-8"}
    assert service.ask("POST", "/api/reconfigure", {"mode": "prefill"}, right)[0] == 200


@pytest.mark.parametrize("given_by", ["file", "variable"])
def test_with_a_token_every_request_must_carry_it(
    cluster: Cluster, tmp_path: Path, given_by: str
) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    flags = ("--token-file", str(token)) if given_by == "file" else ()
    env = {"MC_STORE_REST_TOKEN": "another-token-of-the-variable" if flags else TOKEN}
    service = Service(cluster, tmp_path, *flags, env=env, global_segment_size=0)
    try:
        for given in (
            None,
            "",
            "Bearer",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            TOKEN,
            "Bearer \xff",
            "Bearer another-token-of-the-variablex",
        ):
            headers = {} if given is None else {"Authorization": given}
            for method, path, body in [
                ("PUT", "/api/put/token", b"x"),
                ("GET", "/api/get/token", None),
                ("POST", "/api/mount", {"size": MB}),
                ("GET", "/", None),
                ("GET", "/nothing", None),
            ]:
                status, answer = service.ask(method, path, body, headers)
                assert status == 401, (given, path)
                assert answer["error"].startswith("The header Authorization must be Bearer")
        assert service.ask("GET", "/health") == (200, {"status": "ok"})
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert service.ask("PUT", "/api/put/token", b"x", right) == (200, {"status": "success"})
        assert service.ask("GET", "/api/get/token", None, right) == (200, b"x")
        # A caller with the token is no web page of a rebound name: any Host is accepted.
        assert service.ask("GET", "/", None, right | {"Host": "node-1"})[0] == 200
        assert TOKEN not in service.program.output
        assert service.program.stop() == 0
    finally:
        service.program.kill()


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 1, "the file has no token"),
        (b"short", 1, "the token must have 16 or more"),
        (b"sixteen letters and spaces", 1, "the token must have 16 or more"),
        (b"\xff" * 16, 1, "can't decode"),
        (None, 1, "No such file"),
    ],
)
def test_a_token_that_is_none_ends_the_program(
    service: Service, tmp_path: Path, content: bytes | None, status: int, message: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    done = run_python(
        "import sys; from mc_store.service import main; sys.exit(main())",
        *("--config", str(service.config), "--token-file", str(file)),
        check=False,
    )
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# ---- which files


def test_a_file_in_a_segment_directory_becomes_a_segment(service: Service, folder: Path) -> None:
    for name in ("good", "below/good"):
        file = folder / name
        file.write_bytes(bytes(MB))
        status, mounted = decode(service, folder.parent / "link" / name)
        assert (status, mounted["mode"], len(mounted["segment_ids"])) == (200, "decode", 1)
    assert service.ask("POST", "/api/reconfigure", {"mode": "prefill"})[0] == 200


def test_a_file_outside_the_segment_directories_stays_as_it_is(
    service: Service, folder: Path, cluster: Cluster
) -> None:
    code = b"print('mine')\n" * (MB // 10)
    program = folder.parent / "program.py"
    program.write_bytes(code)
    before = capacity(cluster)
    link = folder.parent / "link"
    for path in (
        program,
        f"{link}/../program.py",
        f"{link}/below/../../program.py",
        f"{link}x/program.py",
        "program.py",
        f"{link}",
        f"{link}/",
        f"{link}/\0program.py",
        "/dev/shm/program.py",
    ):
        status, answer = decode(service, path)
        assert (status, "is not below a segment directory" in answer["error"]) == (403, True)
    status, answer = service.ask("POST", "/api/mount_shm", {"name": "x", "size": MB})
    assert (status, "/dev/shm/x" in answer["error"]) == (403, True)
    assert capacity(cluster) == before
    assert program.read_bytes() == code


def test_links_do_not_lead_out_of_a_segment_directory(
    service: Service, folder: Path, cluster: Cluster
) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(bytes(MB))
    (folder / "file-link").symlink_to(outside / "file")
    (folder / "folder-link").symlink_to(outside)
    (folder / "inner").write_bytes(bytes(MB))
    (folder / "inner-link").symlink_to("inner")
    os.link(outside / "file", folder / "second-name")
    os.mkfifo(folder / "pipe")
    before = capacity(cluster)
    for name, reason in {
        "file-link": "is a link",
        "inner-link": "is a link",
        "folder-link/file": "is a link or not a directory",
        "inner/file": "is a link or not a directory",
        "second-name": "has 2 names",
        "pipe": "is not a regular file",
        "below": "is not a regular file",
    }.items():
        status, answer = decode(service, folder.parent / "link" / name)
        assert (status, reason in answer["error"]) == (403, True), (name, answer)
    status, answer = decode(service, folder.parent / "link" / "missing")
    assert (status, answer["code"]) == (500, -600)
    assert capacity(cluster) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(service: Service, folder: Path) -> None:
    file = folder / "foreign"
    file.write_bytes(bytes(MB))
    os.chown(file, 65534, 65534)
    status, answer = decode(service, folder.parent / "link" / "foreign")
    assert (status, "belongs to user 65534" in answer["error"]) == (403, True)


# ---- how much


def test_mounts_have_a_limit_together(service: Service, cluster: Cluster) -> None:
    def mount(size: int) -> tuple[int, Any]:
        return service.ask("POST", "/api/mount", {"size": size})

    before = capacity(cluster)
    status, answer = mount(1 << 50)
    assert (status, "of 33554432 bytes are left" in answer["error"]) == (400, True)
    status, first = mount(20 * MB)
    assert status == 200
    status, answer = mount(20 * MB)
    assert (status, "of 33554432 bytes are left" in answer["error"]) == (400, True)
    assert capacity(cluster) == before + first["allocated_size"]
    assert service.ask("POST", "/api/unmount", {"segment_ids": first["segment_ids"]})[0] == 200
    status, second = mount(20 * MB)
    assert status == 200
    assert service.ask("POST", "/api/unmount_shm", {"segment_ids": second["segment_ids"]})[0] == 200
    assert capacity(cluster) == before


def test_a_request_about_memory_is_small(service: Service) -> None:
    body = {"mode": "prefill", "more": "x" * MB}
    answer = (413, {"error": "Request body is larger than 1048576 bytes"})
    assert service.ask("POST", "/api/reconfigure", body) == answer


LIMITED = """
import sys
from mc_store._service import bodies, connections
bodies._MAX_HELD_BYTES = 4 << 20
bodies._SILENCE_SECONDS = 4.0
bodies._SLOWEST_BYTES_PER_SECOND = 1 << 40
connections._MAX_CONNECTIONS = 8
from mc_store.service import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def limited(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with small limits."""
    folder = tmp_path_factory.mktemp("limited")
    service = Service(cluster, folder, program=("-c", LIMITED), global_segment_size=0)
    yield service
    assert service.program.stop() == 0


def begin_put(service: Service, opened: ExitStack, size: int) -> http.client.HTTPConnection:
    """A put that lacks the last of its `size` bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    opened.callback(connection.close)
    connection.putrequest("PUT", "/api/put/begun")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    connection.send(bytes(size - 1))
    return connection


def test_a_body_that_does_not_arrive_ends_its_request(limited: Service) -> None:
    with ExitStack() as opened:
        answer = begin_put(limited, opened, MB).getresponse()
        assert (answer.status, b"did not arrive in time" in answer.read()) == (408, True)
    assert limited.ask("PUT", "/api/put/after-silence", bytes(3 * MB))[0] == 200


def test_bodies_have_a_limit_together(limited: Service) -> None:
    with ExitStack() as opened:
        begun = [begin_put(limited, opened, 3 * MB) for _ in range(3)]
        for connection in begun:
            connection.send(b"x")
        statuses = sorted(connection.getresponse().status for connection in begun)
        # The order of their parts is open; what is sure is that not all of them had room.
        assert statuses[-1] == 503
    assert limited.ask("PUT", "/api/put/after-the-limit", bytes(3 * MB))[0] == 200


def test_a_caller_that_does_not_read_its_answer_is_disconnected(limited: Service) -> None:
    value = bytes(30 * MB)
    assert limited.ask("PUT", "/api/put/unread", value)[0] == 200
    with socket.create_connection(("127.0.0.1", limited.port), timeout=60) as caller:
        caller.sendall(b"GET /api/get/unread HTTP/1.1\r\nHost: localhost\r\n\r\n")
        caller.recv(1)
        busy = (503, {"error": "Too many bytes of other requests are held; try again"})
        assert limited.ask("PUT", "/api/put/beside", bytes(MB)) == busy

        def is_let_in() -> bool:
            return limited.ask("PUT", "/api/put/beside", bytes(MB))[0] == 200

        wait_until(is_let_in, what="the answer's bytes to be given up")
        received = 1
        try:
            while part := caller.recv(MB):
                received += len(part)
        except ConnectionResetError:
            pass
        assert received < len(value)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_idle_strangers_keep_no_place(limited: Service) -> None:
    with ExitStack() as opened:
        user = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=60)
        opened.callback(user.close)
        user.request("GET", "/health")
        assert user.getresponse().read() == b'{"status": "ok"}'
        held = user.sock
        strangers = [
            opened.enter_context(socket.create_connection(("127.0.0.1", limited.port), timeout=60))
            for _ in range(30)
        ]
        wait_until(lambda: sum(map(is_closed, strangers)) >= 30 - 8, what="strangers to be closed")
        assert limited.ask("GET", "/health") == (200, {"status": "ok"})
        # The connection that was used has outlasted all that never were.
        user.request("GET", "/health")
        assert user.getresponse().read() == b'{"status": "ok"}'
        assert user.sock is held
