//! The request to take replicas back.

use bytes::BytesMut;
use mc_types::{ClientId, KeyRef};

use super::{Items, client, no_client, segment_name, write_keys};
use crate::error::Refusal;
use crate::wire::put_bytes;

/// `BatchReplicaClearRequest`.
#[derive(Debug)]
pub(crate) struct ClearRequest<'a> {
    pub(crate) keys: Items<'a>,
    pub(crate) client: ClientId,
    /// `None` for every segment.
    pub(crate) segment_name: Option<&'a str>,
}

impl<'a> ClearRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut who, mut name) = (None, "");
        let keys = Items::parse(payload, 1, "object_keys", |field| {
            match field.number {
                2 => who = Some(client(field)?),
                3 => name = segment_name(field, "segment_name")?,
                _ => {}
            }
            Ok(())
        })?;
        let segment_name = (!name.is_empty()).then_some(name);
        Ok(Self { keys, client: who.ok_or_else(no_client)?, segment_name })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        keys: &[KeyRef<'_>],
        segment_name: Option<&str>,
    ) {
        write_keys(out, keys);
        put_bytes(out, 2, &client.to_bytes());
        put_bytes(out, 3, segment_name.unwrap_or_default().as_bytes());
    }
}
