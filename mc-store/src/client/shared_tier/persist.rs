//! Writing files after puts.
//!
//! A put that has ended leaves its key here and returns. The caller's memory may change from then on, so
//! the bytes are taken from the replica where it is in this client's own segment, from the caller's
//! [`Bytes`] where it gave such, and are read back otherwise. Reading back grants a lease, which keeps
//! the object in memory for that time.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use mc_meta::PutHandle;
use mc_rpc::FileOutcome;
use mc_tier::{ObjectBytes, SliceBytes, SliceInfo};
use mc_types::{Checksum, Extent, ObjectKey, RemoteKey};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::SharedTier;
use crate::client::core::Core;
use crate::client::read::{Item, Target};
use crate::client::segments::Held;

/// Objects whose files wait to be written. Those beyond it get no file.
const QUEUE: usize = 1 << 16;

/// Bytes of callers that may be held until their files are written. What is beyond is read back.
const HELD_BYTES: usize = 256 << 20;

/// Files that are written at a time.
const WRITERS: usize = 4;

/// Files that one call reports.
const OUTCOMES: usize = 256;

/// How often a report is tried. Unreported files are found by the next comparison.
const REPORTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// An object whose file is to be written.
#[derive(Clone, Debug)]
pub(in crate::client) struct Pending {
    pub(in crate::client) key: ObjectKey,
    pub(in crate::client) handle: PutHandle,
    pub(in crate::client) slices: Box<[SliceInfo]>,
    /// The first replica.
    pub(in crate::client) replica: (RemoteKey, Extent),
    /// The slices' bytes, if the caller gave such as cannot change.
    pub(in crate::client) bytes: Option<Box<[Bytes]>>,
}

impl Pending {
    fn held(&self) -> usize {
        self.bytes.iter().flatten().map(Bytes::len).sum()
    }
}

/// The objects whose files wait.
#[derive(Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Pending>,
    /// Taken by the task that writes.
    receiver: Mutex<Option<mpsc::Receiver<Pending>>>,
    /// Objects beyond the limit, of which the master is told.
    refused: Mutex<Vec<Pending>>,
    /// Objects that wait or are being written.
    open: AtomicUsize,
    /// Bytes of callers that these hold.
    held: AtomicUsize,
    /// Told when there are none.
    is_empty: Notify,
}

impl Default for Queue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Self {
            sender,
            receiver: Mutex::new(Some(receiver)),
            refused: Mutex::default(),
            open: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            is_empty: Notify::new(),
        }
    }
}

impl Queue {
    pub(super) fn take(&self) -> Option<mpsc::Receiver<Pending>> {
        self.receiver.lock().take()
    }

    /// Lets the bytes go that an object holds.
    fn release(&self, pending: &mut Pending) {
        self.held.fetch_sub(pending.held(), Ordering::Relaxed);
        pending.bytes = None;
    }

    fn ended(&self, files: usize) {
        if self.open.fetch_sub(files, Ordering::AcqRel) == files {
            self.is_empty.notify_waiters();
        }
    }
}

