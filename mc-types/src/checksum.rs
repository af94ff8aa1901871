//! The value that proves a slice unchanged.

use core::fmt;

/// CRC-32C (Castagnoli, as in iSCSI, RFC 3720) of one slice's bytes.
///
/// This crate only names the value; the crates that move bytes compute it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(u32);

impl Checksum {
    /// Takes a computed CRC-32C.
    #[must_use]
    pub const fn from_crc32c(crc: u32) -> Self {
        Self(crc)
    }

    /// The CRC-32C.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crc32c:{:08x}", self.0)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
