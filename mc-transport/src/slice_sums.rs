//! Checksums of the slices of an object, and of their fronts, taken while its bytes move.

use std::sync::Arc;

use mc_memory::{Digest, MemorySlice, combined};
use mc_types::Checksum;

use crate::completion::Transferred;
use crate::operation::{Operation, Source, Sums};

/// Distance of two checkpoints in a slice, in bytes.
pub const CHECKPOINT: u64 = 64 << 10;

/// The checksums of slices that follow each other, and their prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SliceSums {
    /// The CRC-32C of each slice.
    pub checksums: Vec<Checksum>,
    /// The prefix checksums of each slice, one slice after the other: the CRC-32C of its first 64 KiB,
    /// of its first 128 KiB, and so on, as long as bytes follow. A slice of `len` bytes has
    /// `(len - 1) / 65_536` of them.
    pub prefixes: Vec<Checksum>,
}

impl SliceSums {
    /// Computes the checksums of `slices` as they are now.
    #[must_use]
    pub fn of(slices: &[Source]) -> Self {
        let mut digest = SliceDigest::new(slices.iter().map(|slice| slice.len() as u64).collect());
        for slice in slices {
            match slice {
                Source::Bytes(bytes) => digest.update(bytes),
                Source::Memory(slice) => digest.update_memory(slice),
            }
        }
        digest.finish()
    }
}

/// Adds slices up that follow each other. The bytes may come in any pieces.
///
/// ```
/// use mc_transport::{SliceDigest, checksum};
/// let mut digest = SliceDigest::new([70_000, 2].into());
/// let bytes = [7; 70_002];
/// digest.update(&bytes[..100]);
/// digest.update(&bytes[100..]);
/// let sums = digest.finish();
/// assert_eq!(sums.checksums, [checksum(&bytes[..70_000]), checksum(&bytes[70_000..])]);
/// assert_eq!(sums.prefixes, [checksum(&bytes[..65_536])]);
/// ```
#[derive(Clone, Debug)]
pub struct SliceDigest {
    slices: Arc<[u64]>,
    /// Bytes of the slice that is not complete which were added.
    at: u64,
    digest: Digest,
    sums: SliceSums,
}

impl SliceDigest {
    /// A digest of slices that have these lengths.
    #[must_use]
    pub fn new(slices: Arc<[u64]>) -> Self {
        let prefixes = slices.iter().map(|len| (len.saturating_sub(1) / CHECKPOINT) as usize).sum();
        let sums = SliceSums {
            checksums: Vec::with_capacity(slices.len()),
            prefixes: Vec::with_capacity(prefixes),
        };
        let mut digest = Self { slices, at: 0, digest: Digest::new(), sums };
        digest.pass_complete();
        digest
    }

    /// Adds bytes. Those behind the last slice are left out.
    pub fn update(&mut self, bytes: &[u8]) {
        self.in_steps(bytes.len(), |digest, at, len| digest.update(&bytes[at..at + len]));
    }

    /// Adds memory as it is now, copied out piece by piece because a peer may be writing it.
    pub fn update_memory(&mut self, slice: &MemorySlice) {
        self.update_part(slice, 0, slice.len());
    }

    /// Adds `len` bytes of memory from `start` on.
    ///
    /// # Panics
    /// When they leave the slice.
    pub(crate) fn update_part(&mut self, slice: &MemorySlice, start: usize, len: usize) {
        self.in_steps(len, |digest, at, len| digest.update_part(slice, start + at, len));
    }

    /// Adds `len` bytes, up to the next checkpoint or end of a slice at a time; `add` gets the place of those
    /// that it is to add, and their number. Returns how many were added: not those behind the last slice.
    fn in_steps(&mut self, len: usize, mut add: impl FnMut(&mut Digest, usize, usize)) -> usize {
        let mut at = 0;
        while let Some(step) = self.step(len - at) {
            add(&mut self.digest, at, step);
            self.passed(step);
            at += step;
        }
        at
    }

    /// The checksums of the slices that are complete, and all prefixes that were passed.
    #[must_use]
    pub fn finish(self) -> SliceSums {
        self.sums
    }

