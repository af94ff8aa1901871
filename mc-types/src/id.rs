//! 128-bit identities, written as UUIDs, and object generations.

use core::fmt;
use core::str::FromStr;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Shown and parsed in the 8-4-4-4-12 form of RFC 9562. The caller draws
        /// it at random; nothing here needs a source of randomness.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// Takes 128 bits as an id.
            #[must_use]
            pub const fn from_u128(bits: u128) -> Self {
                Self(bits)
            }

            /// The id's bits.
            #[must_use]
            pub const fn as_u128(self) -> u128 {
                self.0
            }

            /// The id's 16 bytes, most significant first: its form on the wire.
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// Reads the 16 bytes of [`to_bytes`](Self::to_bytes).
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_uuid(self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_uuid(self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_uuid(text).map(Self).ok_or(ParseIdError)
            }
        }
    };
}

uuid_id! {
    /// A client: one process that puts, gets or contributes memory.
    ClientId
}
uuid_id! {
    /// A segment: one contiguous range of memory that a client contributes.
    SegmentId
}
uuid_id! {
    /// A client's local disk, under which it is known wherever it is mounted.
    LocalDiskId
}
uuid_id! {
    /// A task: one copy or move of an object that a client does for the master.
    TaskId
}
uuid_id! {
    /// A job: many tasks with one end, such as to empty a segment.
    JobId
}

/// Defines ids that a master draws from one sequence of numbers.
macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Returns the id with this number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the id's number.
            #[must_use]
            pub const fn as_u64(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id! {
    /// The put of a key that an object came from. A master never gives the same
    /// generation twice, so two objects under one key can be told apart.
    Generation, "g"
}

/// A generation may tell which objects share a file. Where a master wants that, the lowest 16 bits are the mark of a
/// run: of puts of one client that follow each other. The 48 bits above count all puts; while their highest 28
/// are the same, no two runs have the same mark.
impl Generation {
    const MARK_BITS: u32 = 16;
    const PLACE_BITS: u32 = 20;

    /// Generations between those of two puts of a master that gives marks.
    pub const STEP: u64 = 1 << Self::MARK_BITS;

    /// Puts after which marks are given anew.
    pub const PLACES: u32 = 1 << Self::PLACE_BITS;

    /// The run that the put belongs to; `None` where it belongs to none, and shares its file with nothing.
    #[must_use]
    pub const fn run(self) -> Option<u64> {
        let mark = self.0 % Self::STEP;
        let window = self.0 >> (Self::MARK_BITS + Self::PLACE_BITS);
        if mark == 0 { None } else { Some(window << Self::MARK_BITS | mark) }
    }

    /// The put's place in its run: less than [`PLACES`](Self::PLACES). There are gaps.
    #[must_use]
    pub const fn place_in_run(self) -> u32 {
        (self.0 >> Self::MARK_BITS) as u32 % Self::PLACES
    }

    /// The generation with this place in a run.
    ///
    /// ```
    /// # use mc_types::Generation;
    /// let generation = Generation::in_run(0x7_0003, 20);
    /// assert_eq!((generation.run(), generation.place_in_run()), (Some(0x7_0003), 20));
    /// assert!(generation < Generation::in_run(0x7_0002, 21), "they count all puts");
    /// ```
    #[must_use]
    pub const fn in_run(run: u64, place: u32) -> Self {
        let (window, mark) = (run >> Self::MARK_BITS, run % Self::STEP);
        let place = (place % Self::PLACES) as u64;
        Self(window << (Self::MARK_BITS + Self::PLACE_BITS) | place << Self::MARK_BITS | mark)
    }
}

number_id! {
    /// A copy or a move of an object, or its promotion from a disk into memory. A master
    /// never gives the same id twice.
    TransferId, "t"
}

number_id! {
    /// The place of an effect among all effects of a master, counted from 1.
    Sequence, "#"
}

number_id! {
    /// The term of a master: of two masters of a cluster the one with the higher epoch is the
    /// younger, and what the older one says after the younger's begin is not to be believed.
    Epoch, "e"
}

/// The text is not a UUID of the 8-4-4-4-12 form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a UUID; expected 32 hexadecimal digits as 8-4-4-4-12")
    }
}

impl core::error::Error for ParseIdError {}

fn write_uuid(bits: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        bits >> 96,
        (bits >> 80) & 0xffff,
        (bits >> 64) & 0xffff,
        (bits >> 48) & 0xffff,
        bits & 0xffff_ffff_ffff
    )
}

fn parse_uuid(text: &str) -> Option<u128> {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    if text.len() != 36 {
        return None;
    }
    text.bytes().enumerate().try_fold(0u128, |bits, (at, byte)| {
        if HYPHENS.contains(&at) {
            return (byte == b'-').then_some(bits);
        }
        let digit = char::from(byte).to_digit(16)?;
        Some(bits << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn text_round_trips() {
        let id = ClientId::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "01234567-89ab-cdef-0011-223344556677");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(ClientId::from_bytes(id.to_bytes()), id);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "01234567-89ab-cdef-0011-22334455667",
            "01234567+89ab-cdef-0011-223344556677",
            "0123456789abcdef00112233445566770000",
            "g1234567-89ab-cdef-0011-223344556677",
        ] {
            assert_eq!(text.parse::<SegmentId>(), Err(ParseIdError), "{text}");
        }
    }
}
