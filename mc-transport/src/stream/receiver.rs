//! Takes a link's answers, puts payloads where they belong and completes
//! operations.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tracing::debug;

use super::frames::{DIRECT, ReceiveBuffer, Target};
use super::link::{Awaited, Channel, Summed};
use super::progress::{PROGRESS, ProgressTimeout};
use super::wire::{BadResponse, RESPONSE_LEN, ResponseHeader, Status};
use crate::backend::tasks::Counted;
use crate::cancel::guarded;
use crate::error::{ProtocolViolation, TransferError};

/// One per link. Dropping it, as the end of its task does, fails every operation
/// that was not answered.
pub(super) struct Receiver {
    channel: Arc<Channel>,
    received: ReceiveBuffer,
    /// Operations in the order in which their answers come.
    awaited: VecDeque<Awaited>,
    progress: ProgressTimeout,
    /// `bytes_sent` of the channel when it was last renewed for it.
    seen_sent: u64,
    since_yield: usize,
    _open: Counted,
}

impl Receiver {
    pub(super) fn new(channel: Arc<Channel>, stall_timeout: Duration, open: Counted) -> Self {
        Self {
            channel,
            received: ReceiveBuffer::new(),
            awaited: VecDeque::new(),
            progress: ProgressTimeout::new(stall_timeout),
            seen_sent: 0,
            since_yield: 0,
            _open: open,
        }
    }

    /// Takes answers until the link fails.
    pub(super) async fn run(mut self) {
        let reason = self.take_answers().await;
        debug!(%reason, "link ended");
        self.channel.fail(reason);
    }

    async fn take_answers(&mut self) -> TransferError {
        loop {
            let header = match self.next_header().await {
                Ok(header) => header,
                Err(reason) => return reason,
            };
            if let Err(reason) = self.take_answer(header).await {
                return reason;
            }
        }
    }

    async fn next_header(&mut self) -> Result<ResponseHeader, TransferError> {
        loop {
            if let Some(bytes) = self.received.take::<RESPONSE_LEN>() {
                return ResponseHeader::decode(&bytes).map_err(|bad| {
                    TransferError::Protocol(match bad {
                        BadResponse::Status(status) => ProtocolViolation::UnknownStatus { status },
                        BadResponse::Reserved => ProtocolViolation::ReservedNotZero,
                    })
                });
            }
            if self.awaited.is_empty() {
                self.channel.collect_awaited(&mut self.awaited);
            }
            let limit = limit_before(self.awaited.front());
            match self.received.try_receive(&self.channel.stream, limit) {
                Ok(moved) => {
                    self.progress.moved(moved);
                    self.since_yield += moved;
                    if self.since_yield >= self.channel.stream.turn() {
                        self.since_yield = 0;
                        yield_now().await;
                    }
                }
                Err(error) => self.wait_or_fail(error).await?,
            }
        }
    }

    /// Matches an answer with its operation, receives its payload, and completes
    /// the operation.
    async fn take_answer(&mut self, header: ResponseHeader) -> Result<(), TransferError> {
        if self.awaited.is_empty() {
            self.channel.collect_awaited(&mut self.awaited);
        }
        let expected = self.awaited.front();
        let Some(due) = expected.filter(|due| due.id == header.id) else {
            let expected = expected.map(|due| due.id);
            let violation = ProtocolViolation::WrongId { expected, got: header.id };
            return Err(TransferError::Protocol(violation));
        };
        let outcome = outcome_of(header.status, due)?;
        let due_len = if outcome.is_ok() { due.len } else { 0 };
        if header.len != due_len {
            let violation = ProtocolViolation::WrongLength { expected: due_len, got: header.len };
            return Err(TransferError::Protocol(violation));
        }
        if outcome.is_ok() && !self.channel.is_summed(&due.checksum) {
            let violation = ProtocolViolation::EarlyAnswer { id: header.id };
            return Err(TransferError::Protocol(violation));
        }
        let mut outcome = outcome;
        if due_len > 0 && self.receive_payload().await? == Payload::Cancelled {
            outcome = Err(TransferError::Cancelled);
        }
        self.progress.renew();
        let done = self.awaited.pop_front().expect("the operation was at the front");
        self.channel.answered();
        done.complete(outcome);
        Ok(())
    }

