//! A leader's term, and the end of it: after that no answer leaves.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::{Epoch, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::refusal::Refusal;
use crate::stream::Stream;

/// Tells whether a leader's term still lasts.
///
/// It is asked before each write to a socket, so it must be cheap, such as a look at a clock and at
/// an atomic: a process that was stopped for longer than its lease, and goes on, must not send what
/// it had prepared.
pub trait Authority: core::fmt::Debug + Send + Sync + 'static {
    /// Returns whether the leader may answer now. Must not wait. Once it has returned `false` it
    /// does not return `true` again: the next term has an authority of its own.
    fn may_answer(&self) -> bool;
}

/// The term in which a server answers.
#[derive(Clone, Debug)]
pub struct Term {
    /// Its number, which clients are told.
    pub epoch: Epoch,
    /// Tells when it is over.
    pub authority: Arc<dyn Authority>,
}

impl Term {
    /// Returns the refusal of what a leader is asked whose term is over.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.authority.may_answer() {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorCode::UnavailableInCurrentStatus,
            format!(
                "this master no longer leads, term {} is over; ask the others",
                self.epoch.as_u64()
            ),
        ))
    }
}

/// A stream to a client that takes no byte of an answer once the term of the server is over.
#[derive(Debug)]
pub(super) struct Guarded {
    stream: Stream,
    guard: Option<Guard>,
}

#[derive(Debug)]
struct Guard {
    authority: Arc<dyn Authority>,
    answers: Arc<AtomicBool>,
}

impl Guarded {
    /// A stream over which all that is written are answers.
    pub(super) fn new(stream: Stream, term: Option<&Term>) -> Self {
        Self::from_first_answer(stream, term, Arc::new(AtomicBool::new(true)))
    }

    /// A stream to which answers are written from when `answers` is set.
    pub(super) fn from_first_answer(
        stream: Stream,
        term: Option<&Term>,
        answers: Arc<AtomicBool>,
    ) -> Self {
        let guard = term.map(|term| Guard { authority: Arc::clone(&term.authority), answers });
        Self { stream, guard }
    }

    fn check(&self) -> io::Result<()> {
        let Some(guard) = &self.guard else { return Ok(()) };
        if !guard.answers.load(Ordering::Acquire) || guard.authority.may_answer() {
            return Ok(());
        }
        let text = "the term of this master is over: what it had prepared is not sent";
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
    }

    /// Returns whether what was written may stay in this process until it is flushed.
    pub(super) const fn holds_back(&self) -> bool {
        self.stream.holds_back()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What arrives later is not executed; and TLS may write when it reads.
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
