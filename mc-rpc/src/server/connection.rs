//! One connection of a server.
//!
//! What has arrived is read into a buffer of the thread, every complete call in
//! it is answered in place, and the answers leave in one write. A connection
//! owns memory only for half a request or for answers that its peer does not
//! take; while it has such answers it reads nothing.

use core::future::poll_fn;
use core::mem;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::cell::RefCell;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BytesMut};
use mc_types::ErrorCode;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::Shared;
use crate::caller::Caller;
use crate::error::{HandshakeError, Refusal};
use crate::frame::{
    ClientPreface, FrameError, FrameHeader, HEADER_LEN, Hello, Kind, ServerPreface, VERSION,
    append_frame, append_refusal, first_frame, other_version,
};
use crate::handshake::{PrefaceError, read_exactly, read_preface};
use crate::method::{Method, Pace};
use crate::service::{Call, Service};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// A request larger than this runs on a blocking thread, as do the calls that
/// look at every object.
const MAX_INLINE: usize = READ_BYTES;

/// A connection that holds no more than this does not count towards
/// [`ServerConfig::max_buffered`](super::ServerConfig::max_buffered).
const SMALL_BUFFERS: usize = 256 << 10;

/// How long a peer that broke the protocol may take to read why, and how much
/// it may go on sending meanwhile.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 << 20;

/// Reads of [`READ_BYTES`] that a connection gets during shutdown.
const MAX_DRAIN_READS: usize = 128;

/// Buffers that the connections of one thread take turns with.
struct Scratch {
    arrived: Box<[u8]>,
    answers: BytesMut,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        arrived: vec![0; READ_BYTES].into(),
        answers: BytesMut::new(),
    });
}

/// Why a connection ends.
#[derive(Debug, Error)]
enum End {
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
    #[error("no complete preface within {0:?}")]
    SlowHandshake(Duration),
    #[error("refused: {0}")]
    Refused(Refusal),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a request has not arrived completely within {0:?}")]
    SlowRequest(Duration),
    #[error("answers have not been taken within {0:?}")]
    SlowReader(Duration),
    #[error("the connections together hold more than {max} bytes")]
    OutOfBuffers { max: usize },
    #[error("a call panicked on a blocking thread")]
    Panicked,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<PrefaceError> for End {
    fn from(error: PrefaceError) -> Self {
        match error {
            PrefaceError::Io(error) => Self::Io(error),
            PrefaceError::Handshake(error) => Self::Handshake(error),
            PrefaceError::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

/// What to do after the calls at hand are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Read on.
    Read,
    /// Look at `pending` again once the answers have left.
    Resume,
    /// Run the call at the beginning of `pending` on a blocking thread.
    RunLong,
    /// The peer sends no more.
    Closed,
    /// The peer broke the protocol; it has been told in the answers.
    Broken(FrameError),
}

pub(super) struct Connection<S> {
    stream: TcpStream,
    peer: SocketAddr,
    shared: Arc<Shared<S>>,
    /// Most bytes that the client accepts as an answer.
    max_reply: usize,
    /// What has arrived and is not answered: half a request, most often nothing.
    pending: BytesMut,
    pending_since: Option<Instant>,
    /// Whether the last read filled the thread's buffer.
    read_full: bool,
    /// Answers that the socket does not take yet.
    unsent: BytesMut,
    /// This connection's part of [`Shared::buffered`].
    buffered: usize,
}

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        self.shared.buffered.fetch_sub(self.buffered, Ordering::Relaxed);
    }
}

impl<S: Service> Connection<S> {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared<S>>) -> Self {
        Self {
            stream,
            peer,
            shared,
            max_reply: 0,
            pending: BytesMut::new(),
            pending_since: None,
            read_full: false,
            unsent: BytesMut::new(),
            buffered: 0,
        }
    }

    /// Serves the connection to its end, and says once why a bad one ended.
    pub(super) async fn run(mut self, mut draining: watch::Receiver<bool>) {
        let ended = match self.shake_hands().await {
            Ok(()) => self.serve(&mut draining).await,
            Err(end) => Err(end),
        };
        let peer = self.peer;
        match ended {
            Ok(()) => tracing::debug!(%peer, "connection closed"),
            Err(End::Io(error)) => tracing::debug!(%peer, %error, "connection lost"),
            Err(reason) => tracing::warn!(%peer, %reason, "connection closed by this side"),
        }
    }

