//! Regions of this node that its devices serve to peers.

use std::sync::Arc;
use std::thread;

use mc_transport::backend::{Claim, Registered};
use mc_transport::{Access, Memory, MemorySlice, RegionTable};
use mc_types::RemoteKey;
use parking_lot::{Condvar, Mutex};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use super::ports::Ports;
use super::verbs::{MemoryRegion, VerbsError};
use super::wire::{Answer, MAX_CHUNKS, RegionAnswer, RegionKeys};

/// Threads that register one region.
const THREADS: usize = 4;

/// The queue of frames to a peer, for notices of withdrawn regions.
pub(super) type Notices = UnboundedSender<Outgoing>;

/// A frame for a peer. Answers hold a permit until they are sent, so that a peer which asks but does
/// not read is not answered without bound.
pub(super) struct Outgoing {
    pub(super) frame: Vec<u8>,
    pub(super) _permit: Option<OwnedSemaphorePermit>,
}

/// The registrations of one region with the devices of one transport.
pub(super) struct Served {
    /// The transport, since several may serve one table.
    transport: u64,
    key: RemoteKey,
    access: Access,
    memory: Memory,
    chunk: usize,
    state: Mutex<State>,
    /// A registration ended.
    changed: Condvar,
}

struct State {
    phase: Phase,
    /// For each chunk, one region for each device.
    chunks: Vec<Option<Vec<MemoryRegion>>>,
    /// The chunk to be registered next.
    next: usize,
    /// Threads at work.
    working: usize,
    /// Holds a withdrawal up while devices may touch the memory.
    claim: Option<Claim>,
    /// Connections whose peers have the keys.
    told: Vec<Notices>,
}

#[derive(Clone)]
enum Phase {
    Registering,
    Ready,
    Failed(Arc<VerbsError>),
    Withdrawn,
}

/// The value that a [`RegionTable`] holds: dropped when the region is withdrawn.
struct Attachment(Arc<Served>);

/// Finds and makes registrations.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) transport: u64,
    pub(super) regions: RegionTable,
    pub(super) ports: Arc<Ports>,
    pub(super) chunk: u64,
}

impl Serving {
    /// The registrations of the region that `key` opens; begins to make them the first time.
    /// `None` when no region has the key; `Some(None)` when its memory is not the host's.
    fn find(&self, key: RemoteKey) -> Option<Option<Arc<Served>>> {
        let (served, is_new) = self.regions.visit(key, |open| {
            let known = open.attached.iter().filter_map(|one| one.downcast_ref::<Attachment>());
            for Attachment(served) in known {
                if served.transport == self.transport {
                    return (Some(Arc::clone(served)), false);
                }
            }
            let Registered::Host(memory) = &open.memory else { return (None, false) };
            let served = Arc::new(Served {
                transport: self.transport,
                key,
                access: open.access,
                memory: memory.clone(),
                chunk: self.chunk_of(memory.len()),
                state: Mutex::new(State {
                    phase: Phase::Registering,
                    chunks: Vec::new(),
                    next: 0,
                    working: 0,
                    claim: Some(open.claim()),
                    told: Vec::new(),
                }),
                changed: Condvar::new(),
            });
            let count = memory.len().div_ceil(served.chunk);
            served.state.lock().chunks.resize_with(count, || None);
            open.attached.push(Box::new(Attachment(Arc::clone(&served))));
            (Some(served), true)
        })?;
        if let Some(served) = served.as_ref().filter(|_| is_new) {
            served.begin(&self.ports);
        }
        Some(served)
    }

    /// Bytes of each chunk of a region of `len` bytes: no device takes more at once, and chunks
    /// begin at multiples of the largest pages.
    fn chunk_of(&self, len: usize) -> usize {
        const HUGE: u64 = 1 << 30;
        let devices = self.ports.devices.iter().map(|open| open.device.limits().region);
        let most = devices.min().unwrap_or(u64::MAX).min(self.chunk).max(4096);
        let most = if most >= HUGE { most - most % HUGE } else { most - most % 4096 };
        let least = (len as u64).div_ceil(MAX_CHUNKS as u64).next_multiple_of(4096);
        usize::try_from(most.max(least)).unwrap_or(usize::MAX)
    }

    /// Begins to register a region, so that its first peer need not wait.
    pub(super) fn prepare(&self, key: RemoteKey) {
        self.find(key);
    }

