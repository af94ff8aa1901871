//! A reader of protobuf messages that allocates nothing, so that the reader
//! can bound a count or a length before it costs memory; and the few writers
//! that spare a copy of each key. The format: "Encoding" in the Protocol Buffers
//! documentation.

use bytes::{BufMut, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};
use thiserror::Error;

/// Why bytes are not a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum WireError {
    /// The message ends inside a field, or a number has more than 64 bits.
    #[error("the message is cut off or a number in it is too long")]
    Truncated,
    /// A field has a type that the format does not have, or no number.
    #[error("the message has a field of an unknown type")]
    UnknownType,
    /// A known field has another type than the `.proto` says.
    #[error("field {number} has another type than expected")]
    OtherType { number: u32 },
    /// A text is not UTF-8.
    #[error("field {number} is not UTF-8")]
    NotText { number: u32 },
}

/// A field's value, borrowed from the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    value: Value<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], WireError> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::OtherType { number: self.number }),
        }
    }

    pub(crate) fn text(self) -> Result<&'a str, WireError> {
        let bytes = self.bytes()?;
        core::str::from_utf8(bytes).map_err(|_| WireError::NotText { number: self.number })
    }

    pub(crate) fn u64(self) -> Result<u64, WireError> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(WireError::OtherType { number: self.number }),
        }
    }

    /// As every protobuf reader does, takes the low 32 bits.
    pub(crate) fn u32(self) -> Result<u32, WireError> {
        self.u64().map(|number| number as u32)
    }

    /// As every protobuf reader does, takes the low 32 bits.
    pub(crate) fn i32(self) -> Result<i32, WireError> {
        self.u64().map(|number| number as i32)
    }

    pub(crate) fn bool(self) -> Result<bool, WireError> {
        self.u64().map(|number| number != 0)
    }

    pub(crate) fn fixed32(self) -> Result<u32, WireError> {
        match self.value {
            Value::Fixed32(number) => Ok(number),
            _ => Err(WireError::OtherType { number: self.number }),
        }
    }

    pub(crate) fn fixed64(self) -> Result<u64, WireError> {
        match self.value {
            Value::Fixed64(number) => Ok(number),
            _ => Err(WireError::OtherType { number: self.number }),
        }
    }

    /// Calls `each` for every number of a repeated varint field, packed or not.
    pub(crate) fn each_varint<E: From<WireError>>(
        self,
        mut each: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.value {
            Value::Varint(number) => each(number),
            Value::Bytes(mut packed) => {
                while let [first, rest @ ..] = packed {
                    if *first < 0x80 {
                        packed = rest;
                        each(u64::from(*first))?;
                    } else {
                        let (number, len) = long_varint(packed)?;
                        packed = &packed[len..];
                        each(number)?;
                    }
                }
                Ok(())
            }
            _ => Err(WireError::OtherType { number: self.number }.into()),
        }
    }

    /// How many numbers [`each_varint`](Self::each_varint) would find.
    pub(crate) fn count_varints(self) -> usize {
        match self.value {
            // The last byte of each number, and no other, has its highest bit clear.
            Value::Bytes(packed) => packed.iter().filter(|byte| **byte < 0x80).count(),
            _ => 1,
        }
    }

    /// Calls `each` for every number of a repeated `fixed32` field, packed or not.
    pub(crate) fn each_fixed32<E: From<WireError>>(
        self,
        mut each: impl FnMut(u32) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.value {
            Value::Fixed32(number) => each(number),
            Value::Bytes(packed) => {
                let (numbers, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(WireError::Truncated.into());
                }
                numbers.iter().try_for_each(|number| each(u32::from_le_bytes(*number)))
            }
            _ => Err(WireError::OtherType { number: self.number }.into()),
        }
    }
}

