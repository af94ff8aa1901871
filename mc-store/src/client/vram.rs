//! Values in a GPU's memory, put and got through pinned memory of the host.

use std::ops::Range;
use std::sync::Arc;

use mc_cuda::{CudaDevice, CudaError, VramBuffer};
use mc_environment::Environment;
use mc_transport::{Memory, MemorySlice};
use mc_types::{BoxFuture, ErrorCode, StoreEventInfo};

use super::{Client, Put, PutMode, PutOutcome};
use crate::ReplicateConfig;
use crate::error::{GetError, PutError};

/// Pinned memory of the host, for one value at a time on its way between peers and a GPU.
#[derive(Debug)]
pub struct VramStage {
    device: CudaDevice,
    len: usize,
    /// `None` while a call uses it, and after one that was dropped before its end: bytes for
    /// that one may still arrive.
    memory: Option<Memory>,
}

impl VramStage {
    /// Pins room for values of up to `len` bytes, which takes milliseconds.
    ///
    /// # Errors
    /// As [`CudaDevice::pinned`].
    pub fn new(device: &CudaDevice, len: usize) -> Result<Self, CudaError> {
        Ok(Self { device: device.clone(), len, memory: Some(device.pinned(len)?) })
    }

    async fn take(&mut self, environment: &dyn Environment) -> Result<Memory, VramError> {
        if let Some(memory) = self.memory.take() {
            return Ok(memory);
        }
        let (device, len) = (self.device.clone(), self.len);
        Ok(blocking(environment, move || device.pinned(len)).await?)
    }

    fn part(&self, memory: &Memory, len: usize) -> Result<MemorySlice, VramError> {
        memory.slice(0, len).ok_or(VramError::TooLong { len, room: self.len })
    }
}

/// Why a value is not put from, or got into, a GPU's memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VramError {
    /// The bytes could not be copied between the GPU and the host.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The value is longer than the stage.
    #[error("{len} bytes do not fit in a stage of {room}; make it longer")]
    TooLong {
        /// Bytes of the value.
        len: usize,
        /// Bytes of the stage.
        room: usize,
    },
    /// The value could not be stored.
    #[error(transparent)]
    Put(#[from] PutError),
    /// The value could not be read.
    #[error(transparent)]
    Get(#[from] GetError),
}

impl VramError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Cuda(_) => ErrorCode::Internal,
            Self::TooLong { .. } => ErrorCode::InvalidParams,
            Self::Put(error) => error.code(),
            Self::Get(error) => error.code(),
        }
    }
}

impl Client {
    /// Stores a range of a GPU's memory as the value of `key`, as [`put_from`](Self::put_from)
    /// stores memory of the host. It is copied to `stage` first, and must not change until this
    /// is done; work of the GPU that writes it must have been waited for. `event_info` is that of a
    /// [`Put`].
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{ReplicateConfig, VramStage};
    /// use mc_cuda::Cuda;
    /// let Ok(device) = Cuda::load().and_then(|cuda| cuda.device(0)) else {
    ///     return Ok(()); // This host has no GPU.
    /// };
    /// let (block, mut stage) = (device.allocate(4096)?, VramStage::new(&device, 4096)?);
    /// let config = ReplicateConfig::default();
    /// client.put_from_vram("block", &block, 0..4096, &mut stage, &config, None).await?;
    /// assert_eq!(client.get_into_vram("block", &block, 0, &mut stage).await?, 4096);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`VramError`]; nothing is stored then.
    pub fn put_from_vram<'a>(
        &'a self,
        key: &'a str,
        source: &'a VramBuffer,
        range: Range<usize>,
        stage: &'a mut VramStage,
        config: &'a ReplicateConfig,
        event_info: Option<Arc<StoreEventInfo>>,
    ) -> BoxFuture<'a, Result<PutOutcome, VramError>> {
        Box::pin(async move {
            let memory = stage.take(self.environment()).await?;
            let staged = stage.part(&memory, range.len());
            let outcome = match staged {
                Ok(staged) => {
                    // Nothing else has the stage meanwhile.
                    let checksums = Some(vec![None]);
                    let put = Put { event_info, checksums, ..Put::new(key, staged.clone()) };
                    self.put_staged(put, source, range.start, staged, config).await
                }
                Err(error) => Err(error),
            };
            stage.memory = Some(memory);
            outcome
        })
    }

    fn environment(&self) -> &dyn Environment {
        &*self.core.settings.environment
    }

    async fn put_staged(
        &self,
        put: Put<'_>,
        source: &VramBuffer,
        at: usize,
        staged: MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, VramError> {
        put.check_info().map_err(PutError::EventInfo)?;
        let vram = source.clone();
        blocking(self.environment(), move || vram.read(at, &staged)).await?;
        Ok(self.store_one(put, config, PutMode::Put).await?)
    }

    /// Reads the value of `key` into a GPU's memory, from `at` on, and returns how many bytes it
    /// has. They are verified in `stage`, and there for the GPU when this returns.
    ///
    /// # Errors
    /// [`VramError`]; nothing is written to `target` then, unless copying to it failed.
    pub fn get_into_vram<'a>(
        &'a self,
        key: &'a str,
        target: &'a VramBuffer,
        at: usize,
        stage: &'a mut VramStage,
    ) -> BoxFuture<'a, Result<u64, VramError>> {
        Box::pin(async move {
            let room = target.len().saturating_sub(at).min(stage.len);
            let memory = stage.take(self.environment()).await?;
            let staged = stage.part(&memory, room);
            let outcome = match staged {
                Ok(staged) => self.get_staged(key, target, at, &staged).await,
                Err(error) => Err(error),
            };
            stage.memory = Some(memory);
            outcome
        })
    }

    async fn get_staged(
        &self,
        key: &str,
        target: &VramBuffer,
        at: usize,
        staged: &MemorySlice,
    ) -> Result<u64, VramError> {
        let len = self.get_into(key, staged).await?;
        let value = usize::try_from(len).ok().and_then(|len| staged.part(0, len));
        let value = value.expect("a value that was read is no longer than its target");
        let vram = target.clone();
        blocking(self.environment(), move || vram.write(at, &value)).await?;
        Ok(len)
    }
}

/// Runs a call of the driver, which blocks, beside the asynchronous threads.
async fn blocking<T: Send + 'static>(
    environment: &dyn Environment,
    call: impl FnOnce() -> Result<T, CudaError> + Send + 'static,
) -> Result<T, CudaError> {
    match environment.blocking(call).await {
        Some(Ok(outcome)) => outcome,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => Err(CudaError::Ended),
    }
}
