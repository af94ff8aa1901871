//! Answers, as the master writes them: straight from its own types, without
//! copies. Field numbers as in the `.proto`; the tests read every answer back
//! with prost.

mod sign;

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use foldhash::fast::FixedState;
use mc_meta::{
    BufferStatus, ClientStatus, LocalDiskPlacement, MAX_REPLICAS, Placement, Pong, PutGrant,
    RangedList, Renewed, ReplicaCheck, ReplicaList, ReplicaStatus, Segment, Slice, VerifiedSpan,
};
use mc_ticket::Rights;
use mc_types::{Endpoint, ErrorCode, Extent, MAX_ENDPOINT_LEN, MAX_OTHER_ENDPOINTS, SegmentId};

use crate::answer::{DISK_WORK, NO_DISK_WORK};
use crate::proto::ping_response;
use crate::refusal::Refusal;
use crate::wire::{
    put_bytes, put_fixed32, put_fixed64, put_item_bytes, put_message, put_u64, put_zeros,
};
use sign::Terms;

pub(crate) use sign::Signer;

/// Bytes that any item of a batch may take, however full the answer is: a
/// refusal without words.
const ITEM_FLOOR: usize = 32;

/// Most bytes that a grant takes beside its replicas: two numbers, a token, a flag, and
/// their tags.
const GRANT_FLOOR: usize = 48;

/// Most bytes that one handle with its replica and its ticket takes when the segment is in
/// the table.
const HANDLE_CEILING: usize = 80;

/// Most bytes that one segment of the table takes: its name, its endpoint and the other ones, 32
/// bytes of id and key, and their tags.
const SEGMENT_CEILING: usize = 600 + MAX_OTHER_ENDPOINTS * (MAX_ENDPOINT_LEN + 4);

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn put_enum(out: &mut BytesMut, number: u32, value: i32) {
    put_u64(out, number, value as u64); // the protocol's enums have no negative values
}

/// How a handle names its segment.
#[derive(Clone, Copy)]
pub(crate) enum Names {
    /// With everything needed to reach it.
    Inline,
    /// By its place in the table.
    Index(u32),
}

/// Writes a replica with its ticket.
fn put_replica(
    out: &mut BytesMut,
    number: u32,
    (segment, extent): (&Segment, Extent),
    status: ReplicaStatus,
    names: Names,
    terms: Terms,
) {
    let handle = BufferStatus::of(status, segment.status());
    put_message(out, number, |out| {
        put_message(out, 1, |out| {
            let spec = segment.spec();
            match names {
                Names::Index(index) => put_u64(out, 8, index.into()),
                Names::Inline => {
                    put_bytes(out, 1, spec.name.as_bytes());
                    put_bytes(out, 5, &spec.id.to_bytes());
                    put_bytes(out, 6, spec.endpoint.as_str().as_bytes());
                    put_bytes(out, 7, &spec.remote_key.to_bytes());
                    put_others(out, 10, &spec.endpoint);
                }
            }
            put_u64(out, 2, extent.len());
            put_u64(out, 3, extent.offset());
            put_enum(out, 4, handle as i32);
            let spec = segment.spec();
            terms.put_ticket(out, 9, (spec.remote_key, spec.ticket_key.as_ref()), extent);
        });
        put_enum(out, 2, status as i32);
    });
}

fn put_others(out: &mut BytesMut, number: u32, endpoint: &Endpoint) {
    for other in endpoint.others() {
        put_bytes(out, number, other.as_str().as_bytes());
    }
}

pub(crate) fn put_slices(out: &mut BytesMut, number: u32, slices: &[Slice]) {
    for slice in slices {
        put_message(out, number, |out| {
            put_u64(out, 1, slice.len);
            if let Some(checksum) = slice.checksum {
                out.put_u8(2 << 3 | 5);
                out.put_u32_le(checksum.as_u32());
            }
        });
    }
}

