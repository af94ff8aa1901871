//! The shared tier: a file for each object, on storage that all clients reach.
//!
//! An object's file is written after its put ([`persist`]) and read when memory does not have the
//! object any more. What keeps the files in step with the objects is in [`upkeep`].

mod metrics;
pub(super) mod objects;
mod persist;
mod queue;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use mc_rpc::{MasterClient, RpcError, StorageConfig};
use mc_tier::{DirectoryTier, SyncPolicy, Tier, TierError};
use mc_types::{ByteSize, ErrorCode};
use tracing::{info, warn};

use crate::environment::Environment;

pub(super) use metrics::TierCounters;
pub use metrics::TierMetrics;
pub(super) use queue::Pending;

/// Time to open the tier's directory. A file system whose server does not answer takes for ever.
const OPENING: Duration = Duration::from_secs(10);

/// The shared tier that a client uses.
#[derive(Clone, Debug)]
pub(super) enum SharedTierChoice {
    /// The directory that the master names, if it names one.
    OfMaster(SyncPolicy),
    /// A tier of the application's own.
    Own(Arc<dyn Tier>),
}

/// The shared tier of a client.
#[derive(Debug)]
pub(super) struct SharedTier {
    /// `None` when the directory could not be opened: then the client tells the master that it writes
    /// no files.
    tier: Option<Arc<dyn Tier>>,
    config: StorageConfig,
    queue: queue::Queue,
    pub(super) counters: TierCounters,
}

/// Asks the master where the client keeps files; older masters do not know, and keep none.
///
/// # Errors
/// When the master cannot be asked.
pub(super) async fn storage_config(master: &MasterClient) -> Result<StorageConfig, RpcError> {
    match master.storage_config().await {
        Err(RpcError::Refused(refusal)) if refusal.code == ErrorCode::NotSupported => {
            Ok(StorageConfig::default())
        }
        answer => answer,
    }
}

impl SharedTier {
    /// Opens the tier that the master names, or the application's own; `None` when the master plans no
    /// files. A directory that cannot be used is logged.
    pub(super) async fn open(
        config: &StorageConfig,
        environment: &dyn Environment,
        choice: SharedTierChoice,
    ) -> Option<Self> {
        let tier = match (choice, &config.settings.root) {
            (SharedTierChoice::Own(tier), _) => Some(tier),
            (SharedTierChoice::OfMaster(_), None) => return None,
            (SharedTierChoice::OfMaster(sync), Some(root)) => {
                let (root, cluster) = (root.to_string(), config.settings.cluster_id.to_string());
                open_directory(environment, root, cluster, sync).await
            }
        };
        Some(Self {
            tier,
            config: config.clone(),
            queue: queue::Queue::default(),
            counters: TierCounters::default(),
        })
    }

    /// The tier, if it could be opened.
    pub(super) const fn tier(&self) -> Option<&Arc<dyn Tier>> {
        self.tier.as_ref()
    }

    pub(super) fn metrics(&self) -> TierMetrics {
        self.counters.metrics(self.waiting())
    }

    pub(super) const fn config(&self) -> &StorageConfig {
        &self.config
    }

    fn quota(&self) -> Option<ByteSize> {
        self.config.quota.map(ByteSize::bytes)
    }
}

async fn open_directory(
    environment: &dyn Environment,
    root: String,
    cluster: String,
    sync: SyncPolicy,
) -> Option<Arc<dyn Tier>> {
    let path = root.clone();
    let opening = environment.blocking(move || DirectoryTier::open(root, &cluster, sync));
    let opened: Result<DirectoryTier, TierError> =
        match tokio::time::timeout(OPENING, opening).await {
            Ok(opened) => opened?.ok()?,
            Err(_) => {
                warn!(
                    root = path,
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
