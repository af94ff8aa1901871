//! Memory that sockets cannot reach, such as a GPU's, served through memory of the host.
//!
//! Each part of an operation takes one of the region's few stages, waits for one when none is
//! free, and copies between it and the device on a thread that may block. How long a peer may hold
//! a stage, and what becomes of its part then, is in `rooms`. A copy cannot be
//! stopped, and a device may be slow, so that a copy holds what others wait for until it has
//! ended: the claim to the region, which a withdrawal waits for; the connection, which a fence
//! waits for; and the bytes that it writes, which the next write to them waits for. The copy of
//! a grant that has ended meanwhile is thus never on top of what a later grant wrote.

mod rooms;

use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_memory::{Memory, StagedMemory};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use self::rooms::{Aside, Rooms, copy};
pub use self::rooms::{Room, Stage, StagePeer};

use crate::cancel::guarded;
use crate::completion::Transferred;
use crate::error::TransferError;
use crate::operation::Operation;
use crate::region::Claim;
use crate::slice_sums::Summing;

/// [`StagedMemory`] with the stages that its bytes pass through. Clones share both.
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
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    device: Box<dyn StagedMemory>,
    rooms: Arc<Rooms>,
    /// The ranges that are being written to the device.
    writes: Mutex<Vec<Range<usize>>>,
    write_ended: Notify,
    failures: AtomicU64,
}

impl Staging {
    /// Serves `device` through `stages`. As many copies run at a time as there are stages, and
    /// none moves more bytes than the shortest has. Nothing else may use them.
    ///
    /// One host, or one process of this host, has at most half of the stages at a time. A peer
    /// that does not take or send a part within 100 ms loses its stage to the others: the part is
    /// moved through memory beside the stages, of which there are at most four times their number,
    /// allocated when needed. Once that is used up, slow peers wait, and no others.
    ///
    /// # Panics
    /// When there is no stage, or one is empty or cannot be written.
    pub fn new(device: impl StagedMemory, stages: Vec<Memory>) -> Self {
        assert!(stages.iter().all(Memory::is_writable), "a stage can be written");
        let shared = Shared {
            device: Box::new(device),
            rooms: Arc::new(Rooms::new(stages)),
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

/// The memory for one part of a read: a stage, and memory aside for a peer that was slow.
pub struct ReadRoom {
    stage: Stage,
    aside: Option<Aside>,
}

/// An operation of a peer that was let in to staged memory.
pub struct AdmittedStaged {
    staging: Staging,
    at: usize,
    len: usize,
    claim: Claim,
}

impl AdmittedStaged {
    /// Bytes of the operation.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "one of no bytes is as good as another")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The right to touch the region.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The parts to move one after the other, counted from the operation's first byte.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (len, part) = (self.len, self.staging.shared.rooms.part());
        (0..len).step_by(part).map(move |at| at..len.min(at + part))
    }

    fn rooms(&self) -> &Arc<Rooms> {
        &self.staging.shared.rooms
    }

    /// Takes what a part of a read needs, and waits for it.
    ///
    /// # Errors
    /// [`TransferError::DeviceFailed`] when the device hangs.
    pub async fn read_room(&self, peer: &StagePeer) -> Result<ReadRoom, TransferError> {
        let aside = self.rooms().aside_if_slow(peer).await;
        Ok(ReadRoom { stage: self.rooms().stage(peer).await?, aside })
    }

    /// Takes the memory for a part of a read that is answered behind others; `None` when there is
    /// none at once, or the peer is slow: a part that waits for its turn blocks no others.
    pub fn try_read_room(&self, peer: &StagePeer) -> Option<ReadRoom> {
        let stage = self.rooms().try_stage(peer).filter(|_| !peer.is_late())?;
        Some(ReadRoom { stage, aside: None })
    }

    /// Takes room to receive a part of a write in, and waits for it.
    ///
    /// # Errors
    /// As [`read_room`](Self::read_room).
    pub async fn write_room(&self, peer: &StagePeer) -> Result<Room, TransferError> {
        Ok(match self.rooms().aside_if_slow(peer).await {
            Some(aside) => Room::Aside(aside),
            None => Room::Stage(self.rooms().stage(peer).await?),
        })
    }

    /// Takes a stage for `len` bytes that were received, and waits for it.
    ///
    /// # Errors
    /// As [`read_room`](Self::read_room).
    pub async fn stage_of(
        &self,
        peer: &StagePeer,
        room: Room,
        len: usize,
    ) -> Result<Stage, TransferError> {
        match room {
            Room::Stage(stage) => Ok(stage),
            Room::Aside(aside) => {
                let stage = self.rooms().stage(peer).await?;
                copy(&aside.front(len), &stage.front(len));
                Ok(stage)
            }
        }
    }

    /// Copies the first `len` bytes of a stage aside and frees it, if there is memory for that;
    /// `false` when the stage is still held.
    pub fn set_aside(&self, peer: &StagePeer, room: &mut Room, len: usize) -> bool {
        if let Room::Stage(stage) = room {
            let Some(aside) = self.rooms().set_aside(peer, stage, len) else { return false };
            *room = Room::Aside(aside);
        }
        true
    }

    /// Copies the bytes that `operation` reads to where it wants them, here and now.
    ///
    /// # Errors
    /// Those of the claim and of the span's time, [`TransferError::Cancelled`],
    /// [`TransferError::DeviceFailed`], and [`TransferError::Unsupported`] for a write.
    pub fn read_here(&self, operation: &Operation) -> Result<Transferred, TransferError> {
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

    /// Copies a part of a read into the room taken for it, whose first bytes it is then.
    ///
    /// # Errors
    /// Those of the claim, and [`TransferError::DeviceFailed`].
    pub async fn read(&self, part: Range<usize>, room: ReadRoom) -> Result<Room, TransferError> {
        let (claim, at, len) = (self.claim.clone(), self.at + part.start, part.len());
        let read = move |device: &dyn StagedMemory| {
            claim.check()?;
            let ReadRoom { stage, aside } = room;
            let read = device.read(at, &stage.front(len));
            Ok(read.map(|()| match aside {
                Some(aside) => {
                    copy(&stage.front(len), &aside.front(len));
                    Room::Aside(aside)
                }
                None => Room::Stage(stage),
            }))
        };
        self.staging.copy(read).await
    }

    /// Copies the first bytes of `stage` to the device, as this part of a write. Once this
    /// returns nothing of it is under way. When the future is dropped, the copy may go on;
    /// `connection` lives until it has ended.
    ///
    /// # Errors
    /// Those of the claim, and [`TransferError::DeviceFailed`].
    pub async fn write(
        &self,
        part: Range<usize>,
        stage: Stage,
        connection: impl Send + 'static,
    ) -> Result<(), TransferError> {
        let (claim, at) = (self.claim.clone(), self.at + part.start);
        let writing = self.staging.begin_write(at..self.at + part.end).await;
        let write = move |device: &dyn StagedMemory| {
            let _held = (connection, writing);
            // Waiting for the turn and for a thread may have taken long.
            claim.check()?;
            Ok(device.write(at, &stage.front(part.len())))
        };
        self.staging.copy(write).await
    }
}
