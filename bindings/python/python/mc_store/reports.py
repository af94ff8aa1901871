"""The store's reports: objects, segments, tasks, the cluster, a client's metrics.

All are immutable data classes. Ids are UUIDs as strings, times are in seconds, sizes in
bytes. Later versions may add fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

__all__ = [
    "ClusterReport",
    "DrainReport",
    "Explanation",
    "Happening",
    "KeptBy",
    "LocalDisk",
    "Metrics",
    "ObjectDescription",
    "OperationMetrics",
    "PathMetrics",
    "Replica",
    "Segment",
    "SegmentReport",
    "Task",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that a client contributes now."""

    id: str
    """The segment's id."""
    name: str
    """The name by which puts can prefer the segment."""
    size: int
    """Its size in bytes."""
    medium: str
    """Its medium: ``dram``, ``ssd`` or ``vram``."""
    endpoint: str
    """The endpoint that serves its bytes."""
    leaves_in: float | None
    """Seconds until the segment is unmounted; ``None`` if that is not scheduled."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The master's report of a segment."""

    name: str
    """Its name."""
    id: str
    """Its id."""
    client: str
    """The id of the client that contributes it."""
    endpoint: str
    """The endpoint that serves its bytes."""
    status: str
    """``ok``, ``draining``, ``drained``, ``gracefully_unmounting``, ``unmounted`` or
    ``suspended``."""
    is_suspect: bool
    """Whether clients could not reach the segment since the last heartbeat of its client: nothing
    new is put there."""
    size: int
    """Its size in bytes."""
    used: int
    """Bytes allocated in it."""
    largest_free: int
    """A lower bound of its largest contiguous free space, in bytes."""
    allocations: int
    """Live allocations in it."""
    medium: str
    """Its medium: ``dram``, ``ssd`` or ``vram``."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The master's totals. Counters start at zero with the master."""

    segments: tuple[SegmentReport, ...]
    """All segments, including suspended ones."""
    objects: int
    """Objects, including unfinished ones."""
    processing: int
    """Objects whose put has not ended."""
    transfers: int
    """Objects that are being copied or moved."""
    drain_jobs: int
    """Active drain jobs."""
    tasks_pending: int
    """Queued tasks."""
    tasks_processing: int
    """Tasks that nodes work on."""
    tasks_finished: int
    """Ended tasks that can still be queried."""
    soft_pinned: int
    """Soft-pinned objects; pins that expired since the last check are included."""
    key_bytes: int
    """Bytes of the master's memory for the texts of the keys."""
    used: int
    """Bytes allocated in all readable segments."""
    capacity: int
    """Total size of all readable segments."""
    clients: int
    """Clients with a mounted segment."""
    evicted_objects: int
    """Objects evicted."""
    evicted_bytes: int
    """Bytes of evicted objects, including all replicas."""
    put_starts: int
    """Puts started."""
    put_ends: int
    """Puts ended."""
    put_revokes: int
    """Puts revoked."""
    put_start_no_room: int
    """Puts rejected for lack of space; retries are not counted."""
    put_start_retries: int
    """Rejected retries of such puts."""
    puts_discarded: int
    """Unfinished puts discarded after their timeout."""
    get_hits: int
    """Reads that found the object."""
    get_misses: int
    """Reads that did not find the object."""
    exist_hits: int
    """Lookups by exist and by longest prefixes that found a readable object."""
    exist_misses: int
    """Lookups that found no readable object. A longest prefix ends at its first miss."""
    removed_objects: int
    """Objects removed on request."""
    expired_objects: int
    """Objects that expired after they were read."""
    expired_clients: int
    """Clients that timed out."""
    totals: dict[str, int] = field(hash=False)
    """All totals by their names: those above, and those of disks, promotions, damage and reach."""

    @classmethod
    def _of(cls, *, segments: tuple[SegmentReport, ...], totals: dict[str, int]) -> ClusterReport:
        names = {it.name for it in fields(cls)} - {"segments", "totals"}
        own = {name: totals[name] for name in names}
        return cls(segments=segments, totals=totals, **own)


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of an object in memory."""

    status: str
    """``initialized``, ``processing``, ``complete``, ``removed``, ``failed`` or
    ``undefined``."""
    buffer: str
    """The state of its space: ``init``, ``complete``, ``failed``, or ``unregistered`` while its
    segment is suspended."""
    segment_name: str
    """The name of its segment."""
    segment_id: str
    """The id of its segment."""
    endpoint: str
    """The endpoint that serves its segment."""
    offset: int
    """Its offset in the segment."""
    size: int
    """Its length in bytes."""


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """A client's local disk with a replica of an object."""

    client: str
    """The id of the client."""
    endpoint: str
    """The endpoint that serves the disk."""


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """The description of an object."""

    generation: int
    """The number of the object's put; later puts have larger numbers."""
    owner: str
    """The id of the client that put it."""
    size: int
    """Its length in bytes."""
    slices: tuple[int, ...]
    """The lengths of its slices, each of which has a checksum."""
    replicas: tuple[Replica, ...]
    """Its replicas in memory, in every state."""
    disk: str | None
    """The state of its file on the shared tier, as of a replica; ``None`` without a file."""
    local_disks: tuple[LocalDisk, ...]
    """The clients' local disks with the object."""
    lease: float
    """Seconds for which leases still protect the object; 0 without a lease."""
    soft_pinned: bool
    """Whether it is soft-pinned now."""
    idle: float
    """Seconds since the last access, or since the put if there was no access."""


