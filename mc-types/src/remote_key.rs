//! The capability that opens a registered region to a peer.

use core::fmt;

/// 128 unguessable bits that the owner of a registered region hands to those
/// who may reach it, and checks on every operation, as a network card checks an
/// rkey. `Debug` shows none of it, so that logs leak no access.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey([u8; 16]);

impl RemoteKey {
    /// Takes 16 bytes, drawn at random by the owner of the region.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key's bytes, for the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteKey(..)")
    }
}
