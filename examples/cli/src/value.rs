//! Values that the binaries' flags share.

use std::num::NonZeroUsize;
use std::time::Duration;

use mc_types::{ByteSize, ParseByteSizeError};

/// Suffixes of a duration and how many milliseconds each is worth. `ms` comes
/// first because it ends in `s`.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Most threads that a command line can ask for. Far more than cores help.
pub const MAX_THREADS: usize = 1024;

/// Why a text is no number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose a number of threads between 1 and {MAX_THREADS}")]
pub struct ParseThreadCountError;

/// Parses a number of threads, from 1 to [`MAX_THREADS`].
///
/// ```
/// assert_eq!(mc_cli::parse_thread_count("4"), Ok(4));
/// assert!(mc_cli::parse_thread_count("0").is_err());
/// ```
///
/// # Errors
/// [`ParseThreadCountError`]
pub fn parse_thread_count(text: &str) -> Result<usize, ParseThreadCountError> {
    let count = text.trim().parse().map_err(|_| ParseThreadCountError)?;
    if (1..=MAX_THREADS).contains(&count) { Ok(count) } else { Err(ParseThreadCountError) }
}

/// Most connections that a command line can allow. More than ports of one address, and than
/// file descriptors that a system gives a process.
pub const MAX_CONNECTIONS: usize = 1_000_000;

/// Why a text is no number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose a number of connections between 1 and {MAX_CONNECTIONS}")]
pub struct ParseConnectionCountError;

/// Parses a number of connections, from 1 to [`MAX_CONNECTIONS`].
///
/// ```
/// assert_eq!(mc_cli::parse_connection_count("64").map(|count| count.get()), Ok(64));
/// assert!(mc_cli::parse_connection_count("0").is_err());
/// ```
///
/// # Errors
/// [`ParseConnectionCountError`]
pub fn parse_connection_count(text: &str) -> Result<NonZeroUsize, ParseConnectionCountError> {
    let count: NonZeroUsize = text.trim().parse().map_err(|_| ParseConnectionCountError)?;
    if count.get() <= MAX_CONNECTIONS { Ok(count) } else { Err(ParseConnectionCountError) }
}

/// Parses a duration: a whole number of milliseconds, or one with a suffix.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(mc_cli::parse_duration("5000"), Ok(Duration::from_secs(5)));
/// assert_eq!(mc_cli::parse_duration("30m"), Ok(Duration::from_secs(1800)));
/// ```
///
/// # Errors
/// [`ParseDurationError`]; signs, fractions and other units are refused.
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let text = text.trim();
    let (number, scale) = UNITS
        .iter()
        .find_map(|(suffix, scale)| Some((text.strip_suffix(suffix)?, *scale)))
        .unwrap_or((text, 1));
    let number = number.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseDurationError::Malformed);
    }
    let number: u64 = number.parse().map_err(|_| ParseDurationError::TooLong)?;
    number.checked_mul(scale).map(Duration::from_millis).ok_or(ParseDurationError::TooLong)
}

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseDurationError {
    /// The text is not a whole number with a known suffix.
    #[error("expected milliseconds or a suffix, such as 5000, 250ms, 5s, 30m or 2h")]
    Malformed,
    /// The duration does not fit in 64 bits of milliseconds.
    #[error("the duration is too long")]
    TooLong,
}

/// Parses a number between 0 and 1, both included.
///
/// ```
/// assert_eq!(mc_cli::parse_fraction("0.95"), Ok(0.95));
/// assert!(mc_cli::parse_fraction("95").is_err());
/// ```
///
/// # Errors
/// [`ParseFractionError`] for anything else.
pub fn parse_fraction(text: &str) -> Result<f64, ParseFractionError> {
    let value: f64 = text.trim().parse().map_err(|_| ParseFractionError)?;
    // Neither comparison holds for NaN.
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(ParseFractionError) }
}

/// A text is not a number between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number between 0 and 1, such as 0.95")]
pub struct ParseFractionError;

/// Parses a size of at least one byte.
///
/// ```
/// use mc_types::ByteSize;
/// assert_eq!(mc_cli::parse_positive_size("64KB"), Ok(ByteSize::kib(64)));
/// assert!(mc_cli::parse_positive_size("0").is_err());
/// ```
///
/// # Errors
/// [`ParsePositiveSizeError`] for zero and for what is no size.
pub fn parse_positive_size(text: &str) -> Result<ByteSize, ParsePositiveSizeError> {
    let size: ByteSize = text.parse().map_err(ParsePositiveSizeError::Malformed)?;
    if size.as_u64() == 0 { Err(ParsePositiveSizeError::Zero) } else { Ok(size) }
}

/// Why a text is not a size of at least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePositiveSizeError {
    /// The text is not a size.
    #[error("{0}")]
    Malformed(ParseByteSizeError),
    /// The size is zero.
    #[error("it must be at least one byte; write a size such as 64KB or 4GB")]
    Zero,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_parse_as_in_the_reference() {
        for (text, millis) in [
            ("0", 0),
            ("5000", 5000),
            ("250ms", 250),
            ("5s", 5000),
            (" 3 m ", 180_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "ms", "-1", "+1", "1.5s", "5 d", "5S", "1e3", "ś"] {
            assert_eq!(parse_duration(text), Err(ParseDurationError::Malformed), "{text}");
        }
        for text in ["99999999999999999999", "18446744073709551615h"] {
            assert_eq!(parse_duration(text), Err(ParseDurationError::TooLong), "{text}");
        }
    }

    #[test]
    fn connections_are_at_least_one_and_not_endless() {
        for text in ["1", " 64 ", "1000000"] {
            assert!(parse_connection_count(text).is_ok(), "{text}");
        }
        for text in ["", "0", "-1", "1000001", "18446744073709551616", "many"] {
            assert_eq!(parse_connection_count(text), Err(ParseConnectionCountError), "{text}");
        }
    }

    #[test]
    fn fractions_stay_in_bounds() {
        for text in ["0", "1", "1.0", "0.05", " .5"] {
            assert!(parse_fraction(text).is_ok(), "{text}");
        }
        for text in ["", "-0.1", "1.0001", "NaN", "inf", "5%", "x"] {
            assert!(parse_fraction(text).is_err(), "{text}");
        }
    }

    #[test]
    fn zero_bytes_are_refused() {
        assert_eq!(parse_positive_size("0GB"), Err(ParsePositiveSizeError::Zero));
        assert!(matches!(parse_positive_size("x"), Err(ParsePositiveSizeError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn durations_are_exact(number in 0u64..1 << 40, unit in 0usize..4) {
            let (suffix, scale) = UNITS[unit];
            let parsed = parse_duration(&format!("{number}{suffix}"));
            prop_assert_eq!(parsed, Ok(Duration::from_millis(number * scale)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = (parse_duration(&text), parse_fraction(&text), parse_positive_size(&text));
        }
    }
}
