//! Access of peers to memory.

/// The access that peers have to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Read and write it.
    ReadWrite,
}

impl Access {
    /// Returns whether everything that `wanted` does is allowed.
    #[must_use]
    pub fn allows(self, wanted: Self) -> bool {
        self == Self::ReadWrite || self == wanted
    }
}
