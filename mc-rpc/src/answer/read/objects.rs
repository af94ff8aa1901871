//! Answers about objects and where they are.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use mc_meta::{
    MAX_REPLICAS, MAX_SLICES, PutHandle, RangeRead, ReplicaStatus, SharedFile, Slice, Slices,
    VerifiedSpan,
};
use mc_ticket::{PutToken, Ticket};
use mc_types::{Checksum, ClientId, Endpoint, Extent, Generation, RemoteKey, Time};

use super::{
    Answer, Items, SegmentParts, Status, endpoint, name, problem, read_batch, read_remote_key,
    segment_id,
};
use crate::answer::{
    DiskLocation, PutGrant, RangedList, ReplicaList, ReplicaLocation, SegmentLocation,
};
use crate::check;
use crate::error::MalformedReply;
use crate::wire::{Field, Fields};

/// `BufHandle`.
#[derive(Default)]
struct Handle {
    /// The segment, where it is not in the answer's table.
    parts: Option<SegmentParts>,
    size: u64,
    offset: u64,
    segment_index: u32,
    ticket: Option<(Time, [u8; 16])>,
}

impl Handle {
    /// `ReplicaInfo`.
    fn read(replica: &[u8]) -> Result<Self, MalformedReply> {
        let (mut fields, mut handle, mut is_found) = (Fields::new(replica), Self::default(), false);
        while let Some(field) = fields.next()? {
            match field.number {
                1 if is_found => return Err(problem("handles", "has more than one range")),
                1 => {
                    is_found = true;
                    handle.read_fields(field.bytes()?)?;
                }
                _ => {}
            }
        }
        if is_found { Ok(handle) } else { Err(problem("handles", "is missing")) }
    }

    fn read_fields(&mut self, message: &[u8]) -> Result<(), MalformedReply> {
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => self.parts().name = name(field)?,
                2 => self.size = field.u64()?,
                3 => self.offset = field.u64()?,
                5 => self.parts().id = Some(segment_id(field)?),
                6 => self.parts().endpoint = Some(endpoint(field)?),
                7 => self.parts().remote_key = Some(read_remote_key(field)?),
                8 => self.segment_index = field.u32()?,
                9 => self.ticket = read_ticket(field)?,
                10 => self.parts().add_other(field)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn parts(&mut self) -> &mut SegmentParts {
        self.parts.get_or_insert_default()
    }

    fn extent(&self) -> Result<Extent, MalformedReply> {
        Extent::new(self.offset, self.size).ok_or_else(|| problem("buffer", "lies past 64 bits"))
    }

    fn location(self, table: &[Arc<SegmentLocation>]) -> Result<ReplicaLocation, MalformedReply> {
        let extent = self.extent()?;
        let ticket = self.ticket.map(|(until, tag)| Ticket { extent, until, tag });
        let segment = match (self.segment_index as usize).checked_sub(1) {
            Some(at) => Arc::clone(
                table.get(at).ok_or_else(|| problem("segment_index", "names no segment"))?,
            ),
            None => self.parts.unwrap_or_default().finish()?,
        };
        Ok(ReplicaLocation { segment, extent, ticket })
    }
}

/// The end of a ticket and its signature; its extent is the handle's.
fn read_ticket(field: Field<'_>) -> Result<Option<(Time, [u8; 16])>, MalformedReply> {
    let bytes = field.bytes()?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes: &[u8; 24] = bytes.try_into().map_err(|_| problem("ticket", "has not 24 bytes"))?;
    let (until, tag) = bytes.split_first_chunk().expect("24 bytes begin with 8");
    let tag = tag.try_into().expect("and 16 are left");
    Ok(Some((Time::from_millis(u64::from_le_bytes(*until)), tag)))
}

pub(crate) fn push_replica(
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

fn replica_status(number: i32) -> Result<ReplicaStatus, MalformedReply> {
    let known = ReplicaStatus::ALL.into_iter().find(|status| *status as i32 == number);
    known.ok_or_else(|| problem("status", "is unknown"))
}

/// `SharedFile`: its length and its state.
fn read_disk(message: &[u8]) -> Result<(u64, ReplicaStatus), MalformedReply> {
    let (mut fields, mut len, mut status) = (Fields::new(message), 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => len = field.u64()?,
            2 => status = field.i32()?,
            _ => {}
        }
    }
    Ok((len, replica_status(status)?))
}

/// `LocalDiskReplica`.
fn push_local_disk(disks: &mut Vec<DiskParts>, message: &[u8]) -> Result<(), MalformedReply> {
    if disks.len() == MAX_REPLICAS {
        return Err(problem("local_disks", "has too many replicas"));
    }
    let mut disk = DiskParts::default();
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => disk.client = Some(check::client_id(field.bytes()?)?),
            2 => disk.endpoint = Some(endpoint(field)?),
            3 => disk.remote_key = Some(read_remote_key(field)?),
            4 => disk.offset = field.u64()?,
            5 => disk.ticket = read_ticket(field)?,
            _ => {}
        }
    }
    disks.push(disk);
    Ok(())
}

