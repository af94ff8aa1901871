//! Memory of NVIDIA's GPUs, reached through pinned memory of the host.
//!
//! The driver, `libcuda.so.1`, is looked for when [`Cuda::load`] is called; nothing is needed to
//! build with it. Sockets and shared memory cannot read or write a GPU's memory, so its bytes
//! take a step on the way: [`CudaDevice::pinned`] gives memory of the host that the GPU copies
//! from and to at full speed, and that is a [`Memory`] like any other to peers.
//!
//! ```
//! use mc_memory::cuda::{Cuda, CudaError};
//! let device = match Cuda::load().and_then(|cuda| cuda.device(0)) {
//!     Ok(device) => device,
//!     Err(CudaError::NoDriver { .. }) => return Ok(()), // This host has no GPU.
//!     Err(error) => return Err(error),
//! };
//! let (vram, stage) = (device.allocate(4096)?, device.pinned(4096)?);
//! stage.whole().copy_from(0, b"keys and values").expect("it is long enough");
//! vram.write(0, &stage.whole())?;
//! vram.read(0, &stage.whole())?;
//! # Ok::<(), CudaError>(())
//! ```

mod driver;
#[cfg(test)]
mod emulated;
mod error;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use self::driver::{Context, Driver};
pub use self::error::CudaError;
use super::{Memory, MemorySlice, StagedMemory};

/// NVIDIA's driver.
#[derive(Clone, Debug)]
pub struct Cuda {
    driver: Arc<Driver>,
}

impl Cuda {
    /// Finds the driver and starts it. Calling this again is cheap.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] where the driver is not installed, [`CudaError::OldDriver`] when
    /// it lacks a function, [`CudaError::Failed`] when it finds no GPU that it can use.
    pub fn load() -> Result<Self, CudaError> {
        Ok(Self { driver: Arc::new(Driver::load()?) })
    }

    /// The number of GPUs.
    ///
    /// # Errors
    /// [`CudaError::Failed`].
    pub fn devices(&self) -> Result<usize, CudaError> {
        self.driver.devices()
    }

    /// The GPU with this number; the first is 0. Its primary context is used, which is that of
    /// PyTorch and of CUDA's runtime, too.
    ///
    /// # Errors
    /// [`CudaError::Failed`] when there is none, or it cannot be used.
    pub fn device(&self, number: usize) -> Result<CudaDevice, CudaError> {
        let context = Context::of(Arc::clone(&self.driver), number)?;
        Ok(CudaDevice { context: Arc::new(context) })
    }
}

/// A GPU.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    context: Arc<Context>,
}

impl CudaDevice {
    /// Takes `len` zeroed bytes of the GPU's memory.
    ///
    /// # Errors
    /// [`CudaError::Empty`] for no bytes, [`CudaError::Failed`] when the GPU has not as many.
    pub fn allocate(&self, len: usize) -> Result<VramBuffer, CudaError> {
        let address = self.context.allocate(len)?;
        let buffer = self.buffer(address, len, Owner::Own);
        // What another program left there is not shown.
        self.context.zero(address, len)?;
        Ok(buffer)
    }

    /// Takes `len` bytes of the host's memory that the system does not move, so that every GPU
    /// copies from and to them directly. What is in them is undefined. Taking them lasts
    /// milliseconds: keep them.
    ///
    /// # Errors
    /// [`CudaError::Empty`] for no bytes, [`CudaError::Failed`] when the system has not as many
    /// to pin.
    pub fn pinned(&self, len: usize) -> Result<Memory, CudaError> {
        let base = self.context.pin(len)?;
        let owner = Pinned { context: Arc::clone(&self.context), base };
        // SAFETY: the driver gave `len` bytes that any thread may read and write until they are
        // unpinned, which the owner does when it is dropped; no other code knows them. An
        // allocation is never longer than `isize::MAX`.
        Ok(unsafe { Memory::from_raw(base, len, owner) })
    }

    /// Names memory of the GPU that another owner has, a tensor of an inference engine for
    /// example. `owner` is dropped with the buffer and keeps the memory until then.
    ///
    /// # Safety
    /// `len` bytes from `address` must be memory of this GPU until `owner` is dropped, and no
    /// kernel may rely on them staying as they are while they are written here.
    #[must_use]
    pub unsafe fn borrow(
        &self,
        address: u64,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> VramBuffer {
        self.buffer(address, len, Owner::Foreign { _owner: Box::new(owner) })
    }

    fn buffer(&self, address: u64, len: usize, owner: Owner) -> VramBuffer {
        let context = Arc::clone(&self.context);
        VramBuffer { block: Arc::new(Block { context, address, len, owner }) }
    }
}

/// Memory of a GPU, shared by handle: a clone names the same bytes, which live until the last
/// handle is dropped.
#[derive(Clone)]
pub struct VramBuffer {
    block: Arc<Block>,
}

struct Block {
    context: Arc<Context>,
    address: u64,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// The memory goes with the buffer.
    Own,
    Foreign {
        _owner: Box<dyn Any + Send + Sync>,
    },
}

impl VramBuffer {
    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Its address in the GPU's memory, for kernels.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.block.address
    }

