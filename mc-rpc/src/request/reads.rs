//! The requests of those who read, ranges of objects in particular.

use core::ops::Range;

use bytes::BytesMut;
use mc_meta::RangeRead;
use mc_types::KeyRef;

use super::{Items, MAX_BATCH, key, missing_key, write_key};
use crate::refusal::Refusal;
use crate::wire::{Fields, put_message, put_varints};

/// Most ranges of one object in one call.
pub const MAX_RANGES: usize = 1024;

/// `GetReplicaListRequest`: the key; the ranges are appended to `ranges`, at most
/// [`MAX_RANGES`] of them and none when the request is refused.
pub(crate) fn parse_read<'a>(
    message: &'a [u8],
    ranges: &mut Vec<Range<u64>>,
) -> Result<KeyRef<'a>, Refusal> {
    let first = ranges.len();
    let parsed = parse_read_into(message, first, ranges);
    if parsed.is_err() {
        ranges.truncate(first);
    }
    parsed
}

fn parse_read_into<'a>(
    message: &'a [u8],
    first: usize,
    ranges: &mut Vec<Range<u64>>,
) -> Result<KeyRef<'a>, Refusal> {
    let (mut fields, mut found, mut start) = (Fields::new(message), None, None);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => found = Some(key(field, "key")?),
            2 => field.each_varint(|number| {
                let Some(start) = start.take() else {
                    start = Some(number);
                    return Ok(());
                };
                if ranges.len() - first == MAX_RANGES {
                    return Err(Refusal::invalid(format!(
                        "ranges has more than {MAX_RANGES} ranges"
                    )));
                }
                ranges.push(start..number);
                Ok(())
            })?,
            _ => {}
        }
    }
    if start.is_some() {
        return Err(Refusal::invalid("ranges ends with half a range; each has two numbers"));
    }
    found.ok_or_else(missing_key)
}

fn write_read(out: &mut BytesMut, read: &RangeRead<'_>) {
    write_key(out, read.key);
    put_varints(out, 2, read.ranges.iter().flat_map(|range| [range.start, range.end]));
}

/// `BatchGetReplicaListRequest`.
#[derive(Debug)]
pub(crate) enum BatchReadRequest<'a> {
    /// Whole objects.
    Keys(Items<'a>),
    /// Objects with ranges.
    Reads(RangedReads<'a>),
}

impl<'a> BatchReadRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut has_reads = false;
        let keys = Items::parse(payload, 1, "keys", |field| {
            has_reads |= field.number == 2;
            Ok(())
        })?;
        if !has_reads {
            return Ok(Self::Keys(keys));
        }
        if keys.len() > 0 {
            return Err(Refusal::invalid("both keys and reads are given; name each object once"));
        }
        RangedReads::parse(payload).map(Self::Reads)
    }
}

/// The objects of a batch, each with its ranges: at most [`MAX_BATCH`] objects and as many
/// ranges together.
#[derive(Debug)]
pub(crate) struct RangedReads<'a>(Items<'a>);

impl<'a> RangedReads<'a> {
    fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let items = Items::parse(payload, 2, "reads", |_| Ok(()))?;
        let mut numbers = 0;
        for message in items.messages() {
            let mut fields = Fields::new(message);
            // A malformed message is refused on its own, when its turn comes.
            while let Ok(Some(field)) = fields.next() {
                if field.number == 2 {
                    numbers += field.count_varints();
                }
            }
        }
        if numbers > 2 * MAX_BATCH {
            return Err(Refusal::invalid(format!(
                "reads has more than {MAX_BATCH} ranges; send them in several calls"
            )));
        }
        Ok(Self(items))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the messages for [`parse_read`], in order.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.messages()
    }
}

pub(crate) fn write_reads(out: &mut BytesMut, reads: &[RangeRead<'_>]) {
    for read in reads {
        put_message(out, 2, |out| write_read(out, read));
    }
}
