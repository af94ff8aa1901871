//! Peers that are played by hand, in the protocol of `docs/tcp-wire.md`.

use std::time::Duration;

use mc_transport::RemoteSpan;
use mc_types::{Extent, RemoteKey};

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const WELCOME: &[u8; 16] = b"MCT1\x03\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00";

/// The description that a server sends of itself behind it.
pub(crate) const DESCRIPTION: &[u8; 42] = b"\x26\0\0\0node 00112233445566778899aabbccddeeff\n";

pub(crate) const KEY: RemoteKey = RemoteKey::from_bytes([7; 16]);

pub(crate) fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).unwrap())
}

pub(crate) fn request(op: u8, id: u32, key: RemoteKey, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![op, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(key.to_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}

pub(crate) fn response(status: u8, id: u32, len: u64) -> Vec<u8> {
    let mut bytes = vec![status, 0, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes
}
