"""The native part of the package."""

from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import (
    Any,
    ClassVar,
    Literal,
    Never,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    final,
    overload,
)

from typing_extensions import Buffer as _HostBytes
from typing_extensions import disjoint_base

from mc_store import reports
from mc_store.exceptions import StoreError

__version__: str

_Uuid = tuple[int, int]

class _DeviceArray(Protocol):
    """An array in memory of a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

_BytesLike: TypeAlias = _HostBytes | _DeviceArray

@disjoint_base
class Store:
    """The base class of ``MooncakeDistributedStore``: everything but tensors."""

    def __new__(cls, *args: object, **kwargs: object) -> Self: ...
    @property
    def _local_buffer_size(self) -> int: ...
    @staticmethod
    def _copy_from_device(to: int, ptr: int, size: int) -> int | None: ...
    # Written by backend/mc_stub.py:
    def register_buffer(self, buffer_ptr: int, size: int) -> int: ...
    def unregister_buffer(self, buffer_ptr: int) -> int: ...
    def _is_idle(self, buffer_ptr: int, wait: float = ...) -> bool: ...
    def alloc_from_mem_pool(self, size: int) -> int: ...
    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]: ...
    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]: ...
    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = ...) -> list[str]: ...
    def get(self, key: str) -> bytes: ...
    def get_batch(self, keys: Sequence[str]) -> list[bytes]: ...
    def get_and_remove(self, key: str) -> bytes: ...
    def batch_get_and_remove(self, keys: Sequence[str]) -> list[bytes]: ...
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
    def is_exist(self, key: str) -> int: ...
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]: ...
    def probe_key(self, key: str) -> int: ...
    def batch_probe_key(self, keys: Sequence[str]) -> list[int]: ...
    def get_size(self, key: str) -> int: ...
    def _batch_stat(self, keys: Sequence[str]) -> list[tuple[int, int]]: ...
    def remove(self, key: str, force: bool = ...) -> int: ...
    def batch_remove(self, keys: Sequence[str], force: bool = ...) -> list[int]: ...
    def remove_by_regex(self, regex_pattern: str, force: bool = ...) -> int: ...
    def remove_all(self, force: bool = ...) -> int: ...
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
    def put(
        self,
        key: str,
        value: _BytesLike,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert(
        self,
        key: str,
        value: _BytesLike,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def put_parts(
        self,
        key: str,
        *values: _BytesLike,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert_parts(
        self,
        key: str,
        *values: _BytesLike,
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[_BytesLike],
        config: ReplicateConfig | None = ...,
        store_event_infos: _Events = ...,
    ) -> int: ...
    def upsert_batch(
        self,
        keys: Sequence[str],
        values: Sequence[_BytesLike],
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
    def upsert_from(
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
    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]: ...
    def _get_ranges_of(
        self,
        keys: Sequence[str],
        generations: Sequence[int] | None,
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
    ) -> list[list[int]]: ...
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
    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]: ...
    def create_move_task(
        self, key: str, source: str, target: str
    ) -> tuple[tuple[int, int], int]: ...
    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]: ...
    # The end of what is written.

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
    media_type: str | None
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
        media_type: str | None = ...,
        group_ids: Sequence[str] | None = ...,
    ) -> ReplicateConfig: ...
    def __copy__(self) -> ReplicateConfig: ...
    def __deepcopy__(self, _memo: object) -> ReplicateConfig: ...

@final
class StoreEventInfo:
    """An inference engine's description of a block, for subscribers of the store's events."""

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
    """A replica in a file on the shared tier."""

    @property
    def file_path(self) -> str: ...
    @property
    def object_size(self) -> int: ...

@final
class QueryTaskResponse:
    """The state of a task."""

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

_TransferOpcode: TypeAlias = TransferOpcode

@disjoint_base
class TransferEngine:
    """Transfers bytes between the memory of this process and that of others, by address."""

    TransferOpcode: ClassVar[type[_TransferOpcode]]
    def __new__(cls) -> Self: ...
    # Written by backend/mc_stub.py:
    def register_memory(self, buffer_addr: int, capacity: int, location: str = ...) -> int: ...
    def unregister_memory(self, buffer_addr: int) -> int: ...
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = ...
    ) -> int: ...
    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int: ...
    def allocate_managed_buffer(self, length: int) -> int: ...
    def free_managed_buffer(self, buffer_addr: int, length: int) -> int: ...
    def write_bytes_to_buffer(
        self, dest_address: int, src_ptr: _BytesLike | str, length: int
    ) -> int: ...
    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes: ...
    def get_first_buffer_address(self, segment_name: str) -> int: ...
    def get_notifies(self) -> list[TransferNotify]: ...
    def send_probe(self, peer_server_name: str) -> int: ...
    def warmup_efa_segment(self, segment_name: str) -> int: ...
    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = ...,
    ) -> int: ...
    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = ...,
    ) -> int: ...
    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: _TransferOpcode,
        notify: TransferNotify | None = ...,
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _TransferOpcode,
        notify: TransferNotify | None = ...,
        transport_hint: str = ...,
    ) -> int: ...
    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = ...,
    ) -> int: ...
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _TransferOpcode,
        transport_hint: str = ...,
    ) -> int: ...
    def transfer_check_status(self, batch_id: int) -> int: ...
    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int: ...
    def batch_transfer_poll(self, batch_ids: Sequence[int]) -> list[int]: ...
    def batch_transfer_free(self, batch_ids: Sequence[int]) -> None: ...
    def batch_transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = ...,
        transport_hint: str = ...,
    ) -> Never: ...
    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int: ...
    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int: ...
    def get_rpc_port(self) -> int: ...
    def get_engine(self) -> Self: ...
    def get_local_topology(self, device_name: str | None = ...) -> str: ...
    # The end of what is written.

@final
class TransferNotify:
    """A message for the program that runs the peer."""

    name: str
    msg: str
    def __new__(cls, name: str = ..., msg: str = ...) -> TransferNotify: ...

class _Enumeration:
    """The common part of the enumerations. Only type checkers see this class."""

    def __new__(cls, value: int) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...
    def __int__(self) -> int: ...
    def __index__(self) -> int: ...
    def __hash__(self) -> int: ...

@final
class TransferOpcode(_Enumeration):
    """The direction of a transfer."""

    Read: ClassVar[TransferOpcode]
    Write: ClassVar[TransferOpcode]

@final
class SoftPinAction(_Enumeration):
    """The effect of a put on an object's soft pin."""

    PRESERVE: ClassVar[SoftPinAction]
    ENABLE: ClassVar[SoftPinAction]
    DISABLE: ClassVar[SoftPinAction]

