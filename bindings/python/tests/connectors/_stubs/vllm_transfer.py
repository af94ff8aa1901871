"""The worker of vLLM's MooncakeConnector, with one group of full attention."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from connectors._stubs import newer_torch, stand_in, structs, vllm_bootstrap, vllm_core
from connectors.memory import content

OWN = f"{vllm_core.V1}.mooncake.mooncake_connector"

LAYERS, PAGE_BYTES, BLOCK_TOKENS = 4, 4096, 16


@dataclass(frozen=True)
class AttentionSpec:
    block_size: int
    page_size_bytes: ClassVar[int] = PAGE_BYTES


class TransferTopology:
    """Of one rank on both sides."""

    local_replicates_kv_cache = False
    total_num_kv_heads = 1

    def __init__(self, **_: object) -> None:
        pass

    def handshake_target_ranks(self, remote_tp_size: int) -> list[int]:
        return list(range(remote_tp_size))


def make_zmq_socket(context: Any, path: str, kind: int, *, bind: bool, linger: int) -> Any:
    socket = vllm_core.make_zmq_socket(context, path, kind, bind=bind)
    socket.linger = linger
    return socket


def provide(root: Path) -> None:
    newer_torch.complete()
    module: Any = torch
    if not hasattr(module, "accelerator"):
        module.accelerator = SimpleNamespace(current_device_index=lambda: 0)
    structs.provide()
    vllm_core.provide(root)
    stand_in("huggingface_hub.utils", httpx=vllm_bootstrap.httpx)
    _complete(
        "vllm.envs",
        VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=30,
        VLLM_MOONCAKE_BOOTSTRAP_PORT=int(os.environ["BOOTSTRAP_PORT"]),
        VLLM_MOONCAKE_CONNECTOR_TIMEOUT=20,
    )
    _complete("vllm.config", KVTransferConfig=object)
    stand_in("vllm.forward_context", ForwardContext=object)
    stand_in(
        "vllm.model_executor.models.utils",
        extract_layer_index=lambda name: int(name.rpartition(".")[2]),
    )
    stand_in("vllm.platforms", current_platform=SimpleNamespace(set_device=lambda device: None))
    _complete(
        "vllm.utils.network_utils",
        make_zmq_path=lambda scheme, host, port: f"{scheme}://{host}:{port}",
        make_zmq_socket=make_zmq_socket,
    )
    _provide_distributed()
    _provide_v1()


def _complete(name: str, **contents: object) -> None:
    """Adds to a module that is there for the connector of the store."""
    vars(sys.modules[name]).update(contents)


def _provide_distributed() -> None:
    stand_in(
        "vllm.distributed.kv_transfer.kv_connector.utils",
        EngineId=str,
        TransferTopology=TransferTopology,
        get_current_attn_backends=lambda config: [],
        get_current_attn_backends_and_specs=lambda config, cache, backends: (backends, []),
    )
    _complete(
        f"{vllm_core.V1}.base",
        KVConnectorBase_V1=type("KVConnectorBase_V1", (), {}),
        KVConnectorRole=object,
        SupportsHMA=type("SupportsHMA", (), {}),
    )
    stand_in(
        f"{vllm_core.V1}.mooncake.mooncake_utils",
        MooncakeBootstrapServer=vllm_bootstrap.MooncakeBootstrapServer,
        RegisterWorkerPayload=vllm_bootstrap.RegisterWorkerPayload,
    )
    stand_in(
        "vllm.distributed.parallel_state",
        get_pp_group=lambda: SimpleNamespace(rank_in_group=0),
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
    )


def _provide_v1() -> None:
    stand_in("vllm.v1.attention.backend", AttentionMetadata=object)
    stand_in("vllm.v1.core.sched.output", SchedulerOutput=object)
    _complete(
        "vllm.v1.kv_cache_interface",
        AttentionSpec=AttentionSpec,
        CircularBufferSpec=type("CircularBufferSpec", (), {}),
        FullAttentionSpec=AttentionSpec,
    )
    stand_in("vllm.v1.metrics.cache_hit_source", CacheHitSource=SimpleNamespace(P2P="p2p"))
    stand_in("vllm.v1.metrics.utils", create_metric_per_engine=None)
    stand_in("vllm.v1.request", RequestStatus=object)
    stand_in("vllm.v1.worker.utils", select_common_block_size=lambda size, backends, specs: size)


class Rank:
    """A rank of the engine `name`, with a cache of `blocks` blocks, each with a page in every
    layer. `role` is "kv_producer", which prefills, or "kv_consumer".

    It ends with its interpreter: `shutdown` of a producer waits without end for the sockets of its
    own listener, with PyZMQ 27."""

    def __init__(self, name: str, role: str, *, blocks: int) -> None:
        self._own = importlib.import_module(OWN)
        self._worker = self._own.MooncakeConnectorWorker(
            _configuration(role), name, _kv_cache_config(blocks)
        )
        self._layers = [torch.zeros(blocks, PAGE_BYTES, dtype=torch.uint8) for _ in range(LAYERS)]
        self._worker.register_kv_caches(dict(zip(_layer_names(), self._layers, strict=True)))

    def compute(self, request: str, transfer: str, blocks: dict[int, str]) -> None:
        """Computes the blocks of a request, which then are to be sent."""
        for blocks_so_far in ([], [list(blocks)]):
            metadata = self._own.MooncakeConnectorMetadata()
            told = {"transfer_id": transfer}
            metadata.add_new_req(request, blocks_so_far, told, load_remote_cache=False)
            for block, name in blocks.items() if blocks_so_far else ():
                for layer, page in zip(self._layers, _pages(name), strict=True):
                    layer[block] = torch.frombuffer(bytearray(page), dtype=torch.uint8)
            self._worker.start_load_kv(metadata)

    def load(
        self, request: str, transfer: str, engine: str, bootstrap: str, blocks: list[int]
    ) -> None:
        """Has the blocks of a request sent by another engine."""
        metadata = self._own.MooncakeConnectorMetadata()
        told = {
            "transfer_id": transfer,
            "remote_engine_id": engine,
            "remote_bootstrap_addr": bootstrap,
        }
        metadata.add_new_req(request, [blocks], told)
        self._worker.start_load_kv(metadata)

    def finished(self) -> tuple[set[str], set[str], set[int]]:
        """The results since the last call: the requests that were sent, those that were loaded
        or failed, and the blocks that could not be loaded."""
        results = self._worker.get_transfer_results()
        failed: set[int] = self._worker.get_block_ids_with_load_errors()
        return results.finished_sending, results.finished_recving, failed

    def holds(self, block: int, name: str) -> bool:
        return [bytes(layer[block].numpy()) for layer in self._layers] == _pages(name)

    def transfers(self) -> tuple[list[int], int]:
        """The bytes of each transfer since the last call, and how many failed."""
        data = self._worker.get_kv_connector_stats().data
        return data["bytes_transferred"], len(data["num_failed_transfers"])

    def sleep(self) -> None:
        """Gives the cache back."""
        self._worker.unregister_kv_caches()

    def wake(self) -> None:
        self._worker.restore_kv_caches()


def _configuration(role: str) -> SimpleNamespace:
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role=role,
            kv_connector_extra_config={},
            get_from_extra_config=lambda name, default: default,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_rank_local=0,
            local_engines_only=True,
            pipeline_parallel_size=1,
        ),
        cache_config=SimpleNamespace(block_size=BLOCK_TOKENS),
        model_config=SimpleNamespace(use_mla=False, get_total_num_kv_heads=lambda: 1),
    )


def _kv_cache_config(blocks: int) -> SimpleNamespace:
    group = SimpleNamespace(layer_names=_layer_names(), kv_cache_spec=AttentionSpec(BLOCK_TOKENS))
    return SimpleNamespace(
        kv_cache_groups=[group],
        transfer_groups=[group],
        transfer_group_index_by_layer=dict.fromkeys(_layer_names(), 0),
        has_mamba_layers=False,
        num_blocks=blocks,
    )


def _layer_names() -> list[str]:
    return [f"layer.{index}" for index in range(LAYERS)]


def _pages(name: str) -> list[bytes]:
    return [content(f"{name}/{layer}", PAGE_BYTES) for layer in range(LAYERS)]
