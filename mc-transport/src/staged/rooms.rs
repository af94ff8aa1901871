//! The stages of a region, and the memory beside them for parts that slow peers do not take.
//!
//! A stage serves all peers in turn, so that no peer may keep one: after [`HOLD`] a part that was
//! not taken is copied aside, and its stage serves another peer. What is copied aside is bounded.
//! Where that is used up, the slow peer is the one that waits: its stage is given back, and the
//! rest of the part is moved later. A peer that was slow has memory aside first, or waits for a
//! while that doubles each time, before it gets a stage again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_memory::{Memory, MemorySlice};
use mc_places::Source;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::TransferError;

/// How long a peer may hold a stage. 1 MiB in this time are 10 MB/s.
const HOLD: Duration = Duration::from_millis(100);

/// Parts that may be aside at a time, for each stage.
const ASIDE_PER_STAGE: usize = 4;

/// How long a slow peer waits for memory aside before it gets a stage again, the first time. Twice as
/// long each time after, up to a quarter of its patience, which the peer's own may equal.
const FIRST_PENALTY: Duration = Duration::from_millis(250);

/// The peer of a connection, as staged regions know it.
#[derive(Debug)]
pub struct StagePeer {
    source: Source,
    /// How long a device may block all peers, and a peer take for a part that is aside.
    patience: Duration,
    /// Parts that were not taken in time, since the last one that was.
    late: AtomicU32,
}

impl StagePeer {
    /// The peer of a connection from `source`, for which a device may let all others wait for
    /// `patience`.
    #[must_use]
    pub fn new(source: Source, patience: Duration) -> Self {
        Self { source, patience, late: AtomicU32::new(0) }
    }

    /// How long the peer may take to move a part through this room.
    pub fn limit(&self, room: &Room) -> Duration {
        match room {
            Room::Stage(_) => HOLD.min(self.patience / 4),
            Room::Aside(_) => self.patience,
        }
    }

    /// Notes that a part was moved within `took`.
    pub fn moved(&self, took: Duration) {
        if took < HOLD.min(self.patience / 4) {
            self.late.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a part was not moved in time.
    pub fn was_late(&self) {
        let more = |late: u32| Some(late.saturating_add(1));
        // The closure never refuses.
        let _ = self.late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether the last part was not moved in time.
    pub fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed) > 0
    }

    /// How long it waits for memory aside; `None` for a peer that is not slow.
    fn penalty(&self) -> Option<Duration> {
        let times = self.late.load(Ordering::Relaxed).checked_sub(1)?;
        Some((FIRST_PENALTY * (1 << times.min(8))).min(self.patience / 4))
    }
}

/// The stages of a region and the memory beside them.
pub(super) struct Rooms {
    /// Bytes of the shortest stage.
    part: usize,
    /// The stages that are free; `stages` has a permit for each.
    free: Mutex<Vec<Memory>>,
    stages: Halves,
    aside: Halves,
    /// Stages that came free so far.
    freed: AtomicU64,
}

impl Rooms {
    pub(super) fn new(stages: Vec<Memory>) -> Self {
        let part = stages.iter().map(Memory::len).min().unwrap_or(0);
        assert!(part > 0, "there is a stage, and each has bytes");
        Self {
            part,
            stages: Halves::new(stages.len()),
            aside: Halves::new(stages.len() * ASIDE_PER_STAGE),
            free: Mutex::new(stages),
            freed: AtomicU64::new(0),
        }
    }

    /// Bytes of the largest part.
    pub(super) const fn part(&self) -> usize {
        self.part
    }

