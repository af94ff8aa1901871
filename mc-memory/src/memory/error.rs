//! Why there is no memory, or why it cannot be shared.

use std::io;
use std::path::PathBuf;

use super::huge::HugePageSize;

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
        /// The system's error.
        source: io::Error,
    },
    /// Memory with these options has at least one byte.
    #[error("no bytes were asked for; memory with options has at least one")]
    Empty,
    /// The alignment is no power of two.
    #[error("{align} is no alignment; choose a power of two")]
    BadAlignment {
        /// Bytes asked for.
        align: usize,
    },
    /// Two options exclude each other.
    #[error("memory cannot have both {first} and {second}; leave one option out")]
    Incompatible {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The system has too few huge pages of the size demanded.
    #[error(
        "the system has no {} MiB of huge pages of {} MiB; reserve them (/proc/sys/vm/nr_hugepages, \
         hugepages= at boot) or do not require them",
        len.div_ceil(1 << 20),
        size.bytes() >> 20
    )]
    NoHugePages {
        /// Bytes asked for.
        len: usize,
        /// Size of the pages.
        size: HugePageSize,
        /// The system's error.
        source: io::Error,
    },
    /// No such NUMA node has memory that this process may use.
    #[error(
        "there is no NUMA node {node} with memory for this process; \
         see /sys/devices/system/node/has_memory and the process's cpuset"
    )]
    NoSuchNode {
        /// The node asked for.
        node: u32,
    },
    /// The system does not let this process choose a NUMA node.
    #[error(
        "the system does not bind memory to NUMA node {node}; \
         a container may need CAP_SYS_NICE for it, or leave the option out"
    )]
    NodeRefused {
        /// The node asked for.
        node: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot hold the memory.
    #[error(
        "the file {} cannot hold the memory; may this process write it, \
         and has its file system room that can be reserved?",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a file.
    #[error("{} is not a regular file; name another path", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Another memory, of this process or another one, has a lock on the file.
    #[error("the file {} is in use; end the process that has it, or name another file", path.display())]
    FileInUse {
        /// The path.
        path: PathBuf,
    },
    /// This operating system cannot do it.
    #[error("this operating system has no {wanted}; leave the option out")]
    Unsupported {
        /// The option.
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
        /// The system's error.
        source: io::Error,
    },
    /// The descriptor of another process is not memory that can be shared.
    #[error("what the peer offers is not shared memory; it must be a sealed memfd")]
    NotSharedMemory {
        /// The system's error; none when the descriptor is of another kind.
        source: Option<io::Error>,
    },
    /// The other process could shorten the memory, and a process that touches what is
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
