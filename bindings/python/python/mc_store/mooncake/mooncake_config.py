"""Settings of a store client, from a JSON file or the environment.

The file and the variables are those that Mooncake's clients read, so one file can
serve both::

    {
        "local_hostname": "node-1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "10.0.0.1:50051",
        "global_segment_size": "4GB",
        "local_buffer_size": "512MB",
        "protocol": "tcp",
        "device_name": ""
    }

Sizes are bytes, or text with a unit: ``B``, ``KB``, ``MB``, ``GB``, ``TB`` (or only the letter),
powers of 1024, in either case.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

DEFAULT_GLOBAL_SEGMENT_SIZE = 3_355_443_200
"""The default of ``global_segment_size``: 3.125 GiB."""

DEFAULT_LOCAL_BUFFER_SIZE = 1 << 30
"""The default of ``local_buffer_size``: 1 GiB."""

_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")

# The spellings of `MooncakeDistributedStore.setup`, which differ from those of the file.
_ALIASES = {"master_server_addr": "master_server_address", "rdma_devices": "device_name"}

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[_letter + "b"] = 1024**_power

_TRUE = frozenset({"true", "1", "yes", "on", "enable"})
_FALSE = frozenset({"false", "0", "no", "off", "disable", ""})

_log = logging.getLogger(__name__)


@dataclasses.dataclass
class MooncakeConfig:
    """The settings of a client.

    ``local_hostname``
        The name or address by which other hosts reach this host, with or without a port.
    ``metadata_server``
        Mooncake's server of transfer endpoints; ``P2PHANDSHAKE`` for none.
    ``global_segment_size``, ``local_buffer_size``
        Bytes contributed to the pool, and bytes for this client's own copies.
    ``protocol``
        ``tcp``, ``rdma``, ...: kept in lower case.
    ``device_name``
        RDMA devices, separated by commas.
    ``master_server_address``
        ``host:port`` of the master; of several, ``host:port;host:port``; or
        ``etcd://host:port;host:port/cluster``, the etcd in which the masters elect their leader.

    Sizes may be given as text (``"16MB"``), flags as ``"true"`` or ``"off"``.

    Raises ``ValueError`` for a value that cannot be meant, ``TypeError`` for one of the wrong
    type; both name the field.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{name} must be a non-empty string, got {value!r}")
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(f"protocol must be a non-empty string, got {self.protocol!r}")
        self.protocol = self.protocol.strip().lower()
        for name in ("global_segment_size", "local_buffer_size"):
            setattr(self, name, _size(name, getattr(self, name)))
        for name in ("enable_ssd_offload", "enable_client_http_server"):
            setattr(self, name, _flag(name, getattr(self, name)))
        self.client_http_port = _port("client_http_port", self.client_http_port)
        for name, absent in (("device_name", None), ("ssd_offload_path", ""), ("tenant_id", "")):
            value = getattr(self, name)
            if value != absent and not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {value!r}")

    @staticmethod
    def from_file(file_path: str | os.PathLike[str]) -> MooncakeConfig:
        """The settings in the JSON file ``file_path``.

        Unknown keys are ignored, because applications keep their own settings in the same file; a
        key that resembles a setting is logged.

        Raises ``OSError`` if the file cannot be read, ``ValueError`` if it is not a JSON object,
        lacks a required key or has a wrong value, ``TypeError`` for a value of the wrong type.
        """
        with open(file_path, encoding="utf-8") as file:
            try:
                content = json.load(file)
            except json.JSONDecodeError as error:
                problem = f"{os.fspath(file_path)}: not JSON: {error.msg}"
                raise json.JSONDecodeError(problem, error.doc, error.pos) from error
            except ValueError as error:
                raise ValueError(f"{os.fspath(file_path)}: not JSON: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{os.fspath(file_path)}: expected a JSON object")
        return _from_mapping(content)

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """The file named by ``MOONCAKE_CONFIG_PATH``, or else the variables ``MOONCAKE_*``.

        Raises ``ValueError`` if neither ``MOONCAKE_CONFIG_PATH`` nor ``MOONCAKE_MASTER`` is set,
        otherwise as :meth:`from_file`.
        """
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path:
            return MooncakeConfig.from_file(path)
        if not os.environ.get("MOONCAKE_MASTER"):
            raise ValueError(
                "neither MOONCAKE_CONFIG_PATH (a JSON file) nor MOONCAKE_MASTER (host:port) is set"
            )
        variables = {
            field: os.environ[name] for field, name in _ENVIRONMENT.items() if name in os.environ
        }
        return _from_mapping(
            {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE", **variables}
        )

    def replace(self, changes: Mapping[str, Any]) -> MooncakeConfig:
        """Return a copy with ``changes`` (field name to value; sizes and flags may be text).

        Raises ``ValueError`` for an unknown field, with the most similar field's name.
        """
        changes = {_ALIASES.get(name, name): value for name, value in changes.items()}
        for name in changes:
            if name not in _FIELDS:
                raise ValueError(f"unknown setting {name!r}{_did_you_mean(name, _FIELDS)}")
        return dataclasses.replace(self, **changes)

    def setup_arguments(self) -> dict[str, Any]:
        """Return the settings with the keys of ``MooncakeDistributedStore.setup(dict)``."""
        arguments = dataclasses.asdict(self)
        for setup_name, field in _ALIASES.items():
            arguments[setup_name] = arguments.pop(field)
        arguments["rdma_devices"] = arguments["rdma_devices"] or ""
        return arguments


_FIELDS = tuple(field.name for field in dataclasses.fields(MooncakeConfig))

_ENVIRONMENT = {
    "local_hostname": "MOONCAKE_LOCAL_HOSTNAME",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "master_server_address": "MOONCAKE_MASTER",
    "enable_ssd_offload": "MOONCAKE_OFFLOAD_ENABLED",
    "ssd_offload_path": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
    "tenant_id": "MOONCAKE_TENANT_ID",
    "enable_client_http_server": "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
    "client_http_port": "MOONCAKE_CLIENT_HTTP_PORT",
}


def _from_mapping(content: Mapping[str, Any]) -> MooncakeConfig:
    known = {_ALIASES.get(name, name): value for name, value in content.items()}
    strangers = [name for name in known if name not in _FIELDS]
    for name in _REQUIRED:
        if name not in known:
            raise ValueError(
                f"Missing required config field: {name}{_did_you_mean(name, strangers)}"
            )
    for name in strangers:
        if hint := _did_you_mean(name, _FIELDS):
            _log.warning("unknown setting %r is ignored%s", name, hint)
    # A null is as good as no key at all.
    given = {name: value for name, value in known.items() if name in _FIELDS and value is not None}
    if isinstance(given.get("tenant_id"), int):
        given["tenant_id"] = str(given["tenant_id"])
    return MooncakeConfig(
        **{
            **dict.fromkeys(_REQUIRED),
            "global_segment_size": DEFAULT_GLOBAL_SEGMENT_SIZE,
            "local_buffer_size": DEFAULT_LOCAL_BUFFER_SIZE,
            "protocol": "tcp",
            "device_name": "",
            **given,
        }
    )


def _did_you_mean(name: str, candidates: tuple[str, ...] | list[str]) -> str:
    nearest = difflib.get_close_matches(name, candidates, n=1, cutoff=0.75)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def _size(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{name} must be a number of bytes or text like '16MB', got {value!r}")
    try:
        size = _parse_segment_size(value)
    except (ValueError, OverflowError):  # Of text, and of infinity.
        raise ValueError(
            f"{name} must be a number of bytes or text like '16MB', got {value!r}"
        ) from None
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return size


def _flag(name: str, value: object) -> bool:
    if isinstance(value, (bool, int, float)):
        return bool(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
    raise ValueError(f"{name} must be true or false, got {value!r}")


def _port(name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch("[0-9]{1,5}", value.strip()):
        value = int(value)
    elif isinstance(value, str):
        raise ValueError(f"{name} must be a port number, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a port number, got {value!r}")
    if not 0 <= value <= 65535:
        raise ValueError(f"{name} must be a port number, got {value!r}")
    return value


# Launch scripts import these two from Mooncake's module.


def _parse_segment_size(value: Any) -> int:
    """Returns the bytes that ``value`` means: a number, or text as ``"16MB"``, and a sign.

    A fraction of a byte is dropped. Raises ``ValueError`` for other text, ``OverflowError`` for an
    infinite number, ``TypeError`` for other objects.
    """
    if not isinstance(value, str):
        return int(value)
    text = value.strip().lower()
    number = text.rstrip("bkmgt")
    unit = _UNITS.get(text[len(number) :])
    if unit is None or not number:
        raise ValueError(f"a size must be a number of bytes or text like '16MB', got {value!r}")
    try:
        return int(number) * unit
    except ValueError:
        return int(float(number) * unit)


def _parse_bool(value: Any) -> bool:
    """Returns what ``value`` means: ``"true"``, ``"1"``, ``"yes"``, ``"on"``, their opposites, a
    number, or ``None`` for false. Raises ``ValueError`` for other text."""
    return False if value is None else _flag("a flag", value)
