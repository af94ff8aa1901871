//! Requests: parsed once into checked types on the master's side, written
//! without copies on the client's. Each pair stands together, numbers as in the
//! `.proto`.

mod heartbeat;
mod leases;
mod put;
mod reads;
mod tenant_key;

use core::fmt;

use bytes::BytesMut;
use mc_meta::MAX_SEGMENT_NAME_LEN;
use mc_types::{ClientId, ErrorCode, KeyRef};

use crate::refusal::Refusal;
use crate::wire::{Field, Fields, WireError, put_bytes, put_item_bytes, put_u64};

pub use heartbeat::{Heartbeat, MAX_PEER_SPEEDS, NodeLoad, PeerSpeed};
pub(crate) use heartbeat::{PingRequest, write_heartbeat};
pub(crate) use leases::{BatchRenewRequest, parse_renew};
pub use put::PutStartItem;
pub(crate) use put::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest, Repeated,
};
pub use reads::MAX_RANGES;
pub(crate) use reads::{BatchReadRequest, RangedReads, parse_read, write_reads};
pub use tenant_key::TenantKey;

/// Most items in one batch call.
pub const MAX_BATCH: usize = 65_536;

/// Most keys in one page of a listing.
pub const MAX_PAGE: usize = 8192;

pub(crate) const DEFAULT_PAGE: usize = 1000;

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::invalid(format!("the request is malformed: {error}"))
    }
}

fn key<'a>(field: Field<'a>, name: &'static str) -> Result<KeyRef<'a>, Refusal> {
    key_of_text(core::str::from_utf8(field.bytes()?).ok(), name)
}

/// A key from its text; `None` is one that is not UTF-8.
fn key_of_text<'a>(text: Option<&'a str>, name: &'static str) -> Result<KeyRef<'a>, Refusal> {
    let bad = |problem: &dyn fmt::Display| {
        Refusal::new(ErrorCode::InvalidKey, format!("{name}: {problem}"))
    };
    let text = text.ok_or_else(|| bad(&"the key is not UTF-8"))?;
    KeyRef::new(text).map_err(|error| bad(&error))
}

fn missing_key() -> Refusal {
    Refusal::new(ErrorCode::InvalidKey, "key: the key is empty; a key has at least one byte")
}

fn sixteen(bytes: &[u8], name: &'static str) -> Result<[u8; 16], Refusal> {
    bytes
        .try_into()
        .map_err(|_| Refusal::invalid(format!("{name} has {} bytes, not 16", bytes.len())))
}

pub(crate) fn client(field: Field<'_>) -> Result<ClientId, Refusal> {
    sixteen(field.bytes()?, "client_id").map(ClientId::from_bytes)
}

fn no_client() -> Refusal {
    Refusal::invalid("client_id is missing; it says who calls")
}

fn segment_name<'a>(field: Field<'a>, name: &'static str) -> Result<&'a str, Refusal> {
    let text = field.text()?;
    if text.len() > MAX_SEGMENT_NAME_LEN {
        return Err(Refusal::invalid(format!(
            "{name} has {} bytes; the limit is {MAX_SEGMENT_NAME_LEN}",
            text.len()
        )));
    }
    Ok(text)
}

pub(crate) fn write_key(out: &mut BytesMut, key: KeyRef<'_>) {
    put_bytes(out, 1, key.as_str().as_bytes());
}

/// The items of a batch: embedded messages or keys of one field. Their number
/// is bounded and the message around them is sound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items<'a> {
    payload: &'a [u8],
    number: u32,
    count: usize,
}

impl<'a> Items<'a> {
    fn parse(
        payload: &'a [u8],
        number: u32,
        name: &'static str,
        mut other: impl FnMut(Field<'a>) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let (mut fields, mut count) = (Fields::new(payload), 0);
        while let Some(field) = fields.next()? {
            if field.number == number {
                field.bytes()?;
                count += 1;
                if count > MAX_BATCH {
                    return Err(Refusal::invalid(format!(
                        "{name} has more than {MAX_BATCH} items; send them in several calls"
                    )));
                }
            } else {
                other(field)?;
            }
        }
        Ok(Self { payload, number, count })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The bytes of each item, and where in the payload they end.
    fn fields(&self) -> impl Iterator<Item = (&'a [u8], usize)> + use<'a> {
        let (mut fields, number) = (Fields::new(self.payload), self.number);
        // `parse` has walked the same bytes to their end.
        core::iter::from_fn(move || {
            loop {
                let field = fields.next().ok()??;
                if field.number == number {
                    return Some((field.bytes().ok()?, fields.position()));
                }
            }
        })
    }

    /// The items as keys, each good or bad on its own.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Result<KeyRef<'a>, Refusal>> + use<'a> {
        // A request of nothing but short keys of ASCII is a text as a whole, which takes a tenth of the
        // time to find out that it takes key by key.
        let payload = core::str::from_utf8(self.payload).ok();
        let text = move |(bytes, end): (&'a [u8], usize)| match payload {
            Some(payload) => payload.get(end - bytes.len()..end),
            None => core::str::from_utf8(bytes).ok(),
        };
        self.fields().map(move |item| key_of_text(text(item), "keys"))
    }

    fn messages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.fields().map(|(message, _)| message)
    }
}

/// A request that lists keys and nothing else.
pub(crate) fn parse_keys(payload: &[u8]) -> Result<Items<'_>, Refusal> {
    Items::parse(payload, 1, "keys", |_| Ok(()))
}

pub(crate) fn write_keys(out: &mut BytesMut, keys: &[KeyRef<'_>]) {
    out.reserve(keys.iter().map(|key| key.as_str().len() + 3).sum());
    for key in keys {
        put_item_bytes(out, 1, key.as_str().as_bytes());
    }
}

/// `RemoveRequest` and `ExistKeyRequest`: a key, and whether by force or without a lease.
pub(crate) fn parse_flagged_key(payload: &[u8]) -> Result<(KeyRef<'_>, bool), Refusal> {
    let (mut fields, mut found, mut flag) = (Fields::new(payload), None, false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => found = Some(key(field, "key")?),
            2 => flag = field.bool()?,
            _ => {}
        }
    }
    Ok((found.ok_or_else(missing_key)?, flag))
}

pub(crate) fn write_flagged_key(out: &mut BytesMut, key: KeyRef<'_>, flag: bool) {
    write_key(out, key);
    put_u64(out, 2, flag.into());
}

/// `BatchRemoveRequest` and `BatchExistKeyRequest`.
pub(crate) fn parse_flagged_keys(payload: &[u8]) -> Result<(Items<'_>, bool), Refusal> {
    let mut flag = false;
    let items = Items::parse(payload, 1, "keys", |field| {
        if field.number == 2 {
            flag = field.bool()?;
        }
        Ok(())
    })?;
    Ok((items, flag))
}

pub(crate) fn write_flagged_keys(out: &mut BytesMut, keys: &[KeyRef<'_>], flag: bool) {
    write_keys(out, keys);
    put_u64(out, 2, flag.into());
}

pub(crate) fn write_ping(out: &mut BytesMut, client: ClientId) {
    put_bytes(out, 1, &client.to_bytes());
}