    /// The number of `most` bytes that come before the next checkpoint or the end of the slice;
    /// `None` when there are none, or no slice is left.
    fn step(&self, most: usize) -> Option<usize> {
        let len = self.slices.get(self.sums.checksums.len())?;
        let boundary = len - self.at.min(*len);
        let step = boundary.min(CHECKPOINT - self.at % CHECKPOINT).min(most as u64);
        (step > 0).then_some(step as usize) // at most `most`
    }

    fn passed(&mut self, len: usize) {
        self.at += len as u64;
        if self.at == self.slices[self.sums.checksums.len()] {
            self.pass_complete();
        } else if self.at.is_multiple_of(CHECKPOINT) {
            self.sums.prefixes.push(self.digest.finish());
        }
    }

    /// Passes a slice that is complete, and those without bytes behind it.
    fn pass_complete(&mut self) {
        while self.slices.get(self.sums.checksums.len()) == Some(&self.at) {
            let digest = std::mem::take(&mut self.digest);
            self.sums.checksums.push(digest.finish());
            self.at = 0;
        }
    }
}

/// The result of an operation that was divided into parts, from their lengths and results, in
/// the order of the bytes.
pub fn joined(parts: &[(u64, Transferred)], sums: Sums) -> Transferred {
    if let [(_, whole)] = parts {
        return whole.clone();
    }
    match sums {
        Sums::None => Transferred::default(),
        Sums::Whole => Transferred::new(joined_checksum(parts)),
        Sums::Slices => joined_slice(parts).map(Transferred::with_slices).unwrap_or_default(),
    }
}

fn joined_checksum(parts: &[(u64, Transferred)]) -> Option<Checksum> {
    let mut parts = parts.iter();
    let (_, first) = parts.next()?;
    parts
        .try_fold(first.checksum?, |front, (len, back)| Some(combined(front, back.checksum?, *len)))
}

/// The checksums of one slice, if that is what was divided, and at checkpoints. Parts of an
/// operation that has several bring none.
fn joined_slice(parts: &[(u64, Transferred)]) -> Option<SliceSums> {
    let (last, others) = parts.split_last()?;
    if others.iter().any(|(len, _)| *len == 0 || len % CHECKPOINT != 0) {
        return None;
    }
    let mut prefixes = Vec::new();
    let mut front = None;
    for (len, part) in others.iter().chain([last]) {
        let part = part.slices.as_deref()?;
        let [checksum] = part.checksums[..] else { return None };
        let behind = |sum, len| front.map_or(sum, |front| combined(front, sum, len));
        let inner = (1..).zip(&part.prefixes);
        prefixes.extend(inner.map(|(nth, &prefix)| behind(prefix, nth * CHECKPOINT)));
        let whole = behind(checksum, *len);
        prefixes.push(whole);
        front = Some(whole);
    }
    // The last is that of the whole slice.
    let checksums = vec![prefixes.pop()?];
    Some(SliceSums { checksums, prefixes })
}

/// Sums the bytes of an operation while they move.
pub enum Summing {
    /// One over all bytes.
    Whole(Digest),
    /// One for each piece and its fronts.
    Slices(SliceDigest),
}

impl Summing {
    /// Returns the sums that `operation` asks for, if any.
    #[must_use]
    pub fn of(operation: &Operation) -> Option<Self> {
        match operation.sums() {
            Sums::None => None,
            Sums::Whole => Some(Self::Whole(Digest::new())),
            Sums::Slices => Some(Self::Slices(SliceDigest::new(operation.piece_lens().into()))),
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Whole(digest) => digest.update(bytes),
            Self::Slices(digest) => digest.update(bytes),
        }
    }

    /// Adds `len` bytes of memory from `start` on.
    pub fn update_part(&mut self, slice: &MemorySlice, start: usize, len: usize) {
        match self {
            Self::Whole(digest) => digest.update_part(slice, start, len),
            Self::Slices(digest) => digest.update_part(slice, start, len),
        }
    }

    /// Copies `len` bytes from `at` on of one side to the same place of the other, and adds them.
    ///
    /// # Panics
    /// When they leave a side, or the target cannot be written.
    pub(crate) fn copy_part(&mut self, from: &Source, to: &MemorySlice, at: usize, len: usize) {
        match self {
            Self::Whole(digest) => copy_part(from, to, at, len, Some(digest)),
            Self::Slices(slices) => {
                let summed = slices.in_steps(len, |digest, start, len| {
                    copy_part(from, to, at + start, len, Some(digest));
                });
                copy_part(from, to, at + summed, len - summed, None);
            }
        }
    }

