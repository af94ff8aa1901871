//! The shared tier: a file for each object, on storage that all clients reach.
//!
//! An object's file is written after its put ([`persist`]) and read when memory does not have the
//! object any more. What keeps the files in step with the objects is in [`upkeep`]. Where the master
//! knows of no files, the client finds them by their names ([`unlisted`]). Where the tier is a bucket, a "file" is
//! an object in it ([`opening`]). Objects that are put one after the other share files ([`packing`]).

mod eviction;
mod opening;
mod packing;
mod persist;
mod promote;
mod queue;
mod reopening;
mod room;
mod turns;
mod unlisted;
mod upkeep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mc_rpc::{MasterClient, RpcError, StorageConfig};
use mc_tier::{DirectoryTier, Tier};
use mc_types::{ByteSize, ErrorCode, LocalDiskId};
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use super::Sealing;
use super::untold::Untold;
use crate::client::metrics::{TierCounters, TierMetrics};
use crate::environment::Environment;

pub(in crate::client) use opening::{LaterTier, OwnSettings};
use opening::{Opened, Place};
pub(in crate::client) use queue::Pending;

/// The shared tier of a client.
#[derive(Debug)]
pub(in crate::client) struct SharedTier {
    /// `None` while the tier is not open: then the client tells the master that it writes no files.
    opened: RwLock<Option<Opened>>,
    /// Whether the master does not know of the files.
    is_unlisted: bool,
    directory: Option<PathBuf>,
    /// Whether what keeps the files in step with the objects runs.
    has_upkeep: AtomicBool,
    quota: Option<ByteSize>,
    queue: queue::Queue,
    /// Files that were evicted or deleted late, of which the master is still to be told.
    untold: Untold,
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
    /// Takes the application's own tier or opens one: the place that the master names, or as the client's own
    /// settings name it. `None` when there is nothing to open. A tier that cannot be used is logged; what is
    /// left to be done to use it later.
    pub(in crate::client) async fn open(
        config: &StorageConfig,
        environment: &Arc<dyn Environment>,
        sealing: &Sealing,
        mut own: OwnSettings,
    ) -> Option<(Self, Option<LaterTier>)> {
        let is_listed = config.settings.root.is_some() || config.settings.shared_tier.is_some();
        let (mut is_unlisted, mut directory) = (false, None);
        let (mut opened, mut later) = (own.tier.take().map(Opened::of), None);
        if opened.is_none() {
            match Place::of(config, own)? {
                Ok(place) => {
                    is_unlisted = !is_listed;
                    if is_unlisted && sealing.is_on() {
                        warn!(
                            place = place.shown(),
                            "files that the master does not know of cannot be encrypted: this client writes and \
                             reads none; name the place to the master"
                        );
                        return None;
                    }
                    directory = place.directory();
                    let mut tier = LaterTier::new(place, Arc::clone(environment));
                    opened = tier.first(config.storage).await;
                    later = Some(tier).filter(|tier| tier.is_needed(opened.as_ref()));
                }
                // Such as of a newer master.
                Err(error) => {
                    warn!(%error, "the master names a shared tier that this client cannot use");
                }
            }
        }
        let shared = Self {
            opened: RwLock::new(opened.map(|opened| opened.sealed(sealing))),
            is_unlisted,
            directory,
            has_upkeep: AtomicBool::new(false),
            quota: config.quota.filter(|_| is_listed).map(ByteSize::bytes),
            queue: queue::Queue::default(),
            untold: Untold::default(),
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

    /// The tier, if it is a directory that is open.
    pub(in crate::client) fn opened_directory(&self) -> Option<Arc<DirectoryTier>> {
        self.opened.read().as_ref()?.directory.clone()
    }

    /// The directory, if it is open and the master does not know of its files.
    fn unlisted(&self) -> Option<Arc<DirectoryTier>> {
        self.opened_directory().filter(|_| self.is_unlisted)
    }

    /// The id of the file system that the files are on, if it has one.
    fn storage(&self) -> Option<LocalDiskId> {
        self.opened.read().as_ref()?.storage
    }

    pub(in crate::client) fn metrics(&self) -> TierMetrics {
        self.counters.metrics(self.waiting())
    }

    /// The directory that the files are in, also when it could not be opened; `None` for a bucket, and for a
    /// tier of the application's own.
    pub(in crate::client) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}
