//! The question where clients serve their segments.

use bytes::BytesMut;
use mc_types::ClientId;

use super::{Items, sixteen};
use crate::error::Refusal;
use crate::wire::put_item_bytes;

/// `BatchQueryIpRequest`.
pub(crate) fn parse_client_ids(payload: &[u8]) -> Result<Vec<ClientId>, Refusal> {
    let ids = Items::parse(payload, 1, "client_ids", |_| Ok(()))?;
    ids.messages().map(|id| sixteen(id, "client_ids").map(ClientId::from_bytes)).collect()
}

pub(crate) fn write_client_ids(out: &mut BytesMut, clients: &[ClientId]) {
    for client in clients {
        put_item_bytes(out, 1, &client.to_bytes());
    }
}