@final
class ObjectDataType(_Enumeration):
    """The kind of an object's data; the store does not use it."""

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

@final
class ReplicaStatus(_Enumeration):
    """Where a replica is in its life."""

    UNDEFINED: ClassVar[ReplicaStatus]
    INITIALIZED: ClassVar[ReplicaStatus]
    PROCESSING: ClassVar[ReplicaStatus]
    COMPLETE: ClassVar[ReplicaStatus]
    REMOVED: ClassVar[ReplicaStatus]
    FAILED: ClassVar[ReplicaStatus]

@final
class TaskType(_Enumeration):
    """The operation of a task on an object."""

    REPLICA_COPY: ClassVar[TaskType]
    REPLICA_MOVE: ClassVar[TaskType]

@final
class TaskStatus(_Enumeration):
    """Where a task is in its life."""

    PENDING: ClassVar[TaskStatus]
    PROCESSING: ClassVar[TaskStatus]
    FAILED: ClassVar[TaskStatus]
    SUCCESS: ClassVar[TaskStatus]

# -- The Pythonic face -----------------------------------------------------------------------------

_T = TypeVar("_T")
_R_co = TypeVar("_R_co", covariant=True)
_Items: TypeAlias = Mapping[str, _T] | Iterable[tuple[str, _T]]
_Size: TypeAlias = int | str

