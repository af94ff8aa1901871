"""Transfer engines with certificates: the bytes and the questions travel in TLS, or not at all."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _engine import P2P
from connectors.engines import Engine
from connectors.memory import content
from mc_store.mooncake.engine import TransferEngine

if TYPE_CHECKING:
    from _engine import Peer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

SIZE = 1 << 20


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an engine with a certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    ca, ca_key, request = folder / "ca.pem", folder / "ca.key", folder / "request.pem"
    cert, key, names = folder / "cert.pem", folder / "key.pem", folder / "names"
    curve: list[str | Path] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-subj", "/CN=ca", "-days", "2")
    openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=engine")
    names.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    signed: list[str | Path] = ["-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2"]
    signed += ["-extfile", names]
    openssl("x509", "-req", "-in", request, "-out", cert, *signed)
    return {
        "MC_STORE_TRANSFER_TLS_CA": str(ca),
        "MC_STORE_TRANSFER_TLS_CERT": str(cert),
        "MC_STORE_TRANSFER_TLS_KEY": str(key),
    }


@pytest.fixture
def processes() -> Iterator[tuple[Engine, Engine]]:
    with ExitStack() as opened:
        both = Engine(), Engine()
        for engine in both:
            opened.callback(engine.close)
        yield both


@pytest.mark.parametrize("protocol", ["tcp", "quic"])
def test_engines_with_certificates_reach_each_other(
    processes: tuple[Engine, Engine], certificates: dict[str, str], protocol: str
) -> None:
    settings = {"size": SIZE, "protocol": protocol, "environment": certificates}
    one, other = (process.make("_engine:Peer", **settings) for process in processes)
    data = content(protocol, SIZE)
    one.write(0, data)
    session = other.session()
    moved = one.call("transfer_sync_write", session, one.address(), other.address(), SIZE)
    assert moved == 0
    assert other.read(0, SIZE) == data
    assert one.call("send_probe", session) == 0


def test_an_engine_without_certificates_learns_nothing(
    processes: tuple[Engine, Engine], certificates: dict[str, str]
) -> None:
    secret: Peer = processes[0].make("_engine:Peer", size=SIZE, environment=certificates)
    plain: Peer = processes[1].make("_engine:Peer", size=SIZE)
    for one, other in ((secret, plain), (plain, secret)):
        lists = (one.address(), other.address(), 8)
        assert one.call("transfer_sync_read", other.session(), *lists) == -1
        assert one.call("get_first_buffer_address", other.session()) == 0
    # Not one byte that is not TLS.
    host, _, port = secret.session().partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.settimeout(10)
        connection.sendall(b"MCTE\x01\0\0\0" + bytes(16))
        assert b"MCTE" not in connection.recv(4096)
    # A certificate is asked for. In TLS 1.3 the refusal comes with the first bytes.
    context = ssl.create_default_context(cafile=certificates["MC_STORE_TRANSFER_TLS_CA"])
    assert hello_over(context, host, int(port)) == b""


def hello_over(context: ssl.SSLContext, host: str, port: int) -> bytes:
    """The answer of an engine to a greeting in TLS; empty if it refuses the connection."""
    try:
        with (
            socket.create_connection((host, port), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname=host) as wrapped,
        ):
            wrapped.sendall(b"MCTE\x01\0\0\0" + bytes(16))
            return wrapped.recv(4096)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_an_engine_with_half_of_the_certificates_does_not_start(
    certificates: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "MC_STORE_TRANSFER_TLS_CA"
    monkeypatch.setenv(name, certificates[name])
    assert TransferEngine().initialize("127.0.0.1", P2P, "tcp", "") == -1