    /// Takes a stage, which may have to come free first.
    ///
    /// # Errors
    /// [`TransferError::DeviceFailed`] when none comes free, for any peer, in the time that a
    /// device may take: no peer holds one for as long.
    pub(super) async fn stage(self: &Arc<Self>, peer: &StagePeer) -> Result<Stage, TransferError> {
        let mut permits = std::pin::pin!(self.stages.take(peer.source));
        let permits = loop {
            let freed = self.freed.load(Ordering::Relaxed);
            match timeout(peer.patience, &mut permits).await {
                Ok(permits) => break permits,
                Err(_) if self.freed.load(Ordering::Relaxed) == freed => {
                    return Err(TransferError::DeviceFailed);
                }
                Err(_) => {}
            }
        };
        let memory = self.free.lock().pop().expect("there are as many stages as permits");
        Ok(Stage { memory, rooms: Arc::clone(self), _permits: permits })
    }

    /// Takes a stage if one is free, and no peer waits for one.
    pub(super) fn try_stage(self: &Arc<Self>, peer: &StagePeer) -> Option<Stage> {
        let permits = self.stages.try_take(peer.source)?;
        let memory = self.free.lock().pop().expect("there are as many stages as permits");
        Some(Stage { memory, rooms: Arc::clone(self), _permits: permits })
    }

    /// Takes memory aside for a peer that was slow, and waits for it for a while.
    pub(super) async fn aside_if_slow(&self, peer: &StagePeer) -> Option<Aside> {
        let permits = timeout(peer.penalty()?, self.aside.take(peer.source)).await;
        Aside::allocate(self.part, permits.ok()?)
    }

