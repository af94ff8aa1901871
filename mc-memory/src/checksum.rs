//! CRC-32C, of bytes at rest and of memory that peers may be writing.

use std::cell::RefCell;

use mc_types::Checksum;

use crate::memory::MemorySlice;

/// Bytes copied out of shared memory at a time: small enough to stay in the
/// first-level cache, so that the copy costs little beside the checksum.
const COPY_CHUNK: usize = 8 << 10;

thread_local! {
    /// The buffer that memory is copied to; zeroing it takes as long as summing a kilobyte.
    static COPY: RefCell<Vec<u8>> = RefCell::new(vec![0; COPY_CHUNK]);
}

/// CRC-32C of `bytes`.
///
/// ```
/// // The check value of RFC 3720, appendix B.4, for 32 bytes of zeros.
/// assert_eq!(mc_memory::checksum(&[0; 32]).as_u32(), 0x8a91_36aa);
/// ```
#[must_use]
pub fn checksum(bytes: &[u8]) -> Checksum {
    narrow(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes))
}

/// The checksum of bytes whose front has the checksum `front` and whose back, of
/// `back_len` bytes, has `back`. Takes some 100 ns, however long they are.
///
/// The front's share is its remainder times `x^(8 back_len)`: the conditioning of both sums cancels out
/// (M. Adler, `crc32_combine` of zlib 1.2.12).
///
/// ```
/// use mc_memory::{checksum, combined};
/// let (front, back) = (checksum(b"prompt "), checksum(b"cache"));
/// assert_eq!(combined(front, back, 5), checksum(b"prompt cache"));
/// ```
#[must_use]
pub fn combined(front: Checksum, back: Checksum, back_len: u64) -> Checksum {
    let powers = (0..64).filter(|bit| back_len >> bit & 1 == 1).map(|bit| POWERS[bit]);
    let front = powers.fold(front.as_u32(), product);
    Checksum::from_crc32c(front ^ back.as_u32())
}

/// The polynomial of CRC-32C without its highest power, as sums have it: the highest bit stands for `x^0`.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `x^(8 * 2^n)` modulo the polynomial, for each bit `n` of a number of bytes.
const POWERS: [u32; 64] = {
    let mut powers = [1 << (31 - 8); 64];
    let mut n = 1;
    while n < 64 {
        powers[n] = product(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The product of two remainders, modulo the polynomial.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut sum, mut power) = (0, 1 << 31);
    while power != 0 {
        if a & power != 0 {
            sum ^= b;
        }
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        power >>= 1;
    }
    sum
}

/// A CRC-32C over pieces that follow each other.
///
/// ```
/// use mc_memory::{Digest, checksum};
/// let mut digest = Digest::new();
/// digest.update(b"prompt ");
/// digest.update(b"cache");
/// assert_eq!(digest.finish(), checksum(b"prompt cache"));
/// ```
#[derive(Clone, Debug)]
pub struct Digest(crc_fast::Digest);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// The digest of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds memory as it is now, copied out piece by piece because a peer may be
    /// writing it.
    pub fn update_memory(&mut self, slice: &MemorySlice) {
        self.update_part(slice, 0, slice.len());
    }

    /// Adds `len` bytes of memory from `start` on.
    ///
    /// # Panics
    /// When they leave the slice.
    pub fn update_part(&mut self, slice: &MemorySlice, start: usize, len: usize) {
        self.through_copies(slice, start, len, |_, _| ());
    }

    /// Adds `len` bytes of memory from `start` on, and hands over each copy that was added, with its place
    /// behind `start`.
    ///
    /// # Panics
    /// When they leave the slice.
    pub(crate) fn through_copies(
        &mut self,
        slice: &MemorySlice,
        start: usize,
        len: usize,
        mut added: impl FnMut(usize, &[u8]),
    ) {
        assert!(start <= slice.len() && len <= slice.len() - start, "the part leaves the slice");
        COPY.with_borrow_mut(|copy| {
            for at in (0..len).step_by(COPY_CHUNK) {
                let piece = &mut copy[..COPY_CHUNK.min(len - at)];
                let copied = slice.copy_to_summed(start + at, piece, self);
                copied.expect("the loop stays inside the slice");
                added(at, piece);
            }
        });
    }

    /// Returns the register, which a fold begins with.
    pub(crate) fn register(&self) -> u32 {
        self.0.get_state() as u32 // a 32-bit CRC
    }

    /// Goes on behind bytes that were folded together with the register; `left` is what that left.
    pub(crate) fn resume(&mut self, left: &[u8]) {
        self.0 = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, 0);
        self.0.update(left);
    }

    /// The checksum of all that was added.
    #[must_use]
    pub fn finish(&self) -> Checksum {
        narrow(self.0.finalize())
    }
}

/// A 32-bit CRC comes in the low half of the library's 64-bit answer.
fn narrow(crc: u64) -> Checksum {
    Checksum::from_crc32c(crc as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_of_parts_make_the_sum_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..5000),
            cut in any::<prop::sample::Index>(),
        ) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            let whole = combined(checksum(front), checksum(back), back.len() as u64);
            prop_assert_eq!(whole, checksum(&bytes));
        }

        /// Lengths that no test can have in memory.
        #[test]
        fn it_agrees_with_the_library(front: u32, back: u32, len: u64) {
            let iscsi = crc_fast::CrcAlgorithm::Crc32Iscsi;
            let theirs = crc_fast::checksum_combine(iscsi, front.into(), back.into(), len);
            let sums = [front, back].map(Checksum::from_crc32c);
            prop_assert_eq!(combined(sums[0], sums[1], len), narrow(theirs));
        }
    }
}
