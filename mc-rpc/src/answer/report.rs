//! The master's totals, as the client hands them out.

use mc_meta::{DamageTotals, OffloadTotals, PromotionTotals, SegmentStatus, SuspicionTotals};
use mc_types::{ClientId, Endpoint, SegmentId};

use super::read::{Answer, Status, endpoint, name, problem, sixteen};
use crate::error::MalformedReply;
use crate::wire::Fields;

/// One segment, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub name: Box<str>,
    /// Its id.
    pub id: SegmentId,
    /// Who contributes it.
    pub client: ClientId,
    /// Where its bytes are served.
    pub endpoint: Endpoint,
    /// Where it is in its life.
    pub status: SegmentStatus,
    /// Whether clients could not reach it since its client was last heard of: nothing new is
    /// put there.
    pub is_suspect: bool,
    /// Its address in the client's memory, for diagnosis only.
    pub base: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes allocated in it.
    pub used: u64,
    /// Its longest free run of bytes, at least.
    pub largest_free: u64,
    /// Live allocations in it.
    pub allocations: u64,
}

impl SegmentReport {
    /// Whether new objects are put there.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.status.is_allocatable() && !self.is_suspect
    }
}

/// The master's totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterReport {
    /// Every segment, suspended ones included.
    pub segments: Vec<SegmentReport>,
    /// Objects, unfinished ones included.
    pub objects: u64,
    /// Objects whose put is under way.
    pub processing: u64,
    /// Objects that are being copied or moved.
    pub transfers: u64,
    /// Drain jobs at work.
    pub drain_jobs: u64,
    /// Tasks that wait for their nodes.
    pub tasks_pending: u64,
    /// Tasks that nodes work on.
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
    /// Objects evicted since the master began.
    pub evicted_objects: u64,
    /// Bytes of those objects, all replicas counted.
    pub evicted_bytes: u64,
    /// Objects looked at as victims, evicted or not.
    pub eviction_offers: u64,
    /// Puts begun since the master began.
    pub put_starts: u64,
    /// Puts ended.
    pub put_ends: u64,
    /// Puts revoked.
    pub put_revokes: u64,
    /// Puts refused for want of room, each once however often it was tried again.
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
    /// Objects that went for having been read.
    pub expired_objects: u64,
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
    /// Puts planned without a file for want of room on the shared tier.
    pub disk_no_room: u64,
    /// Files and objects on clients' own disks that their clients deleted to make room.
    pub disk_evictions: u64,
    /// What went to the clients' own disks.
    pub offload: OffloadTotals,
    /// What came back into memory from disks.
    pub promotion: PromotionTotals,
    /// Objects queued to come back into memory, or on their way.
    pub promotions_pending: u64,
    /// Objects that wait for room to be queued to come back.
    pub promotion_candidates: u64,
    /// What became of reports that replicas are damaged.
    pub damage: DamageTotals,
    /// What became of reports that segments cannot be reached.
    pub suspicion: SuspicionTotals,
}

/// `ClusterReportResponse`.
pub(crate) fn read_report(message: &[u8]) -> Answer<ClusterReport> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let mut report = ClusterReport::default();
    while let Some(field) = fields.next()? {
        let total = match field.number {
            2 => {
                report.segments.push(read_segment_report(field.bytes()?)?);
                continue;
            }
            3 => &mut report.objects,
            4 => &mut report.processing,
            5 => &mut report.soft_pinned,
            6 => &mut report.used,
            7 => &mut report.capacity,
            8 => &mut report.clients,
            16 => &mut report.evicted_objects,
            17 => &mut report.evicted_bytes,
            18 => &mut report.put_starts,
            19 => &mut report.put_ends,
            20 => &mut report.put_revokes,
            21 => &mut report.put_start_no_room,
            22 => &mut report.puts_discarded,
            23 => &mut report.get_hits,
            24 => &mut report.get_misses,
            25 => &mut report.removed_objects,
            26 => &mut report.expired_clients,
            27 => &mut report.transfers,
            28 => &mut report.drain_jobs,
            29 => &mut report.tasks_pending,
            30 => &mut report.tasks_processing,
            31 => &mut report.tasks_finished,
            32 => &mut report.key_bytes,
            33 => &mut report.eviction_offers,
            34 => &mut report.expired_objects,
            35 => &mut report.disk_used,
            36 => report.disk_capacity.insert(0),
            37 => &mut report.disk_only_objects,
            38 => &mut report.disk_processing,
            39 => &mut report.disk_put_ends,
            40 => &mut report.disk_no_room,
            41 => &mut report.disk_evictions,
            42 => {
                report.offload = read_offload_totals(field.bytes()?)?;
                continue;
            }
            43 => {
                report.promotion = read_promotion_totals(field.bytes()?)?;
                continue;
            }
            44 => &mut report.promotions_pending,
            45 => &mut report.promotion_candidates,
            48 => &mut report.exist_hits,
            49 => &mut report.exist_misses,
            50 => &mut report.put_start_retries,
            46 => {
                report.damage = read_damage_totals(field.bytes()?)?;
                continue;
            }
            47 => {
                report.suspicion = read_suspicion_totals(field.bytes()?)?;
                continue;
            }
            _ => {
                status.read(field)?;
                continue;
            }
        };
        *total = field.u64()?;
    }
    status.or(|| Ok(report))
}