fn put_disk(out: &mut BytesMut, number: u32, len: u64, status: ReplicaStatus) {
    put_message(out, number, |out| {
        put_u64(out, 1, len);
        put_enum(out, 2, status as i32);
    });
}

/// Writes as many as an object can have in memory: no reader looks for more.
fn put_local_disks(out: &mut BytesMut, number: u32, disks: &[LocalDiskPlacement], terms: Terms) {
    for LocalDiskPlacement { client, disk, extent } in disks.iter().take(MAX_REPLICAS) {
        put_message(out, number, |out| {
            put_bytes(out, 1, &client.to_bytes());
            put_bytes(out, 2, disk.endpoint.as_str().as_bytes());
            put_bytes(out, 3, &disk.remote_key.to_bytes());
            put_u64(out, 4, extent.offset());
            terms.put_ticket(out, 5, (disk.remote_key, disk.ticket_key.as_ref()), *extent);
        });
    }
}

/// Writes the replicas in memory into the field `number`, and the rest into those that
/// `GetReplicaListResponse` and `ObjectReplicaList` have in common.
pub(crate) fn put_replica_list<'a>(
    out: &mut BytesMut,
    number: u32,
    list: &'a ReplicaList,
    signer: Signer,
    names: impl FnMut(&'a Arc<Segment>) -> Names,
) {
    put_placements(out, number, &list.placements, signer.reading(list.lease), names);
    put_u64(out, 3, list.generation.as_u64());
    put_slices(out, 4, list.slices.as_slice());
    put_u64(out, 5, millis(list.lease));
    if let Some(disk) = list.file {
        put_disk(out, 6, disk.len, ReplicaStatus::Complete);
    }
    put_local_disks(out, 7, &list.local_disks, signer.reading(list.lease));
    put_u64(out, 9, list.suspects as u64);
}

/// Writes placements that are granted: to readers those that are complete, to writers
/// others.
pub(crate) fn put_placements<'a>(
    out: &mut BytesMut,
    number: u32,
    placements: &'a [Placement],
    terms: Terms,
    mut names: impl FnMut(&'a Arc<Segment>) -> Names,
) {
    let status = match terms.rights {
        Rights::Read => ReplicaStatus::Complete,
        Rights::Write => ReplicaStatus::Processing,
    };
    for Placement { segment, extent } in placements {
        let names = names(segment);
        put_replica(out, number, (segment, *extent), status, names, terms);
    }
}

/// One for each range that was asked for, an empty one where nothing verifies it.
fn put_spans(out: &mut BytesMut, number: u32, spans: &[Option<VerifiedSpan>]) {
    for span in spans {
        put_message(out, number, |out| {
            if let Some(VerifiedSpan { start, end, head, tail }) = *span {
                put_u64(out, 1, start);
                put_u64(out, 2, end);
                put_fixed32(out, 3, head.as_u32());
                put_fixed32(out, 4, tail.as_u32());
            }
        });
    }
}

fn put_grant<'a>(
    out: &mut BytesMut,
    grant: &'a PutGrant,
    signer: Signer,
    names: impl FnMut(&'a Arc<Segment>) -> Names,
) {
    put_placements(out, 2, &grant.placements, signer.writing(grant.time_left), names);
    put_u64(out, 3, grant.handle.generation.as_u64());
    put_u64(out, 4, grant.file.into());
    put_u64(out, 5, millis(grant.time_left));
    put_fixed64(out, 6, grant.handle.token.as_u64());
}

/// `GetReplicaListResponse`.
pub(crate) fn write_replica_list(out: &mut BytesMut, list: &ReplicaList, signer: Signer) {
    put_replica_list(out, 2, list, signer, |_| Names::Inline);
}

/// `GetReplicaListResponse` to a question for ranges.
pub(crate) fn write_ranged_list(out: &mut BytesMut, ranged: &RangedList, signer: Signer) {
    write_replica_list(out, &ranged.list, signer);
    put_spans(out, 8, &ranged.spans);
}

