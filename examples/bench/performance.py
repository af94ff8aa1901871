#!/usr/bin/env python3
"""Writes docs/performance.md from the outputs of `mc-bench --json` in examples/bench/results.

    examples/bench/performance.py            writes the page
    examples/bench/performance.py --check    ends with 1 if the page is not what the results give

A file of results is the output of one run behind one line of JSON that says where it comes from:

    {"machine": "…", "command": "mc-bench store --quick", "revision": "…", "date": "…", "beside": "…"}

`beside` names other work of the machine, and is left out when it was quiet; `source` names the document
that figures of an earlier run were copied from. A new run of a suite replaces the file of the old one.
`replay.jsonl` has the fields of `mc-replay --json` as figures; `beside.json` is what bindings/python/bench/compare.py
writes with --json, with `machine`, `revision` and `date` added; `turns.json` is as turns.py writes it.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "examples" / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"

INTRODUCTION = """\
# Performance

Each figure with its machine, its command and its rival, all measured in one run. This page is written by
[`performance.py`](../examples/bench/performance.py) from the outputs in
[`results`](../examples/bench/results), which are those of `mc-bench --json`;
[the README of mc-bench](../examples/bench/README.md) says how each figure is measured, and what it is
compared with. A latency without its placement says nothing: with `same` all processes are on one CPU, with `cross`
the server is on the other one, with `free` the scheduler chooses.