/// `DamageTotals`.
fn read_damage_totals(message: &[u8]) -> Result<DamageTotals, MalformedReply> {
    let (mut fields, mut totals) = (Fields::new(message), DamageTotals::default());
    while let Some(field) = fields.next()? {
        *match field.number {
            1 => &mut totals.reports,
            2 => &mut totals.dropped,
            3 => &mut totals.denied,
            4 => &mut totals.confirmed,
            5 => &mut totals.removed,
            _ => continue,
        } = field.u64()?;
    }
    Ok(totals)
}

/// `SuspicionTotals`.
fn read_suspicion_totals(message: &[u8]) -> Result<SuspicionTotals, MalformedReply> {
    let (mut fields, mut totals) = (Fields::new(message), SuspicionTotals::default());
    while let Some(field) = fields.next()? {
        *match field.number {
            1 => &mut totals.reports,
            2 => &mut totals.dropped,
            3 => &mut totals.suspected,
            4 => &mut totals.cleared,
            5 => &mut totals.suspects,
            6 => &mut totals.declared,
            _ => continue,
        } = field.u64()?;
    }
    Ok(totals)
}

/// `SegmentReport`.
fn read_segment_report(message: &[u8]) -> Result<SegmentReport, MalformedReply> {
    let (mut fields, mut text) = (Fields::new(message), Box::default());
    let (mut id, mut client, mut served, mut status) = (None, None, None, 0);
    let mut is_suspect = false;
    let [mut base, mut size, mut used, mut largest_free, mut allocations] = [0; 5];
    while let Some(field) = fields.next()? {
        match field.number {
            1 => text = name(field)?,
            2 => id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?)),
            3 => client = Some(ClientId::from_bytes(sixteen(field.bytes()?, "client_id")?)),
            4 => served = Some(endpoint(field)?),
            5 => size = field.u64()?,
            6 => used = field.u64()?,
            7 => largest_free = field.u64()?,
            8 => allocations = field.u64()?,
            9 => status = field.i32()?,
            10 => base = field.u64()?,
            11 => is_suspect = field.bool()?,
            _ => {}
        }
    }
    let status = SegmentStatus::ALL.into_iter().find(|known| *known as i32 == status);
    Ok(SegmentReport {
        id: id.ok_or(problem("segment_id", "is missing"))?,
        name: text,
        client: client.ok_or(problem("client_id", "is missing"))?,
        endpoint: served.ok_or(problem("endpoint", "is missing"))?,
        status: status.ok_or(problem("status", "is unknown"))?,
        is_suspect,
        base,
        size,
        used,
        largest_free,
        allocations,
    })
}

fn read_offload_totals(message: &[u8]) -> Result<OffloadTotals, MalformedReply> {
    let (mut fields, mut totals) = (Fields::new(message), OffloadTotals::default());
    while let Some(field) = fields.next()? {
        let total = match field.number {
            1 => &mut totals.queued,
            2 => &mut totals.refused,
            3 => &mut totals.written,
            4 => &mut totals.written_bytes,
            5 => &mut totals.failed,
            6 => &mut totals.given_up,
            _ => continue,
        };
        *total = field.u64()?;
    }
    Ok(totals)
}

fn read_promotion_totals(message: &[u8]) -> Result<PromotionTotals, MalformedReply> {
    let (mut fields, mut totals) = (Fields::new(message), PromotionTotals::default());
    while let Some(field) = fields.next()? {
        let total = match field.number {
            1 => &mut totals.hits,
            2 => &mut totals.cold,
            3 => &mut totals.no_room,
            4 => &mut totals.queue_full,
            5 => &mut totals.dropped,
            6 => &mut totals.queued,
            7 => &mut totals.exhausted,
            8 => &mut totals.promoted,
            9 => &mut totals.promoted_bytes,
            10 => &mut totals.failed,
            11 => &mut totals.cancelled,
            12 => &mut totals.expired,
            _ => continue,
        };
        *total = field.u64()?;
    }
    Ok(totals)
}
