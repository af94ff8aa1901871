//! The objects whose files wait to be written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mc_meta::{Pattern, PutHandle, TenantId};
use mc_tier::{ObjectId, SliceInfo};
use mc_transport::{BootTime, BufferPool, MemorySlice, Source};
use mc_types::{Extent, ObjectKey, RemoteKey};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};

use super::SharedTier;
use super::turns::{Turn, Turns};

/// Objects whose files wait to be written. Those beyond it get no file.
const QUEUE: usize = 1 << 16;

/// Bytes that may be held until their files are written. What is beyond is read back.
const HELD_BYTES: usize = 256 << 20;

/// Bytes of an object that are copied at most: a thread of the runtime does so for about two
/// milliseconds.
const COPIED_BYTES: usize = 16 << 20;

/// An object whose file is to be written.
#[derive(Debug)]
pub(in crate::client) struct Pending {
    pub(in crate::client) key: ObjectKey,
    pub(in crate::client) handle: PutHandle,
    pub(in crate::client) slices: Box<[SliceInfo]>,
    /// The first replica.
    pub(in crate::client) replica: (RemoteKey, Extent),
    /// When the master gives the file up, unless it is told before that it is written.
    pub(in crate::client) until: BootTime,
    /// The slices' bytes, if they are [held](SharedTier::hold).
    pub(in crate::client) bytes: Option<HeldBytes>,
}

impl Pending {
    /// The same, when its file is written or will not be.
    pub(in crate::client) fn without_bytes(self) -> Self {
        Self { bytes: None, ..self }
    }

    /// The object's bytes.
    pub(in crate::client) fn len(&self) -> u64 {
        self.slices.iter().map(|slice| slice.len).sum()
    }
}

/// The bytes of slices, and their share of what may be held.
#[derive(Debug)]
pub(in crate::client) struct HeldBytes {
    pub(in crate::client) slices: Box<[Bytes]>,
    len: usize,
    held: Arc<AtomicUsize>,
}

impl HeldBytes {
    /// The share of so many bytes, if there is room.
    fn take(held: &Arc<AtomicUsize>, len: usize) -> Option<Self> {
        let before = held.fetch_add(len, Ordering::Relaxed);
        let held = Self { slices: Box::default(), len, held: Arc::clone(held) };
        (before + len <= HELD_BYTES).then_some(held)
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.held.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Deletions that wait to be carried out.
const DELETIONS: usize = 1024;

/// An object whose file waits to be written, and its turn.
pub(in crate::client) type Job = (Turn, Pending);

/// Files to delete that the master does not know of.
#[derive(Debug)]
pub(in crate::client) struct Deletion {
    pub(super) which: Arc<Which>,
    pub(super) turn: Turn,
    /// Told for each of the objects whether it had a file.
    pub(super) done: oneshot::Sender<Vec<bool>>,
}

#[derive(Debug)]
pub(super) enum Which {
    Objects(Vec<ObjectId>),
    /// All of a tenant's that match; `None` matches each key.
    Matching(TenantId, Option<Box<Pattern>>),
}

impl Which {
    /// The objects, if they are named.
    pub(super) fn objects(&self) -> &[ObjectId] {
        match self {
            Self::Objects(ids) => ids,
            Self::Matching(..) => &[],
        }
    }

    /// Returns whether this object is one of them.
    pub(super) fn has(&self, id: &ObjectId) -> bool {
        match self {
            Self::Objects(ids) => ids.contains(id),
            Self::Matching(tenant, pattern) => {
                id.tenant() == tenant.as_str()
                    && pattern.as_ref().is_none_or(|pattern| pattern.is_match(id.key().as_str()))
            }
        }
    }
}

/// The objects whose files wait.
#[derive(Debug)]
pub(in crate::client) struct Queue {
    sender: mpsc::Sender<Job>,
    /// Taken by the task that writes.
    receiver: Mutex<Option<mpsc::Receiver<Job>>>,
    deletions: mpsc::Sender<Deletion>,
    /// Taken by the task that deletes.
    deletions_receiver: Mutex<Option<mpsc::Receiver<Deletion>>>,
    pub(in crate::client) turns: Turns,
    /// Objects beyond the limit, of which the master is told.
    pub(in crate::client) refused: Mutex<Vec<Pending>>,
    /// Objects that wait or are being written.
    open: AtomicUsize,
    /// Bytes that are held.
    held: Arc<AtomicUsize>,
    /// Told when there are none.
    is_empty: Notify,
    pub(in crate::client) flushing: Arc<Flushing>,
}

/// A caller that waits until all files are written: then nothing is gathered.
#[derive(Debug, Default)]
pub(in crate::client) struct Flushing {
    waiting: AtomicUsize,
    asked: Notify,
}

impl Flushing {
    /// Returns whether a task waits.
    pub(in crate::client) fn is_asked(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Waits until a task has begun to wait.
    pub(in crate::client) async fn asked(&self) {
        self.asked.notified().await;
    }

    fn ask(self: &Arc<Self>) -> Asked {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.asked.notify_one();
        Asked(Arc::clone(self))
    }
}

/// Counts as a waiting task as long as it lives.
struct Asked(Arc<Flushing>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Queue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (deletions, deletions_receiver) = mpsc::channel(DELETIONS);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            deletions,
            deletions_receiver: Mutex::new(Some(deletions_receiver)),
            turns: Turns::default(),
            refused: Mutex::default(),
            open: AtomicUsize::new(0),
            held: Arc::default(),
            is_empty: Notify::new(),
            flushing: Arc::default(),
        }
    }
}

impl Queue {
    pub(in crate::client) fn take(&self) -> Option<mpsc::Receiver<Job>> {
        self.receiver.lock().take()
    }