/// The fields of one message in the order in which they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    message: &'a [u8],
    /// Where the next field begins, at most the message's length.
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    /// The next field; `None` at the end.
    ///
    /// Inlined into the loops that read the messages of gets and puts, where a field takes half as many
    /// instructions so.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a>>, WireError> {
        let Some(first) = self.message.get(self.at) else { return Ok(None) };
        let (number, wire_type) = match *first {
            tag @ 8..0x80 => {
                self.at += 1;
                (u32::from(tag >> 3), tag & 7)
            }
            _ => self.long_tag()?,
        };
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(*self.chunk()?)),
            2 => Value::Bytes(self.bytes()?),
            5 => Value::Fixed32(u32::from_le_bytes(*self.chunk()?)),
            // Groups (3 and 4) are not in proto3.
            _ => return Err(WireError::UnknownType),
        };
        Ok(Some(Field { number, value }))
    }

    /// Where in the message the next field begins.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Reads the tag of a field whose number is not below 16, or that is none.
    #[cold]
    fn long_tag(&mut self) -> Result<(u32, u8), WireError> {
        let tag = self.varint()?;
        match u32::try_from(tag >> 3) {
            Ok(number @ 1..) => Ok((number, tag as u8 & 7)),
            _ => Err(WireError::UnknownType),
        }
    }

    #[inline(always)]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.message.get(self.at) {
            Some(byte @ 0..0x80) => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => {
                let (value, len) = long_varint(self.rest())?;
                self.at += len;
                Ok(value)
            }
        }
    }

    #[inline(always)]
    fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
        let bytes = self.rest().get(..len).ok_or(WireError::Truncated)?;
        self.at += len;
        Ok(bytes)
    }

    #[inline(always)]
    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let chunk = self.rest().first_chunk().ok_or(WireError::Truncated)?;
        self.at += N;
        Ok(chunk)
    }

    #[inline(always)]
    fn rest(&self) -> &'a [u8] {
        &self.message[self.at..]
    }
}

/// Reads a number of two bytes or more, up to eight of them at once, and says how many they are.
fn long_varint(bytes: &[u8]) -> Result<(u64, usize), WireError> {
    if let [low, high @ 0..0x80, ..] = bytes {
        return Ok((u64::from(*low & 0x7f) | u64::from(*high) << 7, 2));
    }
    // As if enough bytes followed that end no number.
    let mut padded = [0xff; 10];
    let [word @ .., ninth, tenth] = bytes.first_chunk().unwrap_or_else(|| {
        padded[..bytes.len()].copy_from_slice(bytes);
        &padded
    });
    let word = u64::from_le_bytes(*word);
    let ends = !word & MORE;
    if ends != 0 {
        // The bytes up to the first one that no other follows.
        return Ok((joined(word & (ends ^ (ends - 1))), ends.trailing_zeros() as usize / 8 + 1));
    }
    let value = joined(word) | u64::from(*ninth & 0x7f) << 56;
    match (ninth, tenth) {
        (0..0x80, _) => Ok((value, 9)),
        (_, 0..2) => Ok((value | u64::from(*tenth) << 63, 10)),
        _ => Err(WireError::Truncated),
    }
}

/// The first byte of a field whose number is below 16, as those of every message are that is written
/// here.
const fn tag(number: u32, wire_type: u32) -> u8 {
    debug_assert!(number < 16, "the tag has one byte");
    (number << 3 | wire_type) as u8
}

/// The bit of each byte of a number that says that another one follows.
const MORE: u64 = 0x8080_8080_8080_8080;

/// Spreads the low 56 bits of a number over eight bytes, seven in each.
const fn spread(value: u64) -> u64 {
    let value = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
    let value = value & 0x0000_3fff_0000_3fff | (value & 0x0fff_c000_0fff_c000) << 2;
    value & 0x007f_007f_007f_007f | (value & 0x3f80_3f80_3f80_3f80) << 1
}

/// Joins the low seven bits of each byte; the inverse of [`spread`].
const fn joined(bytes: u64) -> u64 {
    let value = bytes & 0x007f_007f_007f_007f | (bytes & 0x7f00_7f00_7f00_7f00) >> 1;
    let value = value & 0x0000_3fff_0000_3fff | (value & 0x3fff_0000_3fff_0000) >> 2;
    value & 0x0fff_ffff | (value & 0x0fff_ffff_0000_0000) >> 4
}

