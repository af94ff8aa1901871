"""The store under the names of Mooncake: what ``import mooncake.store`` gives there."""

from __future__ import annotations

from mc_store._native import (
    BufferHandle,
    Descriptor,
    DiskDescriptor,
    MemoryDescriptor,
    MooncakeHostMemAllocator,
    ObjectDataType,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    StoreEventInfo,
    TaskStatus,
    TaskType,
    bind_to_numa_node,
)
from mc_store.mooncake._buffer_pool import (
    BufferLease,
    BufferLeaseView,
    BufferPool,
    RegisteredBufferLease,
    RegisteredBufferLeaseView,
    RegisteredBufferPool,
)
from mc_store.mooncake._store import MooncakeDistributedStore
from mc_store.mooncake._tensors import (
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
)

# Members that programs take from the module. Of a name that two enumerations have, the reference
# system exports the member of the later one.
UNKNOWN = ObjectDataType.UNKNOWN
KVCACHE = ObjectDataType.KVCACHE
TENSOR = ObjectDataType.TENSOR
WEIGHT = ObjectDataType.WEIGHT
SAMPLE = ObjectDataType.SAMPLE
ACTIVATION = ObjectDataType.ACTIVATION
GRADIENT = ObjectDataType.GRADIENT
OPTIMIZER_STATE = ObjectDataType.OPTIMIZER_STATE
METADATA = ObjectDataType.METADATA
GENERAL = ObjectDataType.GENERAL
UNDEFINED = ReplicaStatus.UNDEFINED
INITIALIZED = ReplicaStatus.INITIALIZED
COMPLETE = ReplicaStatus.COMPLETE
REMOVED = ReplicaStatus.REMOVED
REPLICA_COPY = TaskType.REPLICA_COPY
REPLICA_MOVE = TaskType.REPLICA_MOVE
PENDING = TaskStatus.PENDING
PROCESSING = TaskStatus.PROCESSING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

__all__ = [
    "ACTIVATION",
    "COMPLETE",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "OPTIMIZER_STATE",
    "PENDING",
    "PROCESSING",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "SAMPLE",
    "SUCCESS",
    "TENSOR",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "StoreEventInfo",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
]
