//! What a batch asks for.

use std::ops::Deref;

use bytes::Bytes;
use mc_types::{Extent, RemoteKey};

use crate::error::{InvalidOperation, TransferError};
use crate::memory::MemorySlice;

/// A range of bytes in a region of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// The key that opens the region.
    pub key: RemoteKey,
    /// The range, counted in bytes from the region's first byte.
    pub extent: Extent,
}

impl RemoteSpan {
    /// The range `extent` of the region that `key` opens.
    #[must_use]
    pub const fn new(key: RemoteKey, extent: Extent) -> Self {
        Self { key, extent }
    }
}

/// Local bytes that a write sends.
#[derive(Clone, Debug)]
pub enum Source {
    /// Bytes that cannot change.
    Bytes(Bytes),
    /// Memory, read while the write runs.
    Memory(MemorySlice),
}

impl Source {
    /// Bytes in the source.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(slice) => slice.len(),
        }
    }

    /// Whether the source has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Source {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<MemorySlice> for Source {
    fn from(slice: MemorySlice) -> Self {
        Self::Memory(slice)
    }
}

/// The local side of an operation, piece after piece. One piece, the usual
/// case, costs no allocation.
#[derive(Clone, Debug)]
pub struct Pieces<T>(Repr<T>);

#[derive(Clone, Debug)]
enum Repr<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Deref for Pieces<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Repr::One(one) => one,
            Repr::Many(many) => many,
        }
    }
}

impl<T> From<T> for Pieces<T> {
    fn from(one: T) -> Self {
        Self(Repr::One([one]))
    }
}

impl<T> From<Vec<T>> for Pieces<T> {
    fn from(many: Vec<T>) -> Self {
        Self(Repr::Many(many))
    }
}

impl<T> FromIterator<T> for Pieces<T> {
    fn from_iter<I: IntoIterator<Item = T>>(pieces: I) -> Self {
        Self(Repr::Many(pieces.into_iter().collect()))
    }
}

impl From<Bytes> for Pieces<Source> {
    fn from(bytes: Bytes) -> Self {
        Source::Bytes(bytes).into()
    }
}

impl From<MemorySlice> for Pieces<Source> {
    fn from(slice: MemorySlice) -> Self {
        Source::Memory(slice).into()
    }
}

/// One one-sided transfer: the peer's memory is read or written without the
/// peer's application taking part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// Fills `into`, piece after piece, with the bytes of `from`. When the read
    /// fails, what `into` holds is unspecified.
    Read {
        /// The peer's bytes.
        from: RemoteSpan,
        /// Where they go; as many bytes as `from` has.
        into: Pieces<MemorySlice>,
    },
    /// Fills `to` with the bytes of `from`, piece after piece. When the write
    /// fails, what `to` holds is unspecified.
    Write {
        /// The bytes; as many as `to` has.
        from: Pieces<Source>,
        /// Where they go in the peer's memory.
        to: RemoteSpan,
    },
}

impl Operation {
    /// A read of `from` into one slice of memory or several.
    #[must_use]
    pub fn read(from: RemoteSpan, into: impl Into<Pieces<MemorySlice>>) -> Self {
        Self::Read { from, into: into.into() }
    }

    /// A write of [`Bytes`], one slice of memory, or several [`Source`]s to `to`.
    #[must_use]
    pub fn write(from: impl Into<Pieces<Source>>, to: RemoteSpan) -> Self {
        Self::Write { from: from.into(), to }
    }

    /// The peer's side.
    #[must_use]
    pub fn remote(&self) -> RemoteSpan {
        match self {
            Self::Read { from, .. } => *from,
            Self::Write { to, .. } => *to,
        }
    }

    /// Checks that both sides have the same number of bytes, which every
    /// implementation does before it moves any.
    ///
    /// # Errors
    /// [`TransferError::InvalidOperation`] with both lengths.
    pub fn validate(&self) -> Result<(), TransferError> {
        let remote = self.remote().extent.len();
        let local = match self {
            Self::Read { into, .. } => sum(into.iter().map(MemorySlice::len)),
            Self::Write { from, .. } => sum(from.iter().map(Source::len)),
        };
        if local == remote {
            return Ok(());
        }
        Err(TransferError::InvalidOperation(InvalidOperation::LengthMismatch { local, remote }))
    }
}

/// Saturates: pieces may name the same memory again and again, so that their
/// sum can exceed any address space, and no extent has `u64::MAX` bytes locally.
fn sum(lens: impl Iterator<Item = usize>) -> u64 {
    lens.fold(0, |total, len| total.saturating_add(len as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn span(len: u64) -> RemoteSpan {
        RemoteSpan::new(RemoteKey::from_bytes([0; 16]), Extent::new(0, len).unwrap())
    }

    #[test]
    fn lengths_must_agree() {
        let memory = Memory::allocate(10).unwrap();
        let pieces = vec![memory.slice(0, 4).unwrap(), memory.slice(5, 5).unwrap()];
        assert!(Operation::read(span(9), pieces.clone()).validate().is_ok());
        assert!(Operation::read(span(10), pieces).validate().is_err());
        assert!(Operation::write(Bytes::from_static(b"abc"), span(3)).validate().is_ok());
        assert!(Operation::write(Vec::<Source>::new(), span(0)).validate().is_ok());
        assert!(Operation::write(Vec::<Source>::new(), span(1)).validate().is_err());
    }
}
