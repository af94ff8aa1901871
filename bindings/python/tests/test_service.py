"""The REST service, as a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest
from _cluster import Cluster, Program, free_port, run_python, wait_until
from _service import Service, capacity

pytest.importorskip("aiohttp")

MB = 1 << 20


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(cluster, tmp_path_factory.mktemp("service"))
    yield service
    assert service.program.stop() == 0


@pytest.fixture
def quoted(key: str) -> str:
    return urllib.parse.quote(key, safe="")


# ---- objects


def test_life_of_an_object(service: Service, key: str, quoted: str) -> None:
    assert service.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": False})
    assert service.ask("GET", f"/api/get/{quoted}") == (404, {"error": "Key not found"})
    assert service.put(key, "wärme ☃") == (200, {"status": "success"})
    assert service.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": True})
    assert service.ask("GET", f"/api/get/{quoted}") == (200, "wärme ☃".encode())
    # The value stays that of the first put.
    assert service.put(key, "other") == (200, {"status": "success"})
    assert service.ask("GET", f"/api/get/{quoted}") == (200, "wärme ☃".encode())


def test_remove(new_cluster: Callable[..., Cluster], tmp_path: Path, key: str, quoted: str) -> None:
    # Leases of this cluster are over at once, so that what was read can be removed.
    service = Service(new_cluster(nodes=0, master_flags=["--default_kv_lease_ttl=1"]), tmp_path)
    try:
        assert service.put(key, "value") == (200, {"status": "success"})
        assert service.ask("DELETE", f"/api/remove/{quoted}") == (200, {"status": "success"})
        missing = service.ask("DELETE", f"/api/remove/{quoted}")
        assert missing == (500, {"error": "Remove operation failed", "code": -704})
        for number in range(3):
            assert service.put(f"{key}{number}", "x")[0] == 200
        removed = service.ask("DELETE", "/api/remove_all")
        assert removed == (200, {"status": "success removed 3 keys"})
        assert service.ask("GET", f"/api/exist/{quoted}0") == (200, {"exists": False})
    finally:
        assert service.program.stop() == 0


def test_bytes_that_are_no_text(service: Service, quoted: str) -> None:
    value = bytes(range(256)) * 5000
    assert service.ask("PUT", f"/api/put/{quoted}", value) == (200, {"status": "success"})
    assert service.ask("GET", f"/api/get/{quoted}") == (200, value)


@pytest.mark.parametrize(
    "name", ["a/b/c", "a b", "a%2Fb", "ü☃", "a?b#c", "a+b", "{key}", "..", "a\nb", '"', "x" * 500]
)
def test_keys_of_all_kinds(service: Service, key: str, name: str) -> None:
    key += name
    assert service.put(key, name) == (200, {"status": "success"})
    quoted = urllib.parse.quote(key, safe="")
    assert service.ask("GET", f"/api/get/{quoted}") == (200, name.encode())
    assert service.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": True})


def test_slashes_need_no_quoting(service: Service) -> None:
    assert service.put("model@tp:0/layer/1", "kv") == (200, {"status": "success"})
    assert service.ask("GET", "/api/get/model@tp:0/layer/1") == (200, b"kv")


def test_nul_in_a_key_harms_nobody(service: Service, key: str, quoted: str) -> None:
    service.put(key + "\0", "1")
    service.ask("GET", f"/api/get/{quoted}%00")
    assert service.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": False})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Malformed JSON body"),
        (b"{", "Malformed JSON body"),
        (b"\xff\xfe", "Malformed JSON body"),
        ([], "Request body must be a JSON object"),
        ("text", "Request body must be a JSON object"),
        ({}, "Missing key or value"),
        ({"key": "k"}, "Missing key or value"),
        ({"key": "", "value": "v"}, "Missing key or value"),
        ({"key": "k", "value": None}, "Missing key or value"),
        ({"key": 5, "value": "v"}, "Invalid key or value, must be strings"),
        ({"key": "k", "value": 5}, "Invalid key or value, must be strings"),
        ({"key": "k", "value": ["v"]}, "Invalid key or value, must be strings"),
        (b'{"key": "\\ud800", "value": "v"}', "Invalid key or value, must be Unicode text"),
        (b'{"key": "k", "value": "\\ud800"}', "Invalid key or value, must be Unicode text"),
    ],
)
def test_bad_puts(service: Service, body: object, message: str) -> None:
    assert service.ask("PUT", "/api/put", body) == (400, {"error": message})


def test_huge_bodies(service: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    connection.putrequest("PUT", "/api/put")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str((100 << 20) + 1))
    connection.endheaders()
    chunk = bytes(MB)
    try:
        for _ in range(101):
            connection.send(chunk)
    except (BrokenPipeError, ConnectionResetError):
        pass  # It need not read what it refuses.
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read()) == {"error": "Request body is larger than 104857600 bytes"}
    connection.close()


def test_value_without_room(service: Service, key: str, quoted: str) -> None:
    # More than a segment has, less than a body may have.
    status, answer = service.ask("PUT", f"/api/put/{quoted}", bytes(70 * MB))
    assert (status, answer["error"]) == (500, "PUT operation failed")
    assert answer["code"] < 0
    assert service.ask("GET", f"/api/exist/{quoted}") == (200, {"exists": False})


def test_what_is_not_there(service: Service) -> None:
    assert service.ask("GET", "/api/nothing") == (404, {"error": "Not Found"})
    assert service.ask("GET", "/api/get/") == (404, {"error": "Not Found"})
    assert service.ask("GET", "/api/put") == (405, {"error": "Method Not Allowed"})


def test_health_and_index(service: Service) -> None:
    assert service.ask("GET", "/health") == (200, {"status": "ok"})
    status, index = service.ask("GET", "/")
    assert status == 200
    assert index["openapi"].startswith("3.")
    assert set(index["paths"]["/api/get/{key}"]) == {"get"}
    assert set(index["paths"]["/api/remove_all"]) == {"delete"}
    assert all(
        operation["summary"] for path in index["paths"].values() for operation in path.values()
    )


def test_many_requests_at_once(service: Service, key: str) -> None:
    def life(number: int) -> tuple[int, Any]:
        name = urllib.parse.quote(f"{key}{number}", safe="")
        assert service.ask("PUT", f"/api/put/{name}", bytes([number]) * 10_000)[0] == 200
        return service.ask("GET", f"/api/get/{name}")

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(life, range(64)))
    assert answers == [(200, bytes([number]) * 10_000) for number in range(64)]


# ---- memory


@pytest.fixture
def shm() -> Iterator[shared_memory.SharedMemory]:
    shm = shared_memory.SharedMemory(create=True, size=16 * MB)
    yield shm
    shm.close()
    shm.unlink()


def test_mount_and_unmount(service: Service, cluster: Cluster) -> None:
    before = capacity(cluster)
    status, mounted = service.ask("POST", "/api/mount", {"size": 4 * MB})
    assert status == 200
    assert mounted["status"] == "success"
    assert mounted["allocated_size"] >= 4 * MB
    [segment] = mounted["segment_ids"]
    assert isinstance(segment, str)
    assert capacity(cluster) == before + mounted["allocated_size"]
    done = service.ask("POST", "/api/unmount", {"segment_ids": segment})
    assert done == (200, {"status": "success"})
    assert capacity(cluster) == before
    status, answer = service.ask("POST", "/api/unmount", {"segment_ids": [segment]})
    assert status == 500
    assert answer["error"] == f"Unmount and free failed, ret={answer['code']}"


def test_shared_memory(service: Service, shm: shared_memory.SharedMemory) -> None:
    status, mounted = service.ask("POST", "/api/mount_shm", {"name": shm.name, "size": 16 * MB})
    assert (status, mounted["status"], len(mounted["segment_ids"])) == (200, "success", 1)
    ids = mounted["segment_ids"]
    assert service.ask("POST", "/api/unmount_shm", {"segment_ids": ids}) == (
        200,
        {"status": "success"},
    )
    status, answer = service.ask("POST", "/api/unmount_shm", {"segment_ids": ids})
    assert status == 500
    assert answer["error"] == "Unmount failed for one or more segments"
    assert answer["failed_segment_ids"] == ids


def test_modes(service: Service, shm: shared_memory.SharedMemory) -> None:
    def reconfigure(**body: object) -> tuple[int, Any]:
        return service.ask("POST", "/api/reconfigure", body)

    path = f"/dev/shm/{shm.name.lstrip('/')}"
    missing = f"{path}-missing"
    assert reconfigure(mode="prefill") == (200, {"status": "success", "mode": "prefill"})
    status, failed = reconfigure(mode="decode", path=missing, size=16 * MB)
    assert status == 500
    assert failed["error"].endswith("; rolled back to prefill")
    assert failed["mode"] == "prefill"

    status, first = reconfigure(mode="decode", path=path, size=16 * MB)
    assert (status, first["status"], first["mode"]) == (200, "success", "decode")
    status, failed = reconfigure(mode="decode", path=missing, size=16 * MB)
    assert status == 500
    assert failed["error"].endswith("; keeping previous decode segments")
    assert failed["mode"] == "decode"

    # The new one is there before the old one goes.
    status, second = reconfigure(mode="DECODE", path=path, size=16 * MB)
    assert status == 200
    assert len(second["segment_ids"]) == 1
    assert second["segment_ids"] != first["segment_ids"]
    assert reconfigure(mode="prefill") == (200, {"status": "success", "mode": "prefill"})


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("reconfigure", {}, "Invalid mode. Use 'decode' or 'prefill'"),
        ("reconfigure", {"mode": "train"}, "Invalid mode. Use 'decode' or 'prefill'"),
        ("reconfigure", {"mode": 1}, "Invalid mode, must be a string"),
        ("reconfigure", {"mode": "decode"}, "Missing path or size for decode mode"),
        ("reconfigure", {"mode": "decode", "path": "/x"}, "Missing path or size for decode mode"),
        ("reconfigure", {"mode": "decode", "path": 1, "size": 1}, "Invalid path"),
        ("reconfigure", {"mode": "decode", "path": "/x", "size": "1"}, "Invalid size"),
        ("reconfigure", {"mode": "decode", "path": "/x", "size": 1, "offset": -1}, "Invalid off"),
        ("mount_shm", {}, "Missing or invalid name or size"),
        ("mount_shm", {"name": "a/b", "size": 1}, "Missing or invalid name or size"),
        ("mount_shm", {"name": "..", "size": 1}, "Missing or invalid name or size"),
        ("mount_shm", {"name": 1, "size": 1}, "Missing or invalid name or size"),
        ("mount_shm", {"name": "x"}, "Missing or invalid name or size"),
        ("mount_shm", {"name": "x", "size": 0}, "Invalid size"),
        ("mount_shm", {"name": "x", "size": 1 << 70}, "Invalid size"),
        ("mount_shm", {"name": "x", "size": 1, "protocol": 1}, "Invalid protocol"),
        ("unmount_shm", {}, "Missing segment_ids"),
        ("unmount_shm", {"segment_ids": [1]}, "Invalid segment_ids"),
        ("unmount_shm", {"segment_ids": {"a": 1}}, "Invalid segment_ids"),
        ("mount", {}, "Invalid size, must be a positive integer"),
        ("mount", {"size": True}, "Invalid size, must be a positive integer"),
        ("mount", {"size": 1.5}, "Invalid size, must be a positive integer"),
        ("mount", {"size": -1}, "Invalid size, must be a positive integer"),
        ("unmount", {"segment_ids": []}, "Missing segment_ids"),
        ("unmount", {"segment_ids": ["x"], "grace_period_seconds": -1}, "Invalid grace_period_s"),
        (
            "unmount_local_disk",
            {"grace_period_seconds": 5000},
            "Invalid grace_period_seconds, must be a non-negative integer no greater than 3600",
        ),
        ("unmount_local_disk", [], "Request body must be a JSON object"),
    ],
)
def test_bad_requests_about_memory(service: Service, path: str, body: object, message: str) -> None:
    status, answer = service.ask("POST", f"/api/{path}", body)
    assert status == 400
    assert answer["error"].startswith(message)


# ---- the program


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_end_leaves_nothing(
    new_cluster: Callable[..., Cluster], tmp_path: Path, number: signal.Signals
) -> None:
    cluster = new_cluster(nodes=0)
    service = Service(cluster, tmp_path)
    assert capacity(cluster) == 16 * MB
    service.program.signal(number)
    wait_until(lambda: not service.program.is_running, what="the service to end")
    # Unmounted by the end itself: long before the master would miss its heartbeats.
    assert capacity(cluster) == 0
    assert service.program.stop() == 0
    assert "Traceback" not in service.program.output


SLOW_GET = """
import os, sys, time
from mc_store._service import node

