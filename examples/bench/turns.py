#!/usr/bin/env python3
"""Measures several builds of mc-bench in turns, and keeps the medians for docs/performance.md.

    examples/bench/turns.py --machine TEXT [--rounds N] NAME=BINARY…

NAME is the revision that BINARY was built at, the oldest first. Each round runs every suite of every build once,
one after the other, so that what else the machine does meets all of them alike. The medians of the figures below
are written to examples/bench/results/turns.json.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

KEPT = Path(__file__).resolve().parent / "results" / "turns.json"

# Where the placement matters, all processes are on one CPU.
SAME = {"placement": "same"}
SHM = SAME | {"transport": "shm", "runtime": "single"}
CROWD = {"placement": "cross", "threads": 8, "pipeline": 1, "clients": 8}
SIZES = {4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
PATHS = [
    *[("meta", f"put pairs, threads {n}", "put_pairs_per_s", {"threads": n}) for n in (1, 2)],
    ("meta", "gets, one thread", "gets_per_s", {"threads": 1, "batch": None}),
    *[("meta", f"gets, batches of {n:,}", "gets_per_s", {"threads": 1, "batch": n}) for n in (128, 1024)],
    *[("meta", f"50,000 evictions of {n:,}", "evict_ms", {"live": n}) for n in (100_000, 1_000_000)],
    *[("meta", f"longest tick, {n:,} objects", "tick_max_us", {"live": n}) for n in (100_000, 1_000_000)],
    ("meta", "memory of a key", "bytes_per_key", {}),
    ("rpc", "exist, same CPU", "exist_p50_us", SAME | {"over": "tcp"}),
    *[
        ("rpc", f"8 clients: {what}", f"{name}_per_s", CROWD)
        for what, name in [("get", "get"), ("put", "put"), ("keys of batch get", "batch_get_keys"), ("keys of batch put", "batch_put_keys")]
    ],
    ("rpc", "one client: keys of batch put", "batch_put_keys_per_s", SAME | {"clients": 1}),
    ("rpc", "one client: keys of batch exist", "batch_exist_keys_per_s", SAME),
    ("rpc", "idle connection", "idle_conn_bytes", {}),
    *[("store", f"put, {size}", "put_p50_us", SHM | {"size": n}) for n, size in SIZES.items()],
    *[("store", f"get_into, {size}", "get_into_p50_us", SHM | {"size": n}) for n, size in SIZES.items()],
    ("store", "values put, batches of 100", "put_batch_per_s", SHM),
    ("store", "values got, batches of 100", "get_batch_per_s", SHM),
]


def run(binary, suite):
    command = [binary, suite, "--quick", "--json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ran.stderr}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def value_of(figures, name, params):
    """The first figure of this name and these parameters, of which None means that there is none."""
    for figure in figures:
        if figure["name"] == name and all(figure["params"].get(key) == value for key, value in params.items()):
            return figure["value"], figure["unit"]
    return None


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("builds", nargs="+", metavar="NAME=BINARY")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--machine", required=True, help="what it is, and what else it does")
    options = arguments.parse_args()
    if options.rounds < 1:
        arguments.error("--rounds: at least one")
    builds = dict(build.split("=", 1) for build in options.builds)
    measured = defaultdict(lambda: defaultdict(list))
    units = {}
    for _ in range(options.rounds):
        for suite in dict.fromkeys(path[0] for path in PATHS):
            for revision, binary in builds.items():
                figures = run(binary, suite)
                for of, title, name, params in PATHS:
                    if of == suite and (found := value_of(figures, name, params)):
                        measured[title][revision].append(found[0])
                        units[title] = found[1]
    rows = [
        {"path": title, "unit": units[title], "medians": {name: statistics.median(values) for name, values in found.items()}}
        for title, found in measured.items()
    ]
    head = {"machine": options.machine, "rounds": options.rounds, "date": str(datetime.date.today()), "revisions": list(builds)}
    KEPT.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
    for row in rows:
        print(f"{row['path']:32}", *(f"{row['medians'].get(revision, float('nan')):14.5g}" for revision in builds), row["unit"])


if __name__ == "__main__":
    main()
