"""vllm-omni's MooncakeStoreConnector."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

from connectors._stubs import package, stand_in

CONNECTORS = "vllm_omni.distributed.omni_connectors"


class OmniSerializer:
    """Its own has tensors, images and outputs of vLLM; the connector sees bytes of any."""

    serialize = staticmethod(pickle.dumps)
    deserialize = staticmethod(pickle.loads)


def provide(root: Path) -> None:
    package(root, "vllm_omni")
    stand_in(f"{CONNECTORS}.utils.serialization", OmniSerializer=OmniSerializer)


def connector(config: dict[str, Any]) -> Any:
    """Makes the connector of a stage."""
    own = importlib.import_module(f"{CONNECTORS}.connectors.mooncake_store_connector")
    return own.MooncakeStoreConnector(config)