/// The bytes of a number, and how many they are.
const fn varint(value: u64) -> (u128, usize) {
    let (low, high) = (spread(value), value >> 56);
    if high == 0 {
        let more = value.ilog2() / 7;
        return ((low | MORE & ((1 << (8 * more)) - 1)) as u128, more as usize + 1);
    }
    let (low, len) = ((low | MORE) as u128, if high < 0x80 { 9 } else { 10 });
    // The ninth byte's highest bit is the number's, and says that a tenth one with that bit follows.
    (low | (high as u128) << 64 | ((high >> 7) as u128) << 72, len)
}

/// Writes a tag and a number.
#[inline]
fn put_tagged(out: &mut BytesMut, tag: u8, value: u64) {
    match value {
        0..0x80 => out.extend_from_slice(&[tag, value as u8]),
        0x80..0x4000 => {
            out.extend_from_slice(&[tag, value as u8 | 0x80, (value >> 7) as u8]);
        }
        _ => put_long_tagged(out, tag, value),
    }
}

/// Writes a tag and a number of three bytes or more.
///
/// They are gathered in registers: the buffer is checked for room once and not for every byte, and
/// the copy has a length that the compiler knows. What it copies beyond the number is cut off again.
fn put_long_tagged(out: &mut BytesMut, tag: u8, value: u64) {
    let (bytes, len) = varint(value);
    let end = out.len() + 1 + len;
    out.extend_from_slice(&(bytes << 8 | u128::from(tag)).to_le_bytes());
    out.truncate(end);
}

/// Writes a text or bytes field, nothing when it is empty.
pub(crate) fn put_bytes(out: &mut BytesMut, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_item_bytes(out, number, bytes);
    }
}