    /// The operation's result, when all its bytes have moved.
    #[must_use]
    pub fn finish(self) -> Transferred {
        match self {
            Self::Whole(digest) => Transferred::new(Some(digest.finish())),
            Self::Slices(digest) => Transferred::with_slices(digest.finish()),
        }
    }
}

/// Copies `len` bytes from `at` on of one side to the same place of the other, and adds them to `digest`.
///
/// # Panics
/// When they leave a side, or the target cannot be written.
pub(crate) fn copy_part(
    from: &Source,
    to: &MemorySlice,
    at: usize,
    len: usize,
    digest: Option<&mut Digest>,
) {
    let copied = match (from, digest) {
        (Source::Bytes(bytes), Some(digest)) => {
            to.copy_from_summed(at, &bytes[at..at + len], digest)
        }
        (Source::Bytes(bytes), None) => to.copy_from(at, &bytes[at..at + len]),
        (Source::Memory(slice), digest) => {
            let part = |side: &MemorySlice| side.part(at, len).expect("the part lies inside");
            match digest {
                Some(digest) => part(slice).copy_to_slice_summed(&part(to), digest),
                None => part(slice).copy_to_slice(&part(to)),
            }
        }
    };
    copied.expect("both sides have the part, and the target is writable");
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mc_memory::Memory;
    use mc_memory::checksum;
    use proptest::prelude::*;

    /// The sums, taken the slow way.
    fn slowly(bytes: &[u8], slices: &[usize]) -> SliceSums {
        let mut sums = SliceSums::default();
        let mut rest = bytes;
        for &len in slices {
            let (slice, behind) = rest.split_at(len);
            sums.checksums.push(checksum(slice));
            let inner = (0..).map(|nth| nth * CHECKPOINT as usize).skip(1);
            let inner = inner.take_while(|&at| at < len);
            sums.prefixes.extend(inner.map(|at| checksum(&slice[..at])));
            rest = behind;
        }
        sums
    }

    fn len() -> impl Strategy<Value = usize> {
        let near = |n: usize| (n - 1)..(n + 2);
        prop_oneof![0..100_usize, near(65_536), near(131_072), 0..400_000_usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn sums_do_not_depend_on_how_the_bytes_come(
            slices in prop::collection::vec(len(), 0..6),
            cuts in prop::collection::vec((1..200_000_usize, any::<bool>()), 1..8),
        ) {
            let total: usize = slices.iter().sum();
            let bytes: Vec<u8> = (0..total).map(|at| (at * 7 + at / 251) as u8).collect();
            let memory = Memory::allocate(total).unwrap();
            memory.whole().copy_from(0, &bytes).unwrap();
            let expected = slowly(&bytes, &slices);
            let mut digest = SliceDigest::new(slices.iter().map(|&len| len as u64).collect());
            let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
            while at < total {
                let (cut, is_memory) = cuts.next().unwrap();
                let len = cut.min(total - at);
                match is_memory {
                    true => digest.update_part(&memory.whole(), at, len),
                    false => digest.update(&bytes[at..at + len]),
                }
                at += len;
            }
            prop_assert_eq!(&digest.finish(), &expected);
            let mut at = 0;
            let sources: Vec<Source> = slices.iter().enumerate().map(|(nth, &len)| {
                at += len;
                match nth % 2 {
                    0 => memory.slice(at - len, len).unwrap().into(),
                    _ => Bytes::copy_from_slice(&bytes[at - len..at]).into(),
                }
            }).collect();
            prop_assert_eq!(SliceSums::of(&sources), expected);
        }
    }

    #[test]
    fn bytes_behind_the_last_slice_are_left_out() {
        let mut digest = SliceDigest::new([3].into());
        digest.update(b"abcde");
        assert_eq!(digest.finish(), slowly(b"abc", &[3]));
        let mut digest = SliceDigest::new([3, 4].into());
        digest.update(b"abcde");
        assert_eq!(digest.finish().checksums, [checksum(b"abc")], "the second is not complete");
    }
}
