//! Streams, their queues, and events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arguments::HostFunction;
use crate::store::Store;

/// The source or target of a copy.
#[derive(Clone)]
pub(crate) enum End {
    Store {
        store: Arc<Store>,
        offset: usize,
    },
    /// An address of the host, which is read or written when the copy is executed.
    Host(u64),
    /// Bytes that were taken when the copy was queued.
    Bytes(Arc<Vec<u8>>),
}

pub(crate) struct Transfer {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) len: usize,
}

pub(crate) enum Action {
    Copy(Vec<Transfer>),
    Fill { to: End, byte: u8, len: usize },
    Record { event: Arc<EventState>, generation: u64 },
    Wait { event: Arc<EventState>, generation: u64 },
    Call { function: HostFunction, data: u64 },
    Spin,
}

/// Queued work of a stream.
pub(crate) struct Op {
    /// The order of all work of the process.
    pub(crate) seq: u64,
    pub(crate) action: Action,
    pub(crate) latency: Duration,
    /// When it ends, once it has begun.
    pub(crate) due: Option<Instant>,
    pub(crate) hangs: bool,
    /// Allocations and pinned ranges that it reads or writes.
    pub(crate) uses: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) kind: StreamKind,
    pub(crate) queue: VecDeque<Op>,
    pub(crate) issued: u64,
    pub(crate) done: u64,
    /// Whether a host function of it runs.
    pub(crate) is_calling: bool,
    pub(crate) is_destroyed: bool,
    /// Whether the program made it.
    pub(crate) is_own: bool,
}

impl Stream {
    pub(crate) fn new(device: usize, kind: StreamKind, is_own: bool) -> Self {
        Self {
            device,
            kind,
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            is_calling: false,
            is_destroyed: false,
            is_own,
        }
    }

    pub(crate) fn is_before(&self, seq: u64) -> bool {
        self.queue.front().is_some_and(|op| op.seq < seq)
    }
}

/// How often an event was recorded, and how many of these are over. In a page that processes
/// share, if it is for several.
pub(crate) struct EventState {
    own: [AtomicU64; 2],
    pub(crate) page: Option<Store>,
}

impl EventState {
    pub(crate) fn new(page: Option<Store>) -> Self {
        Self { own: [AtomicU64::new(0), AtomicU64::new(0)], page }
    }

    fn counter(&self, number: usize) -> &AtomicU64 {
        match &self.page {
            None => &self.own[number],
            Some(page) => {
                let counter = page.at(number * 8).cast::<u64>();
                // SAFETY: the page has room for two aligned counters, which every process
                // accesses atomically, and is mapped for as long as `self` lives.
                unsafe { AtomicU64::from_ptr(counter) }
            }
        }
    }

    pub(crate) fn clear(&self) {
        self.counter(0).store(0, Ordering::SeqCst);
        self.counter(1).store(0, Ordering::SeqCst);
    }

    pub(crate) fn begin(&self) -> u64 {
        self.counter(0).fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn recorded(&self) -> u64 {
        self.counter(0).load(Ordering::SeqCst)
    }

    pub(crate) fn complete(&self, generation: u64) {
        self.counter(1).fetch_max(generation, Ordering::SeqCst);
    }

    pub(crate) fn is_complete(&self, generation: u64) -> bool {
        self.counter(1).load(Ordering::SeqCst) >= generation
    }
}

pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) state: Arc<EventState>,
}

/// Copies bytes as the GPU does: others may touch them meanwhile.
pub(crate) fn transfer(from: &End, to: &End, len: usize) {
    let target = match to {
        End::Store { store, offset } => store.at(*offset),
        End::Host(address) => std::ptr::with_exposed_provenance_mut(*address as usize),
        End::Bytes(_) => return,
    };
    let source = match from {
        End::Store { store, offset } => store.at(*offset).cast_const(),
        End::Host(address) => std::ptr::with_exposed_provenance(*address as usize),
        End::Bytes(bytes) => bytes.as_ptr(),
    };
    // SAFETY: the ranges were checked when the copy was queued, and belong to allocations that are
    // still known or to memory of a caller that waits.
    unsafe { std::ptr::copy(source, target, len) };
}

/// The bytes of a source as they are now.
pub(crate) fn snapshot(from: &End, len: usize) -> End {
    let mut bytes = vec![0_u8; len];
    let to = End::Host(bytes.as_mut_ptr().expose_provenance() as u64);
    transfer(from, &to, len);
    End::Bytes(Arc::new(bytes))
}

/// Fills bytes of the GPU.
pub(crate) fn fill(to: &End, byte: u8, len: usize) {
    transfer(&End::Bytes(Arc::new(vec![byte; len])), to, len);
}
