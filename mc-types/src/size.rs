//! Byte counts as people write them.

use core::fmt;
use core::str::FromStr;

/// A number of bytes. Parses `4GB`, `512 MiB`, `1048576`; every unit is a power
/// of 1024, as in Mooncake's flags.
///
/// ```
/// use mc_types::ByteSize;
/// assert_eq!("4GB".parse(), Ok(ByteSize::gib(4)));
/// assert_eq!(ByteSize::mib(1536).to_string(), "1.50 GB");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Exactly `bytes` bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `n` × 1024 bytes, at most `u64::MAX`.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` × 1024² bytes, at most `u64::MAX`.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` × 1024³ bytes, at most `u64::MAX`.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Power of 1024 for a unit, in lower case, without its final `b`.
fn unit_shift(unit: &str) -> Option<u32> {
    Some(match unit {
        "" => 0,
        "k" | "ki" => 10,
        "m" | "mi" => 20,
        "g" | "gi" => 30,
        "t" | "ti" => 40,
        _ => return None,
    })
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, ParseByteSizeError> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        let (fraction, unit) = match rest.strip_prefix('.') {
            Some(rest) => {
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                rest.split_at(digits)
            }
            None => ("", rest),
        };
        if number.is_empty() || (rest.starts_with('.') && fraction.is_empty()) {
            return Err(ParseByteSizeError::NotANumber);
        }
        let unit = unit.trim().to_ascii_lowercase();
        let shift = unit_shift(unit.strip_suffix('b').unwrap_or(&unit))
            .ok_or(ParseByteSizeError::UnknownUnit)?;
        let whole: u64 = number.parse().map_err(|_| ParseByteSizeError::TooLarge)?;
        let whole = u128::from(whole) << shift;
        // Nine digits name every byte of a GiB; further ones cannot matter.
        let part = fraction.bytes().take(9).fold((0u128, 1u128), |(value, scale), digit| {
            (value * 10 + u128::from(digit - b'0'), scale * 10)
        });
        let total = whole + (part.0 << shift) / part.1;
        u64::try_from(total).map(Self).map_err(|_| ParseByteSizeError::TooLarge)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")];
        for (shift, unit) in UNITS {
            if self.0 >> shift > 0 {
                let hundredths = (u128::from(self.0) * 100) >> shift;
                return write!(f, "{}.{:02} {unit}", hundredths / 100, hundredths % 100);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Why a text is not a byte count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseByteSizeError {
    /// The text does not begin with a number.
    NotANumber,
    /// The number is followed by something else than a unit.
    UnknownUnit,
    /// More than `u64::MAX` bytes.
    TooLarge,
}

impl fmt::Display for ParseByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "expected a size such as 4GB, 512MB or 1048576",
            Self::UnknownUnit => "unknown unit; use B, KB, MB, GB or TB",
            Self::TooLarge => "the size does not fit in 64 bits",
        })
    }
}

impl core::error::Error for ParseByteSizeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sizes_parse_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("4GB", 4 << 30),
            ("4 gb", 4 << 30),
            ("4GiB", 4 << 30),
            ("1.5k", 1536),
            ("  2T ", 2 << 40),
            ("17b", 17),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize::bytes(bytes)), "{text}");
        }
        for text in ["", "GB", "-1", "1.GB", "0x10", "1..5G"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!("5 parsecs".parse::<ByteSize>(), Err(ParseByteSizeError::UnknownUnit));
        assert_eq!("99999999TB".parse::<ByteSize>(), Err(ParseByteSizeError::TooLarge));
        assert_eq!("99999999999999999999".parse::<ByteSize>(), Err(ParseByteSizeError::TooLarge));
    }

    #[test]
    fn sizes_show_two_digits() {
        assert_eq!(ByteSize::bytes(1023).to_string(), "1023 B");
        assert_eq!(ByteSize::kib(1).to_string(), "1.00 KB");
        assert_eq!(ByteSize::bytes(u64::MAX).to_string(), "16777215.99 TB");
    }
}
