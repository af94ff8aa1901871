"""The native part of the package."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self, final, overload

from typing_extensions import Buffer

_Uuid = tuple[int, int]

class Store:
    """What ``MooncakeDistributedStore`` is derived from: everything but tensors."""

    def __new__(cls, *args: object, **kwargs: object) -> Self: ...
    @overload
    def setup(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int = ...,
        local_buffer_size: int = ...,
        protocol: str = ...,
        rdma_devices: str = ...,
        master_server_addr: str = ...,
        engine: object = ...,
        enable_ssd_offload: bool = ...,
        ssd_offload_path: str = ...,
        tenant_id: str = ...,
        enable_client_http_server: bool = ...,
        client_http_port: int = ...,
    ) -> int: ...
    @overload
    def setup(self, config: dict[str, Any]) -> int: ...
    def setup_dummy(
        self, mem_pool_size: int, local_buffer_size: int, server_address: str
    ) -> int: ...
    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = ...) -> int: ...
    def close(self) -> int: ...
    def health_check(self) -> int: ...
    def get_hostname(self) -> str: ...
    def get_offload_rpc_read_count(self) -> int: ...
    @property
    def _local_buffer_size(self) -> int: ...
    def put(
        self,
        key: str,
        value: Buffer,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def put_parts(
        self,
        key: str,
        *values: Buffer,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Buffer],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def put_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> list[int]: ...
    def upsert(
        self,
        key: str,
        value: Buffer,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert_parts(
        self,
        key: str,
        *values: Buffer,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Buffer],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> list[int]: ...
    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> list[int]: ...
    def get(self, key: str) -> bytes: ...
    def get_batch(self, keys: Sequence[str]) -> list[bytes]: ...
    def get_buffer(self, key: str) -> BufferHandle | None: ...
    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]: ...
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int: ...
    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]: ...
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = ...,
    ) -> list[int]: ...
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]: ...
    def is_exist(self, key: str) -> int: ...
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...
    def get_size(self, key: str) -> int: ...
    def remove(self, key: str, force: bool = ...) -> int: ...
    def batch_remove(self, keys: Sequence[str], force: bool = ...) -> list[int]: ...
    def remove_by_regex(self, regex_pattern: str, force: bool = ...) -> int: ...
    def remove_all(self, force: bool = ...) -> int: ...
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]: ...
    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]: ...
    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = ...) -> list[str]: ...
    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[_Uuid, int]: ...
    def create_move_task(self, key: str, source: str, target: str) -> tuple[_Uuid, int]: ...
    def query_task(self, task_id: _Uuid) -> tuple[QueryTaskResponse | None, int]: ...
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def alloc_from_mem_pool(self, size: int) -> int: ...
    def mount_segment(
        self, path: str, size: int, offset: int = ..., protocol: str = ..., location: str = ...
    ) -> dict[str, Any]: ...
    def allocate_and_mount_segment(
        self, size: int, protocol: str = ..., location: str = ...
    ) -> dict[str, Any]: ...
    def unmount_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = ...
    ) -> int: ...
    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = ...
    ) -> int: ...
    def unmount_local_disk_segment(self, grace_period_seconds: int = ...) -> int: ...

@final
class ReplicateConfig:
    """How an object is to be stored: in how many replicas, where, and how firmly."""

    replica_num: int
    nof_replica_num: int
    dfs_replica_num: int
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_soft_pin: bool
    with_hard_pin: bool
    preferred_segments: list[str]
    preferred_segment: str
    preferred_nof_segments: list[str]
    prefer_alloc_in_same_node: bool
    data_type: ObjectDataType
    group_ids: list[str] | None
    def __new__(
        cls,
        *,
        replica_num: int = ...,
        nof_replica_num: int = ...,
        dfs_replica_num: int = ...,
        soft_pin_action: SoftPinAction = ...,
        soft_pin_ttl_ms: int | None = ...,
        with_soft_pin: bool = ...,
        with_hard_pin: bool = ...,
        preferred_segments: Sequence[str] = ...,
        preferred_segment: str = ...,
        preferred_nof_segments: Sequence[str] = ...,
        prefer_alloc_in_same_node: bool = ...,
        data_type: ObjectDataType = ...,
        group_ids: Sequence[str] | None = ...,
    ) -> ReplicateConfig: ...
    def __copy__(self) -> ReplicateConfig: ...
    def __deepcopy__(self, _memo: object) -> ReplicateConfig: ...

@final
class StoreEventInfo:
    """What an inference engine knows of a block that it stores."""

    model_name: str
    block_size: int
    block_hash: str
    parent_block_hash: str
    token_ids: list[int]
    def __new__(
        cls,
        model_name: str = ...,
        block_size: int = ...,
        block_hash: str = ...,
        parent_block_hash: str = ...,
        token_ids: Sequence[int] = ...,
    ) -> StoreEventInfo: ...

_Events = Sequence[StoreEventInfo] | StoreEventInfo | None

@final
class BufferHandle:
    """A value in memory of the store, to be read through the buffer protocol."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ReplicaDescriptor:
    """One replica of an object."""

    @property
    def status(self) -> ReplicaStatus: ...
    def is_memory_replica(self) -> bool: ...
    def is_disk_replica(self) -> bool: ...
    def is_local_disk_replica(self) -> bool: ...
    def get_memory_descriptor(self) -> MemoryDescriptor: ...
    def get_disk_descriptor(self) -> DiskDescriptor: ...

