//! The shared tier while its client lives: opened when that is possible, and again when it was left since it had
//! turned out to be another one.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, info};

use super::start_upkeep;
use crate::client::core::Core;
use crate::client::tiers::shared::{LaterTier, storage_config};

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
            shared.set_opened(opened, &this.tiers.sealing);
            info!("the shared tier is used from now on");
            start_upkeep(&this);
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
