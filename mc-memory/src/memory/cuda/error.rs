//! Why a GPU's memory cannot be used.

use std::fmt;

/// Why a GPU's memory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver is not installed.
    #[error("libcuda.so.1 not found: VRAM needs NVIDIA's driver ({reason})")]
    NoDriver {
        /// The text of the system's loader.
        reason: String,
    },
    /// The driver is too old.
    #[error("NVIDIA's driver has no {function}; install a newer one")]
    OldDriver {
        /// The function that it lacks.
        function: &'static str,
    },
    /// The driver refused.
    #[error("{call} of {len} failed: {code}")]
    Failed {
        /// The driver's function.
        call: &'static str,
        /// Bytes asked for, or the number of the GPU.
        len: usize,
        /// The driver's error code.
        code: CudaCode,
    },
    /// Memory has at least one byte.
    #[error("no bytes were asked for; memory has at least one")]
    Empty,
    /// The range does not lie in the buffer.
    #[error("{len} bytes at {at} do not lie in a buffer of {room}")]
    OutOfRange {
        /// The first byte.
        at: usize,
        /// The number of bytes.
        len: usize,
        /// Bytes of the buffer.
        room: usize,
    },
    /// The runtime that was to wait for the driver ends.
    #[error("the runtime ends")]
    Ended,
    /// The host's memory is mapped for reading.
    #[error("the memory to copy into is mapped for reading only")]
    ReadOnly,
}

/// A failure, as the driver numbers and names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaCode {
    /// Its `CUresult`.
    pub number: i32,
    /// Its name, such as `CUDA_ERROR_OUT_OF_MEMORY`; empty when the driver has none.
    pub name: String,
}

impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.name {
            "" => write!(f, "CUDA error {}", self.number),
            name => write!(f, "{name} ({})", self.number),
        }
    }
}
