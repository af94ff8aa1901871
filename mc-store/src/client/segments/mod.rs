//! Segments: memory that a client contributes, mounted and unmounted while it runs.

mod set;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_rpc::RpcError;
use mc_transport::{Memory, MemoryError, MemoryOptions, RegisterError, Transport as _};
use mc_types::{ByteSize, Endpoint, ErrorCode, SegmentId};

use super::{Client, Core};
use crate::error::StartError;
pub(super) use set::Segments;

/// Most segments of one client.
const MAX_SEGMENTS: usize = 256;

/// Describes a segment to mount.
///
/// ```
/// use mc_store::{ByteSize, SegmentOptions};
/// let segment = SegmentOptions::new(ByteSize::gib(4)).name("rack-7/node-3");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SegmentOptions {
    size: ByteSize,
    name: Option<String>,
    memory: MemoryOptions,
}

impl SegmentOptions {
    /// A segment of this size, in plain memory.
    pub fn new(size: ByteSize) -> Self {
        Self { size, name: None, memory: Memory::options() }
    }

    /// The name by which puts can prefer the segment, of at most 256 bytes. The default is
    /// the address where it is served; for further segments with `/2`, `/3` … after it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What memory it is made of; see
    /// [`ClientBuilder::segment_memory`](super::ClientBuilder::segment_memory).
    pub fn memory(mut self, options: MemoryOptions) -> Self {
        self.memory = options;
        self
    }
}

/// A segment that a client contributes now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountedSegment {
    /// The master's id for it. It is another one after a master that had forgotten the
    /// segment was given it anew.
    pub id: SegmentId,
    /// Its name.
    pub name: Box<str>,
    /// Its size.
    pub size: ByteSize,
    /// Where it is served.
    pub endpoint: Endpoint,
    /// When it is to go, if it is.
    pub leaves_in: Option<Duration>,
}

/// Why a segment is not mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// Peers could not reach it.
    #[error("the client accepts no peers; give ClientBuilder::listen an address when it starts")]
    NotListening,
    /// A segment of no bytes.
    #[error("a segment of no bytes holds nothing; give it a size")]
    Empty,
    /// Another segment of this client has the name.
    #[error("this client has a segment named {name:?} already; choose another name")]
    NameTaken {
        /// The name given.
        name: Box<str>,
    },
    /// As many segments as a client may have.
    #[error("this client has {MAX_SEGMENTS} segments, which is the limit; make them larger")]
    TooMany,
    /// None of this client's segments has the id.
    #[error("no segment of this client has the id {id}; it may have been unmounted before")]
    NotFound {
        /// The id given.
        id: SegmentId,
    },
    /// Its memory cannot be had.
    #[error("cannot take memory for the segment of {size}; contribute less")]
    Memory {
        /// The size asked for.
        size: ByteSize,
        /// Why.
        source: MemoryError,
    },
    /// There is no memory for its next life.
    #[error("cannot take fresh memory for a segment that is mounted anew; contribute less")]
    FreshMemory(#[source] MemoryError),
    /// It cannot be opened to peers.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The master refused it or could not be asked.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The system has no randomness for an identity.
    #[error("the system gave no random bytes for an identity")]
    NoRandomness(#[source] io::Error),
    /// No thread for the heartbeat.
    #[error("cannot start the heartbeat's thread")]
    Thread(#[source] io::Error),
    /// The client was shut down.
    #[error("the client has been shut down; start another one")]
    Closed,
}

impl SegmentError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotListening | Self::Empty | Self::TooMany => ErrorCode::InvalidParams,
            Self::NameTaken { .. } => ErrorCode::SegmentAlreadyExists,
            Self::NotFound { .. } => ErrorCode::SegmentNotFound,
            Self::Rpc(error) => error.code(),
            Self::Closed => ErrorCode::UnavailableInCurrentStatus,
            Self::Memory { .. }
            | Self::FreshMemory(_)
            | Self::Register(_)
            | Self::NoRandomness(_)
            | Self::Thread(_) => ErrorCode::Internal,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_retryable(),
            Self::Memory { .. } | Self::FreshMemory(_) | Self::Thread(_) => true,
            _ => false,
        }
    }
}

