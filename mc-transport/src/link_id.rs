//! The names of links.

use std::fmt;

/// A peer's id of a link: random, so that no client can end a link of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId([u8; 16]);

impl LinkId {
    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id, for a message.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Leaves out the bytes, which are a capability.
impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkId")
    }
}
