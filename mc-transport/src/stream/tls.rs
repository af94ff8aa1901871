//! A socket with TLS around the bytes.
//!
//! `rustls` keeps the keys and makes the records. What is here moves records between it
//! and the socket, many with each system call, and plaintext between it and memory, one
//! record at a time: registered memory is copied, never encrypted in place. Records are
//! made when those before have left, so that a peer that takes none costs no more than
//! one batch of them.

mod handshake;

use std::fmt;
use std::io::{self, BufRead, IoSlice, Write};

use mc_tls::rustls::{AlertDescription, Connection, InvalidMessage};
use mc_tls::{Protocol, rustls};
use parking_lot::Mutex;

use super::plain::PlainSocket;
use super::raw_io::ToSend;

pub(crate) use self::handshake::HandshakeError;

/// The protocol as TLS knows it.
pub(crate) const PROTOCOL: Protocol = Protocol::new(&[ALPN]).tls13_only();

/// Its name in ALPN (RFC 7301).
const ALPN: &[u8] = b"mc-transport/3";

/// Plaintext of the largest record (RFC 8446, section 5.1).
const RECORD: usize = 16 << 10;

/// Plaintext that is encrypted before any of it is sent. More needs fewer system calls,
/// less lets the peer decrypt the beginning while the rest is encrypted.
const BATCH: usize = 128 << 10;

/// Bytes received at once, and plaintext handed over at once.
const INCOMING: usize = 64 << 10;

/// Bytes received at once, and plaintext of a record, until a peer has sent or been sent so much at
/// once: one that has proved nothing costs little.
const FIRST_INCOMING: usize = 4 << 10;
const FIRST_RECORD: usize = 1 << 10;

/// A socket whose bytes are encrypted, by TLS 1.3.
pub(crate) struct TlsStream {
    socket: PlainSocket,
    /// Locked before `session`, and only by who receives.
    incoming: Mutex<Incoming>,
    session: Mutex<Session>,
}

/// The bytes that were sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Bytes that left, in records.
    pub(crate) bytes: usize,
    /// Bytes of plaintext whose records have all left.
    pub(crate) plaintext: usize,
}

struct Session {
    connection: Connection,
    /// Plaintext of the next record. Longer once it was filled.
    chunk: Box<[u8]>,
    /// Plaintext in records that have not all left.
    leaving: usize,
    /// Why nothing more can be decrypted.
    broken: Option<rustls::Error>,
}

/// Records received and not yet decrypted.
struct Incoming {
    /// Longer once it was filled.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TlsStream {
    fn new(socket: PlainSocket, connection: Connection) -> Self {
        Self {
            socket,
            incoming: Mutex::new(Incoming {
                bytes: vec![0; FIRST_INCOMING].into(),
                start: 0,
                end: 0,
            }),
            session: Mutex::new(Session {
                connection,
                chunk: vec![0; FIRST_RECORD].into(),
                leaving: 0,
                broken: None,
            }),
        }
    }

    pub(crate) fn socket(&self) -> &PlainSocket {
        &self.socket
    }

