"""One phase of a check, in a process of its own.

python phase.py NAME SITE LIMIT SEED small|full    prints rows as JSON, one a line
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys

import cluster
import compute
import memory
import missing
import rates
import same_bytes
from rows import BROKEN, WRONG, Phase

MODULES = {
    "bytes": same_bytes,
    "rates": rates,
    "compute": compute,
    "missing": missing,
}


def probe(directory: str) -> None:
    """Prints the machine's and the package's facts, or one line on what is missing: status 2."""
    try:
        facts = memory.Driver().facts()
    except memory.NoGpu as problem:
        print(problem)
        sys.exit(2)
    cluster.use_package(directory)
    import mc_store

    package = {"version": mc_store.__version__}
    torch = memory.torch_version()
    print(json.dumps({**facts, **memory.host_facts(), "torch": torch, "package": package}))


def main() -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    name, directory, limit, seed, size = sys.argv[1:]
    if name == "probe":
        probe(directory)
        return
    family, _, kind = name.partition(":")
    phase = Phase(name, float(limit), small=size == "small")
    cluster.use_package(directory)
    driver = memory.Driver()
    try:
        MODULES[family].run(phase, driver, directory, int(seed), kind)
    except Exception as error:
        phase.add("the phase", BROKEN, kind=kind, note=f"{type(error).__name__}: {error}")
        raise
    if found := driver.violations():
        phase.add("rules of the driver", WRONG, kind=kind, note=f"violations: {found}")


if __name__ == "__main__":
    main()