    /// Copies `source` over the bytes from `at` on; the bytes are there when this returns, for
    /// kernels of every stream. Blocks the thread; fast from [pinned](CudaDevice::pinned) memory
    /// only: from other memory this also waits for what the default stream was given meanwhile.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when they do not lie inside, [`CudaError::Failed`].
    pub fn write(&self, at: usize, source: &MemorySlice) -> Result<(), CudaError> {
        let target = self.locate(at, source.len())?;
        // SAFETY: the slice keeps `len` readable bytes alive during the call, and may change
        // meanwhile; `locate` proved that the target lies in this buffer, which is alive.
        unsafe { self.block.context.copy_to_device(target, source.address(), source.len()) }
    }

    /// Copies the bytes from `at` on over `target`.
    /// Blocks the thread; fast into [pinned](CudaDevice::pinned) memory only.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when they do not lie inside, [`CudaError::ReadOnly`] when the
    /// target cannot be written, [`CudaError::Failed`].
    pub fn read(&self, at: usize, target: &MemorySlice) -> Result<(), CudaError> {
        let source = self.locate(at, target.len())?;
        if !target.is_writable() {
            return Err(CudaError::ReadOnly);
        }
        // SAFETY: the slice keeps `len` writable bytes alive during the call, to which no
        // reference exists; `locate` proved that the source lies in this buffer.
        unsafe { self.block.context.copy_to_host(target.address(), source, target.len()) }
    }

    fn locate(&self, at: usize, len: usize) -> Result<u64, CudaError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.address() + at as u64),
            _ => Err(CudaError::OutOfRange { at, len, room: self.len() }),
        }
    }
}

/// The stages of a [`VramBuffer`]: as many copies at a time, of as many bytes each, keep the
/// bus busy.
const STAGES: usize = 8;
const STAGE_LEN: usize = 1 << 20;

impl VramBuffer {
    /// Pins 8 MiB of the host's memory, in blocks through which peers may reach the buffer.
    ///
    /// # Errors
    /// As [`CudaDevice::pinned`].
    pub fn stages(&self) -> Result<Vec<Memory>, CudaError> {
        let device = CudaDevice { context: Arc::clone(&self.block.context) };
        let pinned = || device.pinned(STAGE_LEN.min(self.len()));
        std::iter::repeat_with(pinned).take(STAGES).collect()
    }
}

impl StagedMemory for VramBuffer {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, into: &MemorySlice) -> std::io::Result<()> {
        Self::read(self, at, into).map_err(std::io::Error::other)
    }

    fn write(&self, at: usize, from: &MemorySlice) -> std::io::Result<()> {
        Self::write(self, at, from).map_err(std::io::Error::other)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Owner::Own = self.owner {
            self.context.free(self.address);
        }
    }
}

impl fmt::Debug for VramBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VramBuffer")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Pinned memory of the host; unpinned and released when it is dropped.
struct Pinned {
    context: Arc<Context>,
    base: NonNull<u8>,
}

// SAFETY: the pointer is only handed back to the driver, from any thread.
unsafe impl Send for Pinned {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.unpin(self.base);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::emulated::Emulated;
    use super::*;

    /// Prints a notice to standard error, which is shown also for tests that pass.
    fn skipped(error: &CudaError) {
        let text = format!("##### SKIPPED: the memory of a real GPU was not tested: {error} #####");
        writeln!(std::io::stderr(), "{text}").unwrap();
    }

