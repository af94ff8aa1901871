"""What the store tells of itself: objects, segments, tasks, the cluster, a client's figures.

All are immutable data classes. Identities are UUIDs as text, times are seconds, sizes are
bytes. Later versions may add fields.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """The master's id for it."""
    name: str
    """The name by which puts can prefer it."""
    size: int
    """Its size in bytes."""
    medium: str
    """What its memory is: ``dram``, ``ssd`` or ``vram``."""
    endpoint: str
    """Where its bytes are served."""
    leaves_in: float | None
    """In how many seconds it goes, if it is to."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """A segment, as the master sees it."""

    name: str
    """Its name."""
    id: str
    """Its id."""
    client: str
    """The id of the client that contributes it."""
    endpoint: str
    """Where its bytes are served."""
    status: str
    """``ok``, ``draining``, ``drained``, ``gracefully_unmounting``, ``unmounted`` or
    ``suspended``."""
    is_suspect: bool
    """Whether clients could not reach it since its client was last heard of: nothing new is put
    there."""
    size: int
    """Its size in bytes."""
    used: int
    """Bytes allocated in it."""
    largest_free: int
    """Its longest free run of bytes, at least."""
    allocations: int
    """Live allocations in it."""
    medium: str
    """What its memory is: ``dram``, ``ssd`` or ``vram``."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The master's totals. What is counted is counted since it began."""

    segments: tuple[SegmentReport, ...]
    """Every segment, suspended ones included."""
    objects: int
    """Objects, unfinished ones included."""
    processing: int
    """Objects whose put is under way."""
    transfers: int
    """Objects that are being copied or moved."""
    drain_jobs: int
    """Drain jobs at work."""
    tasks_pending: int
    """Tasks that wait for their nodes."""
    tasks_processing: int
    """Tasks that nodes work on."""
    tasks_finished: int
    """Tasks that have ended and are still known."""
    soft_pinned: int
    """Objects soft-pinned now or when last looked at."""
    key_bytes: int
    """Bytes of the master's own memory that the texts of the keys take."""
    used: int
    """Bytes allocated in all segments that can be read."""
    capacity: int
    """Bytes in all segments that can be read."""
    clients: int
    """Clients with a mounted segment."""
    evicted_objects: int
    """Objects evicted."""
    evicted_bytes: int
    """Bytes of those objects, all replicas counted."""
    put_starts: int
    """Puts begun."""
    put_ends: int
    """Puts ended."""
    put_revokes: int
    """Puts revoked."""
    put_start_no_room: int
    """Puts refused for lack of space, each once however often it was tried again."""
    put_start_retries: int
    """Further attempts of such puts that were refused, too."""
    puts_discarded: int
    """Unfinished puts given up after their time-out."""
    get_hits: int
    """Reads that found the object."""
    get_misses: int
    """Reads that did not."""
    exist_hits: int
    """Keys asked about by exist or by a longest prefix that could be read."""
    exist_misses: int
    """Keys asked about that could not. A longest prefix asks no further than the first."""
    removed_objects: int
    """Objects removed on request."""
    expired_objects: int
    """Objects that expired after they were read."""
    expired_clients: int
    """Clients given up for dead."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy of an object in memory."""

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
    """Where that segment's bytes are served."""
    offset: int
    """Where it begins in the segment."""
    size: int
    """Its length in bytes."""


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """A client's own disk that an object is on."""

    client: str
    """The id of the client."""
    endpoint: str
    """Where it serves what is on its disk."""


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    """Everything about one object."""

    generation: int
    """The put that the object came from; later puts have larger numbers."""
    owner: str
    """The id of the client that put it."""
    size: int
    """Its length in bytes."""
    slices: tuple[int, ...]
    """The lengths of its slices, each of which has a checksum."""
    replicas: tuple[Replica, ...]
    """Its copies in memory, in every state."""
    disk: str | None
    """The state of its file on the shared tier, if it has one; as of a replica."""
    local_disks: tuple[LocalDisk, ...]
    """Clients' own disks that it is on."""
    lease: float
    """For how many seconds it is kept for readers; 0 when it is not."""
    soft_pinned: bool
    """Whether it is soft-pinned now."""
    idle: float
    """Seconds since the last access, or since the put when there was none."""


