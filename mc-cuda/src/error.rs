//! Why a GPU's memory cannot be used.

use std::fmt;
use std::time::Duration;

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
    /// The process was forked after the driver was started, which the driver does not survive.
    #[error(
        "the driver was started before this process was forked; start the process anew \
         (multiprocessing: the method spawn)"
    )]
    Forked,
    /// No GPU of this host has this identity.
    #[error("no GPU of this process has the identity {uuid}; make it visible to the process")]
    NoSuchDevice {
        /// The identity.
        uuid: DeviceUuid,
    },
    /// The memory is another GPU's.
    #[error(
        "{address:#x} is memory of GPU {found}, not of GPU {wanted}; use a copier of GPU {found}"
    )]
    NotThisDevice {
        /// The address.
        address: u64,
        /// The ordinal of the GPU that it should belong to.
        wanted: usize,
        /// The ordinal of its GPU.
        found: usize,
    },
    /// The memory was freed, and another allocation may have the same address.
    #[error("the memory at {address:#x} was freed; ask for its pointer again")]
    Freed {
        /// The address.
        address: u64,
    },
    /// The driver does not know the memory, or not as memory of a GPU.
    #[error("{address:#x} is not memory of a GPU; pass the address of a device allocation")]
    ForeignPointer {
        /// The address.
        address: u64,
    },
    /// The host's memory is not pinned.
    #[error("the host's memory is not pinned; use a slot, pinned memory, or register it")]
    NotPinned,
    /// The GPU or the host has too little memory.
    #[error("{call}: no {len} bytes are left; free memory or ask for less")]
    OutOfMemory {
        /// The driver's function.
        call: &'static str,
        /// Bytes asked for.
        len: usize,
    },
    /// The process's context on the GPU is dead: every later call fails.
    #[error("{call}: the GPU's context is lost ({code}); restart the process")]
    Lost {
        /// The driver's function that told it.
        call: &'static str,
        /// The driver's error code.
        code: CudaCode,
    },
    /// A copy did not end in time, and the GPU takes no others until it does.
    #[error(
        "a copy of GPU {device} has not ended within {limit:?}; check the GPU (nvidia-smi, dmesg)"
    )]
    Hung {
        /// The ordinal of the GPU.
        device: usize,
        /// The time that a copy may take.
        limit: Duration,
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
    /// The two sides of a copy differ in length.
    #[error("{pieces} bytes of the GPU do not match {host} bytes of the host")]
    LengthsDiffer {
        /// Bytes of all pieces.
        pieces: usize,
        /// Bytes of the host's memory.
        host: usize,
    },
    /// The text or the bytes are no handle.
    #[error("these bytes are no handle of a GPU's memory: {reason}")]
    BadHandle {
        /// The rule that they break.
        reason: &'static str,
    },
    /// The driver shares the memory with no other process in this way.
    #[error(
        "{address:#x} cannot be shared by handle: it is mapped memory, such as PyTorch's expandable \
         segments; leave these out (expandable_segments:False)"
    )]
    NotShareable {
        /// The address.
        address: u64,
    },
    /// The memory of another process cannot be opened.
    #[error(
        "the memory of the other process cannot be opened ({code}): it has ended or freed the memory, or is \
         this process; ask it for a new handle"
    )]
    NotOpened {
        /// The driver's error code.
        code: CudaCode,
    },
    /// The system has no thread for the copies.
    #[error("no thread for the copies of GPU {device}: {reason}")]
    NoThread {
        /// The ordinal of the GPU.
        device: usize,
        /// The system's error.
        reason: String,
    },
    /// The runtime that was to wait for the driver ends.
    #[error("the runtime ends")]
    Ended,
    /// The host's memory is mapped for reading.
    #[error("the memory to copy into is mapped for reading only")]
    ReadOnly,
}

impl CudaError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Hung { .. } | Self::NoThread { .. })
    }

    /// The error of a driver's function that returned `code`.
    pub(crate) fn of(call: &'static str, len: usize, code: CudaCode) -> Self {
        match code.number {
            OUT_OF_MEMORY => Self::OutOfMemory { call, len },
            214 | 700 | 702 | 709 | 710 | 714..=719 => Self::Lost { call, code },
            _ => Self::Failed { call, len, code },
        }
    }
}

const OUT_OF_MEMORY: i32 = 2;

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

/// The identity of a GPU, which is the same in all processes and after restarts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
