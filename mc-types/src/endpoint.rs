//! Where a transport reaches a peer.

use alloc::boxed::Box;
use core::fmt;
use core::str::FromStr;

/// Longest endpoint, in bytes.
pub const MAX_ENDPOINT_LEN: usize = 256;

/// `scheme://address`: the transport's name and whatever that transport needs
/// to find the peer (`tcp://10.0.0.7:50052`, `mem://node-3`).
///
/// Cloning copies at most [`MAX_ENDPOINT_LEN`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    text: Box<str>,
    scheme_len: u16,
}

impl Endpoint {
    /// Joins a scheme and an address.
    ///
    /// # Errors
    /// [`EndpointError`] when either is empty, the scheme has characters other
    /// than `a-z`, `0-9` and `+`, the address has spaces or control characters,
    /// or the whole is longer than [`MAX_ENDPOINT_LEN`].
    pub fn new(scheme: &str, address: &str) -> Result<Self, EndpointError> {
        alloc::format!("{scheme}://{address}").parse()
    }

    /// The transport's name.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.text[..usize::from(self.scheme_len)]
    }

    /// What follows `scheme://`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.text[usize::from(self.scheme_len) + 3..]
    }

    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.len() > MAX_ENDPOINT_LEN {
            return Err(EndpointError::TooLong { len: text.len() });
        }
        let (scheme, address) = text.split_once("://").ok_or(EndpointError::NoScheme)?;
        let scheme_is_word = !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'+');
        if !scheme_is_word {
            return Err(EndpointError::NoScheme);
        }
        if address.is_empty() || address.bytes().any(|b| b.is_ascii_whitespace() || b < 0x20) {
            return Err(EndpointError::BadAddress);
        }
        let scheme_len = scheme.len() as u16; // bounded by MAX_ENDPOINT_LEN above
        Ok(Self { text: text.into(), scheme_len })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointError {
    /// It does not begin with a transport's name and `://`.
    NoScheme,
    /// Nothing usable follows `://`.
    BadAddress,
    /// It is longer than [`MAX_ENDPOINT_LEN`].
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheme => f.write_str("an endpoint begins with a transport, as in tcp://"),
            Self::BadAddress => f.write_str("an endpoint has an address after ://, without spaces"),
            Self::TooLong { len } => {
                write!(f, "the endpoint has {len} bytes; the limit is {MAX_ENDPOINT_LEN}")
            }
        }
    }
}

impl core::error::Error for EndpointError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found() {
        let endpoint: Endpoint = "tcp://[::1]:50052".parse().unwrap();
        assert_eq!((endpoint.scheme(), endpoint.address()), ("tcp", "[::1]:50052"));
        assert_eq!(Endpoint::new("mem", "node 3"), Err(EndpointError::BadAddress));
        assert_eq!(Endpoint::new("", "x"), Err(EndpointError::NoScheme));
        assert_eq!("10.0.0.7:1".parse::<Endpoint>(), Err(EndpointError::NoScheme));
        assert!(Endpoint::new("tcp", &"x".repeat(MAX_ENDPOINT_LEN)).is_err());
    }
}