    /// Sends plaintext that `fill` puts into the slices that it is given, each time what
    /// follows and how much that is. Before `fill` is asked, that of earlier calls has
    /// left; until then the same plaintext is under way.
    ///
    /// # Errors
    /// `WouldBlock` when the socket takes nothing now; what the socket or TLS said
    /// otherwise.
    pub(crate) fn try_send(&self, mut fill: impl FnMut(&mut [u8]) -> usize) -> io::Result<Left> {
        let mut session = self.session.lock();
        if session.leaving == 0 {
            session.encrypt(&mut fill)?;
        }
        let mut bytes = 0;
        while session.connection.wants_write() {
            match session.connection.write_tls(&mut Records(&self.socket)) {
                Ok(sent) => bytes += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && bytes > 0 => {
                    return Ok(Left { bytes, plaintext: 0 });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Left { bytes, plaintext: std::mem::take(&mut session.leaving) })
    }

    /// Receives plaintext and offers it to `take`, which says how much of it it took; the
    /// sum of that. What it leaves is offered again the next time.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing now, `UnexpectedEof` at the end of the stream,
    /// what the socket or TLS said otherwise.
    pub(crate) fn try_receive(&self, mut take: impl FnMut(&[u8]) -> usize) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        let mut taken = 0;
        let outcome = loop {
            match self.session.lock().pass_on(&mut incoming, &mut taken, &mut take) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            // Without the session, so that others may encrypt meanwhile.
            match incoming.receive(&self.socket) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        // An error comes again; what was taken before it counts.
        if taken > 0 { Ok(taken) } else { outcome.map(|()| 0) }
    }

    /// Tells the peer that nothing more comes, if the socket takes that now.
    pub(crate) fn say_goodbye(&self) {
        let mut session = self.session.lock();
        session.connection.send_close_notify();
        session.flush(&self.socket);
    }
}

impl Session {
    /// Makes records of what `fill` has, as many as leave together.
    fn encrypt(&mut self, fill: &mut impl FnMut(&mut [u8]) -> usize) -> io::Result<()> {
        while self.leaving < BATCH {
            let filled = fill(&mut self.chunk);
            // Takes all: its buffer has no limit but ours.
            self.connection.writer().write_all(&self.chunk[..filled])?;
            self.leaving += filled;
            if filled < self.chunk.len() {
                break;
            }
            if self.chunk.len() < RECORD {
                self.chunk = vec![0; RECORD].into();
            }
        }
        Ok(())
    }

    /// Decrypts what has arrived and passes it on; `true` when no more is to be taken
    /// now, `false` when more has to arrive.
    fn pass_on(
        &mut self,
        incoming: &mut Incoming,
        taken: &mut usize,
        take: &mut impl FnMut(&[u8]) -> usize,
    ) -> io::Result<bool> {
        loop {
            let mut reader = self.connection.reader();
            match reader.fill_buf() {
                // The peer has said that this is the end.
                Ok([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(plaintext) => {
                    let (available, used) = (plaintext.len(), take(plaintext));
                    reader.consume(used);
                    *taken += used;
                    if used < available || *taken >= INCOMING {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if incoming.is_empty() {
                        return self.broken.clone().map_or(Ok(false), |broken| Err(said(broken)));
                    }
                    self.decrypt(incoming).map_err(said)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Decrypts a part of what has arrived, once all plaintext before it is taken.
    fn decrypt(&mut self, incoming: &mut Incoming) -> Result<(), rustls::Error> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let processed = match self.connection.read_tls(&mut incoming.waiting()) {
            Ok(0) => Err(rustls::Error::AlertReceived(AlertDescription::CloseNotify)),
            Ok(read) => {
                incoming.start += read;
                self.connection.process_new_packets().map(drop)
            }
            // A slice can always be read, so its buffer is full of one message.
            Err(_) => Err(InvalidMessage::HandshakePayloadTooLarge.into()),
        };
        processed.inspect_err(|error| self.broken = Some(error.clone()))
    }

    /// Sends what there is to say beside plaintext, as far as the socket takes it now.
    fn flush(&mut self, socket: &PlainSocket) {
        // An alert that does not leave is no loss: the connection ends either way.
        while self.connection.wants_write()
            && self.connection.write_tls(&mut Records(socket)).is_ok()
        {}
    }
}

/// TLS has failed in a way that ends the stream.
fn said(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Receives behind what waits; zero at the end of the stream.
    fn receive(&mut self, socket: &PlainSocket) -> io::Result<usize> {
        if self.is_empty() {
            let was_filled = self.end == self.bytes.len();
            if was_filled && self.bytes.len() < INCOMING {
                self.bytes = vec![0; INCOMING].into();
            }
            (self.start, self.end) = (0, 0);
        }
        let received = socket.try_receive_into(&mut self.bytes[self.end..])?;
        self.end += received;
        Ok(received)
    }
}

/// Where records go.
struct Records<'a>(&'a PlainSocket);

impl Write for Records<'_> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(record)])
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut out = ToSend::new();
        // Those that find no place leave the next time.
        let _ = records.iter().all(|record| out.push_bytes(record));
        self.0.try_send(&mut out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}
