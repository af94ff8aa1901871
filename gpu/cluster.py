"""A master and a pool in a process of their own, and stores that join it.

python cluster.py SITE BYTES    prints the master's address; ends when its input does
"""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any


def use_package(directory: str) -> None:
    """Makes the package of `directory` the one that `import mc_store` finds."""
    # What an editable installation left there is honoured, too.
    site.addsitedir(directory)
    if directory in sys.path:
        sys.path.remove(directory)
    sys.path.insert(0, directory)


class Pool:
    """A pool of `size` bytes on this host, until it is closed."""

    def __init__(self, directory: str, size: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, directory, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.master = self._process.stdout.readline().strip()
        if not self.master:
            raise RuntimeError(f"no pool started: exit status {self._process.wait()}")

    def store(self, local_buffer: int) -> Any:
        """A `MooncakeDistributedStore` that contributes no memory."""
        from mc_store.mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        host, handshake = "127.0.0.1", "P2PHANDSHAKE"
        code = store.setup(host, handshake, 0, local_buffer, "tcp", "", self.master)
        if code != 0:
            raise RuntimeError(f"setup returned {code}")
        return store

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def mapped_of_peers() -> int:
    """Bytes of other processes' memory that this one has mapped to transfer through."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:mc-transport" in line:
            begin, end = line.split()[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


def main() -> None:
    directory, size = sys.argv[1:]
    use_package(directory)
    import mc_store

    with mc_store.local(segment_size=int(size)) as pool:
        print(pool.master_addr, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
