//! Copies between a GPU and pinned memory of the host, beside the engine's work.

mod flight;
mod forms;
mod limit;
mod options;
mod queue;
mod worker;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};

use mc_memory::{Memory, MemorySlice};
use parking_lot::Mutex;

pub use self::flight::Pending;
pub use self::options::CopierOptions;
use self::queue::{Shared, Work};
use crate::context::Context;
use crate::error::CudaError;
use crate::order::{EngineStream, Order};
use crate::pieces::Pieces;
use crate::pointer::{self, PointerKind};

/// Gathers pieces of a GPU's memory into memory of the host, and scatters them back.
///
/// It has two streams of its own, one for each direction, which never wait for the legacy stream nor hold it up, and a ring
/// of pinned slots, which are taken with the first use. One thread gives the copies to the driver and sees them end.
///
/// Copies of one direction are done in the order in which they were ordered. A read and a write are not: one that relies on
/// the other is ordered when that has ended. Clones share all of this; dropping the last waits for the copies that run, unless one
/// hangs.
///
/// ```
/// use mc_cuda::{Cuda, CudaError, Order};
/// let device = match Cuda::load().and_then(|cuda| cuda.device(0)) {
///     Ok(device) => device,
///     Err(CudaError::NoDriver { .. }) => return Ok(()), // This host has no GPU.
///     Err(error) => return Err(error),
/// };
/// let (blocks, copier) = (device.allocate(1 << 20)?, device.copier()?);
/// let slot = copier.wait_slot()?.slice(0, 8192).expect("a slot is longer");
/// // Two blocks, side by side in the slot.
/// let pieces = blocks.pieces([0..4096, 65_536..69_632])?;
/// copier.read(&pieces, &slot, Order::Now).wait()?;
/// copier.write(&slot, &pieces, Order::Now, None).wait()?;
/// # Ok::<(), CudaError>(())
/// ```
#[derive(Clone)]
pub struct Copier {
    threads: Arc<Threads>,
}

