//! An operation under way, and the requests that it is divided into.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use mc_transport::{Access, MemorySlice};
use mc_transport::{Completion, Operation, RemoteSpan, Source, TransferError, Transferred};
use parking_lot::Mutex;

use super::local::{Piece, Slot};
use super::verbs::Direction;
use super::wire::RegionKeys;

/// A region of the peer, as far as this side knows.
pub(super) struct RemoteRegion {
    pub(super) keys: RegionKeys,
    withdrawn: AtomicBool,
}

impl RemoteRegion {
    pub(super) fn new(keys: RegionKeys) -> Arc<Self> {
        Arc::new(Self { keys, withdrawn: AtomicBool::new(false) })
    }

    /// Notes that the peer took the region back.
    pub(super) fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::SeqCst);
    }

    /// Checks that the span may be accessed: what a device would refuse costs the queue pair.
    pub(super) fn check(&self, span: &RemoteSpan, wanted: Access) -> Result<(), TransferError> {
        self.check_open()?;
        if !self.keys.access.allows(wanted) {
            return Err(TransferError::AccessDenied { wanted });
        }
        let (offset, len) = (span.extent.offset(), span.extent.len());
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > self.keys.len) {
            return Err(TransferError::OutOfBounds { offset, len });
        }
        Ok(())
    }

    pub(super) fn check_open(&self) -> Result<(), TransferError> {
        match self.withdrawn.load(Ordering::SeqCst) {
            true => Err(TransferError::KeyRefused),
            false => Ok(()),
        }
    }

    /// The address of byte `offset` in the peer's process.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.keys.base + offset
    }

    /// The key of the chunk of byte `offset`, for a device of the peer; `None` when the peer gave
    /// none.
    pub(super) fn remote_key(&self, device: usize, offset: u64) -> Option<u32> {
        let chunk = usize::try_from(offset / self.keys.chunk).ok()?;
        self.keys.keys.get(device)?.get(chunk).copied()
    }
}

/// An operation whose requests are waiting or under way.
pub(super) struct Transfer {
    pub(super) span: RemoteSpan,
    pub(super) direction: Direction,
    pub(super) region: Arc<RemoteRegion>,
    /// Requests that have not ended.
    left: AtomicUsize,
    state: Mutex<Running>,
}

struct Running {
    /// Let go before the result is handed over.
    operation: Option<Operation>,
    completion: Option<Completion>,
    failure: Option<TransferError>,
}

impl Transfer {
    /// `requests` is at least one.
    pub(super) fn new(
        operation: Operation,
        completion: Completion,
        region: Arc<RemoteRegion>,
        requests: usize,
    ) -> Arc<Self> {
        let direction = match operation {
            Operation::Read { .. } => Direction::Read,
            Operation::Write { .. } => Direction::Write,
        };
        let span = operation.remote();
        let (operation, completion) = (Some(operation), Some(completion));
        let state = Mutex::new(Running { operation, completion, failure: None });
        Arc::new(Self { span, direction, region, left: AtomicUsize::new(requests), state })
    }

    /// Checks that a request may still be posted.
    pub(super) fn check(&self) -> Result<(), TransferError> {
        self.span.check_time()?;
        self.region.check_open()?;
        self.state.lock().failure.clone().map_or(Ok(()), Err)
    }

    fn ended(&self, result: Result<(), TransferError>) {
        if let Err(error) = result {
            self.state.lock().failure.get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let mut state = self.state.lock();
        let (operation, completion) = (state.operation.take(), state.completion.take());
        let outcome = state.failure.take().map_or(Ok(Transferred::default()), Err);
        drop(state);
        drop(operation);
        if let Some(completion) = completion {
            completion.complete(outcome);
        }
    }
}

/// Local bytes that are not registered.
#[derive(Clone)]
pub(super) enum Unregistered {
    Bytes(Bytes),
    Memory(MemorySlice),
}

impl Unregistered {
    /// `len` bytes of a local piece from `start`.
    pub(super) fn of(source: &Source, start: usize, len: usize) -> Self {
        match source {
            Source::Bytes(bytes) => Self::Bytes(bytes.slice(start..start + len)),
            Source::Memory(slice) => {
                Self::Memory(slice.part(start, len).expect("cuts lie inside of their piece"))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(slice) => slice.len(),
        }
    }
}

/// The local side of a request.
pub(super) enum LocalSide {
    /// Registered memory.
    Direct(Vec<Piece>),
    /// Bytes that are copied through a slot of staging memory, which a request has while it is
    /// under way.
    Staged { parts: Vec<Unregistered>, slot: Option<Slot> },
}

/// A request of a transfer.
pub(super) struct Slice {
    pub(super) transfer: Arc<Transfer>,
    pub(super) local: LocalSide,
    /// The first byte in the remote region.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// How often it was posted and lost with its queue pair.
    pub(super) lost: u8,
}

impl Slice {
    /// Copies bytes to be written into `target`, which has room for them.
    pub(super) fn copy_out(parts: &[Unregistered], target: &MemorySlice) {
        let mut at = 0;
        for part in parts {
            let copied = match part {
                Unregistered::Bytes(bytes) => target.copy_from(at, bytes).is_ok(),
                Unregistered::Memory(slice) => {
                    target.part(at, slice.len()).is_some_and(|to| slice.copy_to_slice(&to).is_ok())
                }
            };
            assert!(copied, "requests are cut to the size of a slot");
            at += part.len();
        }
    }

    /// The bytes to be written, for a request that carries them itself.
    pub(super) fn gathered(parts: &[Unregistered], len: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        let mut at = 0;
        for part in parts {
            let target = &mut bytes[at..at + part.len()];
            match part {
                Unregistered::Bytes(bytes) => target.copy_from_slice(bytes),
                Unregistered::Memory(slice) => {
                    slice.copy_to(0, target).expect("the target has the slice's length");
                }
            }
            at += part.len();
        }
        bytes
    }

    /// Ends the request: what was read into staging memory is copied to its place.
    pub(super) fn end(self, mut result: Result<(), TransferError>) {
        let Self { transfer, local, .. } = self;
        if let LocalSide::Staged { parts, slot: Some(slot) } = &local
            && transfer.direction == Direction::Read
            && result.is_ok()
        {
            result = copy_in(parts, &slot.piece.slice);
        }
        drop(local);
        transfer.ended(result);
    }
}

fn copy_in(parts: &[Unregistered], from: &MemorySlice) -> Result<(), TransferError> {
    let mut at = 0;
    for part in parts {
        let Unregistered::Memory(to) = part else {
            unreachable!("reads fill memory");
        };
        let from = from.part(at, to.len()).expect("requests are cut to the size of a slot");
        from.copy_to_slice(to).expect("the operation was validated: both have one length");
        at += to.len();
    }
    Ok(())
}
