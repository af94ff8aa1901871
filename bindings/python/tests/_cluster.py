"""Real programs for the tests: a master, storage nodes, fresh interpreters."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

#: How long anything that should happen may take on a loaded machine, in seconds.
PATIENCE = 30.0

REPOSITORY = Path(__file__).resolve().parents[3]

# The tests read what programs log as they do by default.
for _name in ("MC_LOG", "MC_LOG_FORMAT"):
    os.environ.pop(_name, None)


def wait_until(condition: Callable[[], T], *, seconds: float = PATIENCE, what: str = "") -> T:
    """Calls `condition` until it returns something true, and returns that.

    Raises:
        TimeoutError: it did not within `seconds`; the message names `what` was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what or condition}")
        time.sleep(0.01)


def suspend(pid: int) -> None:
    """Stops a process until it is sent SIGCONT, and returns when none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped() -> bool:
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        return all(it.read_text().rpartition(")")[2].split()[0] == "T" for it in threads)

    wait_until(is_stopped, what=f"process {pid} to stop")


def free_port() -> int:
    """A port of 127.0.0.1 without a listener, and that the system does not give to those
    who ask for any one, such as tests beside this one. Prefer port 0 where it is understood."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        # Not by a seed, which those beside this one may have, too.
        port = random.SystemRandom().randrange(10_000, max(given, 11_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def binary(name: str) -> Path:
    """The program `name` (`mc-master`, …): the one installed beside this interpreter, else the
    newest one that cargo has built, else what PATH has.

    Raises:
        FileNotFoundError: there is neither.
    """
    installed = Path(sysconfig.get_path("scripts")) / name
    if installed.is_file():
        return installed
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    built = [
        path for profile in ("debug", "release") if (path := target / profile / name).is_file()
    ]
    if not built and (found := shutil.which(name)):
        built = [Path(found)]
    if not built:
        raise FileNotFoundError(f"{name} is not installed and not built; run: cargo build --bins")
    return max(built, key=lambda path: path.stat().st_mtime)


class Program:
    """A program that runs until it is stopped. What it printed is shown when a wait fails."""

    def __init__(self, command: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
        self.command = [str(word) for word in command]
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if env is None else os.environ | env,
            text=True,
            errors="replace",
        )
        # A full pipe would stop the program.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self._lines.extend(lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """All that it printed so far, on both streams."""
        return "".join(self._lines)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def expect(self, pattern: str, *, seconds: float = PATIENCE) -> re.Match[str]:
        """Waits until it has printed `pattern`; ends it when that fails.

        Raises:
            RuntimeError: it ended before, or did not within `seconds`; with what it printed.
        """

        def found() -> re.Match[str] | bool:
            over = not self.is_running
            if over:
                self._reader.join(seconds)
            return re.search(pattern, self.output) or over

        try:
            match = wait_until(found, seconds=seconds)
        except TimeoutError:
            match = False
        if isinstance(match, bool):
            state = "ended" if match else f"ran {seconds} s"
            self.kill()
            raise RuntimeError(f"{self.command} {state} without {pattern!r}:\n{self.output}")
        return match

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self, *, seconds: float = PATIENCE) -> int:
        """Asks it to end, waits, and returns its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._reader.join(seconds)

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        self._process.kill()
        self._process.wait()
        self._reader.join()


class Master(Program):
    """An `mc-master` at a free port of 127.0.0.1, ready."""

    def __init__(self, flags: Sequence[str] = (), *, port: int = 0) -> None:
        super().__init__(
            [
                binary("mc-master"),
                "--rpc_address=127.0.0.1",
                f"--rpc_port={port}",
                "--metrics_host=127.0.0.1",
                "--metrics_port=0",
                *flags,
            ]
        )
        #: `host:port`, as clients want it.
        self.address = self.expect(r"listening on (\S+)")[1]
        #: Where its pages are, without a final slash.
        self.http = self.expect(r"metrics at (http://\S+)/metrics")[1]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


class Node(Program):
    """An `mc-node` that contributes memory to the pool of `master`, mounted."""

    def __init__(self, master: str, size: str = "64MB", flags: Sequence[str] = ()) -> None:
        super().__init__(
            [
                binary("mc-node"),
                f"--master_server_address={master}",
                f"--global_segment_size={size}",
                "--port=0",
                *flags,
            ]
        )
        ready = self.expect(r"ready: segment (\S+), .* thin clients at \S+:(\d+)")
        #: The name of its segment.
        self.segment = ready[1]
        #: Where a thin client of this host finds it.
        self.dummy_address = f"127.0.0.1:{ready[2]}"


@dataclass
class Cluster:
    """A master and its storage nodes; all of them end when it is closed."""

    master: Master
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        *,
        nodes: int = 1,
        size: str = "64MB",
        master_flags: Sequence[str] = (),
        node_flags: Sequence[str] = (),
    ) -> Cluster:
        cluster = cls(Master(master_flags))
        try:
            for _ in range(nodes):
                cluster.add_node(size, node_flags)
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def address(self) -> str:
        """Of the master, as `host:port`."""
        return self.master.address

    @property
    def http(self) -> str:
        """Where the pages of the master are, without a final slash."""
        return self.master.http

    def add_node(self, size: str = "64MB", flags: Sequence[str] = ()) -> Node:
        node = Node(self.address, size, flags)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for program in (*self.nodes, self.master):
            program.kill()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Finished:
    """The results of a program that has ended."""

    returncode: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"exit status {self.returncode}\n-- stdout\n{self.stdout}-- stderr\n{self.stderr}"


def run_python(
    code: str | Path,
    *arguments: str,
    python: str | Path = sys.executable,
    seconds: float = 2 * PATIENCE,
    env: dict[str, str] | None = None,
    inherit: bool = True,
    cwd: Path | None = None,
    check: bool = True,
) -> Finished:
    """Runs `code`, or the file of a script, in a fresh interpreter, which prints the stacks of all
    threads if it crashes. Its environment is `env`, and this one if it is to `inherit` that.

    Raises:
        AssertionError: `check` is set and its exit status is not 0 (a signal counts as negative).
        TimeoutError: it had not ended after `seconds`.
    """
    program = [str(code)] if isinstance(code, Path) else ["-c", code]
    command = [str(python), "-X", "faulthandler", *program, *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**(os.environ if inherit else {}), **(env or {})},
        cwd=cwd,
        text=True,
        errors="backslashreplace",
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Its handler prints where each thread stands.
            process.send_signal(signal.SIGABRT)
            output, errors = process.communicate()
            done = Finished(process.returncode, output, errors)
            raise TimeoutError(f"had not ended after {seconds} s: {done}") from None
    done = Finished(process.returncode, output, errors)
    assert not check or done.returncode == 0, str(done)
    return done