/// The threads of a copier, which end with it.
struct Threads {
    shared: Arc<Shared>,
    worker: ThreadId,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Copier {
    pub(crate) fn start(context: &Arc<Context>, options: CopierOptions) -> Result<Self, CudaError> {
        context.driver.check_fork()?;
        let device = context.ordinal;
        let shared = Arc::new(Shared::new(Arc::clone(context), options));
        let failed =
            |error: std::io::Error| CudaError::NoThread { device, reason: error.to_string() };
        let theirs = Arc::clone(&shared);
        let worker = thread::Builder::new()
            .name(format!("mc-cuda-{device}"))
            .spawn(move || worker::run(theirs))
            .map_err(failed)?;
        let id = worker.thread().id();
        let handles = Mutex::new(vec![worker]);
        let threads = Threads { shared: Arc::clone(&shared), worker: id, handles };
        let limit = thread::Builder::new()
            .name(format!("mc-cuda-limit-{device}"))
            .spawn(move || limit::run(&shared))
            .map_err(failed)?;
        threads.handles.lock().push(limit);
        Ok(Self { threads: Arc::new(threads) })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.threads.shared
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_len(&self) -> usize {
        self.shared().options.slot_len
    }

    /// Waits for a slot: pinned memory, which goes back to the copier when the last handle and slice of it is dropped
    /// and the last copy has ended.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] when the host has none to pin, [`CudaError::Hung`] while a copy hangs and no slot
    /// is free, [`CudaError::Lost`].
    pub async fn slot(&self) -> Result<Memory, CudaError> {
        poll_fn(|context| self.shared().poll_slot(context.waker())).await
    }

    /// [`slot`](Self::slot), which blocks.
    ///
    /// # Errors
    /// As there.
    pub fn wait_slot(&self) -> Result<Memory, CudaError> {
        self.shared().wait_slot()
    }

    /// [`slot`](Self::slot), if one is free now.
    ///
    /// # Errors
    /// As there.
    pub fn try_slot(&self) -> Result<Option<Memory>, CudaError> {
        self.shared().try_slot()
    }

    /// Copies the pieces, one behind the other, over `into`.
    ///
    /// `into` is a slot or other pinned memory. Nothing else may write it, and the pieces must not change, before
    /// the copy has ended: the copier keeps both alive.
    pub fn read(&self, pieces: &Pieces, into: &MemorySlice, order: Order) -> Pending {
        self.order(pieces, into, order, || {
            if !into.is_writable() {
                return Err(CudaError::ReadOnly);
            }
            Ok(Work::Read { pieces: pieces.clone(), into: into.clone() })
        })
    }

    /// Copies `from` over the pieces, one behind the other.
    ///
    /// `from` is a slot or other pinned memory, and must not change before the copy has ended. The stream `signals`
    /// waits for the copy before it does what it is given after [`Pending::queued`] has returned. Kernels of other
    /// streams see the bytes once the copy has ended.
    pub fn write(
        &self,
        from: &MemorySlice,
        pieces: &Pieces,
        order: Order,
        signals: Option<EngineStream>,
    ) -> Pending {
        self.order(pieces, from, order, || {
            Ok(Work::Write { from: from.clone(), pieces: pieces.clone(), signals })
        })
    }

    /// Fills the pieces with a byte.
    pub(crate) fn fill(&self, pieces: &Pieces, byte: u8) -> Pending {
        self.shared().submit(Work::Fill { pieces: pieces.clone(), byte }, Order::Now)
    }

    fn order(
        &self,
        pieces: &Pieces,
        host: &MemorySlice,
        order: Order,
        work: impl FnOnce() -> Result<Work, CudaError>,
    ) -> Pending {
        match self.check(pieces, host).and_then(|()| work()) {
            Ok(work) => self.shared().submit(work, order),
            Err(error) => {
                let flight = Arc::new(flight::Flight::default());
                flight.complete(Err(error));
                Pending::new(flight)
            }
        }
    }

    fn check(&self, pieces: &Pieces, host: &MemorySlice) -> Result<(), CudaError> {
        let context = &self.shared().context;
        context.driver.check_fork()?;
        if pieces.device != context.ordinal {
            let address = pieces.merged.first().map_or(0, |piece| piece.address);
            let (wanted, found) = (context.ordinal, pieces.device);
            return Err(CudaError::NotThisDevice { address, wanted, found });
        }
        if pieces.len() != host.len() {
            return Err(CudaError::LengthsDiffer { pieces: pieces.len(), host: host.len() });
        }
        if host.is_empty() || self.is_pinned(host) { Ok(()) } else { Err(CudaError::NotPinned) }
    }

    /// Returns whether the driver knows all bytes of the slice as pinned.
    pub(crate) fn is_pinned(&self, slice: &MemorySlice) -> bool {
        if self.shared().is_slot(slice) {
            return true;
        }
        let driver = &self.shared().context.driver;
        let address = slice.address().expose_provenance() as u64;
        let is_host =
            |kind| matches!(kind, PointerKind::HostAllocated | PointerKind::HostRegistered);
        match pointer::find(driver, address, slice.len()) {
            Ok(Some(found)) => is_host(found.kind),
            _ => false,
        }
    }

    /// Returns whether a copy hangs.
    pub(crate) fn is_hung(&self) -> bool {
        self.shared().state.lock().hung > 0
    }

    /// Returns whether a copy hangs, or the context is lost.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let state = self.shared().state.lock();
        state.hung > 0 || state.broken.is_some()
    }
}

impl Drop for Threads {
    /// Waits for the copies that run, unless one hangs: its memory stays until it ends.
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.context.driver.check_fork().is_err() {
            return;
        }
        {
            let mut state = shared.state.lock();
            state.is_stopping = true;
            shared.work.notify_all();
            if thread::current().id() == self.worker {
                return;
            }
            while !state.is_ended && state.hung == 0 {
                shared.changed.wait(&mut state);
            }
            if !state.is_ended {
                return;
            }
        }
        for handle in self.handles.lock().drain(..) {
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier")
            .field("device", &self.shared().context.ordinal)
            .finish_non_exhaustive()
    }
}
