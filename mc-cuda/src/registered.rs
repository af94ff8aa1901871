//! Memory of the host that is pinned where it is.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::thread;

use mc_memory::MemorySlice;
use parking_lot::{Condvar, Mutex};

use crate::context::Context;
use crate::device::CudaDevice;
use crate::error::CudaError;

/// Most bytes that the driver is asked to pin at a time.
const PIECE: usize = 64 << 30;

#[derive(Default)]
struct Progress {
    /// Where the pinned pieces begin.
    pieces: Vec<usize>,
    pinned: usize,
    failure: Option<CudaError>,
    is_over: bool,
    is_dropped: bool,
}

struct Shared {
    context: Arc<Context>,
    memory: MemorySlice,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// Memory of the host that is being pinned in the background, and is unpinned when this is dropped.
///
/// What is pinned already is copied at full speed meanwhile. A failure is a warning in the log: copies of what is not pinned take a
/// step through slots. Bytes that lie across the border of two pieces, every 64 GiB, do, too.
pub struct Registered {
    shared: Arc<Shared>,
}

impl CudaDevice {
    /// Begins to pin memory for all GPUs, in pieces of 64 GiB. Takes a second for some gigabytes, in a thread of its own.
    ///
    /// ```
    /// use mc_cuda::{Cuda, CudaError};
    /// use mc_memory::Memory;
    /// let device = match Cuda::load().and_then(|cuda| cuda.device(0)) {
    ///     Ok(device) => device,
    ///     Err(CudaError::NoDriver { .. }) => return Ok(()), // This host has no GPU.
    ///     Err(error) => return Err(error),
    /// };
    /// let pool = Memory::allocate(1 << 20).expect("the host has a MiB");
    /// let registered = device.register(&pool.whole());
    /// registered.wait();
    /// assert_eq!(registered.pinned_len(), pool.len());
    /// # Ok::<(), CudaError>(())
    /// ```
    #[must_use = "the memory is unpinned when this is dropped"]
    pub fn register(&self, memory: &MemorySlice) -> Registered {
        self.register_in_pieces(memory, PIECE)
    }

    /// [`register`](Self::register) with pieces of another length, of whole pages.
    #[must_use = "the memory is unpinned when this is dropped"]
    pub fn register_in_pieces(&self, memory: &MemorySlice, piece: usize) -> Registered {
        let shared = Arc::new(Shared {
            context: Arc::clone(self.context()),
            memory: memory.clone(),
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let run = move || theirs.run(piece.max(1));
        if let Err(error) = thread::Builder::new().name("mc-cuda-pin".into()).spawn(run) {
            let device = self.ordinal();
            shared.fail(CudaError::NoThread { device, reason: error.to_string() });
            shared.end();
        }
        Registered { shared }
    }
}

impl Shared {
    fn run(&self, piece: usize) {
        let len = self.memory.len();
        for start in (0..len).step_by(piece) {
            let address = self.memory.address().wrapping_add(start);
            let piece = piece.min(len - start);
            if self.progress.lock().is_dropped {
                break;
            }
            // SAFETY: `self` keeps the memory, and unregisters it before that.
            if let Err(error) = unsafe { self.context.register(address.cast(), piece) } {
                self.fail(error);
                break;
            }
            let mut progress = self.progress.lock();
            progress.pieces.push(address.expose_provenance());
            progress.pinned += piece;
        }
        self.end();
    }

    fn fail(&self, error: CudaError) {
        tracing::warn!("memory is not pinned, copies to and from GPUs are slower: {error}");
        self.progress.lock().failure = Some(error);
    }

    /// Ends the work of the thread. If the owner is gone, it unpins.
    fn end(&self) {
        let is_dropped = {
            let mut progress = self.progress.lock();
            progress.is_over = true;
            self.changed.notify_all();
            progress.is_dropped
        };
        if is_dropped {
            self.unpin();
        }
    }

    fn unpin(&self) {
        let pieces = std::mem::take(&mut self.progress.lock().pieces);
        for address in pieces {
            let base: *mut c_void = std::ptr::with_exposed_provenance_mut(address);
            self.context.unregister(base);
        }
    }
}

impl Registered {
    /// Bytes that are pinned by now, from the beginning of the memory.
    #[must_use]
    pub fn pinned_len(&self) -> usize {
        self.shared.progress.lock().pinned
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &MemorySlice {
        &self.shared.memory
    }

    /// Returns whether no more will be pinned: all is, or the driver has refused.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.progress.lock().is_over
    }

    /// Blocks until no more will be pinned.
    pub fn wait(&self) {
        let mut progress = self.shared.progress.lock();
        while !progress.is_over {
            self.shared.changed.wait(&mut progress);
        }
    }

    /// Returns why not all is pinned.
    #[must_use]
    pub fn failure(&self) -> Option<CudaError> {
        self.shared.progress.lock().failure.clone()
    }
}

impl Drop for Registered {
    /// Unpins the memory. While the thread pins a piece, it is the thread that unpins, which keeps the memory until then.
    fn drop(&mut self) {
        if self.shared.context.driver.check_fork().is_err() {
            return;
        }
        let is_over = {
            let mut progress = self.shared.progress.lock();
            progress.is_dropped = true;
            progress.is_over
        };
        if is_over {
            self.shared.unpin();
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("len", &self.shared.memory.len())
            .field("pinned", &self.pinned_len())
            .finish_non_exhaustive()
    }
}
