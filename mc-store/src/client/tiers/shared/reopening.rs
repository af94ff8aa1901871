//! The shared tier while its client lives: opened when that is possible, left when it turns out to be another
//! one, and at the end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_types::LocalDiskId;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::opening::LaterTier;
use super::{SharedTier, storage_config};
use crate::client::core::Core;
use crate::client::tiers::leaving::wait_until_unused;

/// Time between two attempts: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How often it is looked whether the directory was closed, since it is on the wrong file system.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Opens the tier as soon as that is possible, and a directory again when it was closed, until the client has
/// gone.
pub(super) async fn keep_open(core: Weak<Core>, mut later: LaterTier) {
    let (mut pause, mut was_open) = (FIRST_PAUSE, false);
    loop {
        let Some(this) = core.upgrade() else { return };
        let Some(shared) = &this.tiers.shared else { return };
        if shared.tier().is_some() {
            if !shared.is_marked() {
                return;
            }
            (pause, was_open) = (FIRST_PAUSE, true);
            drop(this);
            sleep(LOOK_EVERY).await;
            continue;
        }
        later.was_wrong |= was_open;
        // Which file system it has to be may be known by now.
        let known = match storage_config(&this.link.master).await {
            Ok(config) => config.storage,
            Err(error) => {
                debug!(%error, "the master cannot be asked for the file system of the shared tier");
                drop(this);
                sleep(pause).await;
                continue;
            }
        };
        drop(this);
        let Some(opened) = later.attempt(known).await else { return };
        let Some(this) = core.upgrade() else { return };
        let Some(shared) = &this.tiers.shared else { return };
        if let Some(opened) = later.outcome(opened) {
            *shared.opened.write() = Some(opened.sealed(&this.tiers.sealing));
            info!("the shared tier is used from now on");
            this.start_upkeep();
            continue;
        }
        if later.is_hopeless {
            return;
        }
        drop(this);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl SharedTier {
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
    fn is_marked(&self) -> bool {
        self.storage().is_some()
    }

    /// Closes the directory if it is on another file system than this.
    pub(super) fn leave_other(&self, storage: Option<LocalDiskId>) {
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
