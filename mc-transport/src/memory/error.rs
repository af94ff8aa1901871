//! Why there is no memory, or why it cannot be shared.

use std::io;

/// Why memory could not be had, or not be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No address space is that large.
    #[error("{len} bytes do not fit in the address space")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
    },
    /// The system refused.
    #[error("the system gave no {len} bytes of memory; ask for less or raise its limits")]
    Refused {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Memory with these options has at least one byte.
    #[error("no bytes were asked for; memory with options has at least one")]
    Empty,
    /// Not an alignment.
    #[error("{align} is no alignment; choose a power of two")]
    BadAlignment {
        /// Bytes asked for.
        align: usize,
    },
    /// This operating system cannot do it.
    #[error("this operating system has no {wanted}; leave the option out")]
    Unsupported {
        /// What was asked for.
        wanted: &'static str,
    },
    /// Only memory that was allocated for it can be given to other processes.
    #[error("the memory cannot be shared; allocate it with `Memory::options().shared()`")]
    NotShareable,
    /// The system would not give another process access.
    #[error(
        "the memory could not be opened for another process; are descriptors left, and is /proc mounted?"
    )]
    ShareRefused {
        /// What the system said.
        source: io::Error,
    },
    /// What another process offers is not memory that can be shared.
    #[error("what the peer offers is not shared memory; it must be a sealed memfd")]
    NotSharedMemory {
        /// What the system said; none when the descriptor is of another kind.
        source: Option<io::Error>,
    },
    /// The other process could shorten the memory, and whoever touches what is
    /// gone is killed.
    #[error("the peer could shorten the memory that it offers; it must seal it with F_SEAL_SHRINK")]
    Shrinkable,
    /// The other process offers less than it promised.
    #[error("the peer offers {available} bytes where {len} were announced")]
    TooShort {
        /// Bytes announced.
        len: usize,
        /// Bytes there are.
        available: u64,
    },
}
