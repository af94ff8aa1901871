//! Reads answers from the wire. Field numbers as in the `.proto`.

mod objects;

use std::sync::Arc;

use mc_meta::{ClientStatus, MAX_FETCHED_TASKS, MAX_HANDED_CHECKS, ReplicaCheck};
use mc_ticket::ClockEpoch;
use mc_types::{Endpoint, Extent, MAX_OTHER_ENDPOINTS, RemoteKey, SegmentId, Time};

use super::{ClockReading, DISK_WORK, Pong, SegmentLocation};
use crate::check;
use crate::error::MalformedReply;
use crate::proto::ping_response;
use crate::refusal::Refusal;
use crate::wire::{Field, Fields};

pub(crate) use objects::{
    ListParts, SliceList, push_replica, read_grant, read_grants, read_ranged_lists,
    read_replica_list, read_replica_lists,
};

/// An answer that is either what was asked for or a refusal. Over the native
/// protocol the refusal of a whole call comes as an error frame; a server that
/// puts it into the answer is understood as well.
pub(crate) type Answer<T> = Result<Result<T, Refusal>, MalformedReply>;

/// `status_code` and `message`, which every answer has.
#[derive(Default)]
pub(crate) struct Status<'a> {
    code: i32,
    message: &'a [u8],
}

impl<'a> Status<'a> {
    pub(crate) fn read(&mut self, field: Field<'a>) -> Result<(), MalformedReply> {
        match field.number {
            1 => self.code = field.i32()?,
            15 => self.message = field.bytes()?,
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn or<T>(
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
    MalformedReply::Field { field, problem: problem.into() }
}

pub(super) fn name(field: Field<'_>) -> Result<Box<str>, MalformedReply> {
    Ok(check::segment_name(field.text()?, "segment_name")?.into())
}

pub(super) fn endpoint(field: Field<'_>) -> Result<Endpoint, MalformedReply> {
    Ok(check::endpoint(field.text()?)?)
}

pub(super) fn segment_id(field: Field<'_>) -> Result<SegmentId, MalformedReply> {
    Ok(check::id(field.bytes()?, "segment_id", SegmentId::from_bytes)?)
}

/// The parts of a segment's description as they arrive.
#[derive(Default)]
struct SegmentParts {
    name: Box<str>,
    id: Option<SegmentId>,
    endpoint: Option<Endpoint>,
    others: Vec<Endpoint>,
    remote_key: Option<RemoteKey>,
}

impl SegmentParts {
    fn id(&self) -> Result<SegmentId, MalformedReply> {
        self.id.ok_or_else(|| problem("segment_id", "is missing"))
    }

    fn add_other(&mut self, field: Field<'_>) -> Result<(), MalformedReply> {
        if self.others.len() < MAX_OTHER_ENDPOINTS {
            self.others.push(endpoint(field)?);
        }
        Ok(())
    }

    fn finish(self) -> Result<Arc<SegmentLocation>, MalformedReply> {
        Ok(Arc::new(SegmentLocation {
            id: self.id()?,
            name: self.name,
            endpoint: self
                .endpoint
                .ok_or_else(|| problem("endpoint", "is missing"))?
                .with_others(self.others),
            remote_key: self.remote_key.ok_or_else(|| problem("remote_key", "is missing"))?,
        }))
    }
}

/// `SegmentDescriptor`.
fn read_segment(message: &[u8]) -> Result<Arc<SegmentLocation>, MalformedReply> {
    let (mut fields, mut parts) = (Fields::new(message), SegmentParts::default());
    while let Some(field) = fields.next()? {
        match field.number {
            1 => parts.name = name(field)?,
            2 => parts.id = Some(segment_id(field)?),
            3 => parts.endpoint = Some(endpoint(field)?),
            4 => parts.remote_key = Some(read_remote_key(field)?),
            5 => parts.add_other(field)?,
            _ => {}
        }
    }
    parts.finish()
}

fn read_remote_key(field: Field<'_>) -> Result<RemoteKey, MalformedReply> {
    Ok(check::id(field.bytes()?, "remote_key", RemoteKey::from_bytes)?)
}

/// An answer that only says how it went.
pub(crate) fn read_done(message: &[u8]) -> Answer<()> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    while let Some(field) = fields.next()? {
        status.read(field)?;
    }
    status.or(|| Ok(()))
}

/// `RemoveAllResponse`, `RemoveByRegexResponse`, and with 0 and 1
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
    let (mut view, mut client_status, mut tasks, mut disk_work) = (0, 0, 0, 0);
    let (mut clock, mut checks) = (ClockParts::default(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 => view = field.u64()?,
            3 => client_status = field.i32()?,
            4 => tasks = field.u32()?,
            5 => clock.epoch = field.fixed64()?,
            6 => clock.now = field.u64()?,
            7 if checks.len() == MAX_HANDED_CHECKS => {
                return Err(problem("checks", "has too many checks"));
            }
            7 => checks.push(read_check(field.bytes()?)?),
            8 => disk_work = field.u32()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let status = match ping_response::ClientStatus::try_from(client_status) {
            Ok(ping_response::ClientStatus::Ok) => ClientStatus::Ok,
            Ok(ping_response::ClientStatus::NeedRemount) => ClientStatus::NeedRemount,
            _ => return Err(problem("client_status", "is unknown")),
        };
        let tasks = (tasks as usize).min(MAX_FETCHED_TASKS);
        let disk_work = (disk_work != 0).then_some(disk_work == DISK_WORK);
        Ok(Pong { view, status, tasks, disk_work, clock: clock.finish(), checks })
    })
}

/// `ReplicaCheck`.
fn read_check(message: &[u8]) -> Result<ReplicaCheck, MalformedReply> {
    let (mut fields, mut slices) = (Fields::new(message), SliceList::default());
    let (mut id, mut segment, mut offset, mut len, mut on_disk) = (0, None, 0, 0, false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => id = field.u64()?,
            2 => segment = Some(segment_id(field)?),
            3 => offset = field.u64()?,
            4 => len = field.u64()?,
            5 => slices.push(field.bytes()?)?,
            6 => on_disk = field.u64()? != 0,
            _ => {}
        }
    }
    let (slices, total) = slices.finish()?;
    if total != len {
        return Err(problem("slices", "are not as long as the replica"));
    }
    let segment = segment.ok_or_else(|| problem("segment_id", "is missing"))?;
    Ok(ReplicaCheck {
        id,
        segment: (!on_disk).then_some(segment),
        extent: Extent::new(offset, len).ok_or_else(|| problem("offset", "is too large"))?,
        slices,
    })
}