class _Settings(TypedDict, total=False):
    """The keys of a configuration, as in ``docs/configuration.md``."""

    # Written by backend/mc_stub.py:
    master: str
    master_server_address: str
    master_server_addr: str
    local_hostname: str
    listen: str
    global_segment_size: _Size
    segment_name: str
    segment_file: str
    keep_segment: bool
    segment_medium: str
    segment_device: int
    storage_root_dir: str
    shared_tier: str
    file_sync: str
    dfs_mode: str
    tier_keys: str
    enable_ssd_offload: bool
    ssd_offload_path: str
    ssd_offload_size: _Size
    local_buffer_size: _Size
    local_hot_cache_size: _Size
    local_hot_block_size: _Size
    local_hot_admission_threshold: int
    local_hot_cache_policy: str
    local_hot_cache_use_shm: bool
    checksum: bool
    protocol: str
    shared_memory: bool
    copy_threads: int
    device_name: str | list[str]
    auto_discovery: bool
    device_filters: str | list[str]
    rdma_gid_index: int
    rdma_traffic_class: int
    rdma_service_level: int
    rdma_pkey_index: int
    rdma_hop_limit: int
    rdma_relaxed_ordering: bool
    links_per_peer: int
    transfer_connect_timeout_ms: int
    transfer_stall_timeout_ms: int
    transfer_max_connections: int
    transfer_max_connections_per_address: int
    transfer_tls_ca: str
    transfer_tls_cert: str
    transfer_tls_key: str
    metadata_server: str
    use_hugepage: bool
    hugepage_size: str
    numa_node: int
    heartbeat_interval_ms: int
    put_wait_ms: int
    put_timeout_ms: int
    own_disk_timeout_ms: int
    peer_disk_timeout_ms: int
    shared_tier_timeout_ms: int
    local_memcpy: bool
    client_metric: bool
    client_metric_interval_s: int
    enable_client_http_server: bool
    client_http_host: str
    client_http_port: int
    cluster_id: str
    etcd_user: str
    etcd_password_file: str
    etcd_tls_ca: str
    etcd_tls_cert: str
    etcd_tls_key: str
    etcd_tls_server_name: str
    rpc_timeout_ms: int
    rpc_connect_timeout_ms: int
    rpc_outage_timeout_ms: int
    rpc_protocol: str
    rpc_connections: int
    token_file: str
    tenant_id: str
    tls_ca: str
    tls_cert: str
    tls_key: str
    tls_server_name: str
    # The end of what is written.

_Config: TypeAlias = _Settings | Mapping[str, object] | str | PathLike[str]

