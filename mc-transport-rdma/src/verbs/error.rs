//! Why a call or a work request failed.

use std::fmt;
use std::io;
use std::sync::Arc;

use rdma_sys::ibv_wc_status as wc;

/// Why RDMA cannot be used, or a call of libibverbs failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The library is not installed.
    #[error("libibverbs cannot be loaded ({reason}); install it (Debian: ibverbs-providers)")]
    NoLibrary {
        /// The text of the dynamic linker.
        reason: String,
    },
    /// The library is too old or another one.
    #[error("libibverbs has no function {name}; install rdma-core 28 or newer")]
    NoFunction {
        /// The function.
        name: &'static str,
    },
    /// The kernel has no support, or no driver has a device.
    #[error("this host has no RDMA device; see `ls /sys/class/infiniband`")]
    NoDevice,
    /// No device has this name.
    #[error("no RDMA device is named {name}; there is {}", available.join(", "))]
    NoSuchDevice {
        /// The name.
        name: String,
        /// The names that exist.
        available: Vec<String>,
    },
    /// The limit on locked memory is too low.
    #[error(
        "{len} bytes cannot be locked in memory for device {device}; raise the limit, which is {}: \
         `ulimit -l unlimited`, LimitMEMLOCK=infinity for systemd, or CAP_IPC_LOCK",
        Limit(*limit)
    )]
    MemoryLock {
        /// The device.
        device: Arc<str>,
        /// Bytes to be locked.
        len: usize,
        /// The limit in bytes; `None` if there is none, so that memory itself is short.
        limit: Option<u64>,
    },
    /// A call failed.
    #[error("{call} failed on device {device}")]
    Failed {
        /// The function of libibverbs.
        call: &'static str,
        /// The device.
        device: Arc<str>,
        /// The system's error.
        source: io::Error,
    },
}

struct Limit(Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{} KiB", bytes >> 10),
            None => f.write_str("unlimited already (the host is short of memory)"),
        }
    }
}

/// The status of a work request that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (device {device}, vendor error {vendor:#x})")]
#[non_exhaustive]
pub struct WorkError {
    /// The device of this host that carried the request.
    pub device: Arc<str>,
    /// The status.
    pub status: WorkStatus,
    /// The vendor's own number.
    pub vendor: u32,
}

/// The statuses of the InfiniBand specification that a reliable connection reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkStatus {
    /// The local buffers are longer than the message may be.
    LocalLength,
    /// The queue pair was set up wrongly.
    LocalQueuePair,
    /// The local memory is not registered, or not for this access.
    LocalProtection,
    /// The request was discarded because an earlier one failed.
    Flushed,
    /// The peer's answer was not understood.
    BadResponse,
    /// The local memory must not be accessed in this way.
    LocalAccess,
    /// The peer could not interpret the request.
    RemoteInvalidRequest,
    /// The peer refused: unknown remote key, or bytes outside of its region.
    RemoteAccess,
    /// The peer could not carry the request out.
    RemoteOperation,
    /// The peer did not answer.
    RetriesExceeded,
    /// The peer aborted the request.
    RemoteAbort,
    /// The device failed.
    Fatal,
    /// The response did not come in time.
    ResponseTimeout,
    /// Any other, by its number.
    Other(u32),
}

impl WorkStatus {
    /// The status with this number; `None` for success.
    pub(super) fn of(status: u32) -> Option<Self> {
        Some(match status {
            wc::IBV_WC_SUCCESS => return None,
            wc::IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            wc::IBV_WC_LOC_QP_OP_ERR => Self::LocalQueuePair,
            wc::IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            wc::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            wc::IBV_WC_BAD_RESP_ERR => Self::BadResponse,
            wc::IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            wc::IBV_WC_REM_INV_REQ_ERR => Self::RemoteInvalidRequest,
            wc::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            wc::IBV_WC_REM_OP_ERR => Self::RemoteOperation,
            wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RNR_RETRY_EXC_ERR => Self::RetriesExceeded,
            wc::IBV_WC_REM_ABORT_ERR => Self::RemoteAbort,
            wc::IBV_WC_FATAL_ERR => Self::Fatal,
            wc::IBV_WC_RESP_TIMEOUT_ERR => Self::ResponseTimeout,
            other => Self::Other(other),
        })
    }

    /// Returns whether the request itself is at fault, so that it fails on any connection.
    pub(crate) fn blames_the_request(self) -> bool {
        matches!(
            self,
            Self::LocalLength
                | Self::LocalProtection
                | Self::LocalAccess
                | Self::RemoteInvalidRequest
                | Self::RemoteAccess
        )
    }
}

impl fmt::Display for WorkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "local length error",
            Self::LocalQueuePair => "local queue pair operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "work request flushed",
            Self::BadResponse => "bad response",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetriesExceeded => "transport retry counter exceeded",
            Self::RemoteAbort => "remote abort",
            Self::Fatal => "fatal device error",
            Self::ResponseTimeout => "response timeout",
            Self::Other(number) => return write!(f, "work completion status {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_numbers_apart() {
        assert_eq!(WorkStatus::of(0), None);
        assert_eq!(WorkStatus::of(10), Some(WorkStatus::RemoteAccess));
        assert_eq!(WorkStatus::of(12), Some(WorkStatus::RetriesExceeded));
        assert_eq!(WorkStatus::of(999), Some(WorkStatus::Other(999)));
        assert!(WorkStatus::RemoteAccess.blames_the_request());
        assert!(!WorkStatus::RetriesExceeded.blames_the_request());
    }

    #[test]
    fn a_low_limit_names_the_command_that_raises_it() {
        let error = VerbsError::MemoryLock { device: "rxe0".into(), len: 9, limit: Some(65536) };
        let text = error.to_string();
        assert!(text.contains("ulimit -l") && text.contains("64 KiB"), "{text}");
    }
}
