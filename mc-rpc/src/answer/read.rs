//! Reads answers from the wire. Field numbers as in the `.proto`.

use core::time::Duration;
use std::sync::Arc;

use mc_meta::{
    BufferStatus, ClientStatus, KeyInfo, KeyPage, ListCursor, MAX_FETCHED_TASKS, MAX_REPLICAS,
    MAX_SEGMENT_NAME_LEN, MAX_SLICES, Pong, ReplicaStatus, Slice, Slices,
};
use mc_types::{Checksum, ClientId, Endpoint, Extent, Generation, ObjectKey, RemoteKey, SegmentId};

use super::{
    ClusterReport, ObjectDescription, PutGrant, ReplicaDescription, ReplicaList, ReplicaLocation,
    SegmentLocation, SegmentReport,
};
use crate::error::{MalformedReply, Refusal};
use crate::proto::{buf_handle, ping_response};
use crate::request::MAX_PAGE;
use crate::wire::{Field, Fields};

/// An answer that is either what was asked for or a refusal. Over the native
/// protocol the refusal of a whole call comes as an error frame; a server that
/// puts it into the answer is understood as well.
pub(crate) type Answer<T> = Result<Result<T, Refusal>, MalformedReply>;

/// `status_code` and `message`, which every answer has.
#[derive(Default)]
pub(super) struct Status<'a> {
    code: i32,
    message: &'a [u8],
}

impl<'a> Status<'a> {
    pub(super) fn read(&mut self, field: Field<'a>) -> Result<(), MalformedReply> {
        match field.number {
            1 => self.code = field.i32()?,
            15 => self.message = field.bytes()?,
            _ => {}
        }
        Ok(())
    }

    pub(super) fn or<T>(
        self,
        answer: impl FnOnce() -> Result<T, MalformedReply>,
    ) -> Result<Result<T, Refusal>, MalformedReply> {
        match self.code {
            0 => answer().map(Ok),
            code => Ok(Err(Refusal::from_wire(code, self.message))),
        }
    }
}

pub(super) fn problem(field: &'static str, problem: &'static str) -> MalformedReply {
    MalformedReply::Field { field, problem }
}

pub(super) fn sixteen(bytes: &[u8], field: &'static str) -> Result<[u8; 16], MalformedReply> {
    bytes.try_into().map_err(|_| problem(field, "has not 16 bytes"))
}

pub(super) fn name(field: Field<'_>) -> Result<Box<str>, MalformedReply> {
    let text = field.text()?;
    if text.len() > MAX_SEGMENT_NAME_LEN {
        return Err(problem("segment_name", "is too long"));
    }
    Ok(text.into())
}

pub(super) fn endpoint(field: Field<'_>) -> Result<Endpoint, MalformedReply> {
    field.text()?.parse().map_err(|_| problem("endpoint", "is not an endpoint"))
}

/// The parts of a segment's description as they arrive.
#[derive(Default)]
struct SegmentParts {
    name: Box<str>,
    id: Option<SegmentId>,
    endpoint: Option<Endpoint>,
    remote_key: Option<RemoteKey>,
}

impl SegmentParts {
    fn id(&self) -> Result<SegmentId, MalformedReply> {
        self.id.ok_or(problem("segment_id", "is missing"))
    }

    fn finish(self) -> Result<Arc<SegmentLocation>, MalformedReply> {
        Ok(Arc::new(SegmentLocation {
            id: self.id()?,
            name: self.name,
            endpoint: self.endpoint.ok_or(problem("endpoint", "is missing"))?,
            remote_key: self.remote_key.ok_or(problem("remote_key", "is missing"))?,
        }))
    }
}

/// `SegmentDescriptor`.
fn read_segment(message: &[u8]) -> Result<Arc<SegmentLocation>, MalformedReply> {
    let (mut fields, mut parts) = (Fields::new(message), SegmentParts::default());
    while let Some(field) = fields.next()? {
        match field.number {
            1 => parts.name = name(field)?,
            2 => parts.id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?)),
            3 => parts.endpoint = Some(endpoint(field)?),
            4 => parts.remote_key = Some(read_remote_key(field)?),
            _ => {}
        }
    }
    parts.finish()
}

fn read_remote_key(field: Field<'_>) -> Result<RemoteKey, MalformedReply> {
    sixteen(field.bytes()?, "remote_key").map(RemoteKey::from_bytes)
}

/// `BufHandle` and the status of the replica around it.
#[derive(Default)]
struct Handle {
    parts: SegmentParts,
    size: u64,
    offset: u64,
    segment_index: u32,
    buffer_status: i32,
    replica_status: i32,
}

