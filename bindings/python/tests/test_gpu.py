"""Memory of GPUs, on a stand-in for the driver, which a process of its own loads for each case."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from _cluster import REPOSITORY, Cluster, run_python

CASES = ["single_calls", "batch_calls", "every_call", "clients", "engines", "failures", "hangs"]


@pytest.mark.parametrize("case", CASES)
def test_memory_of_a_gpu_is_like_that_of_the_host(
    cluster: Cluster, driver: Path, case: str
) -> None:
    environment = {"LD_LIBRARY_PATH": str(driver)}
    told = run_python(Path(__file__).with_name("_gpu.py"), case, cluster.address, env=environment)
    assert told.stdout.splitlines()[-1] == "well"


def test_thin_clients_take_memory_of_a_gpu(cluster: Cluster, driver: Path) -> None:
    environment = {"LD_LIBRARY_PATH": str(driver)}
    agent = cluster.nodes[0].dummy_address
    told = run_python(Path(__file__).with_name("_gpu.py"), "thin_client", agent, env=environment)
    assert told.stdout.splitlines()[-1] == "well"


def test_without_the_driver_nothing_is_loaded() -> None:
    code = (
        "import mc_store, mc_store.mooncake.store; print('cuda' in open('/proc/self/maps').read())"
    )
    assert run_python(code).stdout == "False\n"


def test_the_check_for_machines_with_a_gpu_finds_no_wrong_byte(
    driver: Path, tmp_path: Path
) -> None:
    figures = tmp_path / "gpu.json"
    package = sysconfig.get_path("purelib")
    arguments = ["--small", "--package", package, "--json", str(figures)]
    environment = {"LD_LIBRARY_PATH": str(driver)}
    run_python(REPOSITORY / "gpu" / "check", *arguments, seconds=120, env=environment)
    assert figures.exists()
