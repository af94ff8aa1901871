//! The shared tier: a file for each object, on storage that all clients reach.
//!
//! An object's file is written after its put and read when memory does not have the object any more. What writes
//! the files, and keeps them in step with the objects, is in [`tier_work`](crate::client::tier_work). Where the
//! master knows of no files, the client finds them by their names ([`unlisted`]). Where the tier is a bucket, a
//! "file" is an object in it ([`opening`]).

mod opening;
mod queue;
mod room;
mod turns;
mod unlisted;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mc_environment::Environment;
use mc_rpc::{MasterClient, RpcError, StorageConfig};
use mc_tier::{DirectoryTier, ObjectId, Tier};
use mc_types::{ByteSize, ErrorCode, LocalDiskId};
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use super::Sealing;
use super::leaving::wait_until_unused;
use super::untold::Untold;
use crate::client::metrics::{TierCounters, TierMetrics};

pub(in crate::client) use opening::{LaterTier, OwnSettings};
use opening::{Opened, Place};
pub(in crate::client) use queue::{Deletion, Flushing, Job, Pending};
pub(in crate::client) use room::{FREE_PART, Room, excess, is_short};
pub(in crate::client) use turns::Turn;

/// The shared tier of a client.
#[derive(Debug)]
pub(in crate::client) struct SharedTier {
    /// `None` while the tier is not open: then the client tells the master that it writes no files.
    opened: RwLock<Option<Opened>>,
    /// Whether the master does not know of the files.
    pub(in crate::client) is_unlisted: bool,
    directory: Option<PathBuf>,
    /// Whether what keeps the files in step with the objects runs.
    pub(in crate::client) has_upkeep: AtomicBool,
    pub(in crate::client) quota: Option<ByteSize>,
    pub(in crate::client) queue: queue::Queue,
    /// Files that were evicted or deleted late, of which the master is still to be told.
    pub(in crate::client) untold: Untold,
    pub(in crate::client) room: Mutex<Room>,
    /// Microseconds that the last write took.
    pub(in crate::client) last_write: AtomicU64,
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
    pub(in crate::client) fn storage(&self) -> Option<LocalDiskId> {
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

    /// Opens the tier, which was not open.
    pub(in crate::client) fn set_opened(&self, opened: Opened, sealing: &Sealing) {
        *self.opened.write() = Some(opened.sealed(sealing));
    }

    /// Returns whether no files are written since there is no room for them.
    pub(in crate::client) fn is_paused(&self) -> bool {
        self.room.lock().is_paused
    }

    /// Notes files that are gone, of which the master is to be told if it knows of files.
    pub(in crate::client) fn note_untold(&self, gone: &mut Vec<ObjectId>) {
        let gone = gone.drain(..);
        if !self.is_unlisted {
            self.untold.note(gone);
        }
    }

    /// Lets go of the directory, and waits for what is under way there, for five seconds.
    pub(in crate::client) async fn leave(&self) {
        let opened = self.opened.write().take();
        // Otherwise the application may keep it.
        let Some(directory) = opened.and_then(|opened| opened.directory) else { return };
        let unused = Arc::downgrade(&directory);
        drop(directory);
        if !wait_until_unused(unused).await {
            warn!("the shared tier has not ended a write or a read");
        }
    }

    /// Returns whether the root of its directory has a marker.
    pub(in crate::client) fn is_marked(&self) -> bool {
        self.storage().is_some()
    }

    /// Closes the directory if it is on another file system than this.
    pub(in crate::client) fn leave_other(&self, storage: Option<LocalDiskId>) {
        let mut opened = self.opened.write();
        let own = opened.as_ref().and_then(|opened| opened.storage);
        if let (Some(own), Some(storage)) = (own, storage)
            && own != storage
        {
            warn!(
                directory = ?self.directory, %own, cluster = %storage,
                "the directory of the shared tier is not on the file system of the cluster; this client \
                 writes and reads no files until that is mounted there"
            );
            *opened = None;
        }
    }
}