    /// Copies the first `len` bytes of a stage aside, if there is memory for it at once.
    pub(super) fn set_aside(&self, peer: &StagePeer, stage: &Stage, len: usize) -> Option<Aside> {
        let aside = Aside::allocate(self.part, self.aside.try_take(peer.source)?)?;
        copy(&stage.front(len), &aside.front(len));
        Some(aside)
    }
}

/// Memory of the host that one part of an operation has to itself.
pub enum Room {
    /// A stage, which others wait for.
    Stage(Stage),
    /// Memory beside the stages.
    Aside(Aside),
}

impl Room {
    /// The first `len` bytes.
    pub fn front(&self, len: usize) -> MemorySlice {
        match self {
            Self::Stage(stage) => stage.front(len),
            Self::Aside(aside) => aside.front(len),
        }
    }
}

/// One of the stages. Dropping it frees it for others.
pub struct Stage {
    memory: Memory,
    rooms: Arc<Rooms>,
    /// Freed after the stage is back among the others: fields are dropped last.
    _permits: Permits,
}

impl Stage {
    /// The first `len` bytes.
    pub fn front(&self, len: usize) -> MemorySlice {
        self.memory.slice(0, len).expect("no part is longer than a stage")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.rooms.free.lock().push(self.memory.clone());
        self.rooms.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Memory for a part beside the stages. Dropping it gives it back.
pub struct Aside {
    memory: Memory,
    _permits: Permits,
}

impl Aside {
    /// `None` when the system has no memory; the peer does without then.
    fn allocate(len: usize, permits: Permits) -> Option<Self> {
        Some(Self { memory: Memory::allocate(len).ok()?, _permits: permits })
    }

    /// The first `len` bytes.
    pub fn front(&self, len: usize) -> MemorySlice {
        self.memory.slice(0, len).expect("no part is longer than the shortest stage")
    }
}

/// Copies between two slices of equal length, of memory that can be written.
pub(super) fn copy(from: &MemorySlice, to: &MemorySlice) {
    from.copy_to_slice(to).expect("both have the part's length, and stages can be written");
}

/// A number of places of which each source has at most half, in the order of the requests.
struct Halves {
    all: Arc<Semaphore>,
    half: usize,
    /// The half of each source that has or awaits places.
    of_source: Mutex<HashMap<Source, Weak<Semaphore>>>,
}

/// A place, which is free again when this is dropped.
struct Permits {
    _all: OwnedSemaphorePermit,
    _of_source: OwnedSemaphorePermit,
}

impl Halves {
    fn new(places: usize) -> Self {
        let all = Arc::new(Semaphore::new(places));
        Self { all, half: (places / 2).max(1), of_source: Mutex::default() }
    }

    async fn take(&self, source: Source) -> Permits {
        let open = "the semaphore is never closed";
        let of_source = self.of_source(source).acquire_owned().await.expect(open);
        let all = Arc::clone(&self.all).acquire_owned().await.expect(open);
        Permits { _all: all, _of_source: of_source }
    }

    fn try_take(&self, source: Source) -> Option<Permits> {
        let of_source = self.of_source(source).try_acquire_owned().ok()?;
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Permits { _all: all, _of_source: of_source })
    }

    fn of_source(&self, source: Source) -> Arc<Semaphore> {
        let mut halves = self.of_source.lock();
        if let Some(half) = halves.get(&source).and_then(Weak::upgrade) {
            return half;
        }
        // Permits and those who wait for one keep theirs alive.
        halves.retain(|_, half| half.strong_count() > 0);
        let half = Arc::new(Semaphore::new(self.half));
        halves.insert(source, Arc::downgrade(&half));
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(stages: usize) -> Arc<Rooms> {
        let stages = std::iter::repeat_with(|| Memory::allocate(64).unwrap()).take(stages);
        Arc::new(Rooms::new(stages.collect()))
    }

    fn peer(last: u8) -> StagePeer {
        let source = Source::Ip([10, 0, 0, last].into());
        StagePeer::new(source, Duration::from_secs(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_has_at_most_half_of_the_stages() {
        let rooms = rooms(4);
        let (greedy, other) = (peer(1), peer(2));
        let first = [rooms.stage(&greedy).await.unwrap(), rooms.stage(&greedy).await.unwrap()];
        let third = timeout(Duration::from_secs(1), rooms.stage(&greedy)).await;
        assert!(third.is_err(), "half of them are its own");
        let rest = [rooms.stage(&other).await.unwrap(), rooms.stage(&other).await.unwrap()];
        drop(first);
        rooms.stage(&greedy).await.unwrap();
        drop(rest);
        let third = peer(3);
        rooms.stage(&third).await.unwrap();
        assert_eq!(rooms.stages.of_source.lock().len(), 1, "those who left are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_aside_is_bounded_and_a_slow_peer_waits_longer_each_time() {
        let rooms = rooms(1);
        let slow = peer(1);
        assert!(rooms.aside_if_slow(&slow).await.is_none(), "it is not slow");
        slow.was_late();
        let _aside = [
            rooms.aside_if_slow(&slow).await.unwrap(),
            rooms.set_aside(&slow, &rooms.stage(&slow).await.unwrap(), 9).unwrap(),
        ];
        for wait in [250, 500, 1000] {
            let began = tokio::time::Instant::now();
            assert!(rooms.aside_if_slow(&slow).await.is_none(), "its half is used up");
            assert_eq!(began.elapsed().as_millis(), wait);
            slow.was_late();
        }
        assert!(rooms.set_aside(&slow, &rooms.stage(&slow).await.unwrap(), 9).is_none());
        slow.moved(HOLD);
        assert!(slow.penalty().is_some());
        slow.moved(Duration::ZERO);
        assert!(slow.penalty().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_device_that_hangs_ends_the_wait_for_a_stage() {
        let (rooms, peer) = (rooms(1), peer(1));
        let mut held = Some(rooms.stage(&peer).await.unwrap());
        let (waits, hands_on) = (rooms.stage(&peer), async {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                // Another one takes and leaves one.
                rooms.freed.fetch_add(1, Ordering::Relaxed);
            }
            held = None;
        });
        tokio::join!(waits, hands_on).0.unwrap();
        let _hangs = rooms.stage(&peer).await.unwrap();
        let refused = rooms.stage(&peer).await.err();
        assert!(matches!(refused, Some(TransferError::DeviceFailed)), "{refused:?}");
    }
}
