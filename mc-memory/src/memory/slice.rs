//! Parts of a block, and copies into and out of them.

use std::fmt;
use std::ptr::NonNull;

use mc_types::Checksum;

use super::mapping::page_size;
use super::racy_copy::{FOLD, can_fold, copy as racy_copy, copy_folded};
use super::{Backing, Memory, MemoryError};
use crate::checksum::Digest;

/// Part of a [`Memory`], which it keeps alive.
#[derive(Clone)]
pub struct MemorySlice {
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl MemorySlice {
    /// The block that this is a part of.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where the slice begins in its block.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes in the slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slice has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether this process may write the bytes; see [`Memory::is_writable`].
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.memory.is_writable()
    }

    /// Announces that these bytes are about to be written, and that those behind them probably
    /// will be soon: their pages are populated in the meantime.
    pub fn populate_behind(&self) {
        let (memory, start) = match &self.memory.block.backing {
            Backing::Carved { of, .. } => (&of.memory, of.offset + self.offset),
            _ => (&self.memory, self.offset),
        };
        memory.block.populate_behind(start, start + self.len);
    }

    /// Gives the pages of these bytes memory to write, which then counts as this process's:
    /// the system charges a page of shared memory to the process that touches it first, and
    /// that could be the peer. The bytes do not change, and peers may write them meanwhile.
    /// Takes about 0.2 ms for each MiB that has none yet. Does nothing to memory that was not
    /// mapped here.
    ///
    /// # Errors
    /// [`MemoryError::Refused`] when the system has no room, from Linux 5.14 on; before, it
    /// ends the process.
    pub fn populate(&self) -> Result<(), MemoryError> {
        if let Backing::Carved { of, .. } = &self.memory.block.backing {
            let whole = of.part(self.offset, self.len);
            return whole.expect("a carved block is as long as its bytes").populate();
        }
        let Some(mapping) = self.memory.block.mapping() else { return Ok(()) };
        let page = page_size();
        let start = self.offset - self.offset % page;
        let len = self.offset + self.len - start;
        mapping
            .populate(start, len, page, false)
            .map_err(|source| MemoryError::Refused { len, source })
    }

