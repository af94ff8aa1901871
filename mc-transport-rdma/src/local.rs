//! Registrations of this side's memory, and registered memory for bytes that have none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mc_transport::{Memory, MemorySlice};
use parking_lot::Mutex;

use super::ports::Ports;
use super::verbs::{MemoryRegion, VerbsError};

/// Memory that is registered in one piece when it is first used: what a block of less takes is
/// registered whole.
const CHUNK: usize = 64 << 20;

/// Bytes of a place in staging memory.
pub(super) const SLOT: usize = 256 << 10;

/// A piece of memory with its registrations, one for each device of the transport.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) chunk: Arc<Chunk>,
    pub(super) slice: MemorySlice,
}

/// The state of a range of local memory.
pub(super) enum Found {
    Registered(Vec<Piece>),
    /// Some of it was never asked for.
    Unregistered,
    /// A device refused some of it.
    Refused,
}

/// A part of a block that is registered with every device.
pub(super) struct Chunk {
    pub(super) regions: Vec<Arc<MemoryRegion>>,
}

/// The chunks of one block, attached to it: they are deregistered before the block's memory is
/// released.
#[derive(Default)]
struct Chunks {
    /// Registrations by index; `None` for one that a device refused, which is not tried again.
    registered: Mutex<HashMap<usize, Option<Arc<Chunk>>>>,
    is_listed: AtomicBool,
}

/// See the module.
pub(super) struct LocalMemory {
    /// Tells the values of this transport apart from those of others.
    id: u64,
    ports: Arc<Ports>,
    /// The registrations of every block that has some.
    blocks: Mutex<Vec<Weak<Chunks>>>,
    staging: Mutex<Staging>,
    staging_size: usize,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Staging {
    memory: Option<(Memory, Arc<Chunk>)>,
    free: Vec<usize>,
    /// Called when a slot is free that a caller waits for.
    waiting: Vec<Box<dyn FnOnce() + Send>>,
}

impl LocalMemory {
    pub(super) fn new(ports: Arc<Ports>, staging: u64) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let staging_size = usize::try_from(staging).unwrap_or(usize::MAX / 2).max(SLOT);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            ports,
            blocks: Mutex::default(),
            staging: Mutex::default(),
            staging_size: staging_size - staging_size % SLOT,
            is_closed: AtomicBool::new(false),
        })
    }

    /// The pieces of `slice`, if all of it is registered.
    pub(super) fn find(&self, slice: &MemorySlice) -> Found {
        let root = slice.root();
        let Some(chunks) = root.memory().attachment::<Chunks>(self.id) else {
            return Found::Unregistered;
        };
        let registered = chunks.registered.lock();
        let mut pieces = Vec::with_capacity(1);
        for (index, slice) in parts(&root) {
            match registered.get(&index) {
                Some(Some(chunk)) => pieces.push(Piece { chunk: Arc::clone(chunk), slice }),
                Some(None) => return Found::Refused,
                None => return Found::Unregistered,
            }
        }
        Found::Registered(pieces)
    }

    /// Registers what of `slice` is not yet. Blocks the thread in proportion to the pages.
    pub(super) fn register(&self, slice: &MemorySlice) {
        let root = slice.root();
        let chunks = root.memory().attached::<Chunks>(self.id);
        for (index, _) in parts(&root) {
            if chunks.registered.lock().contains_key(&index) {
                continue;
            }
            let start = index * CHUNK;
            let len = CHUNK.min(root.memory().len() - start);
            let whole = root.memory().slice(start, len).expect("the chunk lies in its block");
            // Without the lock, under which others look for chunks that are there. Of two that
            // register the same one, one is dropped again.
            let chunk = self.chunk(&whole).inspect_err(|error| {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "local memory cannot be registered; its bytes are copied");
            });
            let mut registered = chunks.registered.lock();
            // Under the lock, so that none is added behind `close`.
            if !self.is_closed.load(Ordering::SeqCst) {
                registered.entry(index).or_insert(chunk.ok().map(Arc::new));
            }
        }
        if !chunks.is_listed.swap(true, Ordering::Relaxed) {
            let mut blocks = self.blocks.lock();
            blocks.retain(|block| block.strong_count() > 0);
            blocks.push(Arc::downgrade(&chunks));
        }
    }

    fn chunk(&self, slice: &MemorySlice) -> Result<Chunk, VerbsError> {
        let devices = self.ports.devices.iter();
        let regions = devices
            .map(|open| MemoryRegion::register(&open.device, slice, None).map(Arc::new))
            .collect::<Result<_, _>>()?;
        Ok(Chunk { regions })
    }

    /// A place of [`SLOT`] bytes; `None` when all are taken, and `when_free` is called once one is
    /// not.
    ///
    /// # Errors
    /// [`VerbsError`] when no such memory can be registered.
    pub(super) fn slot(
        self: &Arc<Self>,
        when_free: impl FnOnce() + Send + 'static,
    ) -> Result<Option<Slot>, VerbsError> {
        let mut staging = self.staging.lock();
        if staging.memory.is_none() {
            let (memory, chunk) = self.make_staging()?;
            staging.free = (0..memory.len() / SLOT).collect();
            staging.memory = Some((memory, Arc::new(chunk)));
        }
        let Some(index) = staging.free.pop() else {
            staging.waiting.push(Box::new(when_free));
            return Ok(None);
        };
        let (memory, chunk) = staging.memory.as_ref().expect("made above");
        let slice = memory.slice(index * SLOT, SLOT).expect("slots lie inside");
        let piece = Piece { chunk: Arc::clone(chunk), slice };
        Ok(Some(Slot { piece, index, of: Arc::clone(self) }))
    }

    /// Staging memory of the size that the settings allow, or of as much as can be locked.
    fn make_staging(&self) -> Result<(Memory, Chunk), VerbsError> {
        let mut size = self.staging_size;
        loop {
            let memory = Memory::allocate(size).map_err(|error| VerbsError::Failed {
                call: "mmap",
                device: Arc::clone(self.ports.devices[0].device.name()),
                source: std::io::Error::other(error),
            })?;
            match self.chunk(&memory.whole()) {
                Ok(chunk) => return Ok((memory, chunk)),
                Err(error @ VerbsError::MemoryLock { .. }) if size > SLOT => {
                    tracing::warn!(%error, "less staging memory than RdmaConfig::staging");
                    size = (size / 2).next_multiple_of(SLOT);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Deregisters everything, as soon as no request uses it.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for block in self.blocks.lock().drain(..) {
            if let Some(chunks) = block.upgrade() {
                chunks.registered.lock().clear();
            }
        }
    }
}

/// A place in staging memory, free again when this is dropped.
pub(super) struct Slot {
    pub(super) piece: Piece,
    index: usize,
    of: Arc<LocalMemory>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let waiting = {
            let mut staging = self.of.staging.lock();
            staging.free.push(self.index);
            std::mem::take(&mut staging.waiting)
        };
        for when_free in waiting {
            when_free();
        }
    }
}

/// The parts of `root` that lie in one chunk of its block each, with the chunk's index.
fn parts(root: &MemorySlice) -> impl Iterator<Item = (usize, MemorySlice)> + '_ {
    let (start, end) = (root.offset(), root.offset() + root.len());
    (start / CHUNK..end.div_ceil(CHUNK)).map(move |index| {
        let from = start.max(index * CHUNK);
        let to = end.min((index + 1) * CHUNK);
        (index, root.part(from - start, to - from).expect("the part lies in the slice"))
    })
}
