//! Single objects and lists of keys, as an administrator sees them.

use core::time::Duration;
use std::sync::Arc;

use mc_meta::{
    BufferStatus, EvictionBlocker, Explanation, KeyEvent, KeyEventKind, KeyInfo, KeyPage,
    ListCursor, LocalDiskReplica, MAX_REPLICAS, MAX_SLICES, ObjectInfo, Placement, Removal,
    ReplicaStatus, Slice, Slices, TransferKind,
};
use mc_ticket::Ticket;
use mc_types::{
    Checksum, ClientId, Endpoint, ErrorCode, Extent, Generation, KeyRef, MAX_KEY_LEN, RemoteKey,
    SegmentId, Time,
};

use super::{
    BadField, CallContext, DEFAULT_PAGE, at_most, calls, client_id, count, endpoint, extent, id,
    key, message, millis, missing, object_key, page_limit, reply, segment_name,
};
use crate::answer::{ReplicaLocation, SegmentLocation};
use crate::proto::happening::Event;
use crate::proto::kept_by::Reason;
use crate::proto::{self, buf_handle::BufStatus};
use crate::refusal::Refusal;
use crate::request::MAX_PAGE;

/// Most reasons that are taken, several times as many as there are.
const MAX_REASONS: usize = 64;

/// Most happenings that are taken, several times as many as a master remembers of a key.
const MAX_HAPPENINGS: usize = 4096;

/// One replica, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescription {
    /// Its state.
    pub status: ReplicaStatus,
    /// The state of its space: [`BufferStatus::Unregistered`] while its segment is
    /// suspended.
    pub buffer: BufferStatus,
    /// The name of its segment.
    pub segment_name: Box<str>,
    /// The id of its segment.
    pub segment_id: SegmentId,
    /// The endpoint that serves that segment's bytes.
    pub endpoint: Endpoint,
    /// The range inside the segment.
    pub extent: Extent,
}

/// One object, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectDescription {
    /// The put that the object came from.
    pub generation: Generation,
    /// The client that put it.
    pub owner: ClientId,
    /// Its slices.
    pub slices: Slices,
    /// Its replicas in memory, in every state.
    pub replicas: Vec<ReplicaDescription>,
    /// The state of its file on the shared tier, if it has one.
    pub file: Option<ReplicaStatus>,
    /// Clients' local disks that it is on, at most as many as there can be replicas.
    pub local_disks: Vec<LocalDiskReplica>,
    /// The remaining time of its lease; zero when none is active.
    pub lease: Duration,
    /// Whether it is soft-pinned now.
    pub soft_pinned: bool,
    /// Time since the last access, or since the put when there was none.
    pub idle: Duration,
}

/// The state of a key, and the latest events about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectExplanation {
    /// The object, if there is one.
    pub object: Option<ObjectDescription>,
    /// The reasons for which it is not evicted now; empty when there are none, or when there is no
    /// object. A reason that this version does not know is left out.
    pub kept_by: Vec<EvictionBlocker>,
    /// The events of earlier objects of the key and of puts of it, the latest first, as
    /// far as the master remembers. What this version does not know is left out.
    pub history: Vec<KeyEvent>,
}

