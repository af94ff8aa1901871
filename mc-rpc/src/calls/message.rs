//! Messages by prost. What arrives is measured before it is decoded: a message of two bytes
//! for each item would cost a hundred times its length.

use bytes::BytesMut;
use prost::{DecodeError, Message};

use crate::answer::{Answer, Status};
use crate::check::BadField;
use crate::client::{MasterClient, blocking};
use crate::error::{MalformedReply, RpcError};
use crate::method::Method;
use crate::refusal::Refusal;
use crate::request::MAX_BATCH;
use crate::service::context::CallContext;
use crate::wire::{Fields, WireError};

/// Most items, of whatever field, in one message.
const MAX_ITEMS: usize = 2 * MAX_BATCH;

/// A message whose parts are known.
pub trait Shaped: Message + Default {
    /// The parts.
    const SHAPE: &'static Shape;
}

/// The request of a call, as the `.proto` declares it: [`MasterClient::request`] sends it.
pub trait RequestMessage: Shaped {
    /// The call.
    const METHOD: Method;
    /// The answer of the call.
    type Answer: Shaped;
}

/// The fields of a message that are repeated or messages.
pub struct Shape(&'static [Part]);

struct Part {
    number: u32,
    name: &'static str,
    repeat: FieldRepeat,
    /// The shape of the field if it is a message.
    message: Option<&'static Shape>,
}

/// How often a field may come.
#[derive(Clone, Copy)]
enum FieldRepeat {
    Once,
    Items,
    /// As items, or many in one field.
    Packed,
}

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

/// Why bytes are not taken as a message.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Wire(WireError),
    Message(DecodeError),
    /// More items than a message may have, of which the last ones are in this field.
    TooMany(&'static str),
}

impl From<WireError> for Unreadable {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        Self::Message(error)
    }
}

impl From<Unreadable> for Refusal {
    fn from(problem: Unreadable) -> Self {
        match problem {
            Unreadable::Wire(error) => error.into(),
            Unreadable::Message(error) => {
                Self::invalid(format!("the request is malformed: {error}"))
            }
            Unreadable::TooMany(name) => Self::invalid(format!(
                "{name} has more than {MAX_ITEMS} items; send them in several calls"
            )),
        }
    }
}

impl From<Unreadable> for MalformedReply {
    fn from(problem: Unreadable) -> Self {
        match problem {
            Unreadable::Wire(error) => error.into(),
            Unreadable::Message(error) => error.into(),
            Unreadable::TooMany(name) => BadField::new(name, "has too many items").into(),
        }
    }
}

/// Counts the items of a message and of those in it, and takes them from `left`.
fn measure(bytes: &[u8], shape: &Shape, left: &mut usize) -> Result<(), Unreadable> {
    let mut fields = Fields::new(bytes);
    while let Some(field) = fields.next()? {
        let Some(part) = shape.0.iter().find(|part| part.number == field.number) else { continue };
        let items = match (part.repeat, field.bytes()) {
            (FieldRepeat::Once, _) => 0,
            // Each number takes a byte at least.
            (FieldRepeat::Packed, Ok(packed)) => packed.len(),
            (FieldRepeat::Packed | FieldRepeat::Items, _) => 1,
        };
        *left = left.checked_sub(items).ok_or(Unreadable::TooMany(part.name))?;
        if let Some(shape) = part.message {
            measure(field.bytes()?, shape, left)?;
        }
    }
    Ok(())
}

fn decode<M: Shaped>(bytes: &[u8]) -> Result<M, Unreadable> {
    measure(bytes, M::SHAPE, &mut { MAX_ITEMS })?;
    Ok(M::decode(bytes)?)
}

/// Writes a request.
pub(crate) fn message(request: impl Message) -> impl FnOnce(&mut BytesMut) {
    move |out| encode(&request, out)
}

fn encode(message: &impl Message, out: &mut BytesMut) {
    message.encode(out).expect("a buffer that grows has room");
}

/// Reads an answer, unless it is a refusal.
fn read_reply<A: Shaped>(bytes: &[u8]) -> Answer<A> {
    let (mut fields, mut status) = (Fields::new(bytes), Status::default());
    while let Some(field) = fields.next()? {
        status.read(field)?;
    }
    status.or(|| Ok(decode(bytes)?))
}

/// Reads an answer, unless it is a refusal, and what it says.
pub(crate) fn reply<A: Shaped, T>(
    read: impl FnOnce(&A) -> Result<T, BadField>,
) -> impl FnOnce(&[u8]) -> Answer<T> {
    |bytes| {
        let answer = read_reply(bytes)?;
        Ok(match answer {
            Ok(answer) => Ok(read(&answer)?),
            Err(refusal) => Err(refusal),
        })
    }
}