/// `PutStartResponse`.
pub(crate) fn write_grant(out: &mut BytesMut, grant: &PutGrant, signer: Signer) {
    put_grant(out, grant, signer, |_| Names::Inline);
}

fn put_renewal<'a>(
    out: &mut BytesMut,
    renewed: &'a Renewed,
    signer: Signer,
    names: impl FnMut(&'a Arc<Segment>) -> Names,
) {
    put_u64(out, 2, millis(renewed.lease));
    put_placements(out, 3, &renewed.placements, signer.reading(renewed.lease), names);
}

/// `RenewLeaseResponse`.
pub(crate) fn write_renewal(out: &mut BytesMut, renewed: &Renewed, signer: Signer) {
    put_renewal(out, renewed, signer, |_| Names::Inline);
}

fn put_clock(out: &mut BytesMut, [epoch, now]: [u32; 2], clock: Signer) {
    put_fixed64(out, epoch, clock.epoch.as_u64());
    put_u64(out, now, clock.now.as_millis());
}

/// `RemoveAllResponse`, `RemoveByRegexResponse` and `LongestPrefixResponse`.
pub(crate) fn write_count(out: &mut BytesMut, count: u64) {
    put_u64(out, 2, count);
}

/// `ExistKeyResponse` and `PollRemoveAllResponse`.
pub(crate) fn write_exists(out: &mut BytesMut, exists: bool) {
    put_u64(out, 2, exists.into());
}

/// `PingResponse`.
pub(crate) fn write_pong(out: &mut BytesMut, pong: Pong, checks: &[ReplicaCheck], clock: Signer) {
    let status = match pong.status {
        ClientStatus::Ok => ping_response::ClientStatus::Ok,
        ClientStatus::NeedRemount => ping_response::ClientStatus::NeedRemount,
    };
    put_u64(out, 2, pong.view);
    put_enum(out, 3, status.into());
    put_u64(out, 4, pong.tasks as u64);
    put_clock(out, [5, 6], clock);
    let disk_work = if pong.disk_work { DISK_WORK } else { NO_DISK_WORK };
    put_u64(out, 8, disk_work.into());
    for check in checks {
        put_message(out, 7, |out| {
            put_u64(out, 1, check.id);
            let segment = check.segment.unwrap_or(SegmentId::from_u128(0));
            put_bytes(out, 2, &segment.to_bytes());
            put_u64(out, 3, check.extent.offset());
            put_u64(out, 4, check.extent.len());
            put_slices(out, 5, check.slices.as_slice());
            put_u64(out, 6, check.segment.is_none().into());
        });
    }
}

/// The answer to a batch, item by item. It stays below the limit that the
/// client gave: an item that does not fit any more is refused as
/// [`ErrorCode::Overloaded`], and for that every item not yet written keeps
/// [`ITEM_FLOOR`] bytes.
pub(crate) struct BatchReply<'a> {
    out: &'a mut BytesMut,
    number: u32,
    /// `out` may not grow beyond this.
    end: usize,
    remaining: usize,
}

impl<'a> BatchReply<'a> {
    /// An answer to `items` items, which go into the repeated field `number`.
    pub(crate) fn new(
        out: &'a mut BytesMut,
        number: u32,
        items: usize,
        max_reply: usize,
    ) -> Result<Self, Refusal> {
        let floor = items * ITEM_FLOOR; // items are bounded by MAX_BATCH
        if floor > max_reply {
            return Err(Refusal::invalid(format!(
                "{items} items may need an answer of {floor} bytes, the caller accepts \
                 {max_reply}; send fewer at a time"
            )));
        }
        let end = out.len() + max_reply;
        Ok(Self { out, number, end, remaining: items })
    }

    /// Bytes that the next item may take.
    fn room(&self) -> usize {
        self.end - self.out.len() - self.remaining.saturating_sub(1) * ITEM_FLOOR
    }

    /// An item that only says that it went well.
    fn done(&mut self) {
        put_item_bytes(self.out, self.number, b"");
        self.remaining -= 1;
    }