/// Writes one item of a repeated text or bytes field.
#[inline]
pub(crate) fn put_item_bytes(out: &mut BytesMut, number: u32, bytes: &[u8]) {
    put_tagged(out, tag(number, 2), bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a number, nothing when it is zero.
#[inline]
pub(crate) fn put_u64(out: &mut BytesMut, number: u32, value: u64) {
    if value != 0 {
        put_present_u64(out, number, value);
    }
}

/// Writes a number of an `optional` field, zero too.
#[inline]
pub(crate) fn put_present_u64(out: &mut BytesMut, number: u32, value: u64) {
    put_tagged(out, tag(number, 0), value);
}

/// Writes a packed repeated varint field, nothing when it is empty.
pub(crate) fn put_varints(
    out: &mut BytesMut,
    number: u32,
    values: impl Iterator<Item = u64> + Clone,
) {
    let len: u64 = values.clone().map(|value| encoded_len_varint(value) as u64).sum();
    if len > 0 {
        put_tagged(out, tag(number, 2), len);
        for value in values {
            encode_varint(value, out);
        }
    }
}

/// Writes a packed repeated `fixed32` field, nothing when it is empty.
pub(crate) fn put_fixed32s(
    out: &mut BytesMut,
    number: u32,
    values: impl ExactSizeIterator<Item = u32>,
) {
    if values.len() != 0 {
        put_tagged(out, tag(number, 2), values.len() as u64 * 4);
        values.for_each(|value| out.put_u32_le(value));
    }
}

/// Writes a `fixed32` number, nothing when it is zero.
pub(crate) fn put_fixed32(out: &mut BytesMut, number: u32, value: u32) {
    if value != 0 {
        out.put_u8(tag(number, 5));
        out.put_u32_le(value);
    }
}

/// Writes a `fixed64` number, nothing when it is zero.
#[inline]
pub(crate) fn put_fixed64(out: &mut BytesMut, number: u32, value: u64) {
    if value != 0 {
        let mut field = [tag(number, 1); 9];
        field[1..].copy_from_slice(&value.to_le_bytes());
        out.extend_from_slice(&field);
    }
}

/// Writes a bytes field, or a packed repeated `bool`, of so many zeros, nothing when there
/// are none; says where the first one is.
pub(crate) fn put_zeros(out: &mut BytesMut, number: u32, len: usize) -> usize {
    if len > 0 {
        put_tagged(out, tag(number, 2), len as u64);
    }
    let first = out.len();
    out.put_bytes(0, len);
    first
}

/// Writes an embedded message that `fill` writes, even when it is empty.
#[inline]
pub(crate) fn put_message(out: &mut BytesMut, number: u32, fill: impl FnOnce(&mut BytesMut)) {
    out.extend_from_slice(&[tag(number, 2), 0]);
    let begin = out.len();
    fill(out);
    // Most embedded messages are shorter than 128 bytes and their length takes one byte.
    match out.len() - begin {
        len @ 0..0x80 => out[begin - 1] = len as u8,
        len => put_long_len(out, begin, len),
    }
}

/// Writes the length of a long embedded message into the byte before its beginning, and moves the
/// message up for the bytes that have no room there.
fn put_long_len(out: &mut BytesMut, begin: usize, len: usize) {
    let more = encoded_len_varint(len as u64) - 1;
    out.put_bytes(0, more);
    out.copy_within(begin..begin + len, begin + more);
    let mut place = &mut out[begin - 1..begin + more];
    encode_varint(len as u64, &mut place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn every_wire_type_is_read_and_groups_are_not() {
        let message = b"\x08\x96\x01\x11\x01\0\0\0\0\0\0\0\x1a\x02hi\x25\x02\0\0\0";
        let mut fields = Fields::new(message);
        let mut values = Vec::new();
        while let Some(field) = fields.next().unwrap() {
            values.push((field.number, field.value));
        }
        assert_eq!(
            values,
            [
                (1, Value::Varint(150)),
                (2, Value::Fixed64(1)),
                (3, Value::Bytes(b"hi")),
                (4, Value::Fixed32(2)),
            ]
        );
        for bad in [&b"\x0b"[..], b"\x00\x00", b"\x08", b"\x1a\x05hi", b"\x0f", b"\x25\0\0"] {
            assert!(Fields::new(bad).next().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_of_every_length_are_those_of_prost() {
        let powers = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, u64::MAX >> bit]);
        for number in powers.chain([0x0123_4567_89ab_cdef]) {
            let (mut ours, mut theirs) = (BytesMut::new(), BytesMut::from(&b"\x18"[..]));
            put_present_u64(&mut ours, 3, number);
            encode_varint(number, &mut theirs);
            assert_eq!(ours, theirs);
            // With nothing behind it, and with more.
            for _ in 0..2 {
                let field = Fields::new(&ours).next().unwrap().unwrap();
                assert_eq!((field.number, field.value), (3, Value::Varint(number)));
                ours.extend_from_slice(&[0xff; 16]);
            }
        }
        // A number that is longer than it need be, and those that are too long.
        fn long(bytes: &[u8]) -> Result<Value<'_>, WireError> {
            Fields::new(bytes).next().map(|field| field.unwrap().value)
        }
        for rest in [0, 20] {
            let number = |last: &[u8]| [b"\x08\x80\x80\x80", last, &vec![0; rest]].concat();
            assert_eq!(long(&number(b"\0")), Ok(Value::Varint(0)));
            assert_eq!(long(&number(b"\x80\x80\x80\x80\x80\x80\x01")), Ok(Value::Varint(1 << 63)));
            for bad in [&b"\x80\x80\x80\x80\x80\x80\x02"[..], b"\xff\xff\xff\xff\xff\xff\xff\0"] {
                assert_eq!(long(&number(bad)), Err(WireError::Truncated));
            }
        }
    }

    proptest! {
        #[test]
        fn embedded_messages_of_any_length_read_as_prost_reads_them(
            lengths in prop::collection::vec(any::<u64>(), 0..400),
            key in "[a-z]{0,300}",
        ) {
            let mut out = BytesMut::new();
            put_bytes(&mut out, 1, b"0123456789abcdef");
            put_message(&mut out, 3, |out| {
                put_bytes(out, 1, key.as_bytes());
                put_varints(out, 3, lengths.iter().copied());
            });
            let decoded = proto::BatchPutStartRequest::decode(&out[..]).unwrap();
            prop_assert_eq!(&decoded.puts[0].key, &key);
            prop_assert_eq!(&decoded.puts[0].slice_lengths, &lengths);
            prop_assert_eq!(decoded.encode_to_vec(), &out[..]);
        }

        #[test]
        fn arbitrary_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut fields = Fields::new(&bytes);
            while let Ok(Some(field)) = fields.next() {
                let _ = field.each_varint(|_| Ok::<_, WireError>(()));
                let _ = field.each_fixed32(|_| Ok::<_, WireError>(()));
            }
        }
    }
}
