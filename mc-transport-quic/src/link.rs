//! The side that reaches out: spreads operations over connections and streams.
//!
//! A large operation has a stream of its own, and is cut when there are several
//! connections; small ones share a stream. An error on a stream is the end of
//! the link, since a peer that breaks its word once is not asked again.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use mc_transport::backend::{Counted, Tasks};
use mc_transport::{
    CHECKPOINT, Capabilities, Completions, Link, LinkId, MAX_BATCH, Operation, TransferError,
};
use mc_types::Extent;
use parking_lot::Mutex;
use quinn::Connection;
use tokio::sync::Semaphore;
use tracing::debug;

use super::exchange::Exchange;
use super::fault::{CLOSED, MALFORMED, STALLED, disconnected};
use super::parts::{Completer, completers};
use super::tuning::STREAMS;

/// From this size on an operation has a stream of its own.
const LARGE: u64 = 128 << 10;

/// Bytes of small operations that share a stream.
const GROUP_BYTES: u64 = 512 << 10;

/// Operations that share a stream.
const GROUP_OPERATIONS: usize = 256;

/// From this size on an operation is cut when there are several connections.
const STRIPED: u64 = 4 << 20;

/// The weight of an operation beside its bytes when connections are compared.
const OPERATION_WEIGHT: u64 = 4 << 10;

/// A link of a [`QuicTransport`](super::QuicTransport): connections with one peer.
pub struct QuicLink {
    id: LinkId,
    shared: Arc<Shared>,
}

/// State shared by a link's handle and its tasks.
pub(super) struct Shared {
    pub(super) lanes: Vec<Lane>,
    pub(super) limits: Limits,
    tasks: Weak<Tasks>,
    /// Why the link takes no operations any more.
    broken: Mutex<Option<TransferError>>,
    healthy: AtomicBool,
}

/// One connection.
pub(super) struct Lane {
    pub(super) connection: Connection,
    /// Streams that may be opened.
    pub(super) slots: Semaphore,
    /// Bytes of operations that are not complete, and a little for each.
    pub(super) load: AtomicU64,
}

/// The limits that the two sides agreed on, and this side's time limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_operation: u64,
    pub(super) stall_timeout: Duration,
    pub(super) idle_timeout: Duration,
}

/// An operation, a part of one, or a fence, on its way to a stream.
pub(super) struct Order {
    pub(super) request: Request,
    /// The request, for errors that name it.
    pub(super) extent: Extent,
    pub(super) completer: Completer,
}

/// A request to the server.
pub(super) enum Request {
    Operation(Operation),
    /// The end of another link.
    Fence(LinkId),
}

impl QuicLink {
    /// Takes over connections whose handshakes are done; at least one. The server knows
    /// them by `id`.
    pub(super) fn open(
        id: LinkId,
        connections: Vec<Connection>,
        limits: Limits,
        tasks: &Arc<Tasks>,
        open_links: &Arc<AtomicUsize>,
    ) -> Self {
        let lane = |connection| Lane {
            connection,
            slots: Semaphore::new(STREAMS),
            load: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            lanes: connections.into_iter().map(lane).collect(),
            limits,
            tasks: Arc::downgrade(tasks),
            broken: Mutex::new(None),
            healthy: AtomicBool::new(true),
        });
        tasks.spawn(watch(Arc::clone(&shared), Counted::new(open_links)));
        Self { id, shared }
    }

    /// Fails what is under way and everything to come with `reason`.
    pub(super) fn close(&self, reason: TransferError) {
        self.shared.fail(reason);
    }
}

impl Link for QuicLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        let max = self.shared.limits.max_operation;
        let (to_complete, completions) = Completions::pending(len);
        let mut group = Group::default();
        for (operation, completion) in batch.into_iter().zip(to_complete) {
            if let Err(refused) = check(&operation, max) {
                completion.complete(Err(refused));
                continue;
            }
            let extent = operation.remote().extent;
            let lanes = self.shared.lanes.len() as u64;
            if lanes == 1 || extent.len() < STRIPED {
                let completer = Completer::Operation(completion);
                let request = Request::Operation(operation);
                self.shared.collect(&mut group, Order { request, extent, completer });
                continue;
            }
            // At checkpoints, so that checksums of the parts' fronts are those of the whole's.
            let sums = operation.sums();
            let parts = operation.split(extent.len().div_ceil(lanes).next_multiple_of(CHECKPOINT));
            let lens = parts.iter().map(|part| part.remote().extent.len()).collect();
            for (operation, completer) in parts.into_iter().zip(completers(completion, lens, sums))
            {
                let request = Request::Operation(operation);
                self.shared.collect(&mut group, Order { request, extent, completer });
            }
        }
        self.shared.dispatch(group);
        completions
    }

    fn id(&self) -> Option<LinkId> {
        Some(self.id)
    }

    fn fence(&self, lost: LinkId) -> Completions {
        let (mut to_complete, completions) = Completions::pending(1);
        let completer = Completer::Operation(to_complete.next().expect("there is one to complete"));
        let extent = Extent::new(0, 0).expect("nothing does not overflow");
        let order = Order { request: Request::Fence(lost), extent, completer };
        self.shared.dispatch(Group { orders: vec![order], bytes: 0 });
        completions
    }

    fn is_healthy(&self) -> bool {
        self.shared.healthy.load(Ordering::Acquire)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(self.shared.limits.max_operation);
        capabilities.encrypted = true;
        capabilities.tickets = true;
        capabilities.cancels = true;
        capabilities
    }
}