/// The master's clock as it arrives.
#[derive(Default)]
struct ClockParts {
    epoch: u64,
    now: u64,
}

impl ClockParts {
    fn finish(self) -> ClockReading {
        ClockReading { epoch: ClockEpoch::new(self.epoch), now: Time::from_millis(self.now) }
    }
}

/// The fields of a batch answer whose items name no segments: 0 is no field's number.
const NO_TABLE: [u32; 2] = [0, 2];

/// The items of a batch answer, in the order of the request.
pub(crate) type Items<T> = Vec<Result<T, Refusal>>;

/// Reads a batch answer to `asked` items, which are in the repeated field `number`; the
/// segments that they name are in the field `table_number`, if there are any.
fn read_batch<'a, T>(
    message: &'a [u8],
    [table_number, number]: [u32; 2],
    asked: usize,
    mut item: impl FnMut(&'a [u8], &[Arc<SegmentLocation>]) -> Answer<T>,
) -> Answer<Items<T>> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut count, mut table) = (0, Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            field_number if field_number == number => count += 1,
            field_number if field_number == table_number => {
                table.push(read_segment(field.bytes()?)?);
            }
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

/// `BatchPutEndResponse`, `BatchPutRevokeResponse`, `BatchRemoveResponse`.
pub(crate) fn read_all_done(message: &[u8], asked: usize) -> Answer<Items<()>> {
    read_batch(message, NO_TABLE, asked, |item, _| read_done(item))
}

/// `BatchExistKeyResponse`.
pub(crate) fn read_all_exist(message: &[u8], asked: usize) -> Answer<Items<bool>> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut items, mut refusals) = (Vec::with_capacity(asked), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 => field.each_varint(|exists| {
                if items.len() == asked {
                    return Err(MalformedReply::ItemCount { asked, items: asked + 1 });
                }
                items.push(Ok(exists != 0));
                Ok(())
            })?,
            3 if refusals.len() == asked => return Err(problem("refusals", "has too many items")),
            3 => refusals.push(read_item_refusal(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if items.len() != asked {
            return Err(MalformedReply::ItemCount { asked, items: items.len() });
        }
        for (index, refusal) in refusals {
            *items.get_mut(index).ok_or_else(|| problem("index", "names no item"))? = Err(refusal);
        }
        Ok(items)
    })
}

/// `ItemRefusal`: which item, and why.
fn read_item_refusal(message: &[u8]) -> Result<(usize, Refusal), MalformedReply> {
    let (mut fields, mut index, mut code, mut text) = (Fields::new(message), 0, 0, &b""[..]);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => index = field.u32()?,
            2 => code = field.i32()?,
            3 => text = field.bytes()?,
            _ => {}
        }
    }
    if code == 0 {
        return Err(problem("status_code", "is missing"));
    }
    Ok((index as usize, Refusal::from_wire(code, text)))
}
