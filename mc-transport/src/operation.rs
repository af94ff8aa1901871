//! Operations: the items of a batch.

use std::ops::Deref;

use bytes::Bytes;
use mc_environment::BootTime;
use mc_memory::{Access, MemorySlice};
use mc_ticket::Ticket;
use mc_types::{Extent, RemoteKey};

use crate::cancel::Cancel;
use crate::error::{InvalidOperation, TransferError};

/// A range of bytes in a region of a peer, and what opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSpan {
    /// The key of the region. It opens the whole of it, unless the peer asks for tickets.
    pub key: RemoteKey,
    /// The range, counted in bytes from the region's first byte.
    pub extent: Extent,
    /// The ticket that opens the range, or more, at a peer that asks for one.
    pub ticket: Option<Ticket>,
    /// When this side gives the operation up, so that it touches nothing that the range
    /// was given to afterwards. Links that copy in this process look at it, again and again
    /// while they copy; a peer that serves its memory goes by the ticket.
    pub until: Option<BootTime>,
}

impl RemoteSpan {
    /// The range `extent` of the region that `key` opens.
    #[must_use]
    pub const fn new(key: RemoteKey, extent: Extent) -> Self {
        Self { key, extent, ticket: None, until: None }
    }

    /// The same range, opened by `ticket`, where there is one.
    #[must_use]
    pub const fn with_ticket(self, ticket: Option<Ticket>) -> Self {
        Self { ticket, ..self }
    }

    /// The same range, which this side stops using at `until`.
    #[must_use]
    pub const fn until(self, until: BootTime) -> Self {
        Self { until: Some(until), ..self }
    }

    /// `len` bytes of the range from `start`; `None` when they do not lie inside.
    #[must_use]
    pub fn part(self, start: u64, len: u64) -> Option<Self> {
        Some(Self { extent: self.extent.part(start, len)?, ..self })
    }

    /// Checks that this side has not given the range up.
    ///
    /// # Errors
    /// [`TransferError::GrantEnded`] when it has.
    pub fn check_time(&self) -> Result<(), TransferError> {
        match self.until {
            Some(until) if until.has_passed() => Err(TransferError::GrantEnded),
            _ => Ok(()),
        }
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

    /// Returns whether the source has no bytes.
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

/// The checksums that the result of an operation brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sums {
    /// No checksum.
    #[default]
    None,
    /// The checksum of all bytes; see [`Operation::checksummed`].
    Whole,
    /// The checksums of the pieces and their fronts; see [`Operation::checkpointed`].
    Slices,
}

/// One one-sided transfer: the peer's memory is read or written without the
/// peer's application taking part.
///
/// A link carries out every kind: one that is added breaks the implementations, which is meant.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Fills `into`, piece after piece, with the bytes of `from`. When the read
    /// fails, what `into` holds is unspecified.
    Read {
        /// The peer's bytes.
        from: RemoteSpan,
        /// Where they go; as many bytes as `from` has.
        into: Pieces<MemorySlice>,
        /// The checksums of the bytes that the result brings.
        sums: Sums,
        /// Gives the read up, at the caller's word.
        cancel: Option<Cancel>,
    },
    /// Fills `to` with the bytes of `from`, piece after piece. When the write
    /// fails, what `to` holds is unspecified.
    Write {
        /// The bytes; as many as `to` has.
        from: Pieces<Source>,
        /// Where they go in the peer's memory.
        to: RemoteSpan,
        /// The checksums of the bytes that the result brings.
        sums: Sums,
    },
}

impl Operation {
    /// A read of `from` into one slice of memory or several.
    #[must_use]
    pub fn read(from: RemoteSpan, into: impl Into<Pieces<MemorySlice>>) -> Self {
        Self::Read { from, into: into.into(), sums: Sums::None, cancel: None }
    }

    /// A write of [`Bytes`], one slice of memory, or several [`Source`]s to `to`.
    #[must_use]
    pub fn write(from: impl Into<Pieces<Source>>, to: RemoteSpan) -> Self {
        Self::Write { from: from.into(), to, sums: Sums::None }
    }

    /// The same operation, whose result brings the CRC-32C of the bytes that moved
    /// ([`Transferred::checksum`](crate::Transferred)). It is taken on this side
    /// piece by piece while they are still in the caches, which costs a fraction of
    /// another pass over them.
    #[must_use]
    pub fn checksummed(mut self) -> Self {
        match &mut self {
            Self::Read { sums, .. } | Self::Write { sums, .. } => *sums = Sums::Whole,
        }
        self
    }

