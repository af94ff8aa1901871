//! The master's totals and its segments.

use mc_meta::{
    DamageTotals, MasterReport, OffloadTotals, PromotionTotals, SegmentInfo, SegmentStatus,
    SuspicionTotals,
};
use mc_types::{ClientId, Endpoint, MediaType, SegmentId};

use super::{
    BadField, CallContext, calls, client_id, endpoint, id, medium, message, reply, segment_name,
};
use crate::proto;
use crate::refusal::Refusal;

/// One segment, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub name: Box<str>,
    /// Its id.
    pub id: SegmentId,
    /// The client that contributes it.
    pub client: ClientId,
    /// The endpoint that serves its bytes.
    pub endpoint: Endpoint,
    /// Its status.
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
    /// What its memory is.
    pub medium: MediaType,
}

impl SegmentReport {
    /// Returns whether new objects are put there.
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
    /// Objects written to the clients' own disks.
    pub offload: OffloadTotals,
    /// Objects that came back into memory from disks.
    pub promotion: PromotionTotals,
    /// Objects queued to come back into memory, or on their way.
    pub promotions_pending: u64,
    /// Objects that wait for room to be queued to come back.
    pub promotion_candidates: u64,
    /// The outcomes of reports that replicas are damaged.
    pub damage: DamageTotals,
    /// The outcomes of reports that segments cannot be reached.
    pub suspicion: SuspicionTotals,
}

calls! {
    /// Returns the master's totals and its segments.
    fn cluster_report(&self) -> ClusterReport {
        ClusterReport,
        message(proto::ClusterReportRequest {}),
        reply(ClusterReport::from_proto),
    }
}

impl CallContext<'_> {
    pub(crate) fn cluster_report(
        self,
        _: &proto::ClusterReportRequest,
    ) -> Result<proto::ClusterReportResponse, Refusal> {
        Ok(report_to_proto(&self.master.report()))
    }
}

fn report_to_proto(report: &MasterReport) -> proto::ClusterReportResponse {
    proto::ClusterReportResponse {
        segments: report.segments.iter().map(to_proto).collect(),
        disk_capacity: report.disk_capacity,
        offload: Some((&report.offload).into()),
        promotion: Some((&report.promotion).into()),
        damage: Some((&report.damage).into()),
        suspicion: Some((&report.suspicion).into()),
        ..report.into()
    }
}

/// Converts what has the same fields: from the master's type to the message's, and from there
/// to the client's.
macro_rules! totals {
    ($($master:ty => $message:ty => $client:ty { $($field:ident)* })*) => {$(
        impl From<&$master> for $message {
            #[allow(clippy::needless_update, reason = "some have more fields")]
            fn from(totals: &$master) -> Self {
                Self { $($field: totals.$field,)* ..Default::default() }
            }
        }

        impl From<&$message> for $client {
            fn from(totals: &$message) -> Self {
                let mut read = Self::default();
                $(read.$field = totals.$field;)*
                read
            }
        }
    )*};
}

totals! {
    MasterReport => proto::ClusterReportResponse => ClusterReport {
        objects processing soft_pinned used capacity clients evicted_objects evicted_bytes
        put_starts put_ends put_revokes put_start_no_room puts_discarded get_hits get_misses
        removed_objects expired_clients transfers drain_jobs tasks_pending tasks_processing
        tasks_finished key_bytes eviction_offers expired_objects disk_used disk_only_objects
        disk_processing disk_put_ends disk_no_room disk_evictions promotions_pending
        promotion_candidates exist_hits exist_misses put_start_retries
    }
    OffloadTotals => proto::OffloadTotals => OffloadTotals {
        queued refused written written_bytes failed given_up filtered
    }
    PromotionTotals => proto::PromotionTotals => PromotionTotals {
        hits cold no_room queue_full dropped queued exhausted promoted promoted_bytes failed
        cancelled expired
    }
    DamageTotals => proto::DamageTotals => DamageTotals {
        reports dropped denied confirmed removed
    }
    SuspicionTotals => proto::SuspicionTotals => SuspicionTotals {
        reports dropped suspected cleared suspects declared
    }
}

fn to_proto(segment: &SegmentInfo) -> proto::SegmentReport {
    proto::SegmentReport {
        segment_name: segment.spec.name.to_string(),
        segment_id: segment.spec.id.to_bytes().into(),
        client_id: segment.client.to_bytes().into(),
        endpoint: segment.spec.endpoint.as_str().into(),
        size: segment.spec.size,
        used: segment.used,
        largest_free: segment.largest_free,
        allocations: segment.allocations,
        status: segment.status as i32,
        buffer: segment.spec.base,
        suspect: segment.is_suspect,
        medium: segment.spec.medium.number().into(),
    }
}

impl SegmentReport {
    fn from_proto(segment: &proto::SegmentReport) -> Result<Self, BadField> {
        let known = SegmentStatus::ALL.into_iter();
        let status = known.into_iter().find(|status| *status as i32 == segment.status);
        Ok(Self {
            name: segment_name(&segment.segment_name, "segment_name")?.into(),
            id: id(&segment.segment_id, "segment_id", SegmentId::from_bytes)?,
            client: client_id(&segment.client_id)?,
            endpoint: endpoint(&segment.endpoint)?,
            status: status.ok_or(BadField::new("status", "is unknown"))?,
            is_suspect: segment.suspect,
            base: segment.buffer,
            size: segment.size,
            used: segment.used,
            largest_free: segment.largest_free,
            allocations: segment.allocations,
            medium: medium(segment.medium)?,
        })
    }
}

impl ClusterReport {
    fn from_proto(answer: &proto::ClusterReportResponse) -> Result<Self, BadField> {
        let segments = answer.segments.iter().map(SegmentReport::from_proto);
        Ok(Self {
            segments: segments.collect::<Result<_, _>>()?,
            disk_capacity: answer.disk_capacity,
            offload: answer.offload.as_ref().map(Into::into).unwrap_or_default(),
            promotion: answer.promotion.as_ref().map(Into::into).unwrap_or_default(),
            damage: answer.damage.as_ref().map(Into::into).unwrap_or_default(),
            suspicion: answer.suspicion.as_ref().map(Into::into).unwrap_or_default(),
            ..Self::from(answer)
        })
    }
}
