"""A node of the store as a program with a REST service.

::

    python -m mc_store.service --config node.json --port 8080

It contributes memory according to ``node.json`` (:mod:`mc_store.mooncake.mooncake_config`) and
serves requests for objects and memory; ``GET /`` lists them. Requires the extra
``mc-store[service]``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Returns the exit status: 0 after a signal, 1 if it could not start."""
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("aiohttp") is None:
        print(
            "the REST service needs aiohttp, which is not installed; to install it:\n"
            "    pip install 'mc-store[service]'",
            file=sys.stderr,
        )
        return 1
    from mc_store._service.access import SHM_DIRECTORY, Access, read_token
    from mc_store._service.node import MooncakeStoreService, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        access = Access(
            read_token(options.token_file),
            tuple(options.segment_dir or [SHM_DIRECTORY]),
            options.max_mounted,
        )
        service = MooncakeStoreService(options.config, dict(options.define))
        ran = asyncio.run(serve(service, options.host, options.port, options.max_wait_time, access))
    except (OSError, TypeError, ValueError) as problem:
        print(f"mc_store.service: {problem}", file=sys.stderr)
        return 1
    return 0 if ran else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mc_store.service",
        description="A node of the store with a REST service.",
        epilog="Without --config, the settings come from MOONCAKE_CONFIG_PATH or MOONCAKE_*.",
    )
    parser.add_argument("--config", metavar="FILE", help="settings, as JSON")
    parser.add_argument(
        "-D",
        "--define",
        metavar="NAME=VALUE",
        action="append",
        type=_assignment,
        default=[],
        help="override one setting, for instance -D global_segment_size=4GB",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (%(default)s); 0.0.0.0 for all addresses",
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen on, 0 for a free port (%(default)s)"
    )
    parser.add_argument(
        "--max-wait-time",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="time limit for joining the store (%(default)s)",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that requests must carry; without it MC_STORE_REST_TOKEN has it",
    )
    parser.add_argument(
        "--segment-dir",
        metavar="DIR",
        action="append",
        help="directory whose files requests may mount as segments; may be repeated (/dev/shm)",
    )
    parser.add_argument(
        "--max-mounted",
        metavar="SIZE",
        type=_size,
        help="most new memory that requests may mount, together (the memory of the host)",
    )
    return parser


def _size(text: str) -> int:
    from mc_store.mooncake.mooncake_config import _parse_segment_size

    try:
        size = _parse_segment_size(text)
    except (ValueError, OverflowError) as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if size < 0:
        raise argparse.ArgumentTypeError(f"expected a size of at least 0, got {text!r}")
    return size


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name.strip(), value


if __name__ == "__main__":
    sys.exit(main())
