//! The master's totals, its segments and its connections.

use core::time::Duration;

use mc_meta::{MasterReport, SegmentInfo, SegmentStatus, Totals};
use mc_types::{ClientId, Endpoint, MediaType, SegmentId};

use super::{
    BadField, CallContext, at_most, calls, client_id, count, endpoint, fit, id, medium, message,
    millis, reply, segment_name,
};
use crate::proto::{self, connection};
use crate::refusal::Refusal;
use crate::server::{ConnectionKind, ConnectionReport};
use crate::service::{Minute, NodeReport};

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
    /// How busy and how fast the clients are that contribute memory, and have said so in the last minute.
    pub nodes: Vec<NodeReport>,
}

/// Most connections in an answer.
pub const MAX_LISTED_CONNECTIONS: usize = 100_000;

/// Most minutes in an answer: more than an hour has.
const MAX_MINUTES: usize = 1_000;

/// Bytes kept for the number of connections that are left out.
const LEFT_OUT: usize = 8;

/// The connections of a master that are open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// The connections, the oldest first.
    pub connections: Vec<ConnectionReport>,
    /// Connections that did not fit into the answer.
    pub left_out: u32,
}

calls! {
    /// Returns the master's totals and its segments.
    fn cluster_report(&self) -> ClusterReport {
        ClusterReport,
        message(proto::ClusterReportRequest {}),
        reply(ClusterReport::from_proto),
    }

    /// Returns what this master has counted in the last hour, minute by minute, the oldest first.
    fn history(&self) -> Vec<Minute> {
        History
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::HistoryRequest {}),
        reply(|answer: &proto::HistoryResponse| {
            at_most(&answer.minutes, MAX_MINUTES, "minutes")?;
            Ok(answer.minutes.iter().map(minute_from_proto).collect())
        }),
    }

    /// Returns the connections of this master that are open, the oldest first, and `most` at the most.
    fn connections(&self, most: usize) -> Connections {
        Connections
            "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::ConnectionsRequest { most: count(most) }),
        reply(Connections::from_proto),
    }
}

impl CallContext<'_> {
    pub(crate) fn cluster_report(
        self,
        _: &proto::ClusterReportRequest,
    ) -> Result<proto::ClusterReportResponse, Refusal> {
        let report = self.master.report();
        let serves = report.segments.iter().map(|it| (it.client, &it.spec.endpoint));
        let nodes = self.loads.report(self.now, serves);
        let nodes = nodes.iter().map(node_to_proto).collect();
        Ok(proto::ClusterReportResponse { nodes, ..report_to_proto(&report) })
    }

    pub(crate) fn history(
        self,
        _: &proto::HistoryRequest,
    ) -> Result<proto::HistoryResponse, Refusal> {
        let minutes = self.history.minutes(self.now, &self.master.report().totals);
        let minutes = minutes.iter().map(minute_to_proto).collect();
        Ok(proto::HistoryResponse { minutes, ..Default::default() })
    }

    pub(crate) fn connections(
        self,
        request: &proto::ConnectionsRequest,
    ) -> Result<proto::ConnectionsResponse, Refusal> {
        // A service without a server has none.
        let Some(open) = self.connections else { return Ok(proto::ConnectionsResponse::default()) };
        let most = (request.most as usize).min(MAX_LISTED_CONNECTIONS);
        let room = self.max_reply.saturating_sub(LEFT_OUT);
        let connections = fit(open.list(most).into_iter().map(connection_to_proto), room);
        let left_out = count(open.count().saturating_sub(connections.len()));
        Ok(proto::ConnectionsResponse { connections, left_out, ..Default::default() })
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
            nodes: answer.nodes.iter().map(node_from_proto).collect::<Result<_, _>>()?,
        })
    }
}

fn node_to_proto(node: &NodeReport) -> proto::NodeReport {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    proto::NodeReport {
        client_id: node.client.to_bytes().into(),
        age_ms: millis(node.age),
        read_rate: node.read_rate,
        write_rate: node.write_rate,
        operation_rate: node.operation_rate,
        answer_us: node.answer.map(micros),
        worst_answer_us: micros(node.worst_answer),
        judges: node.judges,
        small_us: node.small.map_or(0, micros),
        mebibyte_us: node.mebibyte.map_or(0, micros),
    }
}

fn node_from_proto(node: &proto::NodeReport) -> Result<NodeReport, BadField> {
    let micros = |micros: u32| Duration::from_micros(micros.into());
    let known = |time: u32| (time > 0).then(|| micros(time));
    Ok(NodeReport {
        client: client_id(&node.client_id)?,
        age: Duration::from_millis(node.age_ms),
        read_rate: node.read_rate,
        write_rate: node.write_rate,
        operation_rate: node.operation_rate,
        answer: node.answer_us.map(micros),
        worst_answer: micros(node.worst_answer_us),
        judges: node.judges,
        small: known(node.small_us),
        mebibyte: known(node.mebibyte_us),
    })
}

fn minute_to_proto(minute: &Minute) -> proto::Minute {
    // What is zero goes without saying.
    let counted = minute.totals.values().filter(|(_, value)| *value > 0);
    proto::Minute {
        ago_ms: millis(minute.ago),
        lasted_ms: millis(minute.lasted),
        totals: counted.map(|(it, value)| proto::Total { name: it.name.into(), value }).collect(),
    }
}

fn minute_from_proto(minute: &proto::Minute) -> Minute {
    let mut totals = Totals::default();
    for total in &minute.totals {
        // One that this build does not know is left out.
        totals.set(&total.name, total.value);
    }
    Minute {
        ago: Duration::from_millis(minute.ago_ms),
        lasted: Duration::from_millis(minute.lasted_ms),
        totals,
    }
}

fn connection_to_proto(open: ConnectionReport) -> proto::Connection {
    let kind = match open.kind {
        ConnectionKind::Calls => connection::Kind::Calls,
        ConnectionKind::Grpc => connection::Kind::Grpc,
        ConnectionKind::Journal => connection::Kind::Journal,
    };
    proto::Connection {
        peer: open.peer.into(),
        software: open.software.into(),
        caller: open.caller.into(),
        role: open.role.map_or_else(String::new, |role| role.as_str().into()),
        tenant: open.tenant.into(),
        kind: kind.into(),
        age_ms: millis(open.age),
    }
}

fn connection_from_proto(open: &proto::Connection) -> ConnectionReport {
    let kind = match open.kind() {
        connection::Kind::Calls => ConnectionKind::Calls,
        connection::Kind::Grpc => ConnectionKind::Grpc,
        connection::Kind::Journal => ConnectionKind::Journal,
    };
    ConnectionReport {
        peer: open.peer.as_str().into(),
        software: open.software.as_str().into(),
        caller: open.caller.as_str().into(),
        role: open.role.parse().ok(),
        tenant: open.tenant.as_str().into(),
        kind,
        age: Duration::from_millis(open.age_ms),
    }
}

impl Connections {
    fn from_proto(answer: &proto::ConnectionsResponse) -> Result<Self, BadField> {
        at_most(&answer.connections, MAX_LISTED_CONNECTIONS, "connections")?;
        let connections = answer.connections.iter().map(connection_from_proto).collect();
        Ok(Self { connections, left_out: answer.left_out })
    }
}