impl Handle {
    /// `ReplicaInfo`.
    fn read(replica: &[u8]) -> Result<Self, MalformedReply> {
        let (mut fields, mut found, mut replica_status) = (Fields::new(replica), None, 0);
        while let Some(field) = fields.next()? {
            match field.number {
                1 if found.is_some() => {
                    return Err(problem("handles", "has more than one range"));
                }
                1 => found = Some(Self::read_handle(field.bytes()?)?),
                2 => replica_status = field.i32()?,
                _ => {}
            }
        }
        let handle = found.ok_or(problem("handles", "is missing"))?;
        Ok(Self { replica_status, ..handle })
    }

    fn read_handle(message: &[u8]) -> Result<Self, MalformedReply> {
        let (mut fields, mut handle) = (Fields::new(message), Self::default());
        while let Some(field) = fields.next()? {
            let parts = &mut handle.parts;
            match field.number {
                1 => parts.name = name(field)?,
                2 => handle.size = field.u64()?,
                3 => handle.offset = field.u64()?,
                4 => handle.buffer_status = field.i32()?,
                5 => parts.id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?)),
                6 => parts.endpoint = Some(endpoint(field)?),
                7 => parts.remote_key = Some(read_remote_key(field)?),
                8 => handle.segment_index = field.u32()?,
                _ => {}
            }
        }
        Ok(handle)
    }

    fn extent(&self) -> Result<Extent, MalformedReply> {
        Extent::new(self.offset, self.size).ok_or(problem("buffer", "lies past 64 bits"))
    }

    fn location(self, table: &[Arc<SegmentLocation>]) -> Result<ReplicaLocation, MalformedReply> {
        let extent = self.extent()?;
        let segment = match (self.segment_index as usize).checked_sub(1) {
            Some(at) => {
                Arc::clone(table.get(at).ok_or(problem("segment_index", "names no segment"))?)
            }
            None => self.parts.finish()?,
        };
        Ok(ReplicaLocation { segment, extent })
    }
}

pub(super) fn push_replica(
    replicas: &mut Vec<ReplicaLocation>,
    message: &[u8],
    table: &[Arc<SegmentLocation>],
) -> Result<(), MalformedReply> {
    if replicas.len() == MAX_REPLICAS {
        return Err(problem("replica_list", "has too many replicas"));
    }
    if replicas.is_empty() {
        replicas.reserve_exact(1);
    }
    replicas.push(Handle::read(message)?.location(table)?);
    Ok(())
}

/// Slices as they arrive; the first is kept apart because most objects have one.
#[derive(Default)]
pub(super) struct SliceList {
    first: Option<Slice>,
    all: Vec<Slice>,
}

impl SliceList {
    pub(super) fn push(&mut self, message: &[u8]) -> Result<(), MalformedReply> {
        let (mut fields, mut slice) = (Fields::new(message), Slice { len: 0, checksum: None });
        while let Some(field) = fields.next()? {
            match field.number {
                1 => slice.len = field.u64()?,
                2 => slice.checksum = Some(Checksum::from_crc32c(field.fixed32()?)),
                _ => {}
            }
        }
        match self.first {
            None => self.first = Some(slice),
            Some(_) if self.all.len() >= MAX_SLICES => {
                return Err(problem("slices", "has too many slices"));
            }
            Some(first) => {
                if self.all.is_empty() {
                    self.all.push(first);
                }
                self.all.push(slice);
            }
        }
        Ok(())
    }

    /// The slices and their length together.
    pub(super) fn finish(self) -> Result<(Slices, u64), MalformedReply> {
        let slices = match (self.first, self.all) {
            (None, _) => return Err(problem("slices", "is missing")),
            (Some(only), all) if all.is_empty() => Slices::One(only),
            (Some(_), all) => Slices::Many(all.into()),
        };
        let mut lengths = slices.as_slice().iter().map(|slice| slice.len);
        let total = lengths.try_fold(0u64, |sum, len| sum.checked_add(len));
        let total = total.ok_or(problem("slices", "adds up to more than 64 bits"))?;
        Ok((slices, total))
    }
}

fn read_replica_list_with(message: &[u8], table: &[Arc<SegmentLocation>]) -> Answer<ReplicaList> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut slices) = (Vec::new(), SliceList::default());
    let (mut generation, mut lease) = (0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => push_replica(&mut replicas, field.bytes()?, table)?,
            3 => generation = field.u64()?,
            4 => slices.push(field.bytes()?)?,
            5 => lease = field.u64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let (slices, total) = slices.finish()?;
        if replicas.is_empty() {
            return Err(problem("replica_list", "is missing"));
        }
        if replicas.iter().any(|replica| replica.extent.len() != total) {
            return Err(problem("replica_list", "has a replica of another length than the slices"));
        }
        let generation = Generation::new(generation);
        Ok(ReplicaList { generation, slices, replicas, lease: Duration::from_millis(lease) })
    })
}

