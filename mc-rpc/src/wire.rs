//! A reader of protobuf messages that allocates nothing, so that the reader
//! can bound a count or a length before it costs memory; and the few writers
//! that spare a copy of each key. The format: "Encoding" in the Protocol Buffers
//! documentation.

use bytes::{BufMut, BytesMut};
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};
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
                        each(decode_varint(&mut packed).map_err(|_| WireError::Truncated)?)?;
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
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Field<'a>>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| WireError::UnknownType)?;
        if number == 0 {
            return Err(WireError::UnknownType);
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(*self.chunk()?)),
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
                let bytes;
                (bytes, self.rest) = self.rest.split_at_checked(len).ok_or(WireError::Truncated)?;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(*self.chunk()?)),
            // Groups (3 and 4) are not in proto3.
            _ => return Err(WireError::UnknownType),
        };
        Ok(Some(Field { number, value }))
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        decode_varint(&mut self.rest).map_err(|_| WireError::Truncated)
    }

    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let chunk;
        (chunk, self.rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        Ok(chunk)
    }
}

/// A field's head and perhaps its value, gathered in a register: growing the
/// buffer is checked once instead of for every byte, and the copy reads what one
/// store has written, which processors forward without a stall.
#[derive(Clone, Copy)]
struct Varints {
    word: u128,
    bits: u32,
}

impl Varints {
    /// Begins with a field's number, which is below 2^11, and wire type: 2 bytes
    /// at most.
    fn field(number: u32, wire_type: u32) -> Self {
        Self { word: 0, bits: 0 }.then(u64::from(number << 3 | wire_type))
    }

    /// At most one value follows the field: 10 bytes at most.
    fn then(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.word |= u128::from(value as u8 | 0x80) << self.bits;
            self.bits += 8;
            value >>= 7;
        }
        self.word |= u128::from(value) << self.bits;
        self.bits += 8;
        self
    }

    fn put(self, out: &mut BytesMut) {
        out.extend_from_slice(&self.word.to_le_bytes()[..self.bits as usize / 8]);
    }
}

/// Writes a text or bytes field, nothing when it is empty.
pub(crate) fn put_bytes(out: &mut BytesMut, number: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_item_bytes(out, number, bytes);
    }
}

/// Writes one item of a repeated text or bytes field.
pub(crate) fn put_item_bytes(out: &mut BytesMut, number: u32, bytes: &[u8]) {
    Varints::field(number, 2).then(bytes.len() as u64).put(out);
    out.extend_from_slice(bytes);
}

/// Writes a number, nothing when it is zero.
pub(crate) fn put_u64(out: &mut BytesMut, number: u32, value: u64) {
    if value != 0 {
        put_present_u64(out, number, value);
    }
}

/// Writes a number of an `optional` field, zero too.
pub(crate) fn put_present_u64(out: &mut BytesMut, number: u32, value: u64) {
    Varints::field(number, 0).then(value).put(out);
}

/// Writes a packed repeated varint field, nothing when it is empty.
pub(crate) fn put_varints(
    out: &mut BytesMut,
    number: u32,
    values: impl Iterator<Item = u64> + Clone,
) {
    let len: u64 = values.clone().map(|value| encoded_len_varint(value) as u64).sum();
    if len > 0 {
        Varints::field(number, 2).then(len).put(out);
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
        Varints::field(number, 2).then(values.len() as u64 * 4).put(out);
        values.for_each(|value| out.put_u32_le(value));
    }
}

/// Writes a `fixed32` number, nothing when it is zero.
pub(crate) fn put_fixed32(out: &mut BytesMut, number: u32, value: u32) {
    if value != 0 {
        Varints::field(number, 5).put(out);
        out.put_u32_le(value);
    }
}

/// Writes a `fixed64` number, nothing when it is zero.
pub(crate) fn put_fixed64(out: &mut BytesMut, number: u32, value: u64) {
    if value != 0 {
        Varints::field(number, 1).put(out);
        out.put_u64_le(value);
    }
}

/// Writes a bytes field, or a packed repeated `bool`, of so many zeros, nothing when there
/// are none; says where the first one is.
pub(crate) fn put_zeros(out: &mut BytesMut, number: u32, len: usize) -> usize {
    if len > 0 {
        Varints::field(number, 2).then(len as u64).put(out);
    }
    let first = out.len();
    out.put_bytes(0, len);
    first
}

/// Writes an embedded message that `fill` writes, even when it is empty.
pub(crate) fn put_message(out: &mut BytesMut, number: u32, fill: impl FnOnce(&mut BytesMut)) {
    // Most embedded messages are shorter than 128 bytes and their length takes
    // one byte; a longer one is moved up to make room.
    Varints::field(number, 2).then(0).put(out);
    let at = out.len() - 1;
    fill(out);
    let len = out.len() - at - 1;
    let more = encoded_len_varint(len as u64) - 1;
    if more > 0 {
        out.put_bytes(0, more);
        out.copy_within(at + 1..at + 1 + len, at + 1 + more);
    }
    let mut place = &mut out[at..at + 1 + more];
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