    /// `len` bytes of this slice from `start`; `None` when they do not lie inside.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= self.len).then(|| Self {
            memory: self.memory.clone(),
            offset: self.offset + start,
            len,
        })
    }

    /// Copies the bytes from `at` on into `target`.
    ///
    /// # Errors
    /// [`OutOfRange`] when fewer than `target.len()` bytes follow `at`; nothing
    /// is copied then.
    pub fn copy_to(&self, at: usize, target: &mut [u8]) -> Result<(), OutOfRange> {
        let source = self.locate(at, target.len())?;
        // SAFETY: `locate` proved that the range lies in the block, which this
        // slice keeps alive; `target` is a reference, and no reference overlaps
        // a block.
        unsafe { racy_copy(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Appends a copy of `len` bytes from `at` on to `target`, which is not filled with
    /// zeros first as for [`copy_to`](Self::copy_to).
    ///
    /// # Errors
    /// [`OutOfRange`] when fewer than `len` bytes follow `at`; nothing is copied then.
    pub fn append_to(&self, at: usize, len: usize, target: &mut Vec<u8>) -> Result<(), OutOfRange> {
        let source = self.locate(at, len)?;
        target.reserve(len);
        let spare = target.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `locate` proved that the range lies in the block, which this slice
        // keeps alive; `reserve` made room for `len` bytes behind the vector's, and no
        // vector overlaps a block.
        unsafe { racy_copy(source, spare, len) };
        // SAFETY: the bytes up to the new length were there or have just been copied.
        unsafe { target.set_len(target.len() + len) };
        Ok(())
    }

    /// Copies `source` over the bytes from `at` on.
    ///
    /// # Errors
    /// [`CopyError::OutOfRange`] when fewer than `source.len()` bytes follow
    /// `at`, [`CopyError::ReadOnly`] when the memory cannot be written; nothing
    /// is copied then.
    pub fn copy_from(&self, at: usize, source: &[u8]) -> Result<(), CopyError> {
        let target = self.locate_target(at, source.len())?;
        // SAFETY: as in `copy_to`, with the roles exchanged, and `locate_target`
        // proved that the block can be written.
        unsafe { racy_copy(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// Copies this slice over the first bytes of `other`, also when the two
    /// overlap.
    ///
    /// # Errors
    /// [`CopyError::OutOfRange`] when `other` is shorter,
    /// [`CopyError::ReadOnly`] when it cannot be written; nothing is copied then.
    pub fn copy_to_slice(&self, other: &Self) -> Result<(), CopyError> {
        let target = other.locate_target(0, self.len)?;
        // SAFETY: both ranges lie in blocks that the two slices keep alive,
        // `locate_target` proved that the target can be written, and `copy`
        // allows them to overlap.
        unsafe { racy_copy(self.address(), target, self.len) };
        Ok(())
    }

    /// [`copy_to`](Self::copy_to), which adds the bytes to `digest`: those that are in `target` then.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub(crate) fn copy_to_summed(
        &self,
        at: usize,
        target: &mut [u8],
        digest: &mut Digest,
    ) -> Result<(), OutOfRange> {
        let source = self.locate(at, target.len())?;
        // SAFETY: as in `copy_to`.
        let folded = unsafe { fold_front(source, target.as_mut_ptr(), target.len(), digest) };
        let rest = &mut target[folded..];
        self.copy_to(at + folded, rest)?;
        digest.update(rest);
        Ok(())
    }

    /// [`copy_from`](Self::copy_from), which adds the bytes to `digest`.
    ///
    /// ```
    /// use mc_memory::{Digest, Memory, checksum};
    /// let (memory, mut digest) = (Memory::allocate(100)?, Digest::new());
    /// memory.whole().copy_from_summed(1, b"prompt ", &mut digest)?;
    /// memory.whole().copy_from_summed(8, b"cache", &mut digest)?;
    /// assert_eq!(digest.finish(), checksum(b"prompt cache"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`copy_from`](Self::copy_from); nothing is added then.
    pub fn copy_from_summed(
        &self,
        at: usize,
        source: &[u8],
        digest: &mut Digest,
    ) -> Result<(), CopyError> {
        let target = self.locate_target(at, source.len())?;
        // SAFETY: as in `copy_from`; a reference and a block do not overlap.
        let folded = unsafe { fold_front(source.as_ptr(), target, source.len(), digest) };
        self.copy_from(at + folded, &source[folded..])?;
        digest.update(&source[folded..]);
        Ok(())
    }

    /// [`copy_to_slice`](Self::copy_to_slice), which adds the bytes to `digest` as they are written: peers may
    /// be writing to both sides.
    ///
    /// # Errors
    /// As [`copy_to_slice`](Self::copy_to_slice); nothing is added then.
    pub fn copy_to_slice_summed(&self, other: &Self, digest: &mut Digest) -> Result<(), CopyError> {
        let target = other.locate_target(0, self.len)?;
        if target.addr().wrapping_sub(self.address().addr()) < self.len {
            // They overlap, and are not copied from the front.
            self.copy_to_slice(other)?;
            digest.update_part(other, 0, self.len);
            return Ok(());
        }
        // SAFETY: as in `copy_to_slice`, and the target does not begin inside the source.
        let folded = unsafe { fold_front(self.address(), target, self.len, digest) };
        digest.through_copies(self, folded, self.len - folded, |at, copy| {
            other
                .copy_from(folded + at, copy)
                .expect("the other was found to be writable and longer");
        });
        Ok(())
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.copy_to(0, &mut copy).expect("the copy is as long as the slice");
        copy
    }

    /// CRC-32C of the bytes as they are now, copied out piece by piece because a
    /// peer may be writing them.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        let mut digest = Digest::new();
        digest.update_memory(self);
        digest.finish()
    }

    /// The first byte, for system calls and for other languages. Readable for `len()` bytes
    /// while the slice lives, and writable when [`is_writable`](Self::is_writable) says so;
    /// never by reference, as peers may change the bytes.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        self.base().as_ptr()
    }

    /// [`address`](Self::address), which is never null.
    pub(super) fn base(&self) -> NonNull<u8> {
        // SAFETY: `offset` is at most the block's length, so the sum stays inside
        // the block or one past its end.
        unsafe { self.memory.block.base.add(self.offset) }
    }

    fn locate_target(&self, at: usize, len: usize) -> Result<*mut u8, CopyError> {
        if !self.is_writable() {
            return Err(CopyError::ReadOnly);
        }
        Ok(self.locate(at, len)?)
    }

    fn locate(&self, at: usize, len: usize) -> Result<*mut u8, OutOfRange> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => {
                // SAFETY: `at <= self.len`, so the sum stays inside the block or
                // one past its end.
                Ok(unsafe { self.address().add(at) })
            }
            _ => Err(OutOfRange { at, len, available: self.len }),
        }
    }
}