/// `GetReplicaListResponse`.
pub(crate) fn read_replica_list(message: &[u8]) -> Answer<ReplicaList> {
    read_replica_list_with(message, &[])
}

fn read_grant_with(message: &[u8], table: &[Arc<SegmentLocation>], asked: u64) -> Answer<PutGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut generation) = (Vec::new(), 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => push_replica(&mut replicas, field.bytes()?, table)?,
            3 => generation = field.u64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if replicas.is_empty() {
            return Err(problem("replica_list", "is missing"));
        }
        if replicas.iter().any(|replica| replica.extent.len() != asked) {
            return Err(problem("replica_list", "has a replica of another length than asked for"));
        }
        Ok(PutGrant { generation: Generation::new(generation), replicas })
    })
}

/// `PutStartResponse` to a put of `asked` bytes.
pub(crate) fn read_grant(message: &[u8], asked: u64) -> Answer<PutGrant> {
    read_grant_with(message, &[], asked)
}

/// An answer that only says how it went.
pub(crate) fn read_done(message: &[u8]) -> Answer<()> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    while let Some(field) = fields.next()? {
        status.read(field)?;
    }
    status.or(|| Ok(()))
}

/// `RemoveAllResponse`, and with 0 and 1
/// `ExistKeyResponse`.
pub(crate) fn read_count(message: &[u8]) -> Answer<u64> {
    let (mut fields, mut status, mut count) = (Fields::new(message), Status::default(), 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => count = field.u64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(count))
}

/// `LongestPrefixResponse` to a question about `asked` keys.
pub(crate) fn read_length(message: &[u8], asked: usize) -> Answer<usize> {
    let length = read_count(message)?;
    Ok(length.map(|length| usize::try_from(length).map_or(asked, |length| length.min(asked))))
}

/// `ExistKeyResponse`.
pub(crate) fn read_exists(message: &[u8]) -> Answer<bool> {
    Ok(read_count(message)?.map(|count| count != 0))
}

/// `PingResponse`.
pub(crate) fn read_pong(message: &[u8]) -> Answer<Pong> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut view, mut client_status, mut tasks) = (0, 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => view = field.u64()?,
            3 => client_status = field.i32()?,
            4 => tasks = field.u32()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let status = match ping_response::ClientStatus::try_from(client_status) {
            Ok(ping_response::ClientStatus::Ok) => ClientStatus::Ok,
            Ok(ping_response::ClientStatus::NeedRemount) => ClientStatus::NeedRemount,
            _ => return Err(problem("client_status", "is unknown")),
        };
        let mut pong = Pong::new(view, status);
        pong.tasks = (tasks as usize).min(MAX_FETCHED_TASKS);
        Ok(pong)
    })
}

/// What a batch answer says of each item, in the order of the request.
pub(crate) type Items<T> = Vec<Result<T, Refusal>>;

/// Reads a batch answer to `asked` items, which are in the repeated field
/// `number`; field 2 before a field 3 is the table of segments.
fn read_batch<'a, T>(
    message: &'a [u8],
    number: u32,
    asked: usize,
    mut item: impl FnMut(&'a [u8], &[Arc<SegmentLocation>]) -> Answer<T>,
) -> Answer<Items<T>> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut count, mut table) = (0, Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            field_number if field_number == number => count += 1,
            2 => table.push(read_segment(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if count != asked {
            return Err(MalformedReply::ItemCount { asked, items: count });
        }
        let (mut fields, mut items) = (Fields::new(message), Vec::with_capacity(asked));
        while let Some(field) = fields.next()? {
            if field.number == number {
                items.push(item(field.bytes()?, &table)?);
            }
        }
        Ok(items)
    })
}

/// `BatchGetReplicaListResponse`.
pub(crate) fn read_replica_lists(message: &[u8], asked: usize) -> Answer<Items<ReplicaList>> {
    read_batch(message, 3, asked, read_replica_list_with)
}

/// `BatchPutStartResponse` to puts of `lengths` bytes.
pub(crate) fn read_grants(
    message: &[u8],
    lengths: impl ExactSizeIterator<Item = u64>,
) -> Answer<Items<PutGrant>> {
    let (asked, mut lengths) = (lengths.len(), lengths);
    read_batch(message, 3, asked, |item, table| {
        // As many items as lengths have come.
        read_grant_with(item, table, lengths.next().unwrap_or_default())
    })
}

/// `BatchPutEndResponse`, `BatchPutRevokeResponse`, `BatchRemoveResponse`.
pub(crate) fn read_all_done(message: &[u8], asked: usize) -> Answer<Items<()>> {
    read_batch(message, 2, asked, |item, _| read_done(item))
}