/// `LocalDiskReplica`, as it arrives.
#[derive(Default)]
struct DiskParts {
    client: Option<ClientId>,
    endpoint: Option<Endpoint>,
    remote_key: Option<RemoteKey>,
    offset: u64,
    ticket: Option<(Time, [u8; 16])>,
}

impl DiskParts {
    /// The place of an object of this length.
    fn finish(self, len: u64) -> Result<DiskLocation, MalformedReply> {
        let extent =
            Extent::new(self.offset, len).ok_or_else(|| problem("offset", "lies past 64 bits"))?;
        Ok(DiskLocation {
            client: self.client.ok_or_else(|| problem("client_id", "is missing"))?,
            endpoint: self.endpoint.ok_or_else(|| problem("endpoint", "is missing"))?,
            remote_key: self.remote_key.ok_or_else(|| problem("remote_key", "is missing"))?,
            extent,
            ticket: self.ticket.map(|(until, tag)| Ticket { extent, until, tag }),
        })
    }
}

/// Slices as they arrive; the first is kept apart because most objects have one.
#[derive(Default)]
pub(crate) struct SliceList {
    first: Option<Slice>,
    all: Vec<Slice>,
}

impl SliceList {
    pub(crate) fn push(&mut self, message: &[u8]) -> Result<(), MalformedReply> {
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
    pub(crate) fn finish(self) -> Result<(Slices, u64), MalformedReply> {
        let slices = match (self.first, self.all) {
            (None, _) => return Err(problem("slices", "is missing")),
            (Some(only), all) if all.is_empty() => Slices::One(only),
            (Some(_), all) => Slices::Many(all.into()),
        };
        let mut lengths = slices.as_slice().iter().map(|slice| slice.len);
        let total = lengths.try_fold(0u64, |sum, len| sum.checked_add(len));
        let total = total.ok_or_else(|| problem("slices", "adds up to more than 64 bits"))?;
        Ok((slices, total))
    }
}

/// The parts of a replica list that a reader needs, as it arrives.
#[derive(Default)]
pub(crate) struct ListParts {
    pub(crate) replicas: Vec<ReplicaLocation>,
    generation: u64,
    slices: SliceList,
    lease: u64,
    disk: Option<(u64, ReplicaStatus)>,
    local_disks: Vec<DiskParts>,
    suspects: u32,
}

impl ListParts {
    /// Reads one of the fields that follow the replicas; false when it is none of them.
    pub(crate) fn read(&mut self, field: Field<'_>) -> Result<bool, MalformedReply> {
        match field.number {
            3 => self.generation = field.u64()?,
            4 => self.slices.push(field.bytes()?)?,
            5 => self.lease = field.u64()?,
            6 => self.disk = Some(read_disk(field.bytes()?)?),
            7 => push_local_disk(&mut self.local_disks, field.bytes()?)?,
            9 => self.suspects = field.u32()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn finish(self) -> Result<ReplicaList, MalformedReply> {
        let (slices, total) = self.slices.finish()?;
        if self.replicas.is_empty() && self.disk.is_none() && self.local_disks.is_empty() {
            return Err(problem("replica_list", "is missing"));
        }
        if self.replicas.iter().any(|replica| replica.extent.len() != total) {
            return Err(problem("replica_list", "has a replica of another length than the slices"));
        }
        if self.disk.is_some_and(|disk| disk != (total, ReplicaStatus::Complete)) {
            return Err(problem("disk", "is not complete, or of another length than the slices"));
        }
        Ok(ReplicaList {
            generation: Generation::new(self.generation),
            slices,
            suspects: (self.suspects as usize).min(self.replicas.len()),
            replicas: self.replicas,
            file: self.disk.map(|(len, _)| SharedFile { len }),
            local_disks: self
                .local_disks
                .into_iter()
                .map(|disk| disk.finish(total))
                .collect::<Result<_, _>>()?,
            lease: Duration::from_millis(self.lease),
        })
    }
}

/// `VerifiedSpan`; `None` for the one that stands for none.
fn read_span(message: &[u8]) -> Result<Option<VerifiedSpan>, MalformedReply> {
    let (mut fields, mut start, mut end) = (Fields::new(message), 0, 0);
    let (mut head, mut tail) = (0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => start = field.u64()?,
            2 => end = field.u64()?,
            3 => head = field.fixed32()?,
            4 => tail = field.fixed32()?,
            _ => {}
        }
    }
    if (start, end, head, tail) == (0, 0, 0, 0) {
        return Ok(None);
    }
    if start >= end {
        return Err(problem("spans", "has an empty span"));
    }
    let (head, tail) = (Checksum::from_crc32c(head), Checksum::from_crc32c(tail));
    Ok(Some(VerifiedSpan { start, end, head, tail }))
}

/// The checksums that verify the requested ranges, as they arrive.
struct Spans<'a> {
    asked: &'a [Range<u64>],
    told: Vec<Option<VerifiedSpan>>,
}

impl<'a> Spans<'a> {
    const fn of(asked: &'a [Range<u64>]) -> Self {
        Self { asked, told: Vec::new() }
    }