    async fn shake_hands(&mut self) -> Result<(), End> {
        let config = &self.shared.config;
        self.stream.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(config.keepalive);
        socket2::SockRef::from(&self.stream).set_tcp_keepalive(&keepalive)?;

        let read = read_preface(&mut self.stream);
        let preface = timeout(config.handshake_timeout, read)
            .await
            .map_err(|_| End::SlowHandshake(config.handshake_timeout))??;
        let client = ClientPreface::parse(&preface)?;
        if client.version != VERSION {
            let refusal = other_version(client.version);
            self.stream.write_all(&ServerPreface::refusing(&refusal)).await?;
            return Err(HandshakeError::Version { theirs: client.version, ours: VERSION }.into());
        }
        let hello = read_exactly(&mut self.stream, client.hello_len.into());
        let hello = timeout(config.handshake_timeout, hello)
            .await
            .map_err(|_| End::SlowHandshake(config.handshake_timeout))??;
        if let Err(refusal) = Hello::parse(&hello) {
            self.stream.write_all(&ServerPreface::refusing(&refusal)).await?;
            return Err(End::Refused(refusal));
        }
        self.max_reply = client.max_payload as usize;
        let answer = ServerPreface {
            version: VERSION,
            message_len: 0,
            status: 0,
            max_payload: config.max_payload,
            max_in_flight: config.max_in_flight,
        };
        self.stream.write_all(&answer.encode()).await?;
        Ok(())
    }

    async fn serve(&mut self, draining: &mut watch::Receiver<bool>) -> Result<(), End> {
        let mut next = Next::Read;
        loop {
            self.flush().await?;
            next = match next {
                Next::Read if draining.has_changed().unwrap_or(true) => return self.finish().await,
                Next::Read => {
                    if mem::take(&mut self.read_full) {
                        // There is more, and other connections wait as well.
                        tokio::task::yield_now().await;
                    }
                    let arrived = tokio::select! {
                        biased;
                        arrived = self.read() => Some(arrived?),
                        _ = draining.changed() => None,
                    };
                    match arrived {
                        Some(next) => next,
                        None => return self.finish().await,
                    }
                }
                Next::Resume => self.answer_pending(),
                Next::RunLong => self.run_long().await?,
                Next::Closed => return Ok(()),
                Next::Broken(error) => {
                    linger(&mut self.stream).await;
                    return Err(error.into());
                }
            };
            self.account()?;
        }
    }