impl fmt::Debug for QuicLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicLink")
            .field("is_healthy", &self.is_healthy())
            .field("connections", &self.shared.lanes.len())
            .finish_non_exhaustive()
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        self.shared.fail(TransferError::Closed);
    }
}

/// The failure that is known before anything is sent.
fn check(operation: &Operation, max: u64) -> Result<(), TransferError> {
    operation.validate()?;
    operation.remote().check_time()?;
    let len = operation.remote().extent.len();
    if len > max { Err(TransferError::TooLarge { len, max }) } else { Ok(()) }
}

/// Small operations that are to share a stream.
#[derive(Default)]
struct Group {
    orders: Vec<Order>,
    bytes: u64,
}

impl Shared {
    /// Sends `order` off with others, or alone.
    fn collect(self: &Arc<Self>, group: &mut Group, order: Order) {
        let bytes = match &order.request {
            Request::Operation(operation) => operation.remote().extent.len(),
            Request::Fence(_) => 0,
        };
        if bytes >= LARGE {
            self.dispatch(Group { orders: vec![order], bytes });
            return;
        }
        group.orders.push(order);
        group.bytes += bytes;
        if group.bytes >= GROUP_BYTES || group.orders.len() >= GROUP_OPERATIONS {
            self.dispatch(std::mem::take(group));
        }
    }

    /// Sends the operations off over the connection with the least to do.
    fn dispatch(self: &Arc<Self>, group: Group) {
        if group.orders.is_empty() {
            return;
        }
        let load = |&lane: &usize| self.lanes[lane].load.load(Ordering::Relaxed);
        let lane = (0..self.lanes.len()).min_by_key(load).expect("a link has a connection");
        let weight = group.bytes + OPERATION_WEIGHT * group.orders.len() as u64;
        self.lanes[lane].load.fetch_add(weight, Ordering::Relaxed);
        let exchange = Exchange::new(Arc::clone(self), lane, weight, group.orders);
        // Whatever happens to the exchange, its operations are completed.
        match self.tasks.upgrade() {
            Some(tasks) if self.healthy.load(Ordering::Acquire) => {
                drop(tasks.spawn(exchange.run()));
            }
            _ => drop(exchange),
        }
    }

    /// Fails the link with `reason`, unless it has failed before.
    pub(super) fn fail(&self, reason: TransferError) {
        let mut broken = self.broken.lock();
        if broken.is_some() {
            return;
        }
        let (code, says): (_, &[u8]) = match &reason {
            TransferError::Protocol(_) => (MALFORMED, b"the answer is not one of this version"),
            TransferError::TimedOut { .. } => (STALLED, b"no progress"),
            _ => (CLOSED, b""),
        };
        debug!(%reason, "link ended");
        *broken = Some(reason);
        drop(broken);
        self.healthy.store(false, Ordering::Release);
        for lane in &self.lanes {
            lane.connection.close(code, says);
        }
    }

    /// The error that the link failed with.
    pub(super) fn reason(&self) -> TransferError {
        self.broken.lock().clone().unwrap_or(TransferError::Closed)
    }
}

/// Gives the link up when a connection is lost.
async fn watch(link: Arc<Shared>, open: Counted) {
    let _guard = (FailGuard(&link), open);
    let mut closed: Vec<Pin<Box<_>>> =
        link.lanes.iter().map(|lane| Box::pin(lane.connection.closed())).collect();
    let error = poll_fn(|cx| {
        let mut ready = closed.iter_mut().map(|closed| closed.as_mut().poll(cx));
        ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await;
    link.fail(disconnected(&error, link.limits.idle_timeout));
}

/// Fails the link when its watch ends, also when the task is dropped with its
/// runtime.
struct FailGuard<'a>(&'a Shared);

impl Drop for FailGuard<'_> {
    fn drop(&mut self) {
        self.0.fail(TransferError::Closed);
    }
}