calls! {
    /// Returns everything known of one object; grants no lease.
    fn describe(&self, key: KeyRef<'_>) -> ObjectDescription {
        DescribeObject "Refused with `ObjectNotFound`.",
        message(proto::DescribeObjectRequest { key: key.as_str().into() }),
        reply(ObjectDescription::from_proto),
    }

    /// Explains why a key is as it is: returns its object and what keeps it, and what became
    /// of earlier ones; grants no lease.
    fn explain(&self, key: KeyRef<'_>) -> ObjectExplanation {
        ExplainObject "That there is no object is no error.",
        message(proto::ExplainObjectRequest { key: key.as_str().into() }),
        reply(ObjectExplanation::from_proto),
    }

    /// Returns at most `limit` keys that begin with `prefix`, from `cursor` on; 0 lets
    /// the master choose how many.
    fn list_keys(&self, prefix: &str, cursor: ListCursor, limit: usize) -> KeyPage {
        ListKeys "Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) keys.",
        message(proto::ListKeysRequest {
            prefix: prefix.into(),
            cursor: cursor.to_u64(),
            limit: count(limit),
        }),
        reply(|answer: &proto::ListKeysResponse| {
            at_most(&answer.keys, MAX_PAGE, "keys")?;
            let keys = answer.keys.iter().map(|info| {
                let (len, replicas) = (info.value_length, info.replica_num);
                Ok(KeyInfo { key: object_key(&info.key)?, len, replicas })
            });
            let next = answer.next_cursor.map(ListCursor::from_u64);
            Ok(KeyPage { keys: keys.collect::<Result<_, _>>()?, next })
        }),
    }
}

impl CallContext<'_> {
    pub(crate) fn describe(
        self,
        request: &proto::DescribeObjectRequest,
    ) -> Result<proto::DescribeObjectResponse, Refusal> {
        let key = self.scoped(key(&request.key, "key")?)?;
        Ok(to_proto(&self.master.describe(self.now, key.as_ref())?))
    }

    pub(crate) fn explain(
        self,
        request: &proto::ExplainObjectRequest,
    ) -> Result<proto::ExplainObjectResponse, Refusal> {
        let key = self.scoped(key(&request.key, "key")?)?;
        Ok(explanation_to_proto(&self.master.explain(self.now, key.as_ref())))
    }

    pub(crate) fn list_keys(
        self,
        &proto::ListKeysRequest { ref prefix, cursor, limit }: &proto::ListKeysRequest,
    ) -> Result<proto::ListKeysResponse, Refusal> {
        if prefix.len() > MAX_KEY_LEN {
            return Err(Refusal::invalid(format!(
                "prefix has {} bytes; no key is longer than {MAX_KEY_LEN}",
                prefix.len()
            )));
        }
        let (cursor, limit) = (ListCursor::from_u64(cursor), page_limit(limit, DEFAULT_PAGE)?);
        let page = self.master.list_tenant_keys(self.tenant, prefix, cursor, limit);
        let keys = page.keys.iter().map(|info| proto::KeyInfo {
            key: info.key.as_str().into(),
            value_length: info.len,
            replica_num: info.replicas,
        });
        let next_cursor = page.next.map(ListCursor::to_u64);
        Ok(proto::ListKeysResponse { keys: keys.collect(), next_cursor, ..Default::default() })
    }
}

/// An object as an answer describes it, without what opens its replicas.
fn to_proto(info: &ObjectInfo) -> proto::DescribeObjectResponse {
    let replicas = info.replicas.iter().map(|replica| {
        let Placement { segment, extent } = &replica.placement;
        let spec = segment.spec();
        let handle = proto::BufHandle {
            segment_name: spec.name.to_string(),
            size: extent.len(),
            buffer: extent.offset(),
            status: BufferStatus::of(replica.status, segment.status()) as i32,
            segment_id: spec.id.to_bytes().into(),
            endpoint: spec.endpoint.as_str().into(),
            ..Default::default()
        };
        proto::ReplicaInfo { handles: vec![handle], status: replica.status as i32 }
    });
    // No reader looks for more local disks than an object can have replicas in memory.
    let local_disks = info.local_disks.iter().take(MAX_REPLICAS).map(|disk| {
        let (client_id, endpoint) = (disk.client.to_bytes().into(), disk.endpoint.as_str().into());
        proto::LocalDiskReplica { client_id, endpoint, ..Default::default() }
    });
    proto::DescribeObjectResponse {
        replica_list: replicas.collect(),
        generation: info.generation.as_u64(),
        slices: slices_to_proto(&info.slices),
        lease_ttl_ms: millis(info.lease),
        client_id: info.owner.to_bytes().into(),
        soft_pinned: info.soft_pinned,
        idle_ms: millis(info.idle),
        disk: info.file.map(|status| proto::DiskReplica {
            length: info.slices.total_len(),
            status: status as i32,
        }),
        local_disks: local_disks.collect(),
        ..Default::default()
    }
}

