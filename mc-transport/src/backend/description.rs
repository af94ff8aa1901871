//! A server's description of itself behind its preface: its identity, and which other ways
//! lead to it.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use mc_types::Endpoint;

use crate::link_id::LinkId;

/// Bytes of the longest description.
pub const MAX_DESCRIPTION: usize = 4096;

/// Most rails, and most shortcuts, that are told or believed.
pub const MAX_WAYS: usize = 16;

/// The description of itself that a node sends over each of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Random, one for each running transport: another connection that leads to
    /// another node shows by it.
    pub node: [u8; 16],
    /// The connection that it was said over, as the server calls it.
    pub connection: Option<LinkId>,
    /// Addresses of the node's network cards.
    pub rails: Vec<SocketAddr>,
    /// Transports that serve the same regions to some peers.
    pub shortcuts: Vec<Shortcut>,
    /// Whether it may be told which trace requests belong to.
    pub traces: bool,
}

/// Another transport of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct Shortcut {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The proof that the node found there is the same.
    pub secret: [u8; 16],
}

/// Leaves out the secret.
impl fmt::Debug for Shortcut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shortcut").field(&self.endpoint).finish()
    }
}

impl Description {
    /// The description as it travels.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("node {}\n", hex(&self.node));
        if let Some(connection) = self.connection {
            let _ = writeln!(text, "connection {}", hex(&connection.to_bytes()));
        }
        if self.traces {
            text.push_str("traces\n");
        }
        for rail in self.rails.iter().take(MAX_WAYS) {
            let _ = writeln!(text, "rail {rail}");
        }
        for shortcut in self.shortcuts.iter().take(MAX_WAYS) {
            let line = format!("shortcut {} {}\n", shortcut.endpoint, hex(&shortcut.secret));
            // An endpoint can be as long as a path; what has no room is not offered.
            if text.len() + line.len() <= MAX_DESCRIPTION {
                text.push_str(&line);
            }
        }
        text.into_bytes()
    }

    /// Decodes `bytes`, as far as this version understands it; `None` when they do not
    /// say who the node is.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (mut node, mut connection) = (None, None);
        let (mut rails, mut shortcuts, mut traces) = (Vec::new(), Vec::new(), false);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["node", id] => node = unhex(id),
                ["connection", id] => connection = unhex(id).map(LinkId::from_bytes),
                ["traces"] => traces = true,
                ["rail", address] if rails.len() < MAX_WAYS => {
                    rails.extend(address.parse::<SocketAddr>());
                }
                ["shortcut", endpoint, secret] if shortcuts.len() < MAX_WAYS => {
                    let endpoint = endpoint.parse::<Endpoint>().ok();
                    let both = endpoint.zip(unhex(secret));
                    shortcuts.extend(both.map(|(endpoint, secret)| Shortcut { endpoint, secret }));
                }
                _ => {}
            }
        }
        node.map(|node| Self { node, connection, rails, shortcuts, traces })
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    number.map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Description {
        Description {
            node: *b"0123456789abcdef",
            connection: Some(LinkId::from_bytes([0x5a; 16])),
            rails: vec!["10.0.0.1:7000".parse().unwrap(), "[fd00::1]:7000".parse().unwrap()],
            shortcuts: vec![Shortcut {
                endpoint: Endpoint::new("shm", "@mc-7").unwrap(),
                secret: [0xab; 16],
            }],
            traces: true,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let text = "node 30313233343536373839616263646566\nconnection \
            5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a\ntraces\nrail 10.0.0.1:7000\nrail [fd00::1]:7000\nshortcut shm://@mc-7 abababababababababababababababab\n";
        assert_eq!(some().encode(), text.as_bytes());
        assert_eq!(Description::decode(text.as_bytes()), Some(some()));
        let later = format!("{text}weather fine\nrail nowhere\nrail\n\n");
        assert_eq!(Description::decode(later.as_bytes()), Some(some()));
    }

    #[test]
    fn a_node_without_a_name_is_none() {
        for text in
            ["", "rail 10.0.0.1:7000\n", "node 12\n", "node +0313233343536373839616263646566"]
        {
            assert_eq!(Description::decode(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Description::decode(&[0xff; 40]), None);
    }

    #[test]
    fn ways_are_bounded() {
        let mut many = some();
        many.rails = vec!["10.0.0.1:7000".parse().unwrap(); 1000];
        many.shortcuts = vec![many.shortcuts[0].clone(); 1000];
        let long = "x".repeat(200);
        many.shortcuts[1].endpoint = Endpoint::new("shm", &long).unwrap();
        let bytes = many.encode();
        assert!(bytes.len() <= MAX_DESCRIPTION);
        assert_eq!(Description::decode(&bytes).unwrap().rails.len(), MAX_WAYS);
        let endless = [some().encode(), "rail 10.0.0.1:7000\n".repeat(1000).into_bytes()].concat();
        assert_eq!(Description::decode(&endless).unwrap().rails.len(), MAX_WAYS);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,100}") {
            let _ = Description::decode(&bytes);
            let _ = Description::decode(text.as_bytes());
            let _ = Description::decode(format!("node {text}\nrail {text}\nshortcut {text} {text}").as_bytes());
        }
    }
}
