//! SHA-256 sums of files.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use sha2::{Digest, Sha256};
use thiserror::Error;

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// The SHA-256 of a file. Its text is that of `sha256sum`: 64 hexadecimal digits.
///
/// ```
/// let sum: mc_c2c::fetch::Sha256Sum =
///     "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".parse()?;
/// # Ok::<_, mc_c2c::fetch::ParseSha256Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256Sum([u8; 32]);

/// A text is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a SHA-256 has 64 hexadecimal digits, as `sha256sum FILE` prints them")]
pub struct ParseSha256Error;

impl Sha256Sum {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Adds up what is left of a file.
    ///
    /// # Errors
    /// Reading fails.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let (mut sum, mut piece) = (Sha256::new(), vec![0; PIECE]);
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(Self(sum.finalize().into())),
                Ok(read) => sum.update(&piece[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl FromStr for Sha256Sum {
    type Err = ParseSha256Error;

    fn from_str(text: &str) -> Result<Self, ParseSha256Error> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut sum = [0; 32];
        if pairs.len() != sum.len() || !rest.is_empty() {
            return Err(ParseSha256Error);
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(ParseSha256Error);
        for (byte, [high, low]) in sum.iter_mut().zip(pairs) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Self(sum))
    }
}

impl fmt::Display for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_digits_are_a_sum() {
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sum = Sha256Sum::of(b"abc");
        assert_eq!((sum.to_string().as_str(), text.parse()), (text, Ok(sum)));
        assert_eq!(text.to_uppercase().parse(), Ok(sum));
        assert_eq!(Sha256Sum::of_reader(&b"abc"[..]).unwrap(), sum);
        let (long, sign) = (format!("{text}0"), format!("+{}", &text[1..]));
        for bad in ["", "ba78", &text[1..], &long, &sign, &"é".repeat(32)] {
            assert_eq!(bad.parse::<Sha256Sum>(), Err(ParseSha256Error), "{bad}");
        }
    }
}
