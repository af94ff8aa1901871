//! Bytes that can be recognised wherever they turn up.

use crate::error::BenchError;

/// Odd, so that every offset has a word of its own.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The byte sequence of one seed. Each word of eight bytes tells the seed and the
/// word's place apart, so bytes of another object, of another offset or of
/// nothing at all are found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64);

impl Pattern {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    fn word(self, at: usize) -> [u8; 8] {
        (self.0 ^ (at as u64).wrapping_mul(STEP)).to_le_bytes()
    }

    /// Fills `target` with the bytes from `offset` on, a multiple of eight.
    pub(crate) fn fill(self, offset: usize, target: &mut [u8]) {
        debug_assert_eq!(offset % 8, 0);
        let (words, rest) = target.as_chunks_mut::<8>();
        let whole = words.len();
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.word(offset / 8 + at);
        }
        rest.copy_from_slice(&self.word(offset / 8 + whole)[..rest.len()]);
    }

    /// `len` bytes from the first on.
    pub(crate) fn bytes(self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(0, &mut bytes);
        bytes
    }

    /// Checks that `found` holds the bytes from `offset` on, a multiple of eight.
    ///
    /// # Errors
    /// [`BenchError::Wrong`], which names the first place that differs.
    pub(crate) fn check(
        self,
        what: &'static str,
        offset: usize,
        found: &[u8],
    ) -> Result<(), BenchError> {
        debug_assert_eq!(offset % 8, 0);
        let (words, rest) = found.as_chunks::<8>();
        let first =
            words.iter().enumerate().position(|(at, word)| *word != self.word(offset / 8 + at));
        let whole = words.len();
        let tail = self.word(offset / 8 + whole);
        let place = match first {
            Some(at) => at,
            None if *rest != tail[..rest.len()] => whole,
            None => return Ok(()),
        };
        let place = offset + place * 8;
        Err(BenchError::wrong(what, format!("wrong bytes at offset {place}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_is_found() {
        let pattern = Pattern::new(7);
        let mut bytes = pattern.bytes(1001);
        assert!(pattern.check("x", 0, &bytes).is_ok());
        assert!(pattern.check("x", 64, &bytes[64..]).is_ok());
        assert!(pattern.check("x", 0, &bytes[64..]).is_err());
        assert!(Pattern::new(8).check("x", 0, &bytes).is_err());
        bytes[1000] ^= 1;
        assert!(pattern.check("x", 0, &bytes).is_err());
        assert!(pattern.check("x", 0, &[0; 8]).is_err());
    }
}