@dataclass(frozen=True, slots=True)
class KeptBy:
    """A reason why an object is not evicted now."""

    reason: str
    """``unfinished``, ``lease``, ``soft_pin``, ``hard_pin``, ``copy``, ``move``, ``group``,
    ``offload`` or ``no_room_to_gain``."""
    seconds: float | None
    """The remaining seconds, for ``unfinished`` the age; ``None`` if the reason has no time."""


@dataclass(frozen=True, slots=True)
class Happening:
    """An event in the history of a key."""

    ago: float
    """Seconds since the event."""
    event: str
    """``removed``, ``evicted``, ``segment_lost``, ``replaced``, ``disk_lost``, ``expired``,
    ``damaged``, or ``refused`` for a put."""
    generation: int | None
    """The put of the removed object; ``None`` for ``refused``."""
    code: int | None
    """The error code for ``refused``, see :attr:`mc_store.StoreError.code`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a key's state."""

    object: ObjectDescription | None
    """The object, if there is one."""
    kept_by: tuple[KeptBy, ...]
    """The reasons why the object is not evicted now; empty if it can be evicted."""
    history: tuple[Happening, ...]
    """Events of earlier objects and of puts of the key, the latest first, as far as the master
    keeps them."""


@dataclass(frozen=True, slots=True)
class Task:
    """A copy or move that the master has assigned to a node."""

    id: str
    """Its id."""
    kind: str
    """``copy`` or ``move``."""
    key: str
    """The object's key."""
    source: str
    """The name of the source segment."""
    targets: tuple[str, ...]
    """The names of the target segments."""
    status: str
    """``pending``, ``processing``, ``success`` or ``failed``."""
    client: str
    """The id of the client that carries out the task."""
    age: float
    """Seconds since it was created."""
    unchanged: float
    """Seconds since its status or its node last changed."""
    outcome: str
    """The outcome as text; empty until the task ends."""

    @property
    def done(self) -> bool:
        """Whether the task has ended, with success or not."""
        return self.status in ("success", "failed")


@dataclass(frozen=True, slots=True)
class DrainReport:
    """The result of a drain."""

    complete: bool
    """Whether the segments are empty, so that unmounting them loses nothing."""
    moved: int
    """Objects that were moved."""
    moved_bytes: int
    """Bytes of the moved objects."""
    blocked: int
    """Objects that could not be moved yet at the last check."""
    failed: int
    """Objects whose move failed too often."""
    outcome: str
    """Details as text; empty after success."""


@dataclass(frozen=True, slots=True)
class OperationMetrics:
    """The metrics of one operation."""

    calls: int
    """Calls that have ended, with any outcome."""
    objects: int
    """Objects of these calls."""
    bytes: int
    """Bytes of the objects read or stored."""
    abandoned: int
    """Calls that were abandoned before they ended."""
    failures: dict[str, int]
    """Failed objects, by error name."""
    seconds: float
    """The total time of the calls."""
    p50: float | None
    """The median latency in seconds; ``None`` before the first call."""
    p99: float | None
    """The 99th percentile of the latency in seconds; ``None`` before the first call."""


@dataclass(frozen=True, slots=True)
class PathMetrics:
    """Bytes transferred over one path."""

    read: int
    """Bytes read."""
    written: int
    """Bytes written."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """A client's metrics since it was connected."""

    operations: dict[str, OperationMetrics]
    """Metrics by operation, such as ``"get"`` or ``"batch_put"``."""
    paths: dict[str, PathMetrics]
    """Bytes by path: ``own_memory``, ``shared_memory``, ``tcp``."""
    tasks_done: int
    """Successful tasks of the master: copies and moves."""
    tasks_failed: int
    """Failed tasks."""
    hot_cache_hits: int
    """Objects found in the hot cache."""
    hot_cache_misses: int
    """Objects not found in the hot cache."""
