//! Where a transport reaches a peer.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

/// Longest endpoint, in bytes.
pub const MAX_ENDPOINT_LEN: usize = 256;

/// Most further ways that an endpoint names.
pub const MAX_OTHER_ENDPOINTS: usize = 3;

/// `scheme://address`: the transport's name and whatever that transport needs
/// to find the peer (`tcp://10.0.0.7:50052`, `mem://node-3`).
///
/// It may name further ways to the same peer ([`others`](Self::others)), for those who cannot use
/// this one. Two endpoints are equal if their texts are, whichever other ways they name.
///
/// Cloning copies at most [`MAX_ENDPOINT_LEN`] bytes, and as many for each further way.
#[derive(Clone)]
pub struct Endpoint {
    text: Box<str>,
    scheme_len: u16,
    /// Behind one thin pointer: few endpoints have any, and every error of a peer names one.
    #[expect(clippy::box_collection, reason = "a boxed slice is twice as large")]
    others: Option<Box<Vec<Endpoint>>>,
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

    /// The part after `scheme://`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.text[usize::from(self.scheme_len) + 3..]
    }

    /// The whole text, without the other ways.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Further ways to the same peer, in the order of its preference: at most
    /// [`MAX_OTHER_ENDPOINTS`].
    #[must_use]
    pub fn others(&self) -> &[Endpoint] {
        self.others.as_deref().map_or(&[], Vec::as_slice)
    }

    /// The same endpoint with these as its only other ways. Those that it names already, and
    /// those beyond [`MAX_OTHER_ENDPOINTS`], are left out; others of theirs do not count.
    ///
    /// ```
    /// use mc_types::Endpoint;
    /// let tcp: Endpoint = "tcp://10.0.0.7:50052".parse()?;
    /// let quic: Endpoint = "quic://10.0.0.7:50052".parse()?;
    /// let both = quic.clone().with_others([tcp.clone(), quic.clone()]);
    /// assert_eq!(both.others(), [tcp]);
    /// assert_eq!(both, quic);
    /// # Ok::<(), mc_types::EndpointError>(())
    /// ```
    #[must_use]
    pub fn with_others(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        let mut named: Vec<Self> = Vec::new();
        for mut other in others {
            if named.len() == MAX_OTHER_ENDPOINTS {
                break;
            }
            if other != self && !named.contains(&other) {
                other.others = None;
                named.push(other);
            }
        }
        self.others = (!named.is_empty()).then(|| Box::new(named));
        self
    }
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Endpoint {}

impl PartialOrd for Endpoint {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Endpoint {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
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
        Ok(Self { text: text.into(), scheme_len, others: None })
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
    /// The text does not begin with a transport's name and `://`.
    NoScheme,
    /// Nothing usable follows `://`.
    BadAddress,
    /// The text is longer than [`MAX_ENDPOINT_LEN`].
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
