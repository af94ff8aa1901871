//! The message of a server to a client that it accepts.

use std::net::SocketAddr;

use bytes::BytesMut;
use mc_types::Epoch;

use crate::refusal::MAX_MESSAGE_LEN;
use crate::wire::{Fields, WireError, put_bytes, put_fixed64, put_u64};

/// Prefix of the name of every such socket, so that no server can send a client to a socket of
/// another program.
pub const SOCKET_NAME_PREFIX: &str = "mc-rpc-";

/// Longest name of a socket in Linux's abstract namespace in bytes: `sun_path` less the
/// zero byte in front.
pub const MAX_SOCKET_NAME_LEN: usize = 107;

/// A server's offers to a client that it accepts. The message `Welcome` of the `.proto`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// A shorter way than TCP for a client of the server's own host: the name of a Unix socket
    /// in Linux's abstract namespace, without the zero byte in front; it begins with
    /// [`SOCKET_NAME_PREFIX`]. Empty for none.
    pub local_socket: Box<str>,
    /// The client's address as the server sees it. Another one than the client's own shows
    /// a proxy in between, which the socket would get round.
    pub seen_as: Option<SocketAddr>,
    /// Whether the requests of this connection may say when they were sent.
    pub send_times: bool,
    /// The term of the leader that answers; `None` for a master without terms.
    pub epoch: Option<Epoch>,
    /// Drawn at random when the server began: it knows the calls again that were sent to it, and
    /// none that was sent to a server with another number. 0 for an older server.
    pub incarnation: u64,
    /// Whether the requests of this connection may say which reads of their client are over.
    pub reads: bool,
    /// Whether the requests of this connection may bear the context of a trace.
    pub traces: bool,
    /// Whether the bytes behind this message are the journal's, for which the client asked.
    pub is_journal: bool,
}

impl Welcome {
    /// The message's bytes.
    ///
    /// # Panics
    /// When the name is longer than [`MAX_SOCKET_NAME_LEN`].
    #[must_use]
    pub fn encode(&self) -> BytesMut {
        assert!(self.local_socket.len() <= MAX_SOCKET_NAME_LEN, "{:?}", self.local_socket);
        let mut out = BytesMut::new();
        put_bytes(&mut out, 1, self.local_socket.as_bytes());
        if let Some(address) = self.seen_as {
            put_bytes(&mut out, 2, address.to_string().as_bytes());
        }
        put_u64(&mut out, 3, self.send_times.into());
        put_u64(&mut out, 4, self.epoch.map_or(0, Epoch::as_u64));
        put_fixed64(&mut out, 5, self.incarnation);
        put_u64(&mut out, 6, self.is_journal.into());
        put_u64(&mut out, 7, self.reads.into());
        put_u64(&mut out, 8, self.traces.into());
        debug_assert!(out.len() <= MAX_MESSAGE_LEN, "a name, an address and numbers");
        out
    }

    /// Reads the message. An address that is none counts as unknown.
    ///
    /// # Errors
    /// [`WireError`] when it is no message, or the name is none of such a socket.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        let (mut fields, mut welcome) = (Fields::new(message), Self::default());
        while let Some(field) = fields.next()? {
            match field.number {
                1 => {
                    let name = field.text()?;
                    let of_ours = name.is_empty() || name.starts_with(SOCKET_NAME_PREFIX);
                    if name.len() > MAX_SOCKET_NAME_LEN || name.contains('\0') || !of_ours {
                        return Err(WireError::NotText { number: 1 });
                    }
                    welcome.local_socket = name.into();
                }
                2 => welcome.seen_as = field.text()?.parse().ok(),
                3 => welcome.send_times = field.bool()?,
                4 => welcome.epoch = Some(field.u64()?).filter(|&epoch| epoch != 0).map(Epoch::new),
                5 => welcome.incarnation = field.fixed64()?,
                6 => welcome.is_journal = field.bool()?,
                7 => welcome.reads = field.bool()?,
                8 => welcome.traces = field.bool()?,
                _ => {}
            }
        }
        Ok(welcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn a_welcome_is_the_message() {
        let seen_as = Some("[::1]:4000".parse().unwrap());
        let welcome = Welcome {
            local_socket: "mc-rpc-1".into(),
            seen_as,
            send_times: true,
            epoch: Some(Epoch::new(7)),
            incarnation: u64::MAX,
            is_journal: true,
            reads: true,
            traces: true,
        };
        let message = proto::Welcome {
            local_socket: "mc-rpc-1".into(),
            seen_as: "[::1]:4000".into(),
            send_times: true,
            epoch: 7,
            incarnation: u64::MAX,
            is_journal: true,
            reads: true,
            traces: true,
        };
        assert_eq!(message.encode_to_vec(), welcome.encode());
        assert_eq!(Welcome::parse(&welcome.encode()).unwrap(), welcome);
        assert_eq!(Welcome::parse(b"").unwrap(), Welcome::default());
    }

    #[test]
    fn what_is_no_name_or_address_is_not_used() {
        let message = |name: &str| proto::Welcome {
            local_socket: name.into(),
            seen_as: "x".into(),
            ..Default::default()
        };
        let long = |len: usize| format!("{:x<len$}", SOCKET_NAME_PREFIX);
        for bad in ["mc-rpc-\0", "bus", &long(108)] {
            assert!(Welcome::parse(&message(bad).encode_to_vec()).is_err(), "{bad:?}");
        }
        let welcome = Welcome::parse(&message(&long(107)).encode_to_vec()).unwrap();
        assert_eq!(welcome.seen_as, None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Welcome::parse(&bytes);
        }
    }
}