    /// Answers each item with what `answer` says of it.
    pub(crate) fn all<T>(
        mut self,
        items: impl IntoIterator<Item = T>,
        mut answer: impl FnMut(T) -> Result<(), Refusal>,
    ) {
        items.into_iter().for_each(|item| self.item(answer(item)));
    }

    /// Answers the next item.
    pub(crate) fn item(&mut self, answer: Result<(), Refusal>) {
        match answer {
            Ok(()) => self.done(),
            Err(refusal) => self.refused(&refusal),
        }
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        let message = refusal.message.as_bytes();
        let fits = ITEM_FLOOR + message.len() <= self.room();
        put_message(self.out, self.number, |out| {
            put_u64(out, 1, i64::from(refusal.code.code()) as u64);
            if fits {
                put_bytes(out, 15, message);
            }
        });
        self.remaining -= 1;
    }

    fn full(&mut self) {
        self.refused(&Refusal::new(
            ErrorCode::Overloaded,
            "the answer is full; ask again for the items without one",
        ));
    }
}

/// A [`BatchReply`] whose items have replicas: each segment is described once, and each
/// replica has its ticket.
pub(crate) struct PlacedReply<'a> {
    batch: BatchReply<'a>,
    segments: SegmentTable,
    signer: Signer,
}

impl<'a> PlacedReply<'a> {
    /// An answer to `items` items, which go into the repeated field `number`, and their
    /// segments into the field `table_number`.
    pub(crate) fn new(
        out: &'a mut BytesMut,
        [table_number, number]: [u32; 2],
        items: usize,
        max_reply: usize,
        signer: Signer,
    ) -> Result<Self, Refusal> {
        let batch = BatchReply::new(out, number, items, max_reply)?;
        // Most items take more.
        batch.out.reserve(items * ITEM_FLOOR);
        Ok(Self { batch, segments: SegmentTable::new(table_number), signer })
    }

    pub(crate) fn has_room_for_grant(&self, replica_num: u32) -> bool {
        let replicas = replica_num as usize * (HANDLE_CEILING + SEGMENT_CEILING);
        replicas + GRANT_FLOOR <= self.batch.room()
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.batch.refused(refusal);
    }

    pub(crate) fn full(&mut self) {
        self.batch.full();
    }

    pub(crate) fn grant(&mut self, grant: &PutGrant) {
        self.placed(&grant.placements, |out, segments, signer| {
            put_grant(out, grant, signer, segments.names());
        });
    }

    pub(crate) fn replica_list(&mut self, list: &ReplicaList) {
        self.placed(&list.placements, |out, segments, signer| {
            put_replica_list(out, 2, list, signer, segments.names());
        });
    }

    pub(crate) fn ranged_list(&mut self, RangedList { list, spans }: &RangedList) {
        self.placed(&list.placements, |out, segments, signer| {
            put_replica_list(out, 2, list, signer, segments.names());
            put_spans(out, 8, spans);
        });
    }

    pub(crate) fn renewed(&mut self, renewed: &Renewed) {
        self.placed(&renewed.placements, |out, segments, signer| {
            put_renewal(out, renewed, signer, segments.names());
        });
    }

    /// Writes an item that `fill` fills and that names the segments of these placements,
    /// or refuses it when it does not fit.
    fn placed(
        &mut self,
        placements: &[Placement],
        fill: impl FnOnce(&mut BytesMut, &SegmentTable, Signer),
    ) {
        let Self { batch, segments, signer } = self;
        let (start, room, described) = (batch.out.len(), batch.room(), segments.len());
        segments.describe(batch.out, placements);
        put_message(batch.out, batch.number, |out| fill(out, segments, *signer));
        if batch.out.len() - start > room {
            batch.out.truncate(start);
            segments.truncate(described);
            return batch.full();
        }
        batch.remaining -= 1;
    }
}

/// `BatchExistKeyResponse`: a byte for each key, and then why some of them are no keys.
pub(crate) struct ExistReply<'a> {
    out: &'a mut BytesMut,
    /// `out` may not grow beyond this.
    end: usize,
    /// Where the byte of the first key is.
    first: usize,
    keys: usize,
    answered: usize,
    is_full: bool,
}