    pub(in crate::client) fn take_deletions(&self) -> Option<mpsc::Receiver<Deletion>> {
        self.deletions_receiver.lock().take()
    }

    /// Asks for a deletion, which waits for no file that is to be written. Returns what came of it; nothing is
    /// asked for, or all goes on, when this is dropped.
    pub(super) async fn delete(&self, which: Which) -> Vec<bool> {
        let (done, outcome) = oneshot::channel();
        // No task deletes any more when the client ends.
        let Ok(place) = self.deletions.reserve().await else { return Vec::new() };
        let which = Arc::new(which);
        let turn = self.turns.begin_deletion(&which);
        place.send(Deletion { which, turn, done });
        outcome.await.unwrap_or_default()
    }

    /// Returns whether no file waits to be written or is being written.
    pub(in crate::client) fn is_idle(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    pub(in crate::client) fn ended(&self, files: usize) {
        if self.open.fetch_sub(files, Ordering::AcqRel) == files {
            self.is_empty.notify_waiters();
        }
    }
}

impl SharedTier {
    /// The bytes of a put until its file is written. Those that the caller may change are copied to
    /// `pool`, or elsewhere where that is full. `None` when they are too many, or would have to be copied
    /// without a pool: then the file's bytes are read from memory.
    pub(in crate::client) fn hold(
        &self,
        slices: &[Source],
        pool: Option<&BufferPool>,
    ) -> Option<HeldBytes> {
        let len = slices.iter().map(Source::len).sum::<usize>();
        let mut held = HeldBytes::take(&self.queue.held, len)?;
        let bytes = |slice: &Source| match slice {
            Source::Bytes(bytes) => Some(bytes.clone()),
            Source::Memory(slice) => {
                pool.filter(|_| len <= COPIED_BYTES).map(|pool| copied(slice, pool))
            }
        };
        held.slices = slices.iter().map(bytes).collect::<Option<_>>()?;
        Some(held)
    }

    /// Has the file of an object written by and by.
    pub(in crate::client) fn persist(&self, pending: Pending) {
        let queue = &self.queue;
        queue.open.fetch_add(1, Ordering::Relaxed);
        let send = |turn| queue.sender.try_send((turn, pending)).err();
        let refused = queue.turns.enter(|turn| send(turn).map(|refused| refused.into_inner().1));
        let Some(mut refused) = refused else { return };
        refused.bytes = None;
        queue.ended(1);
        self.counters.dropped(queue.sender.max_capacity());
        // The master is told with the next files; of those that are too many it finds out with time.
        let mut all = queue.refused.lock();
        if all.len() < QUEUE {
            all.push(refused);
        }
    }

    /// Waits until no file of this client waits to be written, and the master knows of all. Returns
    /// whether that was within `limit`.
    pub(in crate::client) async fn flush(&self, limit: Duration) -> bool {
        let _asked = self.queue.flushing.ask();
        let all_written = async {
            loop {
                let mut told = pin!(self.queue.is_empty.notified());
                told.as_mut().enable();
                if self.queue.is_idle() {
                    return;
                }
                told.await;
            }
        };
        tokio::time::timeout(limit, all_written).await.is_ok()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.open.load(Ordering::Relaxed)
    }
}

/// A copy in the pool's memory, where no page is touched for the first time, or else elsewhere.
fn copied(slice: &MemorySlice, pool: &BufferPool) -> Bytes {
    let block = pool.take(slice.len()).filter(|block| slice.copy_to_slice(&block.whole()).is_ok());
    let bytes = block.and_then(|block| block.try_into_bytes(slice.len()).ok());
    bytes.unwrap_or_else(|| slice.to_vec().into())
}