impl SharedTier {
    /// Has the file of an object written by and by.
    pub(in crate::client) fn persist(&self, mut pending: Pending) {
        let queue = &self.queue;
        let held = pending.held();
        if queue.held.fetch_add(held, Ordering::Relaxed) + held > HELD_BYTES {
            queue.held.fetch_sub(held, Ordering::Relaxed);
            pending.bytes = None;
        }
        queue.open.fetch_add(1, Ordering::Relaxed);
        let Err(refused) = queue.sender.try_send(pending) else { return };
        let mut refused = refused.into_inner();
        queue.release(&mut refused);
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
        let all_written = async {
            loop {
                let mut told = pin!(self.queue.is_empty.notified());
                told.as_mut().enable();
                if self.queue.open.load(Ordering::Acquire) == 0 {
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

/// An object and whether its file is written.
type Written = (Pending, bool);

/// Writes files until the client has gone.
pub(super) async fn write_files(core: Weak<Core>, mut queue: mpsc::Receiver<Pending>) {
    let mut writing: JoinSet<Written> = JoinSet::new();
    let mut written = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = writing.join_next() => written.extend(done),
            pending = queue.recv(), if writing.len() < WRITERS => {
                let (Some(pending), Some(core)) = (pending, core.upgrade()) else { return };
                writing.spawn(async move {
                    let mut pending = pending;
                    let is_written = core.write_file(&pending).await;
                    if let Some(shared) = &core.shared_tier {
                        shared.queue.release(&mut pending);
                    }
                    (pending, is_written)
                });
            }
        }
        if written.len() >= OUTCOMES || writing.is_empty() && queue.is_empty() {
            let Some(core) = core.upgrade() else { return };
            core.report_written(std::mem::take(&mut written)).await;
        }
    }
}

impl Core {
    /// Writes the file of an object. Returns whether it is written.
    async fn write_file(self: &Arc<Self>, pending: &Pending) -> bool {
        let Some(shared) = &self.shared_tier else { return false };
        let (Some(tier), Ok(id)) = (
            shared.tier().cloned(),
            self.object_id(pending.key.as_ref(), pending.handle.generation),
        ) else {
            return false;
        };
        let begun = Instant::now();
        let Some(source) = self.source(pending).await else { return false };
        let slices = pending.slices.clone();
        let len = slices.iter().map(|slice| slice.len).sum();
        let write = move || {
            let object = source.object(&slices).ok_or("the object has changed in memory")?;
            tier.put(&id, &object).map_err(|error| error.to_string())
        };
        let written = self.settings.environment.blocking(write).await;
        let Some(Ok(written)) = written else { return false };
        shared.counters.written(begun.elapsed(), written.as_ref().map(|()| len).map_err(drop));
        if let Err(error) = &written {
            shared.counters.complain(|failures| {
                warn!(key = %pending.key, %error, failures, "an object's file could not be written");
            });
        }
        written.is_ok()
    }

    /// Where the object's bytes are; `None` when it is gone.
    async fn source(&self, pending: &Pending) -> Option<Source> {
        let (key, extent) = pending.replica;
        if let Some(own) = self.segments.local(key, extent) {
            return Some(Source::Own(own));
        }
        if let Some(bytes) = &pending.bytes {
            return Some(Source::Slices(bytes.clone()));
        }
        let generation = Some(pending.handle.generation);
        let mut items = [Item::new(pending.key.as_str(), None, generation, Target::OWNED)];
        self.get_all(&mut items).await;
        let [item] = items;
        match item.into_bytes() {
            Ok(bytes) => Some(Source::Whole(bytes)),
            Err(error) => {
                debug!(key = %pending.key, %error, "an object went before its file was written");
                None
            }
        }
    }

    /// Tells the master which files are written, and deletes those that it has no use for.
    async fn report_written(&self, written: Vec<Written>) {
        let Some(shared) = &self.shared_tier else { return };
        let count = written.len();
        let refused = std::mem::take(&mut *shared.queue.refused.lock());
        let all: Vec<Written> = written
            .into_iter()
            .chain(refused.into_iter().map(|pending| (pending, false)))
            .collect();
        for part in all.chunks(mc_rpc::MAX_BATCH) {
            self.report_part(shared, part).await;
        }
        shared.queue.ended(count);
    }

    async fn report_part(&self, shared: &SharedTier, part: &[Written]) {
        let outcomes: Vec<FileOutcome<'_>> = part
            .iter()
            .map(|(pending, written)| FileOutcome {
                key: pending.key.as_ref(),
                handle: pending.handle,
                written: *written,
            })
            .collect();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=REPORTS {
            match self.master.batch_disk_put_end(self.id, &outcomes).await {
                Ok(answers) => {
                    let useless = part.iter().zip(answers).filter(|((_, written), answer)| {
                        *written && answer.as_ref().is_err_and(|refusal| !refusal.is_retryable())
                    });
                    let ids = useless.filter_map(|((pending, _), _)| {
                        self.object_id(pending.key.as_ref(), pending.handle.generation).ok()
                    });
                    self.delete_files(shared, ids.collect()).await;
                    return;
                }
                Err(error) if error.is_retryable() && attempt < REPORTS => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => {
                    debug!(%error, "the master was not told of files that were written");
                    return;
                }
            }
        }
    }
}

/// Where the bytes of an object come from.
enum Source {
    /// A replica in the client's own segment.
    Own(Held),
    /// The caller's slices.
    Slices(Box<[Bytes]>),
    /// A get.
    Whole(Bytes),
}

impl Source {
    /// The object; `None` when its bytes are not those that were put. May block.
    fn object(self, slices: &[SliceInfo]) -> Option<ObjectBytes> {
        let info = |slice: &SliceInfo| (slice.len, Some(slice.checksum));
        match self {
            Self::Slices(parts) => verified(parts.into_iter().zip(slices.iter().map(info))),
            Self::Own(own) => {
                object_of(Bytes::from(own.on_host().ok()?.to_vec()), slices.iter().map(info))
            }
            Self::Whole(bytes) => object_of(bytes, slices.iter().map(info)),
        }
    }
}

/// The object of these bytes and slices; `None` when the bytes do not have the slices' checksums.
pub(in crate::client) fn object_of(
    mut bytes: Bytes,
    slices: impl Iterator<Item = (u64, Option<Checksum>)> + Clone,
) -> Option<ObjectBytes> {
    if bytes.len() as u64 != slices.clone().map(|(len, _)| len).sum::<u64>() {
        return None;
    }
    verified(slices.map(|slice| (bytes.split_to(slice.0 as usize), slice)))
}

fn verified(parts: impl Iterator<Item = (Bytes, (u64, Option<Checksum>))>) -> Option<ObjectBytes> {
    let slice = |(part, (_, checksum)): (Bytes, (u64, Option<Checksum>))| match checksum {
        Some(checksum) => SliceBytes::verified(part, checksum).ok(),
        None => Some(SliceBytes::new(part)),
    };
    ObjectBytes::new(parts.map(slice).collect::<Option<_>>()?).ok()
}