    /// Waits for bytes and answers the calls that they complete.
    ///
    /// Cancelling loses nothing: bytes are taken from the socket and answered in
    /// one poll.
    async fn read(&mut self) -> Result<Next, End> {
        let stall = self.shared.config.stall_timeout;
        let since = self.pending_since;
        let read = poll_fn(|cx| self.poll_read(cx));
        let next = match since {
            None => read.await?,
            Some(since) => {
                timeout_at(since + stall, read).await.map_err(|_| End::SlowRequest(stall))??
            }
        };
        Ok(next)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Next>> {
        SCRATCH.with_borrow_mut(|Scratch { arrived, answers }| {
            let mut arrived = ReadBuf::new(arrived);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut arrived))?;
            self.read_full = arrived.remaining() == 0;
            Poll::Ready(self.take_in(arrived.filled(), answers))
        })
    }

    /// What the system holds for this connection at this moment, without
    /// waiting for the runtime to hear of it; `None` when that is nothing.
    fn read_what_is_there(&mut self) -> Option<io::Result<Next>> {
        SCRATCH.with_borrow_mut(|Scratch { arrived, answers }| {
            let read = (&*socket2::SockRef::from(&self.stream)).read(arrived);
            match read {
                Ok(read) => Some(self.take_in(&arrived[..read], answers)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// Answers the calls that `arrived` completes, and sends what the socket
    /// takes. `answers` lends its memory.
    fn take_in(&mut self, arrived: &[u8], answers: &mut BytesMut) -> io::Result<Next> {
        if arrived.is_empty() {
            return Ok(Next::Closed);
        }
        mem::swap(&mut self.unsent, answers);
        let next = if self.pending.is_empty() {
            let (taken, next) = self.answer(arrived);
            self.pending.extend_from_slice(&arrived[taken..]);
            next
        } else {
            self.pending.extend_from_slice(arrived);
            self.answer_pending()
        };
        self.note_pending(next);
        self.send_now()?;
        if self.unsent.is_empty() && self.unsent.capacity() <= SMALL_BUFFERS {
            mem::swap(&mut self.unsent, answers);
        }
        Ok(next)
    }

    /// Answers the complete calls in `pending`.
    fn answer_pending(&mut self) -> Next {
        let mut pending = mem::take(&mut self.pending);
        let (taken, next) = self.answer(&pending);
        pending.advance(taken);
        if !pending.is_empty() {
            self.pending = pending;
        }
        self.note_pending(next);
        next
    }

    /// A request that is half there has until the stall time-out to arrive.
    fn note_pending(&mut self, next: Next) {
        self.pending_since = match (next, self.pending.is_empty()) {
            (Next::Read, false) => self.pending_since.or_else(|| Some(Instant::now())),
            _ => None,
        };
    }

    /// Answers the complete calls at the beginning of `bytes`; says how many
    /// bytes they are.
    fn answer(&mut self, bytes: &[u8]) -> (usize, Next) {
        let (shared, unsent) = (&*self.shared, &mut self.unsent);
        let mut taken = 0;
        loop {
            if unsent.len() >= shared.config.max_unsent {
                return (taken, Next::Resume);
            }
            let frame = first_frame(&bytes[taken..], shared.config.max_payload);
            let (header, payload) = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return (taken, Next::Read),
                Err(error) => {
                    refuse_frame(unsent, error);
                    return (bytes.len(), Next::Broken(error));
                }
            };
            if header.kind != Kind::Request {
                let FrameHeader { id, method, kind, .. } = header;
                let error = FrameError::WrongSide { id, method, kind };
                refuse_frame(unsent, error);
                return (bytes.len(), Next::Broken(error));
            }
            if takes_long(header) {
                return (taken, Next::RunLong);
            }
            answer_call(&shared.service, header, payload, self.max_reply, unsent);
            taken += HEADER_LEN + payload.len();
        }
    }

    /// Runs the call at the beginning of `pending` on a blocking thread.
    async fn run_long(&mut self) -> Result<Next, End> {
        let frame = first_frame(&self.pending, self.shared.config.max_payload)?;
        let Some((header, _)) = frame else { return Ok(Next::Read) };
        let frame = self.pending.split_to(HEADER_LEN + header.payload_len as usize).freeze();
        let (shared, max_reply) = (Arc::clone(&self.shared), self.max_reply);
        let answered = tokio::task::spawn_blocking(move || {
            let mut out = BytesMut::new();
            answer_call(&shared.service, header, &frame[HEADER_LEN..], max_reply, &mut out);
            out
        });
        self.unsent = answered.await.map_err(|_| End::Panicked)?;
        if self.pending.is_empty() {
            // Gives back a buffer that may have grown to the largest request.
            self.pending = BytesMut::new();
        }
        Ok(Next::Resume)
    }

    /// Writes as much of the answers as the socket takes now.
    fn send_now(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.try_write(&self.unsent[sent..]) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.advance(sent);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        // Unlike advancing to the end, this keeps the buffer's whole capacity.
        self.unsent.clear();
        Ok(())
    }

    /// Waits until the answers have left.
    async fn flush(&mut self) -> Result<(), End> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let stall = self.shared.config.stall_timeout;
        let flush = async {
            self.send_now()?;
            while !self.unsent.is_empty() {
                self.stream.writable().await?;
                self.send_now()?;
            }
            io::Result::Ok(())
        };
        timeout(stall, flush).await.map_err(|_| End::SlowReader(stall))??;
        self.unsent = BytesMut::new();
        Ok(())
    }

    /// Counts what this connection holds towards the server's limit.
    fn account(&mut self) -> Result<(), End> {
        let holds = self.pending.capacity() + self.unsent.capacity();
        let counted = if holds > SMALL_BUFFERS { holds } else { 0 };
        if counted == self.buffered {
            return Ok(());
        }
        let buffered = &self.shared.buffered;
        buffered.fetch_sub(self.buffered, Ordering::Relaxed);
        let total = buffered.fetch_add(counted, Ordering::Relaxed) + counted;
        let grows = counted > self.buffered;
        self.buffered = counted;
        let max = self.shared.config.max_buffered;
        if grows && total > max {
            if self.unsent.is_empty()
                && let Some(Ok(header)) = self
                    .pending
                    .first_chunk()
                    .map(|header| FrameHeader::parse(header, self.shared.config.max_payload))
            {
                let refusal = Refusal::new(
                    ErrorCode::Overloaded,
                    "the master holds too many large requests at once; retry shortly",
                );
                append_refusal(&mut self.unsent, header.id, header.method, &refusal);
                // Best effort: the connection is closed in any case.
                drop(self.send_now());
            }
            return Err(End::OutOfBuffers { max });
        }
        Ok(())
    }

    /// Answers what has arrived before the shutdown and closes.
    async fn finish(&mut self) -> Result<(), End> {
        // No more than a receive buffer holds: a peer that never stops sending
        // does not hold up the shutdown.
        for _ in 0..MAX_DRAIN_READS {
            let Some(next) = self.read_what_is_there() else { break };
            let mut next = next?;
            while matches!(next, Next::Resume | Next::RunLong) {
                self.flush().await?;
                next = match next {
                    Next::RunLong => self.run_long().await?,
                    _ => self.answer_pending(),
                };
            }
            self.flush().await?;
            if next != Next::Read {
                break;
            }
        }
        self.flush().await?;
        linger(&mut self.stream).await;
        Ok(())
    }
}

fn takes_long(header: FrameHeader) -> bool {
    let slow = Method::from_number(header.method).is_some_and(|method| method.pace() == Pace::Long);
    slow || header.payload_len as usize > MAX_INLINE
}

fn answer_call(
    service: &impl Service,
    header: FrameHeader,
    payload: &[u8],
    max_reply: usize,
    out: &mut BytesMut,
) {
    let FrameHeader { id, method: number, .. } = header;
    let answered = append_frame(out, id, number, Kind::Reply, |out| {
        let method = Method::from_number(number).ok_or_else(|| {
            Refusal::new(
                ErrorCode::NotSupported,
                format!("this master has no method {number}; it may be older than the client"),
            )
        })?;
        let start = out.len();
        service.call(Call { method, payload, max_reply, caller: &Caller::ANYBODY }, out)?;
        let len = out.len() - start;
        if len > max_reply {
            return Err(Refusal::invalid(format!(
                "the answer to {method} has {len} bytes, the caller accepts {max_reply}; \
                 ask for less at a time"
            )));
        }
        Ok(())
    });
    if let Err(refusal) = answered {
        append_refusal(out, id, number, &refusal);
    }
}

fn refuse_frame(out: &mut BytesMut, error: FrameError) {
    let (id, method) = error.call();
    append_refusal(out, id, method, &Refusal::invalid(error.to_string()));
}

/// Tells a client that there are too many connections.
pub(super) async fn refuse(mut stream: TcpStream, handshake_timeout: Duration) {
    let refuse = async {
        ClientPreface::parse(&read_preface(&mut stream).await?)?;
        let refusal = Refusal::new(
            ErrorCode::Overloaded,
            "this master has as many connections as it takes; retry shortly",
        );
        stream.write_all(&ServerPreface::refusing(&refusal)).await?;
        Ok::<(), End>(())
    };
    // Refused either way; a peer that does not even say hello learns nothing.
    drop(timeout(handshake_timeout, refuse).await);
}

/// Ends this side's half and reads away what the peer goes on sending: closing
/// with bytes unread would reset the connection and take the last answers with
/// it.
async fn linger(stream: &mut TcpStream) {
    let drain = async {
        stream.shutdown().await?;
        let mut rest = stream.take(LINGER_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // The connection is closed in any case.
    drop(timeout(LINGER, pin!(drain)).await);
}
