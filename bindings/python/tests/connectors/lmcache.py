"""LMCache's MooncakestoreConnector: chunks with or without a header of 28 bytes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

from connectors.memory import HostMemory
from connectors.settings import StoreSettings

#: Length, format, type, and four dimensions.
METADATA = struct.Struct("<7i")


class Connector:
    """A remote backend with a local buffer of `chunks` chunks, registered once."""

    def __init__(
        self,
        config_path: str,
        *,
        chunk_bytes: int,
        chunks: int = 16,
        prefer_local_alloc: bool = False,
        transfer_timeout: float = 30,
    ) -> None:
        settings = StoreSettings.from_file(config_path)
        self.store = MooncakeDistributedStore()
        # The code that it returns is ignored.
        self.store.setup(*settings.positional())
        self.replica_config = ReplicateConfig()
        self.replica_config.replica_num = 1
        if prefer_local_alloc:
            self.replica_config.preferred_segment = self.store.get_hostname()
        self._timeout = transfer_timeout
        self._chunk_bytes = chunk_bytes
        self._buffer = HostMemory(chunk_bytes * chunks)
        code = self.store.register_buffer(self._buffer.address, self._buffer.size)
        self._registered = self._buffer.address if code == 0 else None

    def is_registered(self) -> bool:
        return self._registered is not None

    def exists(self, key: str) -> bool:
        # A negative code counts as true there.
        return bool(self.store.is_exist(key))

    def put(self, key: str, chunk: bytes) -> int:
        """Puts a chunk as it is, from the registered buffer."""
        self._buffer.write(0, chunk)
        return self._in_thread(
            self.store.put_from, key, self._buffer.address, len(chunk), self.replica_config
        )

    def put_with_metadata(self, key: str, chunk: bytes) -> int:
        """Puts a chunk with its header before it, in one object."""
        metadata = METADATA.pack(len(chunk), 1, 2, len(chunk), 1, 1, 1)
        return self._in_thread(self.store.put_parts, key, metadata, memoryview(bytearray(chunk)))

    def get_batch(self, keys: Sequence[str]) -> list[bytes | None]:
        """Gets chunks into the registered buffer; one may be shorter than the others."""
        places = [at * self._chunk_bytes for at in range(len(keys))]
        lengths = asyncio.run(
            asyncio.to_thread(
                self.store.batch_get_into,
                list(keys),
                [self._buffer.address + place for place in places],
                [self._chunk_bytes] * len(keys),
            )
        )
        return [
            self._buffer.read(place, length) if length > 0 else None
            for place, length in zip(places, lengths, strict=False)
        ]

    def get_batch_with_metadata(self, keys: Sequence[str]) -> list[bytes | None]:
        """Gets chunks of which only their headers tell the length."""
        buffers = asyncio.run(asyncio.to_thread(self.store.batch_get_buffer, list(keys)))
        return [None if buffer is None else _payload(buffer) for buffer in buffers]

    def close(self) -> None:
        if self._registered is not None:
            code = self.store.unregister_buffer(self._registered)
            if code != 0:
                raise RuntimeError(f"Buffer unregistration failed: error={code}")
            self._registered = None
        self.store.close()

    def _in_thread(self, call: object, *arguments: object) -> int:
        async def run() -> int:
            assert callable(call)
            answer: int = await asyncio.wait_for(asyncio.to_thread(call, *arguments), self._timeout)
            return answer

        return asyncio.run(run())


def _payload(buffer: object) -> bytes:
    view = memoryview(buffer)  # type: ignore[arg-type]
    length = METADATA.unpack(view[: METADATA.size])[0]
    if len(view) != METADATA.size + length:
        raise ValueError(f"{len(view)} bytes for a chunk of {length}")
    return bytes(view[METADATA.size :])