/// Copies the front of `len` bytes and adds it to `digest`, as far as both can be done in one pass. Returns its
/// length.
///
/// # Safety
/// As for [`racy_copy`], and the target must not begin inside the source.
unsafe fn fold_front(source: *const u8, target: *mut u8, len: usize, digest: &mut Digest) -> usize {
    let front = len - len % FOLD;
    if front == 0 || !can_fold() {
        return 0;
    }
    // SAFETY: the caller's promise, and the processor was asked.
    let left = unsafe { copy_folded(source, target, front, digest.register()) };
    digest.resume(&left);
    front
}

impl fmt::Debug for MemorySlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySlice").field("offset", &self.offset).field("len", &self.len).finish()
    }
}

/// Why bytes could not be copied into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The copy would leave its slice.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// This process may only read the memory.
    #[error("the memory is mapped for reading only; ask its owner for write access")]
    ReadOnly,
}

/// A copy would leave its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} leave a slice of {available} bytes")]
pub struct OutOfRange {
    /// First byte of the copy in the slice.
    pub at: usize,
    /// Bytes to copy.
    pub len: usize,
    /// Bytes in the slice.
    pub available: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::checksum::{Digest, checksum};
    use crate::memory::Memory;

    proptest! {
        #[test]
        fn a_summed_copy_is_a_copy_and_a_sum(
            before in prop::collection::vec(any::<u8>(), 0..10),
            bytes in prop::collection::vec(any::<u8>(), 0..20_000),
            from in 0usize..300,
            to in 0usize..300,
        ) {
            let len = bytes.len();
            let whole: Vec<u8> = before.iter().chain(&bytes).copied().collect();
            let memory = Memory::allocate(50_000).unwrap();
            let mut model = vec![0; 50_000];
            let mut digest = Digest::new();
            digest.update(&before);
            let mut others = [digest.clone(), digest.clone()];
            memory.whole().copy_from_summed(from, &bytes, &mut digest).unwrap();
            model[from..from + len].copy_from_slice(&bytes);
            prop_assert_eq!(digest.finish(), checksum(&whole));
            // One target lies behind the source, the other may begin in it.
            for (target, digest) in [25_000 + to, to].into_iter().zip(&mut others) {
                let source = memory.slice(from, len).unwrap();
                source.copy_to_slice_summed(&memory.slice(target, len).unwrap(), digest).unwrap();
                model.copy_within(from..from + len, target);
                prop_assert_eq!(digest.finish(), checksum(&whole));
            }
            prop_assert_eq!(memory.whole().to_vec(), model);
        }

        #[test]
        fn copies_match_a_vector(
            len in 0usize..20_000, at in 0usize..20_000, bytes in prop::collection::vec(any::<u8>(), 0..20_000)
        ) {
            let memory = Memory::allocate(len).unwrap();
            let mut model = vec![0; len];
            let fits = at + bytes.len() <= len;
            prop_assert_eq!(memory.whole().copy_from(at, &bytes).is_ok(), fits);
            if fits {
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut out = vec![0; bytes.len()];
                memory.whole().copy_to(at, &mut out).unwrap();
                prop_assert_eq!(&out, &bytes);
            }
            prop_assert_eq!(memory.whole().checksum(), checksum(&model));
            prop_assert_eq!(memory.whole().to_vec(), model);
        }

        #[test]
        fn overlapping_copies_move(from in 0usize..500, to in 0usize..500, len in 0usize..500) {
            let memory = Memory::allocate(1000).unwrap();
            let mut model: Vec<u8> = (0..1000).map(|at| at as u8).collect();
            memory.whole().copy_from(0, &model).unwrap();
            let source = memory.slice(from, len).unwrap();
            source.copy_to_slice(&memory.slice(to, len).unwrap()).unwrap();
            model.copy_within(from..from + len, to);
            prop_assert_eq!(memory.whole().to_vec(), model);
        }
    }
}