@final
class MemoryDescriptor:
    """A replica in memory."""

    @property
    def buffer_descriptor(self) -> Descriptor: ...

@final
class Descriptor:
    """A range of a segment."""

    @property
    def size(self) -> int: ...
    @property
    def buffer_address(self) -> int: ...
    @property
    def transport_endpoint(self) -> str: ...

@final
class DiskDescriptor:
    """A replica in a file; none are kept."""

    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

@final
class QueryTaskResponse:
    """What became of a task."""

    @property
    def id(self) -> _Uuid: ...
    @property
    def type(self) -> TaskType: ...
    @property
    def status(self) -> TaskStatus: ...
    @property
    def created_at_ms_epoch(self) -> int: ...
    @property
    def last_updated_at_ms_epoch(self) -> int: ...
    @property
    def assigned_client(self) -> _Uuid: ...
    @property
    def message(self) -> str: ...

@final
class MooncakeHostMemAllocator:
    """Allocates memory that processes of this host can share."""

    def __new__(cls) -> MooncakeHostMemAllocator: ...
    def alloc(self, size: int) -> int: ...
    def free(self, ptr: int) -> int: ...

def bind_to_numa_node(node: int) -> None: ...
def _shut_down_stores() -> None: ...

@final
class SoftPinAction:
    """What a put does with an object's soft pin."""

    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]
    def __new__(cls, value: int) -> SoftPinAction: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

@final
class ObjectDataType:
    """What an object is; the store does not care."""

    UNKNOWN: ClassVar[ObjectDataType]
    KVCACHE: ClassVar[ObjectDataType]
    TENSOR: ClassVar[ObjectDataType]
    WEIGHT: ClassVar[ObjectDataType]
    SAMPLE: ClassVar[ObjectDataType]
    ACTIVATION: ClassVar[ObjectDataType]
    GRADIENT: ClassVar[ObjectDataType]
    OPTIMIZER_STATE: ClassVar[ObjectDataType]
    METADATA: ClassVar[ObjectDataType]
    GENERAL: ClassVar[ObjectDataType]
    def __new__(cls, value: int) -> ObjectDataType: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

@final
class ReplicaStatus:
    """Where a replica is in its life."""

    UNDEFINED: ClassVar[ReplicaStatus]
    INITIALIZED: ClassVar[ReplicaStatus]
    PROCESSING: ClassVar[ReplicaStatus]
    COMPLETE: ClassVar[ReplicaStatus]
    REMOVED: ClassVar[ReplicaStatus]
    FAILED: ClassVar[ReplicaStatus]
    def __new__(cls, value: int) -> ReplicaStatus: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

@final
class TaskType:
    """What a task does with an object."""

    REPLICA_COPY: ClassVar[TaskType]
    REPLICA_MOVE: ClassVar[TaskType]
    def __new__(cls, value: int) -> TaskType: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

@final
class TaskStatus:
    """Where a task is in its life."""

    PENDING: ClassVar[TaskStatus]
    PROCESSING: ClassVar[TaskStatus]
    FAILED: ClassVar[TaskStatus]
    SUCCESS: ClassVar[TaskStatus]
    def __new__(cls, value: int) -> TaskStatus: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...
