//! One stream of a link: requests out, answers in, operations completed.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use mc_ticket::Ticket;
use mc_transport::backend::Summing;
use mc_transport::backend::headers::{
    BadResponse, Opcode, RESPONSE_LEN, RequestHeader, ResponseHeader, Status, encode_ticket,
};
use mc_transport::{
    Access, BootTime, Cancel, LinkId, MemorySlice, Operation, Pieces, ProtocolViolation, Source,
    TransferError, Transferred,
};
use mc_types::{Extent, RemoteKey};

use super::clock::Clock;
use super::fault::{broken, disconnected};
use super::flow::{FlowError, Inflow, Outflow};
use super::link::{Order, Request, Shared};
use super::parts::Completer;

/// Operations that share a stream. When it is dropped, those that were not answered
/// fail with the link's reason.
pub(super) struct Exchange {
    link: Arc<Shared>,
    lane: usize,
    /// Its share of the load of its connection.
    weight: u64,
    outgoing: Vec<Outgoing>,
    /// Operations in the order of their requests, and so of their answers.
    awaited: VecDeque<Awaited>,
}

/// A request to be sent.
struct Outgoing {
    header: RequestHeader,
    ticket: Option<Ticket>,
    from: Pieces<Source>,
    /// When nothing more of a write is read.
    until: Option<BootTime>,
    /// Computes the checksums, if they are wanted, and where they go.
    summing: Option<(Box<Summing>, Arc<OnceLock<Transferred>>)>,
}

/// An operation whose answer is to come.
struct Awaited {
    id: u32,
    /// Bytes that the answer brings.
    len: u64,
    into: Pieces<MemorySlice>,
    extent: Extent,
    access: Access,
    checksum: Summed,
    /// Ends a read, so that its bytes go nowhere.
    cancel: Option<Cancel>,
    completer: Completer,
}

/// Where the checksum of an operation comes from.
enum Summed {
    /// No checksum was requested.
    No,
    /// The bytes of a read, as they arrive.
    Received(Box<Summing>),
    /// The bytes of a write, as they leave.
    Sent(Arc<OnceLock<Transferred>>),
}

impl Exchange {
    pub(super) fn new(link: Arc<Shared>, lane: usize, weight: u64, orders: Vec<Order>) -> Self {
        let mut outgoing = Vec::with_capacity(orders.len());
        let mut awaited = VecDeque::with_capacity(orders.len());
        for (id, order) in (0..).zip(orders) {
            let (request, due) = prepare(id, order);
            outgoing.push(request);
            awaited.push_back(due);
        }
        Self { link, lane, weight, outgoing, awaited }
    }

    /// Carries the operations out, or gives the link up.
    pub(super) async fn run(mut self) {
        if let Err(reason) = self.carry_out().await {
            self.link.fail(reason);
        }
    }

    async fn carry_out(&mut self) -> Result<(), TransferError> {
        let link = Arc::clone(&self.link);
        let (lane, limits) = (&link.lanes[self.lane], &link.limits);
        let slot = lane.slots.acquire().await;
        let _slot = slot.expect("the semaphore is never closed");
        // Waiting for others of this node is no fault of the peer.
        let clock = Clock::new(limits.stall_timeout);
        let exchange = async {
            let opened = lane.connection.open_bi().await;
            let (send, receive) =
                opened.map_err(|error| disconnected(&error, limits.idle_timeout))?;
            let sent = AtomicUsize::new(0);
            let requests =
                send_all(Outflow::new(send, &clock), std::mem::take(&mut self.outgoing), &sent);
            let answers =
                receive_all(Inflow::new(receive, &clock), &mut self.awaited, &sent, &clock);
            both(requests, answers).await.map_err(|fault| match fault {
                Fault::Flow(error) => broken(error, limits.idle_timeout),
                Fault::Protocol(violation) => TransferError::Protocol(violation),
            })
        };
        let exchanged = clock.watch(exchange).await;
        exchanged.unwrap_or_else(|stalled| Err(TransferError::TimedOut { after: stalled.after }))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // The callers may free or reuse their memory as soon as they have outcomes.
        self.outgoing.clear();
        self.link.lanes[self.lane].load.fetch_sub(self.weight, Ordering::Relaxed);
        if self.awaited.is_empty() {
            return;
        }
        let reason = self.link.reason();
        for unanswered in self.awaited.drain(..) {
            unanswered.complete(Err(reason.clone()));
        }
    }
}

