"""vllm-omni's MooncakeStoreConnector: whole objects of Python, handed from stage to stage."""

from __future__ import annotations

import pickle
import time
from typing import Any

from mooncake.store import MooncakeDistributedStore, ReplicateConfig


class OmniConnectorBase:
    """The base of its connectors: the serializer, here pickle, and the keys."""

    @staticmethod
    def serialize_obj(obj: object) -> bytes:
        return pickle.dumps(obj)

    @staticmethod
    def deserialize_obj(data: bytes) -> object:
        return pickle.loads(data)

    @staticmethod
    def _make_key(request_key: str, from_stage: str, to_stage: str) -> str:
        return f"{request_key}@{from_stage}_{to_stage}"


class MooncakeStoreConnector(OmniConnectorBase):
    """Every put goes to the store with a soft pin; every get polls it for a second."""

    GET_RETRIES = 20
    RETRY_PAUSE = 0.05

    def __init__(self, config: dict[str, Any]) -> None:
        self.host = config.get("host", "127.0.0.1")
        self.metadata = config.get("metadata_server", "http://127.0.0.1:8080/metadata")
        self.master = config.get("master", "127.0.0.1:50051")
        self.segment = config.get("segment", 512 << 20)
        self.localbuf = config.get("localbuf", 64 << 20)
        self.proto = config.get("proto", "tcp")
        self.rdma = config.get("rdma", "")
        self.store: MooncakeDistributedStore | None = None
        self._metrics = {"puts": 0, "gets": 0, "bytes_transferred": 0, "errors": 0, "timeouts": 0}
        self._init_store()

    def _init_store(self) -> None:
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            self.host,
            self.metadata,
            self.segment,
            self.localbuf,
            self.proto,
            self.rdma,
            self.master,
        )
        if code != 0:
            raise RuntimeError(f"Mooncake setup failed: {code}")
        self.pin = ReplicateConfig()
        self.pin.with_soft_pin = True

    def put(
        self, from_stage: str, to_stage: str, put_key: str, data: object
    ) -> tuple[bool, int, dict[str, Any] | None]:
        if not self.store:
            return False, 0, None
        try:
            serialized = self.serialize_obj(data)
            # The code that it returns is ignored; exceptions are not.
            self.store.put(self._make_key(put_key, from_stage, to_stage), serialized, self.pin)
        except Exception:
            self._metrics["errors"] += 1
            return False, 0, None
        self._metrics["puts"] += 1
        self._metrics["bytes_transferred"] += len(serialized)
        return True, len(serialized), None

    def get(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: dict[str, Any] | None = None,
    ) -> tuple[object, int] | None:
        if not self.store:
            return None
        key = self._make_key(get_key, from_stage, to_stage)
        for attempt in range(self.GET_RETRIES):
            raw = self.store.get(key)
            if raw:
                self._metrics["gets"] += 1
                return self.deserialize_obj(raw), len(raw)
            if attempt < self.GET_RETRIES - 1:
                time.sleep(self.RETRY_PAUSE)
        self._metrics["timeouts"] += 1
        return None

    def cleanup(self, request_id: str) -> None:
        """Leaves the eviction of unused values to the store."""

    def health(self) -> dict[str, Any]:
        if not self.store:
            return {"status": "unhealthy", "error": "Store not initialized"}
        return {
            "status": "healthy",
            "host": self.host,
            "metadata_server": self.metadata,
            "master": self.master,
            "protocol": None,
            "pool_device": None,
            "pool_size": 0,
            **self._metrics,
        }

    def close(self) -> None:
        if self.store:
            self.store.close()
            self.store = None
