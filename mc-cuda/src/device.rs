//! The GPUs of a process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use mc_memory::Memory;
use parking_lot::Mutex;

use crate::context::Context;
use crate::copier::{Copier, CopierOptions};
use crate::driver::Driver;
use crate::error::{CudaError, DeviceUuid};
use crate::numa::node_of;
use crate::pinned::pinned;
use crate::pointer::{self, Pointed};

/// NVIDIA's driver in this process.
#[derive(Clone, Debug)]
pub struct Cuda {
    pub(crate) driver: Arc<Driver>,
}

/// The GPUs that are in use: a context and a copier each.
static DEVICES: Mutex<BTreeMap<usize, Weak<Inner>>> = Mutex::new(BTreeMap::new());

impl Cuda {
    /// Finds the driver and starts it. Calling this again is cheap.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] where the driver is not installed, [`CudaError::OldDriver`] when
    /// it lacks a function, [`CudaError::Forked`] in a process that was forked after the driver was started,
    /// [`CudaError::Failed`] when it finds no GPU that it can use.
    pub fn load() -> Result<Self, CudaError> {
        Ok(Self { driver: Driver::load()? })
    }

    /// The driver, if this process has started it already: here, or in a library such as PyTorch. Never loads it, so that a
    /// process without a GPU pays nothing.
    ///
    /// ```
    /// // No address of this process is a GPU's while the driver is not there.
    /// let is_plain = mc_cuda::Cuda::loaded().is_none();
    /// # let _ = is_plain;
    /// ```
    #[must_use]
    pub fn loaded() -> Option<Self> {
        Driver::loaded().map(|driver| Self { driver })
    }

    /// The driver's version as CUDA numbers it: 12080 for 12.8.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.driver.version
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
        self.driver.check_fork()?;
        if let Some(inner) = DEVICES.lock().get(&number).and_then(Weak::upgrade) {
            return Ok(CudaDevice { inner });
        }
        // Without the lock: a GPU that hangs holds up no other.
        let context = Arc::new(Context::of(Arc::clone(&self.driver), number)?);
        let ours = Arc::new(Inner { context, copier: OnceLock::new(), starting: Mutex::new(()) });
        let theirs = {
            let mut devices = DEVICES.lock();
            let theirs = devices.get(&number).and_then(Weak::upgrade);
            if theirs.is_none() {
                devices.insert(number, Arc::downgrade(&ours));
            }
            theirs
        };
        Ok(CudaDevice { inner: theirs.unwrap_or(ours) })
    }

    /// The GPU with this identity.
    ///
    /// # Errors
    /// [`CudaError::NoSuchDevice`] when this process sees none, [`CudaError::Failed`].
    pub fn device_by_uuid(&self, uuid: DeviceUuid) -> Result<CudaDevice, CudaError> {
        for ordinal in 0..self.devices()? {
            let device = self.driver.device(ordinal)?;
            if uuid_of(&self.driver, device, ordinal)? == uuid {
                return self.device(ordinal);
            }
        }
        Err(CudaError::NoSuchDevice { uuid })
    }

    /// Finds the allocation that `len` bytes from `address` belong to; `None` for memory that the driver does not know.
    /// Takes about a microsecond, and needs no context.
    ///
    /// # Errors
    /// [`CudaError::OutOfRange`] when the bytes leave the allocation, [`CudaError::Forked`],
    /// [`CudaError::Failed`].
    pub fn pointer(&self, address: u64, len: usize) -> Result<Option<Pointed>, CudaError> {
        pointer::find(&self.driver, address, len)
    }

    /// Checks that an allocation that was found earlier is still the one at its address.
    ///
    /// # Errors
    /// [`CudaError::Freed`] when it is not.
    pub fn verify(&self, pointed: &Pointed) -> Result<(), CudaError> {
        match self.pointer(pointed.base, 1)? {
            Some(found) if found.buffer_id == pointed.buffer_id => Ok(()),
            _ => Err(CudaError::Freed { address: pointed.base }),
        }
    }
}

/// A GPU. Handles of the same number share its context and its copier.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
}

struct Inner {
    /// Before the context: it ends first.
    copier: OnceLock<Copier>,
    starting: Mutex<()>,
    context: Arc<Context>,
}

impl CudaDevice {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// The number of the GPU in this process.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context().ordinal
    }

    /// The identity of the GPU, which is the same in all processes.
    ///
    /// # Errors
    /// [`CudaError::Failed`].
    pub fn uuid(&self) -> Result<DeviceUuid, CudaError> {
        let context = self.context();
        uuid_of(&context.driver, context.device(), context.ordinal)
    }

    /// The GPU's address on the bus, such as `0000:41:00.0`.
    ///
    /// # Errors
    /// [`CudaError::Failed`].
    pub fn pci_bus_id(&self) -> Result<String, CudaError> {
        self.context().pci_bus_id()
    }

    /// The NUMA node that the GPU is attached to; `None` where the system does not tell.
    #[must_use]
    pub fn numa_node(&self) -> Option<usize> {
        node_of(&self.pci_bus_id().ok()?)
    }

    /// The GPU's copier, with default settings, which lives as long as a handle of the GPU.
    ///
    /// # Errors
    /// [`CudaError::NoThread`] when the system has no thread for it.
    pub fn copier(&self) -> Result<&Copier, CudaError> {
        if let Some(copier) = self.inner.copier.get() {
            return Ok(copier);
        }
        let _one_at_a_time = self.inner.starting.lock();
        if let Some(copier) = self.inner.copier.get() {
            return Ok(copier);
        }
        let copier = Copier::start(self.context(), CopierOptions::default())?;
        Ok(self.inner.copier.get_or_init(|| copier))
    }

    /// Returns whether a copy of the GPU's copier hangs.
    pub(crate) fn is_hung(&self) -> bool {
        self.inner.copier.get().is_some_and(Copier::is_hung)
    }

    /// A copier with settings, threads and slots of its own.
    ///
    /// # Errors
    /// As [`copier`](Self::copier).
    pub fn copier_with(&self, options: CopierOptions) -> Result<Copier, CudaError> {
        Copier::start(self.context(), options)
    }

    /// Takes `len` bytes of the host's memory that the system does not move, so that every GPU
    /// copies from and to them directly. What is in them is undefined. Taking them lasts
    /// milliseconds: keep them.
    ///
    /// # Errors
    /// [`CudaError::Empty`] for no bytes, [`CudaError::OutOfMemory`] when the system has not as many
    /// to pin.
    pub fn pinned(&self, len: usize) -> Result<Memory, CudaError> {
        pinned(self.context(), len)
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("ordinal", &self.ordinal()).finish_non_exhaustive()
    }
}

fn uuid_of(driver: &Driver, device: i32, ordinal: usize) -> Result<DeviceUuid, CudaError> {
    driver.check_fork()?;
    let mut uuid = [0_u8; 16];
    // SAFETY: writes 16 bytes to where it is told.
    let code = unsafe { (driver.functions.device_uuid)(&raw mut uuid, device) };
    driver.check("cuDeviceGetUuid", ordinal, code)?;
    Ok(DeviceUuid(uuid))
}
