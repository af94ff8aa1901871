//! Opening the directory of the shared tier. One that takes long, that is not there, or whose file system is not
//! mounted yet, is used from when it is.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_tier::{DirectorySettings, DirectoryTier, Tier, TierError};
use mc_types::DiskId;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::{SharedTier, storage_config};
use crate::client::core::Core;
use crate::client::tiers::work::wait_until_unused;
use crate::environment::Environment;

/// How long the start of a client waits for the directory. A file system whose server does not answer takes
/// for ever.
const OPENING: Duration = Duration::from_secs(10);

/// Time between two attempts: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How often it is looked whether the directory was closed, since it is on the wrong file system.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// An open shared tier.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) tier: Arc<dyn Tier>,
    /// The same, if it is a directory.
    pub(super) directory: Option<Arc<DirectoryTier>>,
    /// The id of its file system, if it has one.
    pub(super) storage: Option<DiskId>,
}

impl Opened {
    /// A tier of the application's own.
    pub(super) fn of(tier: Arc<dyn Tier>) -> Self {
        Self { tier, directory: None, storage: None }
    }
}

/// Where the directory is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) root: PathBuf,
    pub(super) cluster: String,
    /// Whether the root has a marker, by which a file system that is not mounted is noticed.
    pub(super) is_marked: bool,
    pub(super) settings: DirectorySettings,
}

impl Place {
    /// Opens the directory. Blocks.
    fn open(self, known: Option<DiskId>, or_older: bool) -> Result<Opened, TierError> {
        let Self { root, cluster, is_marked, settings } = self;
        let (tier, storage) = match is_marked {
            true => DirectoryTier::open_marked(root, &cluster, settings, known, or_older)?,
            false => (DirectoryTier::open(root, &cluster, settings)?, None),
        };
        info!(directory = %tier.directory().display(), "the shared tier is open");
        let directory = Arc::new(tier);
        Ok(Opened { tier: Arc::clone(&directory) as _, directory: Some(directory), storage })
    }
}

/// `None` when the client ends.
type Opening = Pin<Box<dyn Future<Output = Option<Result<Opened, TierError>>> + Send>>;

/// A directory that is not open, or may have to be opened anew.
pub(in crate::client) struct LaterTier {
    place: Place,
    environment: Arc<dyn Environment>,
    /// The attempt that is under way. It is not begun again: each that hangs has a thread.
    opening: Option<Opening>,
    failures: u64,
    /// Whether the client was told that its file system is another one than the cluster's. Until then it may
    /// be the master that was told of the wrong one, after a restart.
    was_wrong: bool,
}

impl LaterTier {
    pub(super) fn new(place: Place, environment: Arc<dyn Environment>) -> Self {
        Self { place, environment, opening: None, failures: 0, was_wrong: false }
    }

    /// Waits for the attempt that is under way, or begins one. It goes on when this is dropped. `None` when
    /// the client ends.
    async fn attempt(&mut self, known: Option<DiskId>) -> Option<Result<Opened, TierError>> {
        let opening = self.opening.get_or_insert_with(|| {
            let (place, environment) = (self.place.clone(), Arc::clone(&self.environment));
            let or_older = !self.was_wrong;
            let open = move || place.open(known, or_older);
            Box::pin(async move { environment.blocking(open).await?.ok() })
        });
        let opened = opening.await;
        self.opening = None;
        opened
    }

    /// Opens the directory if that takes no long time.
    pub(super) async fn first(&mut self, known: Option<DiskId>) -> Option<Opened> {
        match timeout(OPENING, self.attempt(known)).await {
            Ok(opened) => self.outcome(opened?),
            Err(_) => {
                warn!(
                    root = %self.place.root.display(),
                    "the directory of the shared tier did not answer for {OPENING:?}; this client \
                     writes and reads no files until it does"
                );
                None
            }
        }
    }

    fn outcome(&mut self, opened: Result<Opened, TierError>) -> Option<Opened> {
        match opened {
            Ok(opened) => {
                self.failures = 0;
                Some(opened)
            }
            Err(error) => {
                self.failures += 1;
                if self.failures.is_power_of_two() {
                    warn!(
                        %error, failures = self.failures,
                        "the shared tier cannot be used now; this client writes and reads no files, \
                         others may; trying on"
                    );
                }
                None
            }
        }
    }
}

/// Opens the directory as soon as that is possible, and again when it was closed, until the client has gone.
pub(super) async fn keep_open(core: Weak<Core>, mut later: LaterTier) {
    let (mut pause, mut was_open) = (FIRST_PAUSE, false);
    loop {
        let Some(this) = core.upgrade() else { return };
        let Some(shared) = &this.shared_tier else { return };
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
        let known = match storage_config(&this.master).await {
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
        let Some(shared) = &this.shared_tier else { return };
        if let Some(opened) = later.outcome(opened) {
            *shared.opened.write() = Some(opened);
            info!("the shared tier is used from now on");
            this.start_upkeep();
            continue;
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
    pub(super) fn leave_other(&self, storage: Option<DiskId>) {
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