impl ObjectDescription {
    fn from_proto(answer: &proto::DescribeObjectResponse) -> Result<Self, BadField> {
        at_most(&answer.replica_list, MAX_REPLICAS, "replica_list")?;
        at_most(&answer.local_disks, MAX_REPLICAS, "local_disks")?;
        let local_disks = answer.local_disks.iter().map(|disk| {
            let (client, endpoint) = (client_id(&disk.client_id)?, endpoint(&disk.endpoint)?);
            Ok(LocalDiskReplica { client, endpoint })
        });
        Ok(Self {
            generation: Generation::new(answer.generation),
            owner: client_id(&answer.client_id)?,
            slices: slices(&answer.slices)?,
            replicas: answer.replica_list.iter().map(replica).collect::<Result<_, _>>()?,
            file: answer.disk.as_ref().map(|disk| replica_status(disk.status)).transpose()?,
            local_disks: local_disks.collect::<Result<_, _>>()?,
            lease: Duration::from_millis(answer.lease_ttl_ms),
            soft_pinned: answer.soft_pinned,
            idle: Duration::from_millis(answer.idle_ms),
        })
    }
}

pub(super) fn slices_to_proto(slices: &Slices) -> Vec<proto::Slice> {
    let slice = |slice: &Slice| proto::Slice {
        length: slice.len,
        checksum: slice.checksum.map(Checksum::as_u32),
    };
    slices.as_slice().iter().map(slice).collect()
}

pub(super) fn slices(message: &[proto::Slice]) -> Result<Slices, BadField> {
    at_most(message, MAX_SLICES, "slices")?;
    let slice = |slice: &proto::Slice| Slice {
        len: slice.length,
        checksum: slice.checksum.map(Checksum::from_crc32c),
    };
    let mut lengths = message.iter().map(|slice| slice.length);
    if lengths.try_fold(0u64, |sum, len| sum.checked_add(len)).is_none() {
        return Err(BadField::new("slices", "adds up to more than 64 bits"));
    }
    match message {
        [] => Err(missing("slices")),
        [only] => Ok(Slices::One(slice(only))),
        many => Ok(Slices::Many(many.iter().map(slice).collect())),
    }
}

fn replica_status(number: i32) -> Result<ReplicaStatus, BadField> {
    let known = ReplicaStatus::ALL.into_iter().find(|status| *status as i32 == number);
    known.ok_or(BadField::new("status", "is unknown"))
}

fn only_handle(message: &proto::ReplicaInfo) -> Result<&proto::BufHandle, BadField> {
    match &message.handles[..] {
        [handle] => Ok(handle),
        _ => Err(BadField::new("handles", "has not one item")),
    }
}

fn replica(message: &proto::ReplicaInfo) -> Result<ReplicaDescription, BadField> {
    let handle = only_handle(message)?;
    let buffer = match BufStatus::try_from(handle.status) {
        Ok(BufStatus::Init) => BufferStatus::Init,
        Ok(BufStatus::Complete) => BufferStatus::Complete,
        Ok(BufStatus::Failed) => BufferStatus::Failed,
        Ok(BufStatus::Unregistered) => BufferStatus::Unregistered,
        Err(_) => return Err(BadField::new("handles.status", "is unknown")),
    };
    Ok(ReplicaDescription {
        status: replica_status(message.status)?,
        buffer,
        segment_name: segment_name(&handle.segment_name, "segment_name")?.into(),
        segment_id: id(&handle.segment_id, "segment_id", SegmentId::from_bytes)?,
        endpoint: endpoint(&handle.endpoint)?,
        extent: extent(handle.buffer, handle.size)?,
    })
}