class Slow(node.MooncakeDistributedStore):
    def get(self, key):
        print("reading", flush=True)
        while not os.path.exists(key):
            time.sleep(0.01)
        return b"read"

node.MooncakeDistributedStore = Slow
from mc_store.service import main
sys.exit(main())
"""


def test_request_under_way_is_answered(service: Service, tmp_path: Path) -> None:
    flags = ("--config", service.config, "--host", "127.0.0.1", "--port", "0")
    slow = Program([sys.executable, "-c", SLOW_GET, *map(str, flags)])
    go_on = tmp_path / "go-on"
    try:
        port = int(slow.expect(r"REST API started on port (\d+)")[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/api/get/" + urllib.parse.quote(str(go_on), safe=""))
        slow.expect("reading")
        slow.signal(signal.SIGTERM)
        slow.expect("shutting down")
        go_on.touch()
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"read")
        connection.close()
        wait_until(lambda: not slow.is_running, what="the service to end")
        assert slow.stop() == 0
    finally:
        slow.kill()


def test_master_that_comes_late(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "late.json"
    settings = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}
    # There is no listener.
    nowhere = f"127.0.0.1:{free_port()}"
    config.write_text(json.dumps(settings | {"master_server_address": nowhere}))
    command = [sys.executable, "-m", "mc_store.service", "--config", str(config), "--port", "0"]
    small = ["-D", "global_segment_size=0", "-D", "local_buffer_size=1MB"]

    waiting = Program([*command, *small])
    try:
        waiting.expect("left to try again")
        assert waiting.stop() == 0
    finally:
        waiting.kill()
    impatient = Program([*command, *small, "--max-wait-time", "0"])
    try:
        impatient.expect("no time left")
        wait_until(lambda: not impatient.is_running)
        assert impatient.stop() == 1
    finally:
        impatient.kill()
    # Settings of -D override the file.
    corrected = Program([*command, *small, f"-Dmaster_server_address={cluster.address}"])
    try:
        corrected.expect("REST API started")
        assert corrected.stop() == 0
    finally:
        corrected.kill()


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--config", "/nonexistent.json"], 1, "No such file or directory: '/nonexistent.json'"),
        (["-D", "master"], 2, "expected NAME=VALUE, got 'master'"),
        (["-Dmaster_server_adress=x"], 1, "did you mean 'master_server_address'?"),
        (["-Dglobal_segment_size=lots"], 1, "global_segment_size must be"),
        (["--port", "http"], 2, "invalid int value"),
        (["--bogus"], 2, "unrecognized arguments"),
    ],
)
def test_mistakes_of_the_command_line(
    tmp_path: Path, flags: list[str], status: int, message: str
) -> None:
    good = tmp_path / "good.json"
    names = ("local_hostname", "metadata_server", "master_server_address")
    good.write_text(json.dumps(dict.fromkeys(names, "x:1")))
    done = run_python(
        "import runpy, sys; sys.argv[0] = 'service'; runpy.run_module('mc_store.service', "
        "run_name='__main__')",
        *("--config", str(good), *flags),
        check=False,
    )
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_port_that_is_taken(service: Service) -> None:
    command = [sys.executable, "-m", "mc_store.service", "--config", str(service.config)]
    second = Program([*command, "--host", "127.0.0.1", "--port", str(service.port)])
    try:
        second.expect("address already in use")
        wait_until(lambda: not second.is_running)
        assert second.stop() == 1
    finally:
        second.kill()


def test_without_aiohttp() -> None:
    done = run_python(
        "import sys\n"
        "sys.modules['aiohttp'] = None\n"
        "from mc_store.mooncake.mooncake_store_service import sync_main\n"
        "sys.exit(sync_main())",
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'mc-store[service]'" in done.stderr
    assert "Traceback" not in done.stderr
