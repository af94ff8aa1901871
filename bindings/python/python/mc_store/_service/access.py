"""The permissions of callers, and the limits of what they mount."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from mc_store._service.requests import Refused

TOKEN_VARIABLE = "MC_STORE_REST_TOKEN"
"""The variable with the token, for programs that get none from a file."""

SHM_DIRECTORY = "/dev/shm"
"""Where Linux has POSIX shared memory."""

# As tokens of the master's access list.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,4096}")

# The page only shows that the service runs, and health probes have no token.
_OPEN_PATH = "/health"


@dataclass(frozen=True)
class Access:
    """The permissions of all callers.

    token: the token that every request except ``GET /health`` has to carry, or ``None``.
    segment_dirs: the directories whose files may become segments.
    max_mounted: the most bytes of new memory that ``/api/mount`` contributes, all mounts together;
        ``None`` means what the host, or the control group of this process, has.
    """

    token: str | None = None
    segment_dirs: tuple[str, ...] = (SHM_DIRECTORY,)
    max_mounted: int | None = None

    def __post_init__(self) -> None:
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise ValueError(
                "the token must have 16 or more letters, digits and . _ ~ + / = - characters; "
                "make one with: openssl rand -hex 32"
            )
        for directory in self.segment_dirs:
            if not os.path.isabs(directory):
                raise ValueError(f"segment directory {directory!r} must be an absolute path")

    def check(self, request: web.Request) -> None:
        """Raises ``Refused`` for a request that is not permitted."""
        # No page of this service exists, so every origin is a foreign one.
        if "Origin" in request.headers:
            raise Refused(403, "Requests of web pages are not accepted")
        # A page whose name resolves to a loopback address sends GET requests without an origin.
        is_open = self.token is None and _is_of_this_host(request)
        if is_open and not _is_local_name(request.host):
            raise Refused(403, "Host must be localhost or an IP address")
        if self.token is not None and request.path != _OPEN_PATH:
            given = request.headers.get("Authorization", "")
            expected = f"Bearer {self.token}"
            if not hmac.compare_digest(given.encode(errors="replace"), expected.encode()):
                text = "The header Authorization must be Bearer and the service's token"
                raise Refused(401, text, {"WWW-Authenticate": "Bearer"})


def read_token(path: str | None) -> str | None:
    """Returns the token in the file at ``path``, else that of the variable, else ``None``.

    Raises ``OSError`` if the file cannot be read, ``ValueError`` if it is empty or not text.
    """
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    with open(path, encoding="ascii") as file:
        token = file.read(8192).strip()
    if not token:
        raise ValueError(f"{path}: the file has no token")
    return token


def is_loopback(address: tuple[Any, ...]) -> bool:
    """Returns whether only programs of this host reach ``address``, as of a socket."""
    return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback


def host_memory() -> int:
    """Returns the bytes of memory that this host, or the control group of this process, has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                memory = min(memory, int(file.read()))
        except (OSError, ValueError):  # Not there, or "max".
            continue
    return memory


def _is_of_this_host(request: web.Request) -> bool:
    """Returns whether the connection came to a loopback address."""
    transport = request.transport
    return transport is not None and is_loopback(transport.get_extra_info("sockname"))


def _is_local_name(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    if name == "localhost" or not host:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
