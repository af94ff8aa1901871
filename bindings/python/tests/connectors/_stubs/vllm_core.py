"""vLLM's core, for a model with one group of full attention on one GPU."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from connectors._stubs import package, stand_in

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"


class Logger(logging.LoggerAdapter[logging.Logger]):
    def warning_once(self, message: str, *arguments: object) -> None:
        self.warning(message, *arguments)


@dataclass(frozen=True)
class KVCacheBlock:
    block_id: int


@dataclass(frozen=True)
class FullAttentionSpec:
    block_size: int
    prefix_cacheable: ClassVar[bool] = True


@dataclass
class KVCacheGroupSpec:
    layer_names: list[str]
    kv_cache_spec: FullAttentionSpec
    is_eagle_group: bool = False
    host_resident: bool = False


class FullAttentionManager:
    """Which blocks of a prefix are cached: all until the first one that is not."""

    supports_fine_grained_hash_lookup = False

    @staticmethod
    def find_longest_cache_hit(
        *,
        block_hashes: Sequence[bytes],
        max_length: int,
        kv_cache_group_ids: list[int],
        block_pool: Any,
        kv_cache_spec: FullAttentionSpec,
        **_: object,
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        found: tuple[list[KVCacheBlock], ...] = tuple([] for _ in kv_cache_group_ids)
        for index in range(max_length // kv_cache_spec.block_size):
            blocks = block_pool.get_cached_block(block_hashes[index], kv_cache_group_ids)
            if blocks is None:
                break
            for group, block in zip(found, blocks, strict=True):
                group.append(block)
        return found, len(found[0]) * kv_cache_spec.block_size

    @staticmethod
    def reachable_block_mask(**_: object) -> None:
        return None


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)


class KVCacheLayout(enum.Enum):
    LBHNC = enum.auto()
    LBNHC = enum.auto()


def kv_cache_config(blocks: int) -> SimpleNamespace:
    """The engine's description of its cache."""
    group = KVCacheGroupSpec([f"layer.{index}" for index in range(64)], FullAttentionSpec(16))
    return SimpleNamespace(
        kv_cache_groups=[group],
        prefix_cacheable_groups=[group],
        num_blocks=blocks,
        hisparse_host_num_blocks=None,
        cache_hit_alignment_tokens=None,
        prefix_cache_retention_interval=None,
    )


def make_zmq_socket(context: Any, path: str, kind: int, *, bind: bool) -> Any:
    socket = context.socket(kind)
    (socket.bind if bind else socket.connect)(path)
    return socket


def provide(root: Path) -> None:
    package(root, "vllm")
    stand_in(
        "vllm.envs",
        MOONCAKE_PREFERRED_SEGMENT=None,
        MOONCAKE_REQUESTER_LOCAL_HOSTNAME=None,
        VLLM_MOONCAKE_DISK_STAGING_USABLE_RATIO=0.9,
        VLLM_MOONCAKE_LOAD_RECV_THREADS=2,
        VLLM_MOONCAKE_STORE_TIER_LOG=True,
        VLLM_RPC_BASE_PATH=os.environ["SOCKETS"],
    )
    stand_in("vllm.config", ModelConfig=object, VllmConfig=object)
    stand_in("vllm.logger", init_logger=lambda name: Logger(logging.getLogger(name), {}))
    _provide_distributed(root)
    _provide_utils(root)
    _provide_v1(root)


def _provide_distributed(root: Path) -> None:
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    package(
        root,
        "vllm.distributed",
        get_dcp_group=lambda: alone,
        get_pcp_group=lambda: alone,
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
    )
    stand_in("vllm.distributed.kv_events", BlockStored=SimpleNamespace)
    stand_in(
        f"{V1}.base",
        KVConnectorMetadata=object,
        KVConnectorWorkerMetadata=object,
        KVConnectorTransferResults=SimpleNamespace,
    )
    stand_in(
        f"{V1}.metrics",
        KVConnectorPromMetrics=object,
        KVConnectorStats=KVConnectorStats,
        PromMetric=object,
        PromMetricT=object,
    )


def _provide_utils(root: Path) -> None:
    package(root, "vllm.utils")
    stand_in("vllm.utils.math_utils", cdiv=lambda a, b: -(a // -b))
    stand_in(
        "vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", make_zmq_socket=make_zmq_socket
    )
    stand_in(
        "vllm.utils.torch_utils",
        is_non_overlapping_and_dense=lambda tensor: tensor.is_contiguous(),
    )


def _provide_v1(root: Path) -> None:
    for name in ("", ".attention", ".attention.backends", ".core"):
        package(root, f"vllm.v1{name}")
    stand_in("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)
    stand_in("vllm.v1.core.block_pool", BlockPool=object)
    stand_in("vllm.v1.core.kv_cache_coordinator", replay_boundaries=None)
    stand_in(
        "vllm.v1.core.kv_cache_utils",
        BlockHash=bytes,
        BlockHashListWithBlockSize=object,
        KVCacheBlock=KVCacheBlock,
        eagle_proof_margin=None,
        maybe_convert_block_hash=None,
        resolve_dcp_kv_cache_spec=lambda spec, world_size: spec,
        resolve_kv_cache_block_sizes=lambda config, vllm_config: (16, 16),
    )
    manager = "vllm.v1.core.single_type_kv_cache_manager"
    stand_in(manager, SingleTypeKVCacheManager=FullAttentionManager)
    others = ["MLAAttentionSpec", "MambaSpec", "SlidingWindowMLASpec", "SlidingWindowSpec"]
    stand_in(
        "vllm.v1.kv_cache_interface",
        FullAttentionSpec=FullAttentionSpec,
        KVCacheConfig=object,
        KVCacheGroupSpec=KVCacheGroupSpec,
        KVCacheSpec=object,
        UniformTypeKVCacheSpecs=type("UniformTypeKVCacheSpecs", (), {}),
        group_kernel_blocks=lambda cache, blocks: cache,
        **{name: type(name, (), {}) for name in others},
    )
    stand_in("vllm.v1.kv_cache_layout", KVCacheLayout=KVCacheLayout)
    registry = SimpleNamespace(get_manager_class=lambda spec: FullAttentionManager)
    stand_in("vllm.v1.kv_cache_spec_registry", KVCacheSpecRegistry=registry)