    /// The same operation, whose result brings checksums of each piece of the local side
    /// and of its fronts ([`Transferred::slices`](crate::Transferred)), taken as those of
    /// [`checksummed`](Self::checksummed): for pieces that are the slices of an object.
    ///
    /// They are missing where the operation was divided at places that are no checkpoints;
    /// [`SliceSums::of`](crate::SliceSums::of) takes them then.
    #[must_use]
    pub fn checkpointed(mut self) -> Self {
        match &mut self {
            Self::Read { sums, .. } | Self::Write { sums, .. } => *sums = Sums::Slices,
        }
        self
    }

    /// The same read, which `cancel` ends before its time. A write stays as it is: what was sent
    /// is not taken back.
    #[must_use]
    pub fn cancelled_by(mut self, by: &Cancel) -> Self {
        if let Self::Read { cancel, .. } = &mut self {
            *cancel = Some(by.clone());
        }
        self
    }

    /// The handle that cancels the operation.
    pub fn cancel(&self) -> Option<&Cancel> {
        match self {
            Self::Read { cancel, .. } => cancel.as_ref(),
            Self::Write { .. } => None,
        }
    }

    /// Returns the checksums that the result brings.
    #[must_use]
    pub fn sums(&self) -> Sums {
        match self {
            Self::Read { sums, .. } | Self::Write { sums, .. } => *sums,
        }
    }

    /// Returns whether the local side is one piece.
    pub(crate) fn is_one_piece(&self) -> bool {
        match self {
            Self::Read { into, .. } => into.len() == 1,
            Self::Write { from, .. } => from.len() == 1,
        }
    }

    /// Bytes of each piece of the local side.
    pub fn piece_lens(&self) -> Vec<u64> {
        match self {
            Self::Read { into, .. } => into.iter().map(|piece| piece.len() as u64).collect(),
            Self::Write { from, .. } => from.iter().map(|piece| piece.len() as u64).collect(),
        }
    }

    /// The access to the region that the operation needs.
    #[must_use]
    pub fn access(&self) -> Access {
        match self {
            Self::Read { .. } => Access::Read,
            Self::Write { .. } => Access::Write,
        }
    }

    /// The peer's side.
    #[must_use]
    pub fn remote(&self) -> RemoteSpan {
        match self {
            Self::Read { from, .. } => *from,
            Self::Write { to, .. } => *to,
        }
    }

    /// The same transfer as operations of at most `max` bytes each, in the order
    /// of their bytes. One that is short enough, or that is not
    /// [valid](Self::validate), comes back as it is.
    ///
    /// # Panics
    /// When `max` is zero.
    #[must_use]
    pub fn split(self, max: u64) -> Vec<Self> {
        assert!(max > 0, "pieces of no bytes never end");
        let span = self.remote();
        let len = span.extent.len();
        if len <= max || self.validate().is_err() {
            return vec![self];
        }
        let sums = match self.sums() {
            // Parts know nothing of the slices that they begin or end in.
            Sums::Slices if self.piece_lens().len() > 1 => Sums::None,
            sums => sums,
        };
        let cuts = (0..len).step_by(usize::try_from(max).unwrap_or(usize::MAX));
        let part = |start: u64| {
            let len = max.min(len - start);
            let remote = span.part(start, len).expect("the cuts lie inside the extent");
            // Valid operations have as many bytes on this side, so they can be
            // counted in `usize`.
            let (start, len) = (start as usize, len as usize);
            match &self {
                Self::Read { into, cancel, .. } => Self::Read {
                    from: remote,
                    into: cut(into, start, len).into(),
                    sums,
                    cancel: cancel.clone(),
                },
                Self::Write { from, .. } => {
                    Self::Write { from: cut(from, start, len).into(), to: remote, sums }
                }
            }
        };
        cuts.map(part).collect()
    }