To measure on another machine: `cargo run --release -p mc-bench -- SUITE`. The changelogs of
[mc-transport](../mc-transport/CHANGELOG.md), [mc-rpc](../mc-rpc/CHANGELOG.md), [mc-meta](../mc-meta/CHANGELOG.md)
and [mc-alloc](../mc-alloc/CHANGELOG.md) have figures of earlier machines.
"""

TITLES = {
    "alloc": "Allocator",
    "meta": "State machine of the master",
    "evict": "Eviction: blocks of the shipped trace that are found with all blocks before them",
    "rpc": "Calls to the master",
    "transport": "Transfers",
    "store": "Puts and gets of whole values",
    "events": "KV events",
    "ha": "Journal and takeover",
    "tier": "Storage below memory",
    "c2c": "Conversion between models",
    "replay": "The main job",
}

# The figures of a suite that the page shows, with the parameters that they must have; others are in the results.
SHOWN = {
    "evict": [("prefix_hit", {})],
    "rpc": [
        ("get_per_s", {"placement": "cross"}),
        ("put_per_s", {"placement": "cross"}),
        ("batch_get_keys_per_s", {"placement": "cross"}),
        ("batch_put_keys_per_s", {"placement": "cross"}),
        ("batch_exist_keys_per_s", {"placement": "cross"}),
        ("exist_pipelined_per_s", {"placement": "cross"}),
        ("exist_p50_us", {}),
        ("idle_conn_bytes", {}),
        ("loaded_p99_ratio", {"threads": 8}),
    ],
    "transport": [
        ("read_gbps", {"size": 16777216}),
        ("write_gbps", {"size": 16777216}),
        ("read_p50_us", {"size": 4096}),
        ("concurrent_gbps", {}),
        ("cpu_s_per_gb", {}),
        ("crc_ratio", {}),
    ],
    "store": [
        ("get_into_p50_us", {"runtime": "single", "placement": "free"}),
        ("put_p50_us", {"runtime": "single", "placement": "free"}),
        ("exist_p50_us", {"runtime": "single", "placement": "free"}),
        ("get_batch_per_s", {"runtime": "single", "placement": "free"}),
        ("get_into_memcpy_ratio", {"runtime": "single", "transport": "shm"}),
        ("put_memcpy_ratio", {"runtime": "single", "transport": "shm"}),
        ("put_batch_per_s", {"runtime": "single", "placement": "free"}),
        ("pressure_failed_puts", {}),
        ("pressure_p99_ratio", {}),
        ("slow_reader_wrong", {}),
        ("slow_reader_expired", {}),
        ("resume_after_master_s", {}),
        ("ticket_ns", {}),
    ],
}
# Parameters that a rival's figure does not have, or has otherwise.
OURS_ALONE = {"runtime", "transport", "stub", "over", "kind", "policy", "allocations", "calls", "rounds", "worst_size"}


def number(value):
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def shown(figure):
    wanted = SHOWN.get(figure["suite"])
    return wanted is None or any(
        figure["name"] == name and all(figure["params"].get(key) == value for key, value in params.items())
        for name, params in wanted
    )


def is_rival(figure):
    return (
        figure["name"].startswith(("ref_", "ratio_", "raw_", "iperf_", "fio_", "plain_"))
        or figure["name"] in ("memcpy_gbps", "tls_gbps")
        or figure["params"].get("impl", "ours") != "ours"
        or figure["name"] == "prefix_hit"
        and figure["params"]["policy"] != "default"
    )


def rival(figure, figures):
    """The name of what a figure is compared with, and its value; None without any."""
    name, params = figure["name"], figure["params"]
    unit = {"read_gbps", "write_gbps"}
    same = {key: value for key, value in params.items() if key not in OURS_ALONE}

    def find(what, **more):
        for other in figures:
            if other["name"] != what:
                continue
            if all(other["params"].get(key) == value for key, value in more.items()) and all(
                other["params"][key] == value for key, value in same.items() if key in other["params"] and key not in more
            ):
                return other["value"]
        return None

    def best(of):
        return next(((title, value) for title, value in of if value is not None), None)

    if "impl" in params:
        return best([("crate `offset-allocator`", find(name, impl="offset-allocator"))])
    if name == "prefix_hit":
        return best([("LRU", find(name, policy="lru"))])
    if figure["suite"] == "store":
        return best([("Mooncake", find(f"ref_{name}"))])
    if name == "exist_p50_us" or name == "read_p50_us" and params.get("kind") in ("tcp", "tls", "quic"):
        return best([("raw sockets", find("raw_p50_us"))])
    if name == "loaded_p99_ratio":
        return best([("raw sockets", find("raw_loaded_p99_ratio"))])
    if name in unit and params.get("kind") in ("shm", "mem"):
        return best([("`memcpy`", find("memcpy_gbps"))])
    if name in unit and params.get("kind") == "quic":
        return best([("TLS", find("tls_gbps"))])
    if name in unit and params.get("kind") == "tcp":
        return best([("iperf3", find("iperf_gbps")), ("raw sockets", find("raw_stream_gbps", beside=params.get("size")))])
    return None


def section(path):
    head, *lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    suite = lines[0]["suite"]
    yield f"## {TITLES[suite]}"
    yield ""
    yield f"Machine: {head['machine']}. Command: `{head['command']}`, at revision {head['revision']}, {head['date']}."
    if source := head.get("source"):
        yield f"Taken from {source}."
    if beside := head.get("beside"):
        yield f"Beside it ran {beside}: compare ratios, not values."
    yield ""
    yield "| figure | parameters | value | unit | rival in the same run | ratio |"
    yield "|---|---|---|---|---|---|"
    for figure in lines:
        if is_rival(figure) or not shown(figure):
            continue
        params = " ".join(f"{key}={value}" for key, value in figure["params"].items() if key not in ("impl", "published_unit_bytes"))
        against, ratio = "", ""
        if other := rival(figure, lines):
            title, value = other
            against = f"{title}: {number(value)}"
            ratio = f"{figure['value'] / value:.2f}" if value else ""
        yield f"| `{figure['name']}` | {params} | {number(figure['value'])} | {figure['unit']} | {against} | {ratio} |"
    yield ""


def instructions():
    """The counts of .ci/instructions beside those of earlier revisions."""
    earlier = json.loads((RESULTS / "instructions.json").read_text())
    now = json.loads((ROOT / ".ci" / "instructions.json").read_text())
    yield "## Instructions of the hot paths"
    yield ""
    yield "Of one operation, or of one key of a batch, counted by valgrind in a release build; the same on a loaded machine."
    yield "Command: `.ci/instructions`, which fails when a path has 2 % more than the last column;"
    yield "[mc-instructions](../examples/instructions) says what each path is. Beside them the lines of memory, of 64"
    yield "bytes, whose data came from beyond a first cache of 32 KiB and a last one of 1 MiB (`.ci/instructions --lines`):"
    yield "each of the latter is an access to memory. The tables have 50,000 objects, those of `store_…` few."
    yield ""
    lines = json.loads((RESULTS / "lines.json").read_text())
    yield f"| path | {' | '.join(earlier)} | now | lines, 32 KiB | lines, 1 MiB |"
    yield f"|---|{'---|' * len(earlier)}---|---|---|"
    for path, count in now.items():
        before = " | ".join(number(counts[path]) if path in counts else "" for counts in earlier.values())
        yield f"| `{path}` | {before} | {number(count)} | {' | '.join(map(number, lines[path]))} |"
    yield ""


def turns():
    """The medians of turns.py."""
    kept = json.loads((RESULTS / "turns.json").read_text())
    first, *_, last = kept["revisions"]
    yield "## Times at several revisions"
    yield ""
    yield f"Machine: {kept['machine']}, {kept['date']}. Medians of {kept['rounds']} rounds in which the builds took turns:"
    yield "[`turns.py`](../examples/bench/turns.py), with `mc-bench SUITE --quick` of each. Puts and gets of values go through"
    yield "shared memory with all processes on one CPU; so do single clients."
    yield ""
    yield f"| path | unit | {' | '.join(kept['revisions'])} | {last} / {first} |"
    yield f"|---|---|{'---|' * len(kept['revisions'])}---|"
    for row in kept["rows"]:
        medians = row["medians"]
        values = " | ".join(number(medians[revision]) if revision in medians else "" for revision in kept["revisions"])
        ratio = f"{medians[last] / medians[first]:.2f}" if first in medians and last in medians else ""
        yield f"| {row['path']} | {row['unit']} | {values} | {ratio} |"
    yield ""


def beside_mooncake():
    """The medians of compare.py."""
    kept = json.loads((RESULTS / "beside.json").read_text())
    yield "## Beside Mooncake's package, from Python"
    yield ""
    yield f"Machine: {kept['machine']}, at revision {kept['revision']}, {kept['date']}. Medians of {kept['rounds']} rounds of"
    yield "[`compare.py`](../bindings/python/bench/compare.py), which says what is called; microseconds a call, calls a second for"
    yield "`exist_rate`, GiB/s for `engine_…`. With `same` all processes are on one CPU, with `free` the scheduler chooses."
    yield ""
    yield "| call | bytes | placement | Mooncake | this package | ratio |"
    yield "|---|---|---|---|---|---|"
    for row in kept["rows"]:
        size = number(row["size"]) if row["size"] else ""
        ours, theirs = number(row["ours"]), number(row["reference"])
        yield f"| `{row['call']}` | {size} | {row['placement']} | {theirs} | {ours} | {row['ratio']:.2f} |"
    yield ""


def page():
    lines = [INTRODUCTION, *beside_mooncake(), *instructions(), *turns()]
    for path in sorted(RESULTS.glob("*.jsonl"), key=lambda path: list(TITLES).index(path.stem)):
        lines.extend(section(path))
    return "\n".join(lines).rstrip() + "\n"


def main(arguments):
    if arguments == ["--check"]:
        if PAGE.read_text() != page():
            print("error: docs/performance.md is not what examples/bench/performance.py writes; run it", file=sys.stderr)
            return 1
        print("the figures of docs/performance.md are those of examples/bench/results")
        return 0
    if arguments:
        sys.exit(__doc__)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
