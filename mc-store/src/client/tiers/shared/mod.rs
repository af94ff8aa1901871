//! The shared tier: a file for each object, on storage that all clients reach.
//!
//! An object's file is written after its put ([`persist`]) and read when memory does not have the
//! object any more. What keeps the files in step with the objects is in [`upkeep`]. Where the master
//! knows of no files, the client finds them by their names ([`unlisted`]).

mod persist;
mod promote;
mod queue;
mod room;
mod unlisted;
mod upkeep;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mc_rpc::{MasterClient, RpcError, StorageConfig};
use mc_tier::{DirectoryTier, ObjectId, SyncPolicy, Tier, TierError};
use mc_types::{ByteSize, ErrorCode};
use parking_lot::Mutex;
use tracing::{info, warn};

use super::{TierCounters, TierMetrics};
use crate::environment::Environment;

pub(in crate::client) use queue::Pending;

/// Time to open the tier's directory. A file system whose server does not answer takes for ever.
const OPENING: Duration = Duration::from_secs(10);

/// The shared tier of a client.
#[derive(Debug)]
pub(in crate::client) struct SharedTier {
    /// `None` when the directory could not be opened: then the client tells the master that it writes
    /// no files.
    tier: Option<Arc<dyn Tier>>,
    /// The same tier, when the master does not know of its files.
    unlisted: Option<Arc<DirectoryTier>>,
    directory: Option<PathBuf>,
    quota: Option<ByteSize>,
    queue: queue::Queue,
    /// Files that were evicted, of which the master is still to be told.
    untold: Mutex<VecDeque<ObjectId>>,
    room: Mutex<room::Room>,
    /// Microseconds that the last write took.
    last_write: AtomicU64,
    pub(in crate::client) counters: TierCounters,
}

/// Asks the master where the client keeps files; older masters do not know, and keep none.
///
/// # Errors
/// When the master cannot be asked.
pub(in crate::client) async fn storage_config(
    master: &MasterClient,
) -> Result<StorageConfig, RpcError> {
    match master.storage_config().await {
        Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::NotSupported => {
            Ok(StorageConfig::default())
        }
        answer => answer,
    }
}

impl SharedTier {
    /// Takes the application's own tier or opens a directory: in `root`, if it is given, where the file
    /// system is mounted on this host; otherwise in the one that the master names. `None` when there is
    /// nothing to open. A directory that cannot be used is logged.
    pub(in crate::client) async fn open(
        config: &StorageConfig,
        environment: &dyn Environment,
        own: Option<Arc<dyn Tier>>,
        root: Option<PathBuf>,
        sync: SyncPolicy,
    ) -> Option<Self> {
        let named = config.settings.root.as_deref().map(PathBuf::from);
        let is_listed = named.is_some();
        let (tier, unlisted, directory) = match (own, root.or(named)) {
            (Some(own), _) => (Some(own), None, None),
            (None, None) => return None,
            (None, Some(root)) => {
                let cluster = config.settings.cluster_id.to_string();
                let directory = root.join(&cluster);
                let opened = open_directory(environment, root, cluster, sync).await;
                let unlisted = opened.clone().filter(|_| !is_listed);
                if opened.is_none() && !is_listed {
                    return None;
                }
                (opened.map(|tier| tier as Arc<dyn Tier>), unlisted, Some(directory))
            }
        };
        Some(Self {
            tier,
            unlisted,
            directory,
            quota: config.quota.filter(|_| is_listed).map(ByteSize::bytes),
            queue: queue::Queue::default(),
            untold: Mutex::default(),
            room: Mutex::default(),
            last_write: AtomicU64::new(0),
            counters: TierCounters::default(),
        })
    }

    /// The tier, if it could be opened.
    pub(in crate::client) const fn tier(&self) -> Option<&Arc<dyn Tier>> {
        self.tier.as_ref()
    }

    pub(in crate::client) fn metrics(&self) -> TierMetrics {
        self.counters.metrics(self.waiting())
    }

    /// The directory that the files are in, also when it could not be opened; `None` for a tier of the
    /// application's own.
    pub(in crate::client) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

async fn open_directory(
    environment: &dyn Environment,
    root: PathBuf,
    cluster: String,
    sync: SyncPolicy,
) -> Option<Arc<DirectoryTier>> {
    let path = root.clone();
    let opening = environment.blocking(move || DirectoryTier::open(root, &cluster, sync));
    let opened: Result<DirectoryTier, TierError> =
        match tokio::time::timeout(OPENING, opening).await {
            Ok(opened) => opened?.ok()?,
            Err(_) => {
                warn!(
                    root = %path.display(),
                    "the directory of the shared tier did not answer for {OPENING:?}; this client \
                     writes and reads no files"
                );
                return None;
            }
        };
    match opened {
        Ok(tier) => {
            info!(directory = %tier.directory().display(), "the shared tier is open");
            Some(Arc::new(tier))
        }
        Err(error) => {
            warn!(
                %error,
                "the shared tier cannot be used; this client writes and reads no files, others may"
            );
            None
        }
    }
}
