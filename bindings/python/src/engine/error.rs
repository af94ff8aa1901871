//! Why a call of an engine failed, and the number that its caller gets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mc_store::ConfigError;
use mc_transport::{ConnectError, MemoryError, NodeError, RegisterError, TransferError};

use super::protocol::ProtocolError;
use crate::error::Chain;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// `initialize` was not called, or failed.
    #[error("the engine is not initialized; call initialize() first")]
    NotInitialized,
    /// The protocol is one for devices that this package cannot use.
    #[error("protocol {name:?} is not supported; use tcp, rdma, or quic with certificates")]
    UnknownProtocol { name: String },
    /// A name of a host, with or without a port, that is none.
    #[error("{text:?} is not a host or host:port by which peers reach this engine")]
    BadHost { text: String },
    /// A variable of the environment, or a certificate, that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine's threads do not start.
    #[error("cannot start the threads of the engine")]
    Threads(#[source] io::Error),
    /// The engine cannot listen for peers.
    #[error("cannot listen at {address}; stop the other process, or give another port")]
    Listen { address: SocketAddr, source: io::Error },
    /// The node that moves the bytes does not start.
    #[error("cannot start the transports of the engine")]
    Node(#[from] NodeError),
    /// The system has no randomness.
    #[error("the system gave no random bytes")]
    NoRandomness(#[source] io::Error),

    /// Addresses that cannot be memory.
    #[error("{len} bytes at {address:#x} are not a valid range of addresses")]
    Impossible { address: usize, len: usize },
    /// Memory that this process cannot read.
    #[error(
        "the {len} bytes at {address:#x} are not mapped, or are memory of a device, such as a GPU, whose \
         driver this process has not loaded"
    )]
    NotMapped { address: usize, len: usize },
    /// Memory of a GPU whose bytes could not be copied; why stands in the log.
    #[error("the memory of a GPU at {address:#x} cannot be copied")]
    Device { address: usize },
    /// Memory that is registered already.
    #[error("the {len} bytes at {address:#x} are registered already, at least in part")]
    Overlaps { address: usize, len: usize },
    /// More registrations than the engine has room for.
    #[error("more than {max} registrations; register larger pieces of memory")]
    TooManyRanges { max: usize },
    /// No registration begins at the address.
    #[error("no memory that is registered in this way begins at {address:#x}")]
    NotRegistered { address: usize },
    /// A transfer does not end.
    #[error("a transfer still uses the memory at {address:#x}; do not free it, and close it again")]
    StillUsed { address: usize },
    /// The node cannot open memory to peers.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The system has no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),

    /// Bytes that cannot be copied; the log has the reason.
    #[error("the bytes were not copied")]
    BadBytes,

    /// Lists that belong together differ in length.
    #[error("the lists have {counts:?} items; they must have the same number")]
    LengthsDiffer { counts: Vec<usize> },
    /// Local memory of a transfer that is not registered.
    #[error("the {len} bytes at {address:#x} are not registered with this engine")]
    LocalNotRegistered { address: usize, len: usize },
    /// Local memory of a read that cannot be written.
    #[error("the {len} bytes at {address:#x} are registered, but read-only")]
    LocalReadOnly { address: usize, len: usize },
    /// Remote memory of a transfer that is not registered.
    #[error("the {len} bytes at {address:#x} are not registered with the engine at {session}")]
    RemoteNotRegistered { session: Box<str>, address: u64, len: usize },
    /// More peers than the engine has room for, all of them in use.
    #[error("transfers to {max} peers are under way; wait for some of them")]
    TooManyPeers { max: usize },
    /// More transfers than the engine has room for, none of which has ended.
    #[error("{max} asynchronous transfers are under way; wait for some of them")]
    TooManyBatches { max: usize },

    /// Nothing answers at the session.
    #[error(
        "no engine can be reached at {session}; is it running, and is this its get_rpc_port()?"
    )]
    Unreachable { session: Box<str>, source: io::Error },
    /// The peer does not speak as engines do.
    #[error("the peer at {session} cannot be understood")]
    Protocol { session: Box<str>, source: ProtocolError },
    /// The peer's node cannot be reached.
    #[error("no connection for the bytes of {session}")]
    Connect { session: Box<str>, source: ConnectError },
    /// The transfer failed.
    #[error("a transfer with {session} failed")]
    Transfer { session: Box<str>, source: TransferError },
    /// The transfer took too long.
    #[error("a transfer with {session} took longer than {after:?}; see MC_TRANSFER_TIMEOUT")]
    TimedOut { session: Box<str>, after: Duration },
    /// A notify that peers do not take. Nothing was transferred.
    #[error("the notify has a text of {len} bytes; at most {max} can be sent; shorten it")]
    NotifyTooLong { len: usize, max: usize },
    /// The bytes were transferred, and the notify was not delivered.
    #[error("the peer at {session} keeps as many notifies as it can; it must call get_notifies()")]
    NotifyRefused { session: Box<str> },
    /// A signal's handler raised an exception, which the caller gets.
    #[error("the call was interrupted")]
    Interrupted,
}

/// Mooncake's numbers for failures of its transfer engine.
impl EngineError {
    const INVALID: i32 = -1;
    const NOT_REGISTERED: i32 = -3;
    const OVERLAPS: i32 = -7;
    /// The code that `send_probe` returns for a peer that does not answer.
    pub(super) const NO_ANSWER: i32 = -102;

    fn code(&self) -> i32 {
        match self {
            Self::NotRegistered { .. } => Self::NOT_REGISTERED,
            Self::Overlaps { .. } => Self::OVERLAPS,
            _ => Self::INVALID,
        }
    }

    /// Logs the failure and its causes, and returns its number.
    pub(super) fn logged(&self) -> i32 {
        match self {
            Self::Interrupted => tracing::debug!("{self}"),
            Self::UnknownProtocol { .. } | Self::StillUsed { .. } => {
                tracing::error!("{}", Chain(self));
            }
            _ => tracing::warn!("{}", Chain(self)),
        }
        self.code()
    }
}

/// Returns the value, or `otherwise` for a failure, which is logged.
pub(super) fn value_or<T>(outcome: Result<T, EngineError>, otherwise: T) -> T {
    outcome.unwrap_or_else(|error| {
        error.logged();
        otherwise
    })
}

/// Returns 0 for success, or the number of the failure, which is logged.
pub(super) fn code_of(outcome: Result<(), EngineError>) -> i32 {
    outcome.map_or_else(|error| error.logged(), |()| crate::error::OK)
}