    fn push(&mut self, message: &[u8]) -> Result<(), MalformedReply> {
        if self.told.len() == self.asked.len() {
            return Err(problem("spans", "has more spans than ranges were asked for"));
        }
        if self.told.is_empty() {
            self.told.reserve_exact(self.asked.len());
        }
        self.told.push(read_span(message)?);
        Ok(())
    }

    /// The spans, which are of the object that `list` describes.
    fn finish(self, list: &ReplicaList) -> Result<Vec<Option<VerifiedSpan>>, MalformedReply> {
        if self.told.len() != self.asked.len() {
            return Err(problem("spans", "has fewer spans than ranges were asked for"));
        }
        let total = list.slices.as_slice().iter().map(|slice| slice.len).sum::<u64>();
        let covers = |(span, range): (&Option<VerifiedSpan>, &Range<u64>)| match span {
            None => true,
            Some(span) => {
                let (start, end) = (range.start.min(total), range.end.min(total));
                span.end <= total && (start >= end || (span.start <= start && end <= span.end))
            }
        };
        if !self.told.iter().zip(self.asked).all(covers) {
            return Err(problem("spans", "lies outside the object or without its range"));
        }
        Ok(self.told)
    }
}

fn read_replica_list_with(
    message: &[u8],
    table: &[Arc<SegmentLocation>],
    spans: &mut Spans<'_>,
) -> Answer<ReplicaList> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let mut parts = ListParts::default();
    while let Some(field) = fields.next()? {
        match field.number {
            2 => push_replica(&mut parts.replicas, field.bytes()?, table)?,
            8 => spans.push(field.bytes()?)?,
            _ if parts.read(field)? => {}
            _ => status.read(field)?,
        }
    }
    status.or(|| parts.finish())
}

/// `GetReplicaListResponse`.
pub(crate) fn read_replica_list(message: &[u8]) -> Answer<ReplicaList> {
    read_replica_list_with(message, &[], &mut Spans::of(&[]))
}

fn read_grant_with(message: &[u8], table: &[Arc<SegmentLocation>], asked: u64) -> Answer<PutGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut file, mut time_left) = (Vec::new(), false, 0);
    let (mut generation, mut token) = (0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => push_replica(&mut replicas, field.bytes()?, table)?,
            3 => generation = field.u64()?,
            4 => file = field.bool()?,
            5 => time_left = field.u64()?,
            6 => token = field.fixed64()?,
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
        let (generation, token) = (Generation::new(generation), PutToken::from_u64(token));
        let time_left = Duration::from_millis(time_left);
        Ok(PutGrant { handle: PutHandle { generation, token }, replicas, file, time_left })
    })
}

/// `PutStartResponse` to a put of `asked` bytes.
pub(crate) fn read_grant(message: &[u8], asked: u64) -> Answer<PutGrant> {
    read_grant_with(message, &[], asked)
}

/// `BatchGetReplicaListResponse`.
pub(crate) fn read_replica_lists(message: &[u8], asked: usize) -> Answer<Items<ReplicaList>> {
    read_batch(message, [2, 3], asked, |item, table| {
        read_replica_list_with(item, table, &mut Spans::of(&[]))
    })
}

/// `BatchGetReplicaListResponse` to a question for ranges.
pub(crate) fn read_ranged_lists(
    message: &[u8],
    reads: &[RangeRead<'_>],
) -> Answer<Items<RangedList>> {
    let mut asked = reads.iter();
    read_batch(message, [2, 3], reads.len(), |item, table| {
        // As many items as reads have come.
        let mut spans = Spans::of(asked.next().map_or(&[], |read| read.ranges));
        match read_replica_list_with(item, table, &mut spans)? {
            Ok(list) => Ok(Ok(RangedList { spans: spans.finish(&list)?, list })),
            Err(refusal) => Ok(Err(refusal)),
        }
    })
}

/// `BatchPutStartResponse` to puts of `lengths` bytes.
pub(crate) fn read_grants(
    message: &[u8],
    lengths: impl ExactSizeIterator<Item = u64>,
) -> Answer<Items<PutGrant>> {
    let (asked, mut lengths) = (lengths.len(), lengths);
    read_batch(message, [2, 3], asked, |item, table| {
        // As many items as lengths have come.
        read_grant_with(item, table, lengths.next().unwrap_or_default())
    })
}