    /// Receives the payload of the operation at the front.
    async fn receive_payload(&mut self) -> Result<Payload, TransferError> {
        if self.awaited.len() == 1 {
            // What follows decides how much may be received behind this payload.
            self.channel.collect_awaited(&mut self.awaited);
        }
        let behind = limit_before(self.awaited.get(1));
        // The pieces are borrowed across waits; clones of the handles are not
        // needed because the operation stays at the front until it is complete.
        let Self { channel, received, progress, seen_sent, since_yield, awaited, .. } = self;
        let due = awaited.front_mut().expect("the caller looked at it");
        let mut target = Target::new(&due.into, due.len);
        if let Summed::Received(digest) = &mut due.checksum {
            target = target.summed(digest);
        }
        let cancel = due.cancel.as_ref();
        let mut payload = match guarded(cancel, || received.drain_to(&mut target)) {
            Some(()) => Payload::Taken,
            None => Payload::Cancelled,
        };
        // Those of a cancelled read go nowhere.
        let mut dropped = 0;
        loop {
            let missing = target.missing() - dropped;
            if missing == 0 {
                return Ok(payload);
            }
            let moved = match payload {
                Payload::Taken => {
                    let receive =
                        || received.try_receive_payload(&channel.stream, &mut target, behind);
                    guarded(cancel, receive).unwrap_or_else(|| {
                        payload = Payload::Cancelled;
                        Ok(0)
                    })
                }
                Payload::Cancelled => {
                    let limit = usize::try_from(missing).unwrap_or(usize::MAX);
                    let waiting = received.discard(missing);
                    dropped += waiting;
                    match waiting {
                        0 => received.try_receive(&channel.stream, limit),
                        _ => Ok(0),
                    }
                }
            };
            match moved {
                Ok(moved) => {
                    progress.moved(moved);
                    *since_yield += moved;
                    if *since_yield >= channel.stream.turn() {
                        *since_yield = 0;
                        yield_now().await;
                    }
                }
                Err(error) => wait_or_fail(error, channel, progress, seen_sent).await?,
            }
        }
    }

    async fn wait_or_fail(&mut self, error: io::Error) -> Result<(), TransferError> {
        wait_or_fail(error, &self.channel, &mut self.progress, &mut self.seen_sent).await
    }
}

/// The state of the bytes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Payload {
    /// The bytes are in the caller's memory.
    Taken,
    /// The caller cancelled the read; the bytes were dropped.
    Cancelled,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.channel.fail(TransferError::Closed);
        let reason = self.channel.reason();
        self.channel.collect_awaited(&mut self.awaited);
        for unanswered in self.awaited.drain(..) {
            self.channel.answered();
            unanswered.complete(Err(reason.clone()));
        }
    }
}

/// Bytes to receive ahead of an operation's answer: the header alone when its
/// payload is better received in place.
fn limit_before(next: Option<&Awaited>) -> usize {
    match next {
        Some(due) if due.len >= DIRECT => RESPONSE_LEN,
        _ => usize::MAX,
    }
}

/// The outcome that an answer means for its operation; an error when it means the end of the
/// link.
fn outcome_of(status: Status, due: &Awaited) -> Result<Result<(), TransferError>, TransferError> {
    let (offset, len) = (due.offset, due.requested);
    Ok(match status {
        Status::Done => Ok(()),
        Status::KeyRefused => Err(TransferError::KeyRefused),
        Status::GrantEnded => Err(TransferError::GrantEnded),
        Status::DeviceFailed => Err(TransferError::DeviceFailed),
        Status::AccessDenied => Err(TransferError::AccessDenied { wanted: due.access }),
        Status::OutOfBounds => Err(TransferError::OutOfBounds { offset, len }),
        // We respect the limit that the peer named, and encode what we send.
        Status::TooLarge | Status::Malformed => {
            return Err(TransferError::Protocol(ProtocolViolation::RequestNotUnderstood));
        }
    })
}

/// Waits until the socket can be read if `error` says that it cannot now.
async fn wait_or_fail(
    error: io::Error,
    channel: &Channel,
    progress: &mut ProgressTimeout,
    seen_sent: &mut u64,
) -> Result<(), TransferError> {
    if error.kind() != io::ErrorKind::WouldBlock {
        return Err(TransferError::LinkLost { source: Arc::new(error) });
    }
    loop {
        let Err(stalled) = progress.wait(channel.stream.readable()).await else { return Ok(()) };
        // The clock also ran while nothing was due, and while a long write moved
        // on; neither is the peer's fault.
        let sent = channel.bytes_sent();
        let seen = channel.sent_before().max(*seen_sent);
        let has_moved = sent.saturating_sub(seen) >= PROGRESS as u64;
        *seen_sent = sent;
        if has_moved || !channel.has_unanswered() {
            progress.renew();
        } else if !progress.renew_from(channel.busy_since()) {
            return Err(TransferError::TimedOut { after: stalled.after });
        }
    }
}