impl<'a> ExistReply<'a> {
    /// An answer about `keys` keys.
    pub(crate) fn new(
        out: &'a mut BytesMut,
        keys: usize,
        max_reply: usize,
    ) -> Result<Self, Refusal> {
        if keys + ITEM_FLOOR > max_reply {
            return Err(Refusal::invalid(format!(
                "an answer about {keys} keys has more bytes than the {max_reply} that the caller \
                 accepts; send fewer at a time"
            )));
        }
        let end = out.len() + max_reply;
        let first = put_zeros(out, 2, keys);
        Ok(Self { out, end, first, keys, answered: 0, is_full: false })
    }

    pub(crate) fn exists(&mut self, exists: bool) {
        self.out[self.first + self.answered] = exists.into();
        self.answered += 1;
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        let index = self.answered;
        self.answered += 1;
        let others = (self.keys - self.answered) * ITEM_FLOOR;
        let room = self.end - self.out.len();
        self.is_full |= room < ITEM_FLOOR;
        if self.is_full {
            return;
        }
        let message = refusal.message.as_bytes();
        let fits = ITEM_FLOOR + message.len() + others <= room;
        put_message(self.out, 3, |out| {
            put_u64(out, 1, index as u64);
            put_u64(out, 2, i64::from(refusal.code.code()) as u64);
            if fits {
                put_bytes(out, 3, message);
            }
        });
    }

    /// Refuses the answer when it does not say of every key why it is none.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        if self.is_full {
            return Err(Refusal::invalid(
                "too many of the keys are none to name each of them; send fewer at a time",
            ));
        }
        Ok(())
    }
}

/// The segments that a batch answer has described so far, each with its place
/// counted from 1.
struct SegmentTable {
    /// The field that they are written into.
    number: u32,
    /// Holds the segments, so that no address is used twice while the answer is
    /// written.
    described: Vec<Arc<Segment>>,
    /// Their places. No client chooses an address.
    places: HashMap<*const Segment, u32, FixedState>,
    /// The places of the segments of the item that is being written, in its order.
    named: Vec<u32>,
}

impl SegmentTable {
    fn new(number: u32) -> Self {
        let places = HashMap::with_hasher(FixedState::default());
        Self { number, described: Vec::new(), places, named: Vec::new() }
    }

    fn len(&self) -> usize {
        self.described.len()
    }

    /// Begins an item with these placements, and writes the descriptions of those of their segments
    /// that have none.
    fn describe(&mut self, out: &mut BytesMut, placements: &[Placement]) {
        self.named.clear();
        for Placement { segment, .. } in placements {
            let next = self.described.len() as u32 + 1;
            let place = *self.places.entry(Arc::as_ptr(segment)).or_insert(next);
            self.named.push(place);
            if place == next {
                self.described.push(Arc::clone(segment));
                put_segment(out, self.number, segment);
            }
        }
    }

    /// Names the segments of the item's placements one after the other.
    fn names(&self) -> impl FnMut(&Arc<Segment>) -> Names {
        let mut places = self.named.iter();
        move |_| Names::Index(*places.next().expect("described before its item is written"))
    }

    fn truncate(&mut self, len: usize) {
        for segment in self.described.drain(len..) {
            self.places.remove(&Arc::as_ptr(&segment));
        }
    }
}

/// `SegmentDescriptor`.
fn put_segment(out: &mut BytesMut, number: u32, segment: &Segment) {
    put_message(out, number, |out| {
        let spec = segment.spec();
        put_bytes(out, 1, spec.name.as_bytes());
        put_bytes(out, 2, &spec.id.to_bytes());
        put_bytes(out, 3, spec.endpoint.as_str().as_bytes());
        put_bytes(out, 4, &spec.remote_key.to_bytes());
        put_others(out, 5, &spec.endpoint);
    });
}