@final
class Buffer:
    def tobytes(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> Buffer: ...
    def __iter__(self) -> Iterator[int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class Client:
    def __new__(
        cls,
        master: str | None = None,
        *,
        segment_size: _Size | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Client: ...
    @staticmethod
    def from_env(
        master: str | None = None,
        *,
        segment_size: _Size | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Client: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, *_exception: object) -> None: ...
    __iter__: None
    def __contains__(self, key: str, /) -> bool: ...
    def __getitem__(self, key: str, /) -> Buffer: ...
    def __setitem__(self, key: str, value: _BytesLike, /) -> None: ...
    def __delitem__(self, key: str, /) -> None: ...
    # Written by backend/mc_stub.py:
    def mount_segment(self, size: _Size, *, name: str | None = None) -> str: ...
    def unmount_segment(self, segment_id: str, *, grace: float = 0.0) -> None: ...
    def drain(
        self, targets: Iterable[str] = (), *, timeout: float = 60.0
    ) -> reports.DrainReport: ...
    def ping(self) -> float: ...
    def cluster_report(self) -> reports.ClusterReport: ...
    def hosts(self, client_ids: Iterable[str]) -> dict[str, list[str]]: ...
    def segments(self) -> list[reports.Segment]: ...
    def metrics(self) -> reports.Metrics: ...
    def metrics_text(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def master_addr(self) -> str: ...
    @property
    def role(self) -> Literal["client", "server", "both"]: ...
    @property
    def endpoint(self) -> str | None: ...
    @property
    def segment_name(self) -> str | None: ...
    @property
    def http_addr(self) -> str | None: ...
    @overload
    def get(self, key: str) -> Buffer: ...
    @overload
    def get(self, key: str, default: _T) -> Buffer | _T: ...
    def get_range(self, key: str, start: int, stop: int) -> Buffer: ...
    @overload
    def get_many(
        self, keys: Iterable[str], *, return_exceptions: Literal[False] = False
    ) -> list[Buffer | None]: ...
    @overload
    def get_many(
        self, keys: Iterable[str], *, return_exceptions: bool
    ) -> list[Buffer | StoreError | None]: ...
    @overload
    def get_and_remove(self, key: str) -> Buffer: ...
    @overload
    def get_and_remove(self, key: str, default: _T) -> Buffer | _T: ...
    def get_and_remove_many(self, keys: Iterable[str]) -> list[Buffer | StoreError | None]: ...
    def get_into(self, key: str, buffer: _BytesLike) -> int: ...
    def get_range_into(self, key: str, start: int, buffer: _BytesLike) -> int: ...
    @overload
    def get_many_into(
        self, items: _Items[_BytesLike], *, return_exceptions: Literal[False] = False
    ) -> list[int | None]: ...
    @overload
    def get_many_into(
        self, items: _Items[_BytesLike], *, return_exceptions: bool
    ) -> list[int | StoreError | None]: ...
    def exists(self, key: str) -> bool: ...
    def exists_many(self, keys: Iterable[str]) -> list[bool]: ...
    def probe(self, key: str) -> bool: ...
    def probe_many(self, keys: Iterable[str]) -> list[bool]: ...
    def longest_prefix(self, keys: Iterable[str]) -> int: ...
    def size(self, key: str) -> int: ...
    def size_many(self, keys: Iterable[str]) -> list[int | None]: ...
    def pin(self, key: str, ttl: float | None = None) -> None: ...
    def unpin(self, key: str) -> None: ...
    def remove(self, key: str, *, force: bool = False) -> None: ...
    @overload
    def remove_many(
        self, keys: Iterable[str], *, force: bool = False, return_exceptions: Literal[False] = False
    ) -> list[bool]: ...
    @overload
    def remove_many(
        self, keys: Iterable[str], *, force: bool = False, return_exceptions: bool
    ) -> list[bool | StoreError]: ...
    def remove_matching(self, pattern: str, *, force: bool = False) -> int: ...
    def remove_all(self, *, force: bool = False) -> int: ...
    def find(self, pattern: str, limit: int = 1000) -> list[str]: ...
    def put(
        self,
        key: str,
        value: _BytesLike,
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> bool: ...
    def put_parts(
        self,
        key: str,
        parts: Iterable[_BytesLike],
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> bool: ...
    @overload
    def put_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: Literal[False] = False,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> list[bool]: ...
    @overload
    def put_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: bool,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> list[bool | StoreError]: ...
    def upsert(
        self,
        key: str,
        value: _BytesLike,
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> None: ...
    def upsert_parts(
        self,
        key: str,
        parts: Iterable[_BytesLike],
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> None: ...
    @overload
    def upsert_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: Literal[False] = False,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> list[None]: ...
    @overload
    def upsert_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: bool,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> list[StoreError | None]: ...
    def convert(self, key: str, out: str, *, target: str | None = None) -> bool: ...
    def replicas(self, key: str) -> list[reports.Replica]: ...
    def describe(self, key: str) -> reports.ObjectDescription: ...
    def explain(self, key: str) -> reports.Explanation: ...
    def clear_replicas(self, keys: Iterable[str], segment: str | None = None) -> list[str]: ...
    def copy_to(self, key: str, targets: Iterable[str]) -> str: ...
    def move_to(self, key: str, source: str, target: str) -> str: ...
    def task(self, task_id: str) -> reports.Task: ...
    def wait_for_task(self, task_id: str, timeout: float) -> reports.Task: ...
    # The end of what is written.
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

def local(
    segment_size: _Size = "64MB",
    *,
    lease: float | None = None,
    local_buffer: _Size | None = None,
    listen: str | None = None,
    segment_name: str | None = None,
    hot_cache: _Size | None = None,
    put_wait: float | None = None,
    config: _Config | None = None,
) -> Client: ...

@disjoint_base
class Call(Coroutine[Any, Any, _R_co]):
    """A call of the store under way: a coroutine, to be awaited once."""

    def __await__(self) -> Generator[Any, Any, _R_co]: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, kind: Any, value: Any = None, traceback: Any = None, /) -> Any: ...
    def close(self) -> None: ...
    @property
    def __name__(self) -> str: ...
    @property
    def __qualname__(self) -> str: ...

@final
class Connecting(Call[AsyncClient]):
    """A client that is being connected: to be awaited, or used in an ``async with`` statement."""

    def __aenter__(self) -> Call[AsyncClient]: ...
    def __aexit__(self, *_exception: object) -> Call[None]: ...

@final
class AsyncClient:
    def __new__(  # type: ignore[misc]
        cls,
        master: str | None = None,
        *,
        segment_size: _Size | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Connecting: ...
    @staticmethod
    def connect(
        master: str | None = None,
        *,
        segment_size: _Size | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Connecting: ...
    @staticmethod
    def from_env(
        master: str | None = None,
        *,
        segment_size: _Size | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Connecting: ...
    @staticmethod
    def local(
        segment_size: _Size = "64MB",
        *,
        lease: float | None = None,
        local_buffer: _Size | None = None,
        listen: str | None = None,
        segment_name: str | None = None,
        hot_cache: _Size | None = None,
        put_wait: float | None = None,
        config: _Config | None = None,
    ) -> Connecting: ...
    def __aenter__(self) -> Call[AsyncClient]: ...
    def __aexit__(self, *_exception: object) -> Call[None]: ...
    # Written by backend/mc_stub.py:
    def mount_segment(self, size: _Size, *, name: str | None = None) -> Call[str]: ...
    def unmount_segment(self, segment_id: str, *, grace: float = 0.0) -> Call[None]: ...
    def drain(
        self, targets: Iterable[str] = (), *, timeout: float = 60.0
    ) -> Call[reports.DrainReport]: ...
    def ping(self) -> Call[float]: ...
    def cluster_report(self) -> Call[reports.ClusterReport]: ...
    def hosts(self, client_ids: Iterable[str]) -> Call[dict[str, list[str]]]: ...
    def segments(self) -> list[reports.Segment]: ...
    def metrics(self) -> reports.Metrics: ...
    def metrics_text(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def master_addr(self) -> str: ...
    @property
    def role(self) -> Literal["client", "server", "both"]: ...
    @property
    def endpoint(self) -> str | None: ...
    @property
    def segment_name(self) -> str | None: ...
    @property
    def http_addr(self) -> str | None: ...
    @overload
    def get(self, key: str) -> Call[Buffer]: ...
    @overload
    def get(self, key: str, default: _T) -> Call[Buffer | _T]: ...
    def get_range(self, key: str, start: int, stop: int) -> Call[Buffer]: ...
    @overload
    def get_many(
        self, keys: Iterable[str], *, return_exceptions: Literal[False] = False
    ) -> Call[list[Buffer | None]]: ...
    @overload
    def get_many(
        self, keys: Iterable[str], *, return_exceptions: bool
    ) -> Call[list[Buffer | StoreError | None]]: ...
    @overload
    def get_and_remove(self, key: str) -> Call[Buffer]: ...
    @overload
    def get_and_remove(self, key: str, default: _T) -> Call[Buffer | _T]: ...
    def get_and_remove_many(
        self, keys: Iterable[str]
    ) -> Call[list[Buffer | StoreError | None]]: ...
    def get_into(self, key: str, buffer: _BytesLike) -> Call[int]: ...
    def get_range_into(self, key: str, start: int, buffer: _BytesLike) -> Call[int]: ...
    @overload
    def get_many_into(
        self, items: _Items[_BytesLike], *, return_exceptions: Literal[False] = False
    ) -> Call[list[int | None]]: ...
    @overload
    def get_many_into(
        self, items: _Items[_BytesLike], *, return_exceptions: bool
    ) -> Call[list[int | StoreError | None]]: ...
    def exists(self, key: str) -> Call[bool]: ...
    def exists_many(self, keys: Iterable[str]) -> Call[list[bool]]: ...
    def probe(self, key: str) -> Call[bool]: ...
    def probe_many(self, keys: Iterable[str]) -> Call[list[bool]]: ...
    def longest_prefix(self, keys: Iterable[str]) -> Call[int]: ...
    def size(self, key: str) -> Call[int]: ...
    def size_many(self, keys: Iterable[str]) -> Call[list[int | None]]: ...
    def pin(self, key: str, ttl: float | None = None) -> Call[None]: ...
    def unpin(self, key: str) -> Call[None]: ...
    def remove(self, key: str, *, force: bool = False) -> Call[None]: ...
    @overload
    def remove_many(
        self, keys: Iterable[str], *, force: bool = False, return_exceptions: Literal[False] = False
    ) -> Call[list[bool]]: ...
    @overload
    def remove_many(
        self, keys: Iterable[str], *, force: bool = False, return_exceptions: bool
    ) -> Call[list[bool | StoreError]]: ...
    def remove_matching(self, pattern: str, *, force: bool = False) -> Call[int]: ...
    def remove_all(self, *, force: bool = False) -> Call[int]: ...
    def find(self, pattern: str, limit: int = 1000) -> Call[list[str]]: ...
    def put(
        self,
        key: str,
        value: _BytesLike,
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> Call[bool]: ...
    def put_parts(
        self,
        key: str,
        parts: Iterable[_BytesLike],
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> Call[bool]: ...
    @overload
    def put_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: Literal[False] = False,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> Call[list[bool]]: ...
    @overload
    def put_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: bool,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> Call[list[bool | StoreError]]: ...
    def upsert(
        self,
        key: str,
        value: _BytesLike,
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> Call[None]: ...
    def upsert_parts(
        self,
        key: str,
        parts: Iterable[_BytesLike],
        *,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_info: StoreEventInfo | None = None,
    ) -> Call[None]: ...
    @overload
    def upsert_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: Literal[False] = False,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> Call[list[None]]: ...
    @overload
    def upsert_many(
        self,
        items: _Items[_BytesLike],
        *,
        return_exceptions: bool,
        replicas: int = 1,
        soft_pin: bool | float = False,
        hard_pin: bool = False,
        group: str | None = None,
        parent: str | None = None,
        preferred_segments: Iterable[str] = (),
        excluded_segments: Iterable[str] = (),
        medium: str | None = None,
        event_infos: Iterable[StoreEventInfo | None] | None = None,
    ) -> Call[list[StoreError | None]]: ...
    def convert(self, key: str, out: str, *, target: str | None = None) -> Call[bool]: ...
    def replicas(self, key: str) -> Call[list[reports.Replica]]: ...
    def describe(self, key: str) -> Call[reports.ObjectDescription]: ...
    def explain(self, key: str) -> Call[reports.Explanation]: ...
    def clear_replicas(
        self, keys: Iterable[str], segment: str | None = None
    ) -> Call[list[str]]: ...
    def copy_to(self, key: str, targets: Iterable[str]) -> Call[str]: ...
    def move_to(self, key: str, source: str, target: str) -> Call[str]: ...
    def task(self, task_id: str) -> Call[reports.Task]: ...
    def wait_for_task(self, task_id: str, timeout: float) -> Call[reports.Task]: ...
    # The end of what is written.
    @property
    def closed(self) -> bool: ...
    def close(self) -> Call[None]: ...

def _leave_all() -> None: ...
def _end_traces() -> None: ...
