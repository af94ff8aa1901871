"""Measures this package and Mooncake's in one run on one machine, as ratios.

    python compare.py VENV [--rounds N] [--placement same|free|both] [--json FILE]

VENV is a virtual environment in which Mooncake's package is installed; this file is
run by an interpreter in which this one is. Placement `same` keeps every process on one CPU, which
leaves out what waking another CPU costs; `free` lets the system choose. The figures of calls are
microseconds, those of transfers (`engine_…`) GiB/s. Each round measures both
systems, one after the other, and each number is the median of the rounds. Run it on a machine
that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

MEMBER = Path(__file__).with_name("member.py")
TRANSFERS = Path(__file__).with_name("transfers.py")
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
SEGMENT = 2 << 30
THREADS = 8


def listed(*sizes: int) -> str:
    return ",".join(map(str, sizes))


#: What is measured on a cluster, and with which argument; puts into fresh memory have their own.
CLUSTERS = (
    {"fresh": listed(1 << 20, 16 << 20)},
    {"measure": listed(*SIZES), "rate": str(THREADS)},
)

#: Highest ratio of the times (for a rate: lowest ratio of the rates) that is claimed.
TARGETS: dict[tuple[str, int | None], float] = {
    **{("exist", size): 0.5 for size in SIZES},
    **{("get_into", size): 0.5 if size < 16 << 20 else 0.35 for size in SIZES},
    **{("put", size): 0.3 for size in SIZES if size >= 1 << 20},
    ("fresh_put", 1 << 20): 0.25,
    ("exist_rate", None): 2.5,
}

Figures = dict[tuple[str, int | None], float]


@dataclass(frozen=True)
class System:
    """A store to measure."""

    name: str
    python: Path
    module: str
    master: list[str]
    metadata: str
    address: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens at {port}: {process.args!r}")


def systems(reference: Path) -> list[System]:
    rpc, http, metrics = free_port(), free_port(), free_port()
    scripts = Path(sysconfig.get_path("scripts"))
    ours = free_port()
    return [
        System(
            "reference",
            reference / "bin/python",
            "mooncake.store",
            [
                str(reference / "bin/mooncake_master"),
                f"--rpc_port={rpc}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={metrics}",
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_port={http}",
            ],
            f"http://127.0.0.1:{http}/metadata",
            f"127.0.0.1:{rpc}",
        ),
        System(
            "ours",
            Path(sys.executable),
            "mc_store.mooncake.store",
            [str(scripts / "mc-master"), f"--rpc_port={ours}", "--metrics_port=0"],
            "P2PHANDSHAKE",
            f"127.0.0.1:{ours}",
        ),
    ]


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def measure(system: System, roles: dict[str, str], logs: Path) -> Figures:
    """Runs one cluster of the system, and the measurements of some roles on it."""
    log = logs / f"{system.name}.log"
    with ExitStack() as stack:
        master = stack.enter_context(running(system.master, log))
        wait_for_port(int(system.address.rpartition(":")[2]), master)
        common = [system.module, system.address, system.metadata]
        node = subprocess.Popen(
            [system.python, MEMBER, "serve", *common, str(SEGMENT)],
            stdout=subprocess.PIPE,
            stderr=stack.enter_context(log.open("ab")),
        )
        stack.callback(node.wait)
        stack.callback(node.kill)
        assert node.stdout is not None
        # Mooncake prints lines of its own.
        while (line := node.stdout.readline()) != b"ready\n":
            if not line:
                raise RuntimeError(f"no memory was contributed; see {log}")
        figures: Figures = {}
        for role, argument in roles.items():
            done = subprocess.run(
                [system.python, MEMBER, role, *common, argument],
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("ab")),
                check=True,
                text=True,
            )
            for printed in done.stdout.splitlines():
                if printed.startswith("{"):
                    figure = json.loads(printed)
                    figures[figure["name"], figure.get("size")] = figure["value"]
        return figures


def measure_transfers(system: System, logs: Path) -> Figures:
    """Runs two transfer engines of the system, and batches of writes from one to the other."""
    module = f"{system.module.rpartition('.')[0]}.engine"
    with ExitStack() as stack:
        log = stack.enter_context((logs / f"{system.name}.log").open("ab"))
        peer = subprocess.Popen(
            [system.python, TRANSFERS, "serve", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        stack.callback(peer.wait)
        stack.callback(peer.kill)
        assert peer.stdout is not None
        while not (line := peer.stdout.readline()).startswith(b"ready "):
            if not line:
                raise RuntimeError(f"no engine started; see {log.name}")
        port, *addresses = line.decode().split()[1:]
        command: list[str | Path] = [system.python, TRANSFERS, "write", module, f"127.0.0.1:{port}"]
        command += addresses
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, check=True, text=True)
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return {
            (figure["name"], figure["size"]): figure["value"] for figure in map(json.loads, printed)
        }


def report(placement: str, rounds: dict[str, list[Figures]], rows: list[dict[str, object]]) -> bool:
    """Prints the table and adds it to `rows`; says whether every target was met."""
    print(f"placement {placement}")
    print(f"{'call':<18}{'bytes':>10}{'reference':>14}{'ours':>14}{'ratio':>8}  target")
    good = True
    for name in rounds["ours"][0]:
        ours, theirs = (
            statistics.median(figures[name] for figures in rounds[system])
            for system in ("ours", "reference")
        )
        ratio, target = ours / theirs, TARGETS.get(name)
        verdict = ""
        if target is not None:
            met = ratio >= target if name[0].endswith("_rate") else ratio <= target
            verdict = f"{target:>6} {'met' if met else 'MISSED'}"
            good &= met
        call, size = name
        row = {"placement": placement, "call": call, "size": size}
        rows.append({**row, "reference": theirs, "ours": ours, "ratio": ratio})
        print(f"{call:<18}{size or '':>10}{theirs:>14.2f}{ours:>14.2f}{ratio:>8.2f}  {verdict}")
    return good


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("venv", type=Path)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--placement", choices=["same", "free", "both"], default="both")
    arguments.add_argument("--logs", type=Path, default=Path("."), help="folder for what they log")
    arguments.add_argument("--json", type=Path, help="file for the medians")
    options = arguments.parse_args()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    everywhere = os.sched_getaffinity(0)
    good = True
    rows: list[dict[str, object]] = []
    for placement in ("same", "free") if options.placement == "both" else (options.placement,):
        # Inherited by every process that is started.
        os.sched_setaffinity(0, {min(everywhere)} if placement == "same" else everywhere)
        rounds: dict[str, list[Figures]] = defaultdict(list)
        for _ in range(options.rounds):
            figures: dict[str, Figures] = defaultdict(dict)
            for roles in CLUSTERS:
                for system in systems(options.venv):
                    figures[system.name] |= measure(system, roles, options.logs)
            for system in systems(options.venv):
                figures[system.name] |= measure_transfers(system, options.logs)
            for name, measured in figures.items():
                rounds[name].append(measured)
        good &= report(placement, rounds, rows)
    if options.json:
        kept = {"rounds": options.rounds, "rows": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