impl Awaited {
    fn complete(self, outcome: Result<(), TransferError>) {
        let outcome = outcome.map(|()| self.checksum.finish());
        // As above.
        drop(self.into);
        self.completer.complete(outcome);
    }
}

impl Summed {
    fn finish(self) -> Transferred {
        match self {
            Self::No => Transferred::default(),
            Self::Received(digest) => digest.finish(),
            Self::Sent(sums) => sums.get().cloned().unwrap_or_default(),
        }
    }
}

/// The two ends of an operation: what is sent, and what is waited for.
fn prepare(id: u32, order: Order) -> (Outgoing, Awaited) {
    let Order { request, extent, completer } = order;
    let operation = match request {
        Request::Operation(operation) => operation,
        Request::Fence(lost) => return prepare_fence(id, lost, extent, completer),
    };
    let (remote, access) = (operation.remote(), operation.access());
    let (offset, requested) = (remote.extent.offset(), remote.extent.len());
    let summing = Summing::of(&operation).map(Box::new);
    let cancel = operation.cancel().cloned();
    let (opcode, from, into, len) = match operation {
        Operation::Read { into, .. } => (Opcode::Read, Vec::new().into(), into, requested),
        Operation::Write { from, .. } => (Opcode::Write, from, Vec::new().into(), 0),
    };
    let (key, ticket) = (remote.key, remote.ticket);
    let has_ticket = ticket.is_some();
    let header = RequestHeader { opcode, has_ticket, id, key, offset, len: requested };
    let (summing, checksum) = match summing {
        None => (None, Summed::No),
        Some(summing) if access == Access::Read => (None, Summed::Received(summing)),
        Some(summing) => {
            let sums = Arc::default();
            (Some((summing, Arc::clone(&sums))), Summed::Sent(sums))
        }
    };
    let outgoing = Outgoing { header, ticket, from, until: remote.until, summing };
    (outgoing, Awaited { id, len, into, extent, access, checksum, cancel, completer })
}

fn prepare_fence(
    id: u32,
    lost: LinkId,
    extent: Extent,
    completer: Completer,
) -> (Outgoing, Awaited) {
    let key = RemoteKey::from_bytes(lost.to_bytes());
    let (opcode, has_ticket) = (Opcode::Fence, false);
    let header = RequestHeader { opcode, has_ticket, id, key, offset: 0, len: 0 };
    let from = Vec::new().into();
    let outgoing = Outgoing { header, ticket: None, from, until: None, summing: None };
    let (into, access, checksum) = (Vec::new().into(), Access::Write, Summed::No);
    (outgoing, Awaited { id, len: 0, into, extent, access, checksum, cancel: None, completer })
}

/// The cause that ends an exchange early.
enum Fault {
    Flow(FlowError),
    Protocol(ProtocolViolation),
}

impl From<FlowError> for Fault {
    fn from(error: FlowError) -> Self {
        Self::Flow(error)
    }
}

impl From<ProtocolViolation> for Fault {
    fn from(violation: ProtocolViolation) -> Self {
        Self::Protocol(violation)
    }
}

