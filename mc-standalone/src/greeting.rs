//! The greeting that the TCP port sends to each peer: the place of the Unix socket.
//!
//! Offsets in bytes, numbers little-endian: magic `MCREALCL` (0), version u16 (8), secret
//! (10, 16 bytes), length of the socket's name u8 (26), the name (27). The server closes
//! the connection behind it.

use mc_transport::NodeSecret;

use super::wire::VERSION;

const MAGIC: &[u8; 8] = b"MCREALCL";
const HEAD: usize = 27;

/// Longest name of an abstract socket.
pub(super) const MAX_NAME: usize = 107;

/// Longest greeting.
pub(super) const MAX_LEN: usize = HEAD + MAX_NAME;

/// Where a thin client of this host finds its node agent.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) version: u16,
    pub(super) secret: NodeSecret,
    /// The abstract Unix socket's, without the leading zero byte.
    pub(super) name: String,
}

/// Why what came is no greeting of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadGreeting {
    /// The greeting begins or ends otherwise.
    Foreign,
    /// The server speaks this version.
    Version(u16),
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = &self.name.as_bytes()[..self.name.len().min(MAX_NAME)];
        let mut bytes = Vec::with_capacity(HEAD + name.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.secret.to_bytes());
        bytes.push(name.len() as u8); // at most MAX_NAME
        bytes.extend_from_slice(name);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, BadGreeting> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(BadGreeting::Foreign)?;
        let (version, rest) = rest.split_first_chunk().ok_or(BadGreeting::Foreign)?;
        let version = u16::from_le_bytes(*version);
        if version != VERSION {
            return Err(BadGreeting::Version(version));
        }
        let (secret, rest) = rest.split_first_chunk().ok_or(BadGreeting::Foreign)?;
        let (&len, name) = rest.split_first().ok_or(BadGreeting::Foreign)?;
        let name = name.get(..usize::from(len)).filter(|name| (1..=MAX_NAME).contains(&name.len()));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or(BadGreeting::Foreign)?.to_owned();
        Ok(Self { version, secret: NodeSecret::from_bytes(*secret), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_as_it_was_written_or_not_at_all() {
        let name = "mc_store_client_50052.sock".to_owned();
        let greeting = Greeting { version: VERSION, secret: NodeSecret::from_bytes([7; 16]), name };
        let bytes = greeting.encode();
        let read = Greeting::decode(&bytes).unwrap();
        assert_eq!((read.secret.to_bytes(), &read.name), ([7; 16], &greeting.name));
        for len in 0..bytes.len() {
            assert_eq!(Greeting::decode(&bytes[..len]).unwrap_err(), BadGreeting::Foreign, "{len}");
        }
        let mut newer = bytes.clone();
        newer[8] = 9;
        assert_eq!(Greeting::decode(&newer).unwrap_err(), BadGreeting::Version(9));
        let mut nameless = bytes.clone();
        nameless[26] = 0;
        assert_eq!(Greeting::decode(&nameless).unwrap_err(), BadGreeting::Foreign);
        assert_eq!(Greeting::decode(b"HTTP/1.1 400\r\n\r\n").unwrap_err(), BadGreeting::Foreign);
    }
}
