//! The names of links.

use std::fmt;

/// What a peer calls a link: random, so that nobody can end a link that is not theirs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId([u8; 16]);

impl LinkId {
    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

/// Not the bytes, which are a capability.
impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkId")
    }
}