/// Why the master does not have a segment that is served.
#[derive(Debug, thiserror::Error)]
pub(super) enum MountFailure {
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("the system gave no random bytes for an identity")]
    NoRandomness(#[source] io::Error),
    #[error("cannot take fresh memory for a segment that is mounted anew")]
    Memory(#[from] MemoryError),
    #[error("the client's runtime ends")]
    Ending,
}

impl From<MountFailure> for SegmentError {
    fn from(failure: MountFailure) -> Self {
        match failure {
            MountFailure::Register(error) => Self::Register(error),
            MountFailure::Rpc(error) => Self::Rpc(error),
            MountFailure::NoRandomness(error) => Self::NoRandomness(error),
            MountFailure::Memory(source) => Self::FreshMemory(source),
            MountFailure::Ending => Self::Closed,
        }
    }
}

impl From<SegmentError> for StartError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::Memory { size, source } => Self::Memory { size, source },
            SegmentError::Register(error) => Self::Register(error),
            SegmentError::Rpc(error) => Self::Master(error),
            SegmentError::NoRandomness(error) => Self::NoRandomness(error),
            SegmentError::Thread(error) => Self::Thread(error),
            error => Self::Segment(error),
        }
    }
}

impl Client {
    /// Contributes a segment, one more when there are some already. The client must accept
    /// peers: it was given a segment or an address to
    /// [listen](super::ClientBuilder::listen) when it started.
    ///
    /// The id that is returned names the segment in this client for as long as it is
    /// there, also after a master has forgotten it and was given it anew.
    ///
    /// # Errors
    /// [`SegmentError`]; nothing is contributed then.
    ///
    /// # Cancellation
    /// A segment whose future is dropped may be mounted all the same;
    /// [`segments`](Self::segments) lists it then.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use mc_store::{ByteSize, Client, Master, SegmentOptions};
    /// let master = Master::builder().start().await?;
    /// let client = Client::builder()
    ///     .master(master.local_addr().to_string())
    ///     .listen("127.0.0.1:0".parse()?)
    ///     .connect()
    ///     .await?;
    /// let id = client.mount_segment(SegmentOptions::new(ByteSize::mib(64))).await?;
    /// assert_eq!(client.segments()[0].id, id);
    /// client.unmount_segment(id, Duration::ZERO).await?;
    /// assert!(client.segments().is_empty());
    /// # client.shutdown().await;
    /// # master.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn mount_segment(&self, options: SegmentOptions) -> Result<SegmentId, SegmentError> {
        self.core.question().map_err(|_| SegmentError::Closed)?;
        let core = Arc::clone(&self.core);
        unhindered(async move { core.mount(options).await }).await
    }

    /// Takes a segment back. When `grace` is zero that is done at once, and what only this
    /// segment held is gone. Otherwise nothing new is put there from now on, what it holds
    /// can be read and is served until the grace is over, and it goes by itself then.
    /// [`drain`](Self::drain) moves what it holds elsewhere before.
    ///
    /// A grace cannot be prolonged; asking again with none at all ends it.
    ///
    /// # Errors
    /// [`SegmentError`]; the segment is still mounted then, unless none has this id.
    ///
    /// # Cancellation
    /// As [`mount_segment`](Self::mount_segment): it may be unmounted all the same.
    pub async fn unmount_segment(
        &self,
        id: SegmentId,
        grace: Duration,
    ) -> Result<(), SegmentError> {
        self.core.question().map_err(|_| SegmentError::Closed)?;
        let core = Arc::clone(&self.core);
        unhindered(async move { core.segments.remove(&core.master, core.id, id, grace).await })
            .await
    }

    /// The segments that this client contributes, oldest first.
    #[must_use]
    pub fn segments(&self) -> Vec<MountedSegment> {
        self.core.segments.list()
    }
}

/// Carries a change out to its end, even when nobody waits for it any more.
async fn unhindered<T: Send + 'static>(
    change: impl Future<Output = Result<T, SegmentError>> + Send + 'static,
) -> Result<T, SegmentError> {
    match tokio::spawn(change).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => Err(SegmentError::Closed),
        },
    }
}

impl Core {
    pub(super) async fn mount(
        self: &Arc<Self>,
        options: SegmentOptions,
    ) -> Result<SegmentId, SegmentError> {
        let SegmentOptions { size, name, memory } = options;
        if size == ByteSize::bytes(0) {
            return Err(SegmentError::Empty);
        }
        if self.transport.endpoint().is_none() {
            return Err(SegmentError::NotListening);
        }
        let memory = self.settings.shareable(memory);
        let (len, options) = (usize::try_from(size.as_u64()).unwrap_or(usize::MAX), memory.clone());
        // Pages may be populated here, which takes seconds for many gigabytes.
        let taken = tokio::task::spawn_blocking(move || memory.allocate(len)).await;
        let memory = match taken {
            Ok(memory) => memory.map_err(|source| SegmentError::Memory { size, source })?,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return Err(SegmentError::Closed),
            },
        };
        let id = self.segments.add(&self.master, self.id, name, options, memory).await?;
        if let Err(error) = self.start_heartbeat() {
            // Without one it would be taken for dead soon.
            let _ = self.segments.remove(&self.master, self.id, id, Duration::ZERO).await;
            return Err(SegmentError::Thread(error));
        }
        Ok(id)
    }
}