    /// Checks the promises of any driver, real or emulated.
    fn check(cuda: &Cuda) {
        assert!(cuda.devices().unwrap() > 0);
        let device = cuda.device(0).unwrap();
        let len = 3 << 20;
        let (vram, stage) = (device.allocate(len).unwrap(), device.pinned(len).unwrap());
        assert_eq!((vram.len(), stage.len()), (len, len));
        vram.read(0, &stage.whole()).unwrap();
        assert!(stage.whole().to_vec().iter().all(|byte| *byte == 0), "fresh memory is zeroed");

        let value: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        stage.whole().copy_from(0, &value).unwrap();
        vram.write(0, &stage.whole()).unwrap();
        stage.whole().copy_from(0, &vec![0xff; len]).unwrap();
        vram.read(0, &stage.whole()).unwrap();
        assert_eq!(stage.whole().to_vec(), value);

        // Parts, and memory that is not pinned.
        let plain = Memory::allocate(1000).unwrap();
        vram.read(12_345, &plain.slice(100, 900).unwrap()).unwrap();
        assert_eq!(plain.slice(100, 900).unwrap().to_vec(), &value[12_345..13_245]);
        vram.write(len - 1000, &plain.whole()).unwrap();
        vram.read(len - 900, &stage.slice(0, 900).unwrap()).unwrap();
        assert_eq!(stage.slice(0, 900).unwrap().to_vec(), &value[12_345..13_245]);

        // As peers reach it.
        let staged: &dyn StagedMemory = &vram;
        assert_eq!((staged.size(), vram.stages().unwrap().len()), (len, STAGES));
        staged.write(7, &plain.whole()).unwrap();
        staged.read(8, &plain.slice(0, 999).unwrap()).unwrap();
        assert_eq!(plain.slice(99, 900).unwrap().to_vec(), &value[12_345..13_245]);
        assert!(staged.read(len, &plain.whole()).is_err());

        for at in [len - 999, len, usize::MAX] {
            let refused = vram.write(at, &plain.whole()).unwrap_err();
            assert!(matches!(refused, CudaError::OutOfRange { room, .. } if room == len));
            assert!(vram.read(at, &plain.whole()).is_err());
        }
        assert!(matches!(device.allocate(0), Err(CudaError::Empty)));
        assert!(matches!(device.pinned(0), Err(CudaError::Empty)));
        assert!(matches!(device.allocate(usize::MAX / 2), Err(CudaError::Failed { .. })));
        let no_such = cuda.device(1 << 20).unwrap_err();
        assert!(matches!(no_such, CudaError::Failed { .. }), "{no_such}");
    }

    #[test]
    fn an_emulated_gpu_keeps_what_is_written() {
        let emulated = Emulated::lock();
        let cuda = Cuda { driver: Arc::new(emulated.driver()) };
        check(&cuda);
        drop(cuda);
        assert_eq!(emulated.live(), (0, 0, 0), "allocations, pinned blocks, contexts");
    }

    /// The same for a kernel that does not wait for the stream of the copy.
    #[test]
    fn bytes_of_any_memory_are_there_when_a_write_returns() {
        let emulated = Emulated::lock();
        let device = Cuda { driver: Arc::new(emulated.driver()) }.device(0).unwrap();
        let vram = device.allocate(64).unwrap();
        let (plain, pinned) = (Memory::allocate(64).unwrap(), device.pinned(64).unwrap());
        for (byte, memory) in [(5, plain), (6, pinned)] {
            memory.whole().copy_from(0, &[byte; 64]).unwrap();
            vram.write(0, &memory.whole()).unwrap();
            assert_eq!(emulated.seen_elsewhere(vram.address(), 64), [byte; 64]);
        }
    }

    #[test]
    fn memory_that_is_lent_is_not_freed() {
        let emulated = Emulated::lock();
        let device = Cuda { driver: Arc::new(emulated.driver()) }.device(0).unwrap();
        let tensor = device.allocate(64).unwrap();
        // SAFETY: the tensor is the owner.
        let lent = unsafe { device.borrow(tensor.address() + 16, 32, tensor.clone()) };
        let plain = Memory::allocate(32).unwrap();
        plain.whole().copy_from(0, &[7; 32]).unwrap();
        lent.write(0, &plain.whole()).unwrap();
        assert!(lent.write(1, &plain.whole()).is_err());
        drop(lent);
        let (got, all) = (Memory::allocate(64).unwrap(), [[0; 16], [7; 16], [7; 16], [0; 16]]);
        tensor.read(0, &got.whole()).unwrap();
        assert_eq!(got.whole().to_vec(), all.concat());
        drop((tensor, device));
        assert_eq!(emulated.live(), (0, 0, 0));
    }

    #[test]
    fn a_host_without_the_driver_is_told_what_to_install() {
        match Cuda::load() {
            Ok(_) => {}
            Err(error @ CudaError::NoDriver { .. }) => {
                assert!(error.to_string().contains("libcuda.so.1"), "{error}");
                assert!(error.to_string().contains("driver"), "{error}");
            }
            Err(error) => skipped(&error),
        }
    }

    #[test]
    fn a_real_gpu_keeps_what_is_written() {
        let cuda = Cuda::load();
        match cuda.and_then(|cuda| cuda.device(0).map(|_| cuda)) {
            Ok(cuda) => check(&cuda),
            Err(error) => {
                skipped(&error);
            }
        }
    }
}
