//! The kind of memory that a segment is made of.

use core::fmt;
use core::str::FromStr;

/// The kind of memory that holds a segment's bytes.
///
/// Shown in lower case and parsed in any case.
///
/// ```
/// use mc_types::MediaType;
/// assert_eq!("SSD".parse(), Ok(MediaType::Ssd));
/// assert_eq!(MediaType::default().to_string(), "dram");
/// assert!("tape".parse::<MediaType>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MediaType {
    /// The host's main memory. Seed 002 calls it RAM, which is parsed, too.
    #[default]
    Dram = 0,
    /// A file on a disk without moving parts, mapped into memory.
    Ssd = 1,
    /// The memory of a GPU.
    Vram = 2,
}

impl MediaType {
    /// Every medium, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Dram, Self::Ssd, Self::Vram];

    /// The number on the wire and in records.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the medium with this number.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Dram),
            1 => Some(Self::Ssd),
            2 => Some(Self::Vram),
            _ => None,
        }
    }

    /// Its name in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Ssd => "ssd",
            Self::Vram => "vram",
        }
    }
}

impl fmt::Display for MediaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for MediaType {
    type Err = ParseMediaTypeError;

    fn from_str(text: &str) -> Result<Self, ParseMediaTypeError> {
        let named = Self::ALL.into_iter().find(|medium| text.eq_ignore_ascii_case(medium.as_str()));
        let named = named.or_else(|| text.eq_ignore_ascii_case("ram").then_some(Self::Dram));
        named.ok_or(ParseMediaTypeError)
    }
}

/// The error of a text that names no [`MediaType`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMediaTypeError;

impl fmt::Display for ParseMediaTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected dram, ssd or vram")
    }
}

impl core::error::Error for ParseMediaTypeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_and_numbers_lead_back_to_the_medium() {
        for medium in MediaType::ALL {
            assert_eq!(MediaType::from_number(medium.number()), Some(medium));
            assert_eq!(medium.to_string().parse(), Ok(medium));
            assert_eq!(medium.to_string().to_uppercase().parse(), Ok(medium));
        }
        assert_eq!(MediaType::from_number(3), None);
        assert_eq!("RAM".parse(), Ok(MediaType::Dram));
        for wrong in ["", "disk", " ssd", "vram0"] {
            assert_eq!(wrong.parse::<MediaType>(), Err(ParseMediaTypeError));
        }
    }
}
