//! Memory that sockets cannot reach, such as a GPU's, served through memory of the host.
//!
//! Each part of an operation takes one of the region's few stages, waits for one when none is
//! free, and copies between it and the device on a thread that may block. A copy cannot be
//! stopped, and a device may be slow, so that a copy holds what others wait for until it has
//! ended: the claim to the region, which a withdrawal waits for; the connection, which a fence
//! waits for; and the bytes that it writes, which the next write to them waits for. The copy of
//! a grant that has ended meanwhile is thus never on top of what a later grant wrote.

use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;

use crate::cancel::guarded;
use crate::completion::Transferred;
use crate::error::TransferError;
use crate::memory::{Memory, MemorySlice};
use crate::operation::Operation;
use crate::region::Claim;
use crate::slice_sums::Summing;

/// Memory that peers reach by copies through memory of the host: a GPU's, or another device's.
///
/// Copies may block; several run at a time. The bytes are there when a copy returns.
///
/// ```
/// use std::io;
/// use mc_transport::{Memory, MemorySlice, RegionTable, StagedMemory, Staging, Access};
///
/// struct Device(Memory);
///
/// impl StagedMemory for Device {
///     fn size(&self) -> usize {
///         self.0.len()
///     }
///     fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
///         let from = self.0.slice(at, into.len()).ok_or(io::ErrorKind::InvalidInput)?;
///         from.copy_to_slice(into).map_err(io::Error::other)
///     }
///     fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()> {
///         let into = self.0.slice(at, from.len()).ok_or(io::ErrorKind::InvalidInput)?;
///         from.copy_to_slice(&into).map_err(io::Error::other)
///     }
/// }
///
/// let device = Device(Memory::allocate(1 << 20)?);
/// let stages = vec![Memory::allocate(64 << 10)?, Memory::allocate(64 << 10)?];
/// let region = RegionTable::new()
///     .register_staged(&Staging::new(device, stages), Access::ReadWrite, None)?;
/// assert!(region.memory().is_empty(), "nobody gets an address");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait StagedMemory: Send + Sync + 'static {
    /// Bytes of it.
    fn size(&self) -> usize;

    /// Copies the bytes from `at` on over `into`.
    ///
    /// # Errors
    /// When the device fails; the peer is told [`TransferError::DeviceFailed`].
    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()>;

    /// Copies `from` over the bytes from `at` on.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&self, at: usize, from: &MemorySlice) -> io::Result<()>;
}

/// [`StagedMemory`] with the stages that its bytes pass through. Clones share both.
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    device: Box<dyn StagedMemory>,
    /// Bytes of the shortest stage.
    part: usize,
    /// The stages that are free; `is_free` has a permit for each.
    free: Mutex<Vec<Memory>>,
    is_free: Semaphore,
    /// What is being written to the device.
    writes: Mutex<Vec<Range<usize>>>,
    write_ended: Notify,
    failures: AtomicU64,
}

impl Staging {
    /// Serves `device` through `stages`. As many copies run at a time as there are stages, and
    /// none moves more bytes than the shortest has. Nothing else may use them.
    ///
    /// # Panics
    /// When there is no stage, or one is empty or cannot be written.
    pub fn new(device: impl StagedMemory, stages: Vec<Memory>) -> Self {
        assert!(stages.iter().all(Memory::is_writable), "a stage can be written");
        let part = stages.iter().map(Memory::len).min().unwrap_or(0);
        assert!(part > 0, "there is a stage, and each has bytes");
        let shared = Shared {
            device: Box::new(device),
            part,
            is_free: Semaphore::new(stages.len()),
            free: Mutex::new(stages),
            writes: Mutex::default(),
            write_ended: Notify::new(),
            failures: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Bytes of the device's memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.shared.device.size()
    }

    /// The device's memory, for its owner.
    #[must_use]
    pub fn device(&self) -> &dyn StagedMemory {
        &*self.shared.device
    }

    pub(crate) fn admitted(&self, at: usize, len: usize, claim: Claim) -> AdmittedStaged {
        AdmittedStaged { staging: self.clone(), at, len, claim }
    }

    /// Takes a stage, which may have to come free first.
    async fn stage(&self) -> Stage {
        let permit = self.shared.is_free.acquire().await;
        permit.expect("the semaphore is never closed").forget();
        let memory = self.shared.free.lock().pop();
        let memory = memory.expect("there are as many stages as permits");
        Stage { memory, staging: self.clone() }
    }

    /// Waits until no write to the device overlaps `range`, and enters one.
    async fn begin_write(&self, range: Range<usize>) -> Writing {
        loop {
            let mut ended = pin!(self.shared.write_ended.notified());
            // Registered before the question, so that no end falls in between.
            ended.as_mut().enable();
            {
                let mut writes = self.shared.writes.lock();
                let overlaps =
                    |other: &Range<usize>| other.start < range.end && range.start < other.end;
                if !writes.iter().any(overlaps) {
                    writes.push(range.clone());
                    return Writing { staging: self.clone(), range };
                }
            }
            ended.await;
        }
    }

    /// Runs a copy where it may block, to its end even when the caller gives up.
    async fn copy<T: Send + 'static>(
        &self,
        copy: impl FnOnce(&dyn StagedMemory) -> Result<io::Result<T>, TransferError> + Send + 'static,
    ) -> Result<T, TransferError> {
        let staging = self.clone();
        let copied = spawn_blocking(move || copy(staging.device())).await;
        match copied {
            Ok(Ok(Ok(done))) => Ok(done),
            Ok(Ok(Err(error))) => Err(self.failed(&error)),
            Ok(Err(refusal)) => Err(refusal),
            // It panicked, or the runtime ends.
            Err(_) => Err(TransferError::DeviceFailed),
        }
    }

