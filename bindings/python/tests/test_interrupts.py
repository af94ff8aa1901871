"""Ctrl-C ends an attempt to connect to a peer that does not answer."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from _cluster import PATIENCE, wait_until

#: What connects to `address`, by which test it is.
CALLS = {
    "Client": "mc_store.Client(address)",
    "Client with a segment": "mc_store.Client(address, segment_size='1MB')",
    "setup": "store.setup('127.0.0.1', '', 0, 1 << 20, 'tcp', '', address)",
    "setup with a segment": "store.setup('127.0.0.1', '', 1 << 20, 1 << 20, 'tcp', '', address)",
    "setup_dummy": "store.setup_dummy(1 << 20, 1 << 20, address)",
}

#: Says when it is about to connect, and what that came to.
CONNECTING = """
import signal
import sys
import mc_store
from mc_store.mooncake.store import MooncakeDistributedStore

# It is ignored below a shell in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
address = sys.argv[1]
store = MooncakeDistributedStore()
try:
    print("ended", {call})
except KeyboardInterrupt:
    print("interrupted", store.health_check())
"""

#: Seconds within which the interrupt must have ended the call. The shortest time-out of those that
#: would end it anyway is 3.
SOON = 2.0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """Lets packets of those who connect fall: its queue is full."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            queued = opened.enter_context(socket.socket())
            queued.settimeout(0.2)
            try:
                queued.connect(listener.getsockname())
            except TimeoutError:
                queued.close()
                break
        yield listener


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_ends_the_wait_for_a_greeting(name: str, silent: socket.socket) -> None:
    with ExitStack() as opened:

        def is_connected() -> bool:
            opened.enter_context(silent.accept()[0])
            return True

        interrupt(name, silent, is_connected)


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_ends_the_wait_for_a_connection(name: str, deaf: socket.socket) -> None:
    place = f":{port_of(deaf):04X} 02 "  # the other side's port, and SYN_SENT
    interrupt(name, deaf, lambda: place in Path("/proc/net/tcp").read_text())


def interrupt(name: str, listener: socket.socket, waits: Callable[[], bool]) -> None:
    code = CONNECTING.format(call=CALLS[name])
    command = [sys.executable, "-X", "faulthandler", "-c", code, f"127.0.0.1:{port_of(listener)}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(waits, what="the process to connect")
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        said, _ = process.communicate(timeout=PATIENCE)
        assert said == "interrupted 1\n"
        assert process.returncode == 0
        assert time.monotonic() - sent < SOON


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port
