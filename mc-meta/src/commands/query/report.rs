//! The totals of a master.

use crate::side_tables::damage::DamageTotals;
use crate::side_tables::local_disk::LocalDiskInfo;
use crate::side_tables::offload_queue::OffloadTotals;
use crate::side_tables::promotion_queue::PromotionTotals;
use crate::side_tables::suspicion::SuspicionTotals;
use crate::space::segment::SegmentInfo;

/// The master's totals.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MasterReport {
    /// Objects, unfinished ones included.
    pub objects: u64,
    /// Objects whose put is under way.
    pub processing: u64,
    /// Objects that are being copied or moved.
    pub transfers: u64,
    /// Drain jobs at work.
    pub drain_jobs: u64,
    /// Tasks that wait for their clients.
    pub tasks_pending: u64,
    /// Tasks that clients work on.
    pub tasks_processing: u64,
    /// Tasks that have ended and are still known.
    pub tasks_finished: u64,
    /// Objects soft-pinned now or when last looked at.
    pub soft_pinned: u64,
    /// Bytes of the master's own memory that the texts of the keys take.
    pub key_bytes: u64,
    /// Bytes allocated in all segments that can be read.
    pub used: u64,
    /// Bytes in all segments that can be read.
    pub capacity: u64,
    /// Clients with a mounted segment.
    pub clients: u64,
    /// Every segment, suspended ones included.
    pub segments: Vec<SegmentInfo>,
    /// Objects evicted since the master began.
    pub evicted_objects: u64,
    /// Bytes of those objects, all replicas counted.
    pub evicted_bytes: u64,
    /// Objects looked at as victims, evicted or not: what eviction costs.
    pub eviction_offers: u64,
    /// Puts that got space since the master began.
    pub put_starts: u64,
    /// Puts ended.
    pub put_ends: u64,
    /// Puts revoked.
    pub put_revokes: u64,
    /// Puts refused for lack of space, each once however often it was tried again.
    pub put_start_no_room: u64,
    /// Further attempts of such puts that were refused, too.
    pub put_start_retries: u64,
    /// Unfinished puts given up after their time-out.
    pub puts_discarded: u64,
    /// Reads that found the object.
    pub get_hits: u64,
    /// Reads that did not.
    pub get_misses: u64,
    /// Keys asked about by exist or by a longest prefix that could be read.
    pub exist_hits: u64,
    /// Keys asked about that could not. A longest prefix asks no further than the first.
    pub exist_misses: u64,
    /// Objects removed on request.
    pub removed_objects: u64,
    /// Objects that expired after they were read.
    pub expired_objects: u64,
    /// The outcomes of reports that replicas are damaged.
    pub damage: DamageTotals,
    /// The outcomes of reports that segments cannot be reached.
    pub suspicion: SuspicionTotals,
    /// Clients given up for dead.
    pub expired_clients: u64,
    /// Bytes of the files on the shared tier, those being written included.
    pub disk_used: u64,
    /// Bytes that there is room for on the shared tier; zero without one, `None` when it
    /// has no limit.
    pub disk_capacity: Option<u64>,
    /// Objects that have nothing in memory.
    pub disk_only_objects: u64,
    /// Files being written.
    pub disk_processing: u64,
    /// Files persisted since the master began.
    pub disk_put_ends: u64,
    /// Puts planned without a file for lack of space on the shared tier.
    pub disk_no_room: u64,
    /// Files and objects on clients' own disks that their clients deleted to make room.
    pub disk_evictions: u64,
    /// The clients' own disks.
    pub local_disks: Vec<LocalDiskInfo>,
    /// Objects written to them.
    pub offload: OffloadTotals,
    /// Objects that came back into memory from disks.
    pub promotion: PromotionTotals,
    /// Objects queued to come back into memory, or on their way.
    pub promotions_pending: u64,
    /// Objects that wait for room to be queued to come back.
    pub promotion_candidates: u64,
}