impl MasterClient {
    /// Makes any call by its messages, also one without a method here. The fields of the answer are as
    /// the master sent them, unchecked; an answer with more than 131,072 items is malformed.
    ///
    /// # Errors
    /// Fails with an [`RpcError`] that names the cause.
    pub async fn request<Q: RequestMessage>(&self, request: Q) -> Result<Q::Answer, RpcError> {
        self.call(Q::METHOD, message(request), read_reply).await
    }
}

impl blocking::MasterClient {
    /// Makes a call by its messages, as [`MasterClient::request`] does.
    ///
    /// # Errors
    /// Fails with an [`RpcError`] that names the cause.
    pub fn request<Q: RequestMessage>(&self, request: Q) -> Result<Q::Answer, RpcError> {
        self.call(Q::METHOD, message(request), read_reply)
    }
}

/// Reads a request, and appends its answer.
pub(crate) fn exchange<Q: Shaped, A: Message>(
    payload: &[u8],
    out: &mut BytesMut,
    answer: impl FnOnce(&Q) -> Result<A, Refusal>,
) -> Result<(), Refusal> {
    encode(&answer(&decode(payload)?)?, out);
    Ok(())
}

/// The first items that fit into `room` bytes as items of a repeated field whose number is
/// below 16.
pub(crate) fn fit<M: Message>(items: impl Iterator<Item = M>, mut room: usize) -> Vec<M> {
    let fits = |item: &M| {
        let len = item.encoded_len();
        let needed = 1 + prost::length_delimiter_len(len) + len;
        let rest = room.checked_sub(needed);
        room = rest.unwrap_or(0);
        rest.is_some()
    };
    items.take_while(fits).collect()
}

impl CallContext<'_> {
    /// Answers a call whose request and answer are prost's.
    pub(crate) fn cold<Q: Shaped, A: Message>(
        self,
        out: &mut BytesMut,
        answer: impl FnOnce(Self, &Q) -> Result<A, Refusal>,
    ) -> Result<(), Refusal> {
        exchange(self.payload, out, |request| answer(self, request))
    }

    /// Answers a call whose request is prost's.
    pub(crate) fn written<Q: Shaped>(
        self,
        out: &mut BytesMut,
        answer: impl FnOnce(Self, &Q, &mut BytesMut) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        answer(self, &decode(self.payload)?, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    fn refusal<M: Shaped + std::fmt::Debug>(bytes: &[u8]) -> String {
        Refusal::from(decode::<M>(bytes).unwrap_err()).message.into()
    }

    #[test]
    fn items_are_counted_before_they_are_decoded() {
        let full = [b"\x12\0".repeat(MAX_ITEMS), b"\x0a\x01k".to_vec()].concat();
        let read = decode::<proto::NotifyOffloadRequest>(&full).unwrap();
        assert_eq!((read.outcomes.len(), &read.client_id[..]), (MAX_ITEMS, &b"k"[..]));
        let more = b"\x12\0".repeat(MAX_ITEMS + 1);
        let words = refusal::<proto::NotifyOffloadRequest>(&more);
        assert_eq!(words, "outcomes has more than 131072 items; send them in several calls");
        // In messages inside others as well, also when these are no items.
        let targets = b"\x32\0".repeat(MAX_ITEMS / 2);
        let tasks = proto::FetchTasksResponse { tasks: vec![], ..Default::default() };
        let mut nested = tasks.encode_to_vec();
        for _ in 0..2 {
            nested.extend_from_slice(b"\x12");
            prost::encode_length_delimiter(targets.len(), &mut nested).unwrap();
            nested.extend_from_slice(&targets);
        }
        assert!(refusal::<proto::FetchTasksResponse>(&nested).starts_with("targets has more"));
        // Packed numbers.
        let packed =
            proto::PutStartRequest { slice_lengths: vec![1; MAX_ITEMS + 1], ..Default::default() };
        let words = refusal::<proto::PutStartRequest>(&packed.encode_to_vec());
        assert!(words.starts_with("slice_lengths has more"), "{words}");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bad in [&b"\x12"[..], b"\x12\x05k", b"\x0b", b"\x12\x03\x0a\x01", b"\x0a\x01\xff"] {
            let words = refusal::<proto::CreateCopyTaskRequest>(bad);
            assert!(words.starts_with("the request is malformed: "), "{words}");
        }
        assert!(decode::<proto::CreateCopyTaskRequest>(b"\x7a\x01x").is_ok(), "an unknown field");
    }

    #[test]
    fn as_many_items_are_taken_as_fit() {
        let item = |len: usize| proto::TenantQuota { tenant_id: "x".repeat(len), requested: 0 };
        let items: Vec<_> = [1, 126, 127, 1].map(item).into();
        let list = |quotas: &[proto::TenantQuota]| {
            proto::ReplaceTenantQuotasRequest { quotas: quotas.to_vec() }.encoded_len()
        };
        for count in 0..=items.len() {
            let room = list(&items[..count]);
            assert_eq!(fit(items.iter().cloned(), room).len(), count);
            if count > 0 {
                assert_eq!(fit(items.iter().cloned(), room - 1).len(), count - 1);
            }
        }
    }
}