/// A replica that is granted to be read or written.
pub(super) fn location(message: &proto::ReplicaInfo) -> Result<ReplicaLocation, BadField> {
    let handle = only_handle(message)?;
    let extent = extent(handle.buffer, handle.size)?;
    let ticket = match handle.ticket.split_first_chunk() {
        None if handle.ticket.is_empty() => None,
        Some((until, tag)) if tag.len() == 16 => {
            let until = Time::from_millis(u64::from_le_bytes(*until));
            Some(Ticket { extent, until, tag: tag.try_into().expect("16 bytes") })
        }
        _ => return Err(BadField::new("ticket", "has not 24 bytes")),
    };
    let segment = SegmentLocation {
        name: segment_name(&handle.segment_name, "segment_name")?.into(),
        id: id(&handle.segment_id, "segment_id", SegmentId::from_bytes)?,
        endpoint: endpoint(&handle.endpoint)?,
        remote_key: id(&handle.remote_key, "remote_key", RemoteKey::from_bytes)?,
    };
    Ok(ReplicaLocation { segment: Arc::new(segment), extent, ticket })
}

impl ObjectExplanation {
    fn from_proto(answer: &proto::ExplainObjectResponse) -> Result<Self, BadField> {
        at_most(&answer.kept_by, MAX_REASONS, "kept_by")?;
        at_most(&answer.history, MAX_HAPPENINGS, "history")?;
        if answer.object.as_ref().is_some_and(|object| object.status_code != 0) {
            return Err(BadField::new("object", "is refused inside an answer"));
        }
        Ok(Self {
            object: answer.object.as_ref().map(ObjectDescription::from_proto).transpose()?,
            kept_by: answer.kept_by.iter().filter_map(reason).collect(),
            history: answer.history.iter().filter_map(happening).collect(),
        })
    }
}

fn explanation_to_proto(explanation: &Explanation) -> proto::ExplainObjectResponse {
    proto::ExplainObjectResponse {
        object: explanation.object.as_ref().map(to_proto),
        kept_by: explanation.kept_by.iter().map(blocker_to_proto).collect(),
        history: explanation.history.iter().map(happening_to_proto).collect(),
        ..Default::default()
    }
}

fn blocker_to_proto(kept_by: &EvictionBlocker) -> proto::KeptBy {
    let (reason, duration) = match *kept_by {
        EvictionBlocker::Unfinished { age } => (Reason::Unfinished, age),
        EvictionBlocker::Lease { remaining } => (Reason::Lease, remaining),
        EvictionBlocker::SoftPin { remaining } => (Reason::SoftPin, remaining),
        EvictionBlocker::HardPin => (Reason::HardPin, Duration::ZERO),
        EvictionBlocker::Transfer { kind: TransferKind::Copy, remaining } => {
            (Reason::Copy, remaining)
        }
        EvictionBlocker::Transfer { kind: TransferKind::Move, remaining } => {
            (Reason::Move, remaining)
        }
        EvictionBlocker::Group { remaining } => (Reason::Group, remaining),
        EvictionBlocker::Offload => (Reason::Offload, Duration::ZERO),
        EvictionBlocker::NoRoomToGain => (Reason::NoRoomToGain, Duration::ZERO),
        // One that the protocol has no word for yet.
        _ => (Reason::Undefined, Duration::ZERO),
    };
    proto::KeptBy { reason: reason.into(), duration_ms: millis(duration) }
}

