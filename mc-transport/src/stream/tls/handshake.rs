//! From a socket to a stream that is encrypted.

use std::io;
use std::sync::Arc;

use mc_tls::rustls::pki_types::ServerName;
use mc_tls::rustls::{
    self, ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
};

use super::{ALPN, Incoming, Records, Session, TlsStream};
use crate::stream::plain::PlainSocket;
use crate::stream::wire::{MAGIC, PREFACE_LEN, Preface, Verdict};

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The peer speaks our protocol, but as it is.
    #[error("the peer does not speak TLS")]
    Plain {
        /// Whether the peer reported that it has too many connections.
        busy: bool,
    },
    /// The peer speaks TLS, but not our protocol in it.
    #[error("the peer speaks another protocol in TLS")]
    OtherProtocol,
    /// TLS failed.
    #[error("TLS did not come about: {0}")]
    Tls(rustls::Error),
    /// The connection failed.
    #[error("the connection ended during the handshake: {0}")]
    Io(#[from] io::Error),
}

/// The state of a handshake.
enum Step {
    Done,
    /// The peer has to say something.
    Read,
    /// The socket has to take something.
    Write,
}

impl TlsStream {
    /// The side that reaches out, before the handshake.
    pub(crate) fn client(
        socket: PlainSocket,
        settings: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, rustls::Error> {
        let connection = ClientConnection::new(settings, name)?;
        Ok(Self::new(socket, Connection::Client(connection)))
    }

    /// The side that is reached, before the handshake.
    pub(crate) fn server(
        socket: PlainSocket,
        settings: Arc<ServerConfig>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self::new(socket, Connection::Server(ServerConnection::new(settings)?)))
    }

    /// Shakes hands. The peer has as long as the caller lets it.
    pub(crate) async fn shake_hands(&self) -> Result<(), HandshakeError> {
        // No other task uses the stream yet, so the locks are free whenever we wait.
        let mut begun = false;
        loop {
            let step = {
                let (mut incoming, mut session) = (self.incoming.lock(), self.session.lock());
                session.step(&self.socket, &mut incoming, &mut begun)?
            };
            match step {
                Step::Done => return Ok(()),
                Step::Read => self.socket.readable().await?,
                Step::Write => self.socket.writable().await?,
            }
        }
    }
}

impl Session {
    /// Goes on with the handshake as far as the socket lets it. `begun` says whether the
    /// peer is known to speak TLS.
    fn step(
        &mut self,
        socket: &PlainSocket,
        incoming: &mut Incoming,
        begun: &mut bool,
    ) -> Result<Step, HandshakeError> {
        loop {
            while self.connection.wants_write() {
                match self.connection.write_tls(&mut Records(socket)) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Step::Write);
                    }
                    // The peer may have said why it hung up.
                    Err(_) => break,
                }
            }
            if !self.connection.is_handshaking() {
                return self.finish().map(|()| Step::Done);
            }
            if !*begun && is_plain(incoming.waiting()) {
                if let Some(preface) = incoming.waiting().first_chunk::<PREFACE_LEN>() {
                    let verdict = Preface::decode(preface).map(|preface| preface.verdict);
                    let busy = verdict == Some(Verdict::Busy as u16);
                    return Err(HandshakeError::Plain { busy });
                }
            } else if !incoming.is_empty() {
                *begun = true;
                if let Err(error) = self.decrypt(incoming) {
                    self.flush(socket);
                    return Err(HandshakeError::Tls(error));
                }
                continue;
            }
            match incoming.receive(socket) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Step::Read),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn finish(&mut self) -> Result<(), HandshakeError> {
        // A side that offers no protocol is one that does not know ours.
        if self.connection.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::OtherProtocol);
        }
        // We make no more records than one batch; the library need not watch over that.
        self.connection.set_buffer_limit(None);
        Ok(())
    }
}

/// Returns whether these first bytes of a peer are those of our protocol without TLS.
fn is_plain(bytes: &[u8]) -> bool {
    let len = bytes.len().min(MAGIC.len());
    len > 0 && bytes[..len] == MAGIC[..len]
}