@dataclass(frozen=True, slots=True)
class KeptBy:
    """A reason for which an object is not evicted now."""

    reason: str
    """``unfinished``, ``lease``, ``soft_pin``, ``hard_pin``, ``copy``, ``move``, ``group``,
    ``offload`` or ``no_room_to_gain``."""
    seconds: float | None
    """How long that lasts, for ``unfinished`` how long it has; ``None`` without a time."""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to a key."""

    ago: float
    """How many seconds ago."""
    event: str
    """``removed``, ``evicted``, ``segment_lost``, ``replaced``, ``disk_lost``, ``expired``,
    ``damaged``, or ``refused`` for a put."""
    generation: int | None
    """The put of the object that went; ``None`` for a refusal."""
    code: int | None
    """The cause of a refusal, see :attr:`mc_store.StoreError.code`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a key is as it is."""

    object: ObjectDescription | None
    """The object, if there is one."""
    kept_by: tuple[KeptBy, ...]
    """What keeps it from being evicted; empty when nothing does."""
    history: tuple[Happening, ...]
    """What happened to earlier objects of the key and to puts of it, the latest first, as far
    as the master remembers."""


@dataclass(frozen=True, slots=True)
class Task:
    """A copy or move that the master has given to a node."""

    id: str
    """Its identity."""
    kind: str
    """``copy`` or ``move``."""
    key: str
    """The object's key."""
    source: str
    """The name of the segment that is read."""
    targets: tuple[str, ...]
    """The names of the segments that are written."""
    status: str
    """``pending``, ``processing``, ``success`` or ``failed``."""
    client: str
    """The id of the client that is to do it."""
    age: float
    """Seconds since it was created."""
    unchanged: float
    """Seconds since its status or its node last changed."""
    outcome: str
    """How it ended, in words; empty before."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.status in ("success", "failed")


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain came to."""

    complete: bool
    """Whether the segments are empty, so that nothing is lost when they go."""
    moved: int
    """Objects that were moved elsewhere."""
    moved_bytes: int
    """Bytes of those."""
    blocked: int
    """Objects seen last that could not be moved yet."""
    failed: int
    """Objects whose move failed too often."""
    outcome: str
    """What there is to say; empty when all went well."""


@dataclass(frozen=True, slots=True)
class OperationMetrics:
    """What the calls of one operation came to."""

    calls: int
    """Calls that have ended, whatever their outcome."""
    objects: int
    """Objects that they were about."""
    bytes: int
    """Bytes of the objects that were read or stored."""
    abandoned: int
    """Calls that were given up before they ended."""
    failures: dict[str, int]
    """Objects that failed, by the name of the cause."""
    seconds: float
    """How long the calls took together."""
    p50: float | None
    """Seconds within which half of them were done; ``None`` before the first."""
    p99: float | None
    """Seconds within which 99 of 100 were done; ``None`` before the first."""


@dataclass(frozen=True, slots=True)
class PathMetrics:
    """Bytes that took one way."""

    read: int
    """Bytes read."""
    written: int
    """Bytes written."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a client has counted since it was connected."""

    operations: dict[str, OperationMetrics]
    """Each operation that was called, such as ``"get"`` or ``"batch_put"``."""
    paths: dict[str, PathMetrics]
    """Bytes by the way that they took: ``own_memory``, ``shared_memory``, ``tcp``."""
    tasks_done: int
    """Copies and moves that were done for the master."""
    tasks_failed: int
    """Those that failed."""
    hot_cache_hits: int
    """Objects that the hot cache had."""
    hot_cache_misses: int
    """Objects that it had not."""