/// `BatchExistKeyResponse`.
pub(crate) fn read_all_exist(message: &[u8], asked: usize) -> Answer<Items<bool>> {
    read_batch(message, 2, asked, |item, _| read_exists(item))
}

/// `DescribeObjectResponse`.
pub(crate) fn read_object(message: &[u8]) -> Answer<ObjectDescription> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut slices) = (Vec::new(), SliceList::default());
    let (mut generation, mut lease, mut idle) = (0, 0, 0);
    let (mut owner, mut soft_pinned) = (None, false);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if replicas.len() == MAX_REPLICAS => {
                return Err(problem("replica_list", "has too many replicas"));
            }
            2 => replicas.push(read_replica_description(field.bytes()?)?),
            3 => generation = field.u64()?,
            4 => slices.push(field.bytes()?)?,
            5 => lease = field.u64()?,
            6 => owner = Some(ClientId::from_bytes(sixteen(field.bytes()?, "client_id")?)),
            7 => soft_pinned = field.bool()?,
            8 => idle = field.u64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        Ok(ObjectDescription {
            generation: Generation::new(generation),
            owner: owner.ok_or(problem("client_id", "is missing"))?,
            slices: slices.finish()?.0,
            replicas,
            lease: Duration::from_millis(lease),
            soft_pinned,
            idle: Duration::from_millis(idle),
        })
    })
}

fn read_replica_description(message: &[u8]) -> Result<ReplicaDescription, MalformedReply> {
    let handle = Handle::read(message)?;
    let status = ReplicaStatus::ALL
        .into_iter()
        .find(|status| *status as i32 == handle.replica_status)
        .ok_or(problem("status", "is unknown"))?;
    let buffer = match buf_handle::BufStatus::try_from(handle.buffer_status) {
        Ok(buf_handle::BufStatus::Init) => BufferStatus::Init,
        Ok(buf_handle::BufStatus::Complete) => BufferStatus::Complete,
        Ok(buf_handle::BufStatus::Failed) => BufferStatus::Failed,
        Ok(buf_handle::BufStatus::Unregistered) => BufferStatus::Unregistered,
        Err(_) => return Err(problem("handles.status", "is unknown")),
    };
    Ok(ReplicaDescription {
        status,
        buffer,
        extent: handle.extent()?,
        segment_id: handle.parts.id()?,
        segment_name: handle.parts.name,
        endpoint: handle.parts.endpoint.ok_or(problem("endpoint", "is missing"))?,
    })
}

/// `ListKeysResponse`.
pub(crate) fn read_key_page(message: &[u8]) -> Answer<KeyPage> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut keys, mut next) = (Vec::new(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if keys.len() == MAX_PAGE => return Err(problem("keys", "has too many keys")),
            2 => keys.push(read_key_info(field.bytes()?)?),
            3 => next = Some(ListCursor::from_u64(field.u64()?)),
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(KeyPage { keys, next }))
}

fn read_key_info(message: &[u8]) -> Result<KeyInfo, MalformedReply> {
    let (mut fields, mut key, mut len, mut replicas) = (Fields::new(message), "", 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => key = field.text()?,
            2 => len = field.u64()?,
            3 => replicas = field.u32()?,
            _ => {}
        }
    }
    let key = ObjectKey::new(key).map_err(|_| problem("key", "is not a key"))?;
    Ok(KeyInfo { key, len, replicas })
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
            _ => {
                status.read(field)?;
                continue;
            }
        };
        *total = field.u64()?;
    }
    status.or(|| Ok(report))
}

fn read_segment_report(message: &[u8]) -> Result<SegmentReport, MalformedReply> {
    let (mut fields, mut parts) = (Fields::new(message), SegmentParts::default());
    let (mut client, mut size, mut used, mut largest_free, mut allocations) = (None, 0, 0, 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => parts.name = name(field)?,
            2 => parts.id = Some(SegmentId::from_bytes(sixteen(field.bytes()?, "segment_id")?)),
            3 => client = Some(ClientId::from_bytes(sixteen(field.bytes()?, "client_id")?)),
            4 => parts.endpoint = Some(endpoint(field)?),
            5 => size = field.u64()?,
            6 => used = field.u64()?,
            7 => largest_free = field.u64()?,
            8 => allocations = field.u64()?,
            _ => {}
        }
    }
    Ok(SegmentReport {
        id: parts.id()?,
        name: parts.name,
        client: client.ok_or(problem("client_id", "is missing"))?,
        endpoint: parts.endpoint.ok_or(problem("endpoint", "is missing"))?,
        size,
        used,
        largest_free,
        allocations,
    })
}