    /// Checks that both sides have the same number of bytes, which every
    /// implementation does before it moves any.
    ///
    /// # Errors
    /// [`TransferError::InvalidOperation`] with both lengths.
    pub fn validate(&self) -> Result<(), TransferError> {
        let remote = self.remote().extent.len();
        let local = match self {
            Self::Read { into, .. } if !into.iter().all(MemorySlice::is_writable) => {
                return Err(TransferError::InvalidOperation(InvalidOperation::ReadOnly));
            }
            Self::Read { into, .. } => sum(into.iter().map(MemorySlice::len)),
            Self::Write { from, .. } => sum(from.iter().map(Source::len)),
        };
        if local == remote {
            return Ok(());
        }
        Err(TransferError::InvalidOperation(InvalidOperation::LengthMismatch { local, remote }))
    }
}

/// One piece of the local side, which can be cut.
trait Piece: Sized {
    fn piece_len(&self) -> usize;
    fn piece_part(&self, start: usize, len: usize) -> Self;
}

impl Piece for MemorySlice {
    fn piece_len(&self) -> usize {
        self.len()
    }

    fn piece_part(&self, start: usize, len: usize) -> Self {
        self.part(start, len).expect("the part lies inside the piece")
    }
}

impl Piece for Source {
    fn piece_len(&self) -> usize {
        self.len()
    }

    fn piece_part(&self, start: usize, len: usize) -> Self {
        match self {
            Self::Bytes(bytes) => Self::Bytes(bytes.slice(start..start + len)),
            Self::Memory(slice) => Self::Memory(slice.piece_part(start, len)),
        }
    }
}

/// `len` bytes of `pieces` from `start` on.
fn cut<T: Piece>(pieces: &[T], start: usize, len: usize) -> Vec<T> {
    let (mut skip, mut left) = (start, len);
    let mut parts = Vec::new();
    for piece in pieces {
        let from = skip.min(piece.piece_len());
        let take = left.min(piece.piece_len() - from);
        if take > 0 {
            parts.push(piece.piece_part(from, take));
        }
        skip -= from;
        left -= take;
    }
    parts
}

/// Saturates: pieces may name the same memory again and again, so that their
/// sum can exceed any address space, and no extent has `u64::MAX` bytes locally.
fn sum(lens: impl Iterator<Item = usize>) -> u64 {
    lens.fold(0, |total, len| total.saturating_add(len as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_memory::Memory;

    fn span(len: u64) -> RemoteSpan {
        RemoteSpan::new(RemoteKey::from_bytes([0; 16]), Extent::new(0, len).unwrap())
    }

    #[test]
    fn a_split_moves_the_same_bytes() {
        let memory = Memory::allocate(10).unwrap();
        memory.whole().copy_from(0, b"0123456789").unwrap();
        let sources: Vec<Source> = vec![
            memory.slice(0, 4).unwrap().into(),
            Bytes::from_static(b"abcde").into(),
            memory.slice(9, 1).unwrap().into(),
        ];
        let text = |operation: &Operation| -> Vec<u8> {
            let Operation::Write { from, .. } = operation else { panic!("a write") };
            let bytes = |source: &Source| match source {
                Source::Bytes(bytes) => bytes.to_vec(),
                Source::Memory(slice) => slice.to_vec(),
            };
            from.iter().flat_map(bytes).collect()
        };
        for max in [1, 3, 4, 9, 10, 11, u64::MAX] {
            let parts = Operation::write(sources.clone(), span(10)).split(max);
            assert_eq!(parts.len() as u64, 10u64.div_ceil(max), "{max}");
            assert!(parts.iter().all(|part| part.validate().is_ok()), "{max}");
            let mut next = 0;
            for part in &parts {
                assert_eq!(part.remote().extent.offset(), next, "{max}");
                next = part.remote().extent.end();
            }
            assert_eq!(parts.iter().flat_map(text).collect::<Vec<u8>>(), b"0123abcde9", "{max}");
        }
        let invalid = Operation::read(span(11), memory.whole()).split(2);
        assert_eq!(invalid.len(), 1, "left to whoever validates");
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

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_to_be_filled_must_be_writable() {
        let memory = Memory::options().shared().allocate(4096).unwrap();
        let shared = memory.share(Access::Read).unwrap();
        let mapped = Memory::map_shared(shared, 4096, Access::Read).unwrap();
        let refused = Operation::read(span(4096), mapped.whole()).validate();
        let expected = InvalidOperation::ReadOnly;
        assert!(matches!(refused, Err(TransferError::InvalidOperation(e)) if e == expected));
        assert!(Operation::write(mapped.whole(), span(4096)).validate().is_ok());
    }
}