/// Decodes the reason why an object is kept; `None` for one that this version does not know.
fn reason(message: &proto::KeptBy) -> Option<EvictionBlocker> {
    let remaining = Duration::from_millis(message.duration_ms);
    Some(match message.reason() {
        Reason::Unfinished => EvictionBlocker::Unfinished { age: remaining },
        Reason::Lease => EvictionBlocker::Lease { remaining },
        Reason::SoftPin => EvictionBlocker::SoftPin { remaining },
        Reason::HardPin => EvictionBlocker::HardPin,
        Reason::Copy => EvictionBlocker::Transfer { kind: TransferKind::Copy, remaining },
        Reason::Move => EvictionBlocker::Transfer { kind: TransferKind::Move, remaining },
        Reason::Group => EvictionBlocker::Group { remaining },
        Reason::Offload => EvictionBlocker::Offload,
        Reason::NoRoomToGain => EvictionBlocker::NoRoomToGain,
        Reason::Undefined => return None,
    })
}

/// How an answer says for which reason an object went.
const REMOVALS: [(Event, Removal); 7] = [
    (Event::Removed, Removal::Requested),
    (Event::Evicted, Removal::Evicted),
    (Event::SegmentLost, Removal::SegmentLost),
    (Event::Replaced, Removal::Replaced),
    (Event::DiskLost, Removal::DiskLost),
    (Event::Expired, Removal::Expired),
    (Event::Damaged, Removal::Damaged),
];

fn happening_to_proto(happening: &KeyEvent) -> proto::Happening {
    let mut message = proto::Happening { ago_ms: millis(happening.ago), ..Default::default() };
    match happening.kind {
        KeyEventKind::Removed { generation, cause } => {
            let known = REMOVALS.iter().find(|(_, removal)| *removal == cause);
            message.set_event(known.map_or(Event::Undefined, |(event, _)| *event));
            message.generation = generation.as_u64();
        }
        KeyEventKind::Refused { code } => {
            message.set_event(Event::Refused);
            message.refusal_code = code.code();
        }
        _ => {}
    }
    message
}

/// Decodes an event; `None` for one that this version does not know.
fn happening(message: &proto::Happening) -> Option<KeyEvent> {
    let what = if message.event() == Event::Refused {
        let code = ErrorCode::from_code(message.refusal_code).unwrap_or(ErrorCode::Internal);
        KeyEventKind::Refused { code }
    } else {
        let (_, cause) = REMOVALS.iter().find(|(event, _)| *event == message.event())?;
        KeyEventKind::Removed { generation: Generation::new(message.generation), cause: *cause }
    };
    Some(KeyEvent { ago: Duration::from_millis(message.ago_ms), kind: what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_and_happening_is_read_as_it_was_written() {
        let (age, remaining) = (Duration::from_millis(7), Duration::from_secs(8));
        let kept_by = vec![
            EvictionBlocker::Unfinished { age },
            EvictionBlocker::Lease { remaining },
            EvictionBlocker::SoftPin { remaining },
            EvictionBlocker::HardPin,
            EvictionBlocker::Transfer { kind: TransferKind::Copy, remaining },
            EvictionBlocker::Transfer { kind: TransferKind::Move, remaining },
            EvictionBlocker::Group { remaining },
            EvictionBlocker::Offload,
            EvictionBlocker::NoRoomToGain,
        ];
        let removed = |(_, cause)| KeyEventKind::Removed { generation: Generation::new(3), cause };
        let refused = KeyEventKind::Refused { code: ErrorCode::Fragmented };
        let kinds = REMOVALS.map(removed).into_iter().chain([refused]);
        let history: Vec<KeyEvent> = kinds.map(|kind| KeyEvent { ago: age, kind }).collect();
        let told = Explanation { object: None, kept_by: kept_by.clone(), history: history.clone() };
        let message = explanation_to_proto(&told);
        assert_eq!((message.kept_by.len(), message.history.len()), (9, 8));
        assert_eq!(message.history[7].refusal_code, ErrorCode::Fragmented.code());
        let read = ObjectExplanation::from_proto(&message).unwrap();
        assert_eq!((read.object, read.kept_by, read.history), (None, kept_by, history));
    }
}