    fn failed(&self, error: &io::Error) -> TransferError {
        let failures = self.shared.failures.fetch_add(1, Ordering::Relaxed) + 1;
        // A device that is gone fails every operation.
        if failures.is_power_of_two() {
            tracing::warn!(%error, failures, "the device of a region failed to copy");
        }
        TransferError::DeviceFailed
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging").field("size", &self.size()).finish_non_exhaustive()
    }
}

/// Memory of the host that one part of an operation has to itself. Dropping it frees it for
/// others.
pub(crate) struct Stage {
    memory: Memory,
    staging: Staging,
}

impl Stage {
    /// The first `len` bytes.
    pub(crate) fn front(&self, len: usize) -> MemorySlice {
        self.memory.slice(0, len).expect("no part is longer than a stage")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.staging.shared.free.lock().push(self.memory.clone());
        self.staging.shared.is_free.add_permits(1);
    }
}

/// A write to the device that may be under way.
struct Writing {
    staging: Staging,
    range: Range<usize>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut writes = self.staging.shared.writes.lock();
        // No two of them overlap.
        writes.retain(|range| *range != self.range);
        drop(writes);
        self.staging.shared.write_ended.notify_waiters();
    }
}

/// An operation of a peer that was let in to staged memory.
pub(crate) struct AdmittedStaged {
    staging: Staging,
    at: usize,
    len: usize,
    claim: Claim,
}

impl AdmittedStaged {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The parts to move one after the other, counted from the operation's first byte.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (len, part) = (self.len, self.staging.shared.part);
        (0..len).step_by(part).map(move |at| at..len.min(at + part))
    }

    /// Takes a stage for one part.
    pub(crate) async fn stage(&self) -> Stage {
        self.staging.stage().await
    }

    /// Copies the bytes that `operation` reads to where it wants them, here and now.
    ///
    /// # Errors
    /// Of the claim and the span's time, [`TransferError::Cancelled`], [`TransferError::DeviceFailed`],
    /// and [`TransferError::Unsupported`] for a write.
    pub(crate) fn read_here(&self, operation: &Operation) -> Result<Transferred, TransferError> {
        let Operation::Read { into, .. } = operation else {
            return Err(TransferError::Unsupported { what: "writes to staged memory" });
        };
        let (mut digest, mut at) = (Summing::of(operation), self.at);
        for piece in into.iter() {
            operation.remote().check_time()?;
            self.claim.check()?;
            let read = guarded(operation.cancel(), || self.staging.device().read(at, piece));
            let read = read.ok_or(TransferError::Cancelled)?;
            read.map_err(|error| self.staging.failed(&error))?;
            if let Some(digest) = &mut digest {
                digest.update_part(piece, 0, piece.len());
            }
            at += piece.len();
        }
        Ok(digest.map(Summing::finish).unwrap_or_default())
    }

    /// Copies a part of a read into a stage, whose first bytes it is then.
    ///
    /// # Errors
    /// Of the claim, and [`TransferError::DeviceFailed`].
    pub(crate) async fn read(&self, part: Range<usize>) -> Result<Stage, TransferError> {
        let stage = self.staging.stage().await;
        let (claim, at) = (self.claim.clone(), self.at + part.start);
        let copy = move |device: &dyn StagedMemory| {
            claim.check()?;
            Ok(device.read(at, &stage.front(part.len())).map(|()| stage))
        };
        self.staging.copy(copy).await
    }

    /// Copies the first bytes of `stage` to the device, as this part of a write. Once this
    /// returns nothing of it is under way. When the future is dropped, the copy may go on;
    /// `connection` lives until it has ended.
    ///
    /// # Errors
    /// Of the claim, and [`TransferError::DeviceFailed`].
    pub(crate) async fn write(
        &self,
        part: Range<usize>,
        stage: Stage,
        connection: impl Send + 'static,
    ) -> Result<(), TransferError> {
        let (claim, at) = (self.claim.clone(), self.at + part.start);
        let writing = self.staging.begin_write(at..self.at + part.end).await;
        let copy = move |device: &dyn StagedMemory| {
            let _held = (connection, writing);
            // Waiting for the turn and for a thread may have taken long.
            claim.check()?;
            Ok(device.write(at, &stage.front(part.len())))
        };
        self.staging.copy(copy).await
    }
}
