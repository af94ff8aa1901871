"""The scripts of examples/ do what they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
from _cluster import REPOSITORY, Cluster, Program

EXAMPLES = REPOSITORY / "bindings/python/examples"

#: What each prints at the end; `prefill_decode` has a test of its own.
SUCCESS = {
    "async_client": "16 requests, ",
    "cluster": "9 blocks received",
    "embedded": "the master is at 127.0.0.1:",
    "omni_connector": " bytes from stage 0 to stage 1",
    "tensors": "5 tensors, and one in 4 shards",
}
NEEDS = {"cluster": "numpy", "tensors": "torch"}


def run(name: str, *arguments: str) -> str:
    script = EXAMPLES / f"{name}.py"
    done = subprocess.run(
        # A resource that an example leaves open is a fault of it.
        [sys.executable, "-X", "faulthandler", "-W", "error", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(SUCCESS))
def test_example(cluster: Cluster, name: str) -> None:
    needed = NEEDS.get(name)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    # The embedded one has a cluster of its own.
    output = run(name, *([] if name == "embedded" else [cluster.address]))
    assert SUCCESS[name] in output


def test_async_client_starts_a_master_if_there_is_none() -> None:
    assert SUCCESS["async_client"] in run("async_client")


@pytest.mark.parametrize("order", ["prefill first", "decode first"])
def test_prefill_and_decode(cluster: Cluster, order: str) -> None:
    roles = ["prefill", "decode"] if order == "prefill first" else ["decode", "prefill"]
    with ExitStack() as running:
        programs = {}
        for role in roles:
            program = Program(
                [sys.executable, "-X", "faulthandler", EXAMPLES / "prefill_decode.py"],
                env={
                    "ROLE": role,
                    "MASTER_SERVER": cluster.address,
                    "SEGMENT_SIZE": "32MB",
                    "BLOCK_SIZE": "65536",
                    "BLOCKS": "64",
                    "RUN": order,
                },
            )
            running.callback(program.kill)
            programs[role] = program
        for role, program in programs.items():
            program.expect(f"{role}: 64 blocks, ")
            program.expect(f"{role}: success")


def test_every_example_is_run_and_says_how() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [script.stem for script in scripts] == sorted([*SUCCESS, "prefill_decode"])
    for script in scripts:
        text = script.read_text()
        described = ast.get_docstring(ast.parse(text)) or ""
        assert f"python {script.name}" in described
        # Editors and Jupyter show these as cells.
        assert text.count("\n# %%") >= 3