/// Sends the requests, and counts in `sent` those of which nothing is read any more.
async fn send_all(
    mut flow: Outflow<'_>,
    outgoing: Vec<Outgoing>,
    sent: &AtomicUsize,
) -> Result<(), Fault> {
    for Outgoing { header, ticket, from, until, mut summing } in outgoing {
        flow.header(&header.encode()).await?;
        if let Some(ticket) = ticket {
            flow.header(&encode_ticket(&ticket)).await?;
        }
        for source in from.iter() {
            let digest = summing.as_mut().map(|(digest, _)| &mut **digest);
            flow.payload(source, digest, until).await?;
        }
        drop(from);
        if let Some((digest, sums)) = summing {
            // No other code sets these.
            let _ = sums.set(digest.finish());
        }
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(flow.finish().await?)
}

/// Takes the answers and completes the operations. `sent` of the requests have left.
async fn receive_all(
    mut flow: Inflow<'_>,
    awaited: &mut VecDeque<Awaited>,
    sent: &AtomicUsize,
    clock: &Clock,
) -> Result<(), Fault> {
    let mut answered = 0;
    while let Some(due) = awaited.front_mut() {
        let is_sent = || answered < sent.load(Ordering::Relaxed);
        match receive(&mut flow, due, is_sent).await {
            Ok(outcome) => {
                clock.renew();
                answered += 1;
                let done = awaited.pop_front().expect("the operation is at the front");
                done.complete(outcome);
            }
            Err(Fault::Flow(FlowError::Truncated)) => {
                return Err(ProtocolViolation::EarlyEnd { missing: awaited.len() }.into());
            }
            Err(fault) => return Err(fault),
        }
    }
    match flow.is_finished().await? {
        true => Ok(()),
        false => Err(ProtocolViolation::TrailingBytes.into()),
    }
}

async fn receive(
    flow: &mut Inflow<'_>,
    due: &mut Awaited,
    is_sent: impl Fn() -> bool,
) -> Result<Result<(), TransferError>, Fault> {
    let bytes = flow.header::<RESPONSE_LEN>().await?.ok_or(FlowError::Truncated)?;
    let header = ResponseHeader::decode(&bytes).map_err(|bad| match bad {
        BadResponse::Status(status) => ProtocolViolation::UnknownStatus { status },
        BadResponse::Reserved => ProtocolViolation::ReservedNotZero,
    })?;
    if header.id != due.id {
        let violation = ProtocolViolation::WrongId { expected: Some(due.id), got: header.id };
        return Err(violation.into());
    }
    let outcome = outcome_of(header.status, due)?;
    let expected = if outcome.is_ok() { due.len } else { 0 };
    if header.len != expected {
        return Err(ProtocolViolation::WrongLength { expected, got: header.len }.into());
    }
    // Whatever the answer is, the memory of the operation is still in use.
    if !is_sent() {
        return Err(ProtocolViolation::EarlyAnswer { id: header.id }.into());
    }
    if outcome.is_ok() {
        let digest = match &mut due.checksum {
            Summed::Received(digest) => Some(&mut **digest),
            _ => None,
        };
        if !flow.payload(&due.into, digest, due.cancel.as_ref()).await? {
            return Ok(Err(TransferError::Cancelled));
        }
    }
    Ok(outcome)
}

/// The outcome that an answer means for its operation.
fn outcome_of(status: Status, due: &Awaited) -> Result<Result<(), TransferError>, Fault> {
    let (offset, len) = (due.extent.offset(), due.extent.len());
    Ok(match status {
        Status::Done => Ok(()),
        Status::KeyRefused => Err(TransferError::KeyRefused),
        Status::GrantEnded => Err(TransferError::GrantEnded),
        Status::DeviceFailed => Err(TransferError::DeviceFailed),
        Status::AccessDenied => Err(TransferError::AccessDenied { wanted: due.access }),
        Status::OutOfBounds => Err(TransferError::OutOfBounds { offset, len }),
        // We respect the limit that the peer named, and encode what we send.
        Status::TooLarge | Status::Malformed => {
            return Err(ProtocolViolation::RequestNotUnderstood.into());
        }
    })
}

/// Runs both until both are done, or one fails.
async fn both<E>(
    first: impl Future<Output = Result<(), E>>,
    second: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (false, false);
    poll_fn(|cx| {
        if !first_done && let Poll::Ready(outcome) = first.as_mut().poll(cx) {
            outcome?;
            first_done = true;
        }
        if !second_done && let Poll::Ready(outcome) = second.as_mut().poll(cx) {
            outcome?;
            second_done = true;
        }
        if first_done && second_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
