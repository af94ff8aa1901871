//! The shared tier: a file for each object, on storage that all clients reach.
//!
//! An object's file is written after its put ([`persist`]) and read when memory does not have the
//! object any more. What keeps the files in step with the objects is in [`upkeep`]. Where the master
//! knows of no files, the client finds them by their names ([`unlisted`]).

mod opening;
mod persist;
mod promote;
mod queue;
mod room;
mod turns;
mod unlisted;
mod upkeep;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mc_rpc::{MasterClient, RpcError, StorageConfig};
use mc_tier::{DirectorySettings, DirectoryTier, ObjectId, Tier};
use mc_types::{ByteSize, DiskId, ErrorCode};
use parking_lot::{Mutex, RwLock};

use super::{TierCounters, TierMetrics};
use crate::environment::Environment;

pub(in crate::client) use opening::LaterTier;
use opening::{Opened, Place};
pub(in crate::client) use queue::Pending;

/// The shared tier of a client.
#[derive(Debug)]
pub(in crate::client) struct SharedTier {
    /// `None` while the directory is not open: then the client tells the master that it writes no files.
    opened: RwLock<Option<Opened>>,
    /// Whether the master does not know of the files.
    is_unlisted: bool,
    directory: Option<PathBuf>,
    /// Whether what keeps the files in step with the objects runs.
    has_upkeep: AtomicBool,
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
    /// nothing to open. A directory that cannot be used is logged; what is left to be done to use it
    /// later.
    pub(in crate::client) async fn open(
        config: &StorageConfig,
        environment: &Arc<dyn Environment>,
        own: Option<Arc<dyn Tier>>,
        root: Option<PathBuf>,
        settings: DirectorySettings,
    ) -> Option<(Self, Option<LaterTier>)> {
        let named = config.settings.root.as_deref().map(PathBuf::from);
        let is_listed = named.is_some();
        let (is_unlisted, directory, opened, later) = match (own, root.or(named)) {
            (Some(own), _) => (false, None, Some(Opened::of(own)), None),
            (None, None) => return None,
            (None, Some(root)) => {
                let place = Place {
                    cluster: config.settings.cluster_id.to_string(),
                    is_marked: is_listed,
                    root,
                    settings,
                };
                let directory = place.root.join(&place.cluster);
                let mut later = LaterTier::new(place, Arc::clone(environment));
                let opened = later.first(config.storage).await;
                (!is_listed, Some(directory), opened, Some(later))
            }
        };
        let later = later.filter(|_| opened.is_none() || is_listed);
        let shared = Self {
            opened: RwLock::new(opened),
            is_unlisted,
            directory,
            has_upkeep: AtomicBool::new(false),
            quota: config.quota.filter(|_| is_listed).map(ByteSize::bytes),
            queue: queue::Queue::default(),
            untold: Mutex::default(),
            room: Mutex::default(),
            last_write: AtomicU64::new(0),
            counters: TierCounters::default(),
        };
        Some((shared, later))
    }

    /// The tier, if it is open.
    pub(in crate::client) fn tier(&self) -> Option<Arc<dyn Tier>> {
        self.opened.read().as_ref().map(|opened| Arc::clone(&opened.tier))
    }

    /// The directory, if it is open and the master does not know of its files.
    fn unlisted(&self) -> Option<Arc<DirectoryTier>> {
        self.opened.read().as_ref().filter(|_| self.is_unlisted)?.directory.clone()
    }

    /// The id of the file system that the files are on, if it has one.
    fn storage(&self) -> Option<DiskId> {
        self.opened.read().as_ref()?.storage
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
