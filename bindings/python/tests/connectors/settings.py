"""The settings that connectors read from the file that MOONCAKE_CONFIG_PATH names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StoreSettings:
    """The names of the file are those of Mooncake; sizes are in bytes."""

    master_server_address: str
    local_hostname: str = "127.0.0.1"
    metadata_server: str = "P2PHANDSHAKE"
    global_segment_size: int = 0
    local_buffer_size: int = 16 << 20
    protocol: str = "tcp"
    device_name: str = ""

    @classmethod
    def from_file(cls, path: str) -> StoreSettings:
        with open(path, encoding="utf-8") as file:
            fields: Mapping[str, object] = json.load(file)
        return cls(**fields)  # type: ignore[arg-type]

    def positional(self) -> tuple[str, str, int, int, str, str, str]:
        """The seven arguments of `setup`, which every connector passes by position."""
        return (
            self.local_hostname,
            self.metadata_server,
            self.global_segment_size,
            self.local_buffer_size,
            self.protocol,
            self.device_name,
            self.master_server_address,
        )
