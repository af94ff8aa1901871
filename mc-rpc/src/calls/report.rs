//! The master's totals and its segments.

use mc_meta::{MasterReport, SegmentInfo, SegmentStatus, Totals};
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
    /// The medium of its memory.
    pub medium: MediaType,
}

impl SegmentReport {
    /// Returns whether new objects are put there.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.status.is_allocatable() && !self.is_suspect
    }
}

/// The state of the cluster in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterReport {
    /// The totals since the master began, and what there is now. Zero where an older master says nothing.
    pub totals: Totals,
    /// Every segment, suspended ones included.
    pub segments: Vec<SegmentReport>,
    /// Bytes that there is room for on the shared tier; zero without one, `None` when it
    /// has no limit.
    pub files_capacity: Option<u64>,
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
    let totals = report.totals.values();
    proto::ClusterReportResponse {
        segments: report.segments.iter().map(to_proto).collect(),
        disk_capacity: report.files_capacity,
        totals: totals.map(|(it, value)| proto::Total { name: it.name.into(), value }).collect(),
        ..fields_of(&report.totals)
    }
}

/// The totals that have fields of their own in the message, which clients of older versions and other languages
/// read. A total that is new has none.
macro_rules! fields {
    ($($field:ident)*, renamed: { $($old:ident = $new:ident)* } $(, $group:ident: $message:ident { $($part:ident = $total:ident)* })*) => {
        fn fields_of(totals: &Totals) -> proto::ClusterReportResponse {
            proto::ClusterReportResponse {
                $($field: totals.$field,)*
                $($old: totals.$new,)*
                $($group: Some(proto::$message { $($part: totals.$total,)* }),)*
                ..Default::default()
            }
        }

        /// Reads what a master says that knows no more than these.
        fn totals_of(answer: &proto::ClusterReportResponse) -> Totals {
            let mut totals = Totals::default();
            $(totals.$field = answer.$field;)*
            $(totals.$new = answer.$old;)*
            $(if let Some(group) = &answer.$group {
                $(totals.$total = group.$part;)*
            })*
            totals
        }
    };
}

fields! {
    objects processing soft_pinned used capacity clients evicted_objects evicted_bytes
    put_starts put_ends put_revokes put_start_no_room puts_discarded get_hits get_misses
    removed_objects expired_clients transfers drain_jobs tasks_pending tasks_processing
    tasks_finished key_bytes eviction_offers expired_objects promotions_pending
    promotion_candidates exist_hits exist_misses put_start_retries,
    renamed: {
        disk_used = files_used disk_only_objects = tier_only_objects
        disk_processing = files_unfinished disk_put_ends = files_written
        disk_no_room = files_no_room disk_evictions = tier_evictions
    },
    offload: OffloadTotals {
        queued = offload_queued refused = offload_refused written = offload_written
        written_bytes = offload_written_bytes failed = offload_failed
        given_up = offload_given_up filtered = offload_filtered
    },
    promotion: PromotionTotals {
        hits = promotion_hits cold = promotion_cold no_room = promotion_no_room
        queue_full = promotion_queue_full dropped = promotion_dropped queued = promotion_queued
        exhausted = promotion_exhausted promoted = promotion_promoted
        promoted_bytes = promotion_promoted_bytes failed = promotion_failed
        cancelled = promotion_cancelled expired = promotion_expired
    },
    damage: DamageTotals {
        reports = damage_reports dropped = damage_dropped denied = damage_denied
        confirmed = damage_confirmed removed = damage_removed
    },
    suspicion: SuspicionTotals {
        reports = suspicion_reports dropped = suspicion_dropped suspected = suspicion_suspected
        cleared = suspicion_cleared suspects = suspicion_suspects declared = suspicion_declared
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
        let mut totals = totals_of(answer);
        for total in &answer.totals {
            // One that this build does not know is left out.
            totals.set(&total.name, total.value);
        }
        Ok(Self {
            totals,
            segments: segments.collect::<Result<_, _>>()?,
            files_capacity: answer.disk_capacity,
        })
    }
}