    /// Registers a region, and waits for it.
    ///
    /// # Errors
    /// [`VerbsError`] when a device refuses.
    pub(super) fn register(&self, key: RemoteKey) -> Result<(), Arc<VerbsError>> {
        let Some(Some(served)) = self.find(key) else { return Ok(()) };
        let mut state = served.state.lock();
        while matches!(state.phase, Phase::Registering) {
            served.changed.wait(&mut state);
        }
        match &state.phase {
            Phase::Failed(error) => Err(Arc::clone(error)),
            _ => Ok(()),
        }
    }

    /// The answer to a peer that asks for a region. It is told when the region is withdrawn.
    pub(super) fn answer(&self, key: RemoteKey, notices: &Notices) -> RegionAnswer {
        let Some(found) = self.find(key) else { return RegionAnswer::Refused };
        let Some(served) = found else { return RegionAnswer::Unavailable };
        let mut state = served.state.lock();
        match state.phase {
            Phase::Registering => RegionAnswer::Preparing,
            Phase::Failed(_) => RegionAnswer::Unavailable,
            Phase::Withdrawn => RegionAnswer::Refused,
            Phase::Ready => {
                if !state.told.iter().any(|told| told.same_channel(notices)) {
                    state.told.retain(|told| !told.is_closed());
                    state.told.push(notices.clone());
                }
                let keys = (0..self.ports.devices.len()).map(|device| {
                    let chunks = state.chunks.iter().flatten();
                    chunks.map(|chunk| chunk[device].remote_key()).collect()
                });
                RegionAnswer::Open(RegionKeys {
                    access: served.access,
                    base: served.memory.whole().address().expose_provenance() as u64,
                    len: served.memory.len() as u64,
                    chunk: served.chunk as u64,
                    keys: keys.collect(),
                })
            }
        }
    }
}

impl Served {
    /// Has threads register the chunks.
    fn begin(self: &Arc<Self>, here: &Arc<Ports>) {
        let count = self.state.lock().chunks.len();
        let threads = count.min(THREADS);
        self.state.lock().working = threads;
        if threads == 0 {
            self.state.lock().phase = Phase::Ready;
        }
        for _ in 0..threads {
            let (served, ports) = (Arc::clone(self), Arc::clone(here));
            let thread = thread::Builder::new().name("mc-rdma-register".to_owned());
            if let Err(error) = thread.spawn(move || served.work(&ports)) {
                tracing::warn!(%error, "no thread to register memory; done by the caller");
                self.work(here);
            }
        }
    }

    fn work(&self, ports: &Ports) {
        let mut state = self.state.lock();
        while matches!(state.phase, Phase::Registering) && state.next < state.chunks.len() {
            let index = state.next;
            state.next += 1;
            drop(state);
            let made = self.register_chunk(ports, index);
            state = self.state.lock();
            match made {
                // Dropped here if the region was withdrawn meanwhile.
                Ok(regions) if matches!(state.phase, Phase::Registering) => {
                    state.chunks[index] = Some(regions);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "memory is not served by RDMA");
                    if matches!(state.phase, Phase::Registering) {
                        state.phase = Phase::Failed(Arc::new(error));
                        state.chunks.clear();
                    }
                }
            }
        }
        state.working -= 1;
        if state.working == 0 {
            if matches!(state.phase, Phase::Registering) {
                state.phase = Phase::Ready;
            } else {
                state.claim = None;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn register_chunk(&self, ports: &Ports, index: usize) -> Result<Vec<MemoryRegion>, VerbsError> {
        let slice = self.slice(index);
        let devices = ports.devices.iter();
        devices
            .map(|open| MemoryRegion::register(&open.device, &slice, Some(self.access)))
            .collect()
    }

    fn slice(&self, index: usize) -> MemorySlice {
        let start = index * self.chunk;
        let len = self.chunk.min(self.memory.len() - start);
        self.memory.slice(start, len).expect("the chunk lies in the region")
    }

    /// Tells the peers that have the keys, and deregisters the memory: when this returns the
    /// devices refuse what comes.
    fn withdraw(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Withdrawn;
        let told = std::mem::take(&mut state.told);
        let chunks = std::mem::take(&mut state.chunks);
        let claim = if state.working == 0 { state.claim.take() } else { None };
        drop(state);
        self.changed.notify_all();
        // Before the keys are dead, so that a peer whose request is refused knows why.
        let notice = Answer::Withdrawn(self.key).encode(0);
        for told in told {
            let _ = told.send(Outgoing { frame: notice.clone(), _permit: None });
        }
        drop(chunks);
        drop(claim);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}
