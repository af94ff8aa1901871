//! Opening the disk. One that takes long, or that fails, does not keep the client from starting: it is used
//! from when it is open.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_environment::Environment;
use mc_tier::TierError;
use mc_transport::{Node, Transport as _};
use mc_types::LocalDiskId;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::options::{LocalDiskOptions, OwnPlace, OwnTier};
use super::{LocalDisk, directory, open_log};
use crate::client::segments::Segments;
use crate::client::tiers::Sealing;
use crate::error::LocalDiskOpenError;

/// How long the start of a client waits for its disk.
const OPENING: Duration = Duration::from_secs(5);

/// The client's local disk, once it is open.
#[derive(Debug, Default)]
pub(in crate::client) struct LocalDiskSlot {
    disk: OnceLock<LocalDisk>,
    is_missing: AtomicBool,
}

impl LocalDiskSlot {
    /// Opens a disk; what is left to be done where it is not open in time, or cannot be opened now.
    ///
    /// # Errors
    /// [`LocalDiskOpenError`] where no later attempt would succeed.
    pub(in crate::client) async fn open(
        place: OwnPlace,
        cluster_id: &str,
        node: &Node,
        segments: &Segments,
        environment: &Arc<dyn Environment>,
        sealing: &Sealing,
    ) -> Result<(Self, Option<LaterLocalDisk>), LocalDiskOpenError> {
        // No attempt is of use.
        node.endpoint().ok_or(LocalDiskOpenError::NotReachable)?;
        let slot = Self::default();
        let is_own_log = matches!(place, OwnPlace::Directory(_));
        let (tier, later) = match place {
            OwnPlace::Tier(tier) => (Some(tier), None),
            OwnPlace::Directory(options) => {
                let mut later = LaterLocalDisk {
                    options,
                    cluster_id: cluster_id.into(),
                    environment: Arc::clone(environment),
                    opening: None,
                };
                match timeout(OPENING, later.attempt()).await {
                    Ok(Ok(tier)) => (Some(tier), None),
                    Ok(Err(error)) if !is_temporary(&error) => return Err(error),
                    Ok(Err(error)) => {
                        warn!(%error, "the local disk cannot be opened; starting without it, and trying on");
                        (None, Some(later))
                    }
                    Err(_) => {
                        warn!(
                            path = %later.options.path.display(),
                            "the local disk is not open after {OPENING:?}; starting without it meanwhile"
                        );
                        (None, Some(later))
                    }
                }
            }
        };
        if let Some(tier) = tier {
            let disk = LocalDisk::new(tier, is_own_log, node, segments, sealing)?;
            slot.set(disk);
        }
        slot.is_missing.store(later.is_some(), Relaxed);
        Ok((slot, later))
    }

    /// The disk; `None` without one, and while it is not open.
    pub(in crate::client) fn get(&self) -> Option<&LocalDisk> {
        self.disk.get()
    }

    /// Sets the disk, once.
    pub(in crate::client) fn set(&self, disk: LocalDisk) {
        self.disk.set(disk).expect("nobody else sets it");
        self.is_missing.store(false, Relaxed);
    }

    /// Returns whether there is to be a disk that is not open.
    pub(in crate::client) fn is_missing(&self) -> bool {
        self.is_missing.load(Relaxed)
    }
}

type Opening = Pin<Box<dyn Future<Output = Result<OwnTier, LocalDiskOpenError>> + Send>>;

/// A disk that is not open yet.
pub(in crate::client) struct LaterLocalDisk {
    options: LocalDiskOptions,
    cluster_id: Box<str>,
    environment: Arc<dyn Environment>,
    /// The attempt that is under way. It is not begun again: each that hangs has a thread.
    opening: Option<Opening>,
}

impl LaterLocalDisk {
    /// Waits for the attempt that is under way, or begins one. It goes on when this is dropped.
    pub(in crate::client) async fn attempt(&mut self) -> Result<OwnTier, LocalDiskOpenError> {
        let opening = self.opening.get_or_insert_with(|| {
            let (options, environment) = (self.options.clone(), Arc::clone(&self.environment));
            Box::pin(open(options, self.cluster_id.clone(), environment))
        });
        let opened = opening.await;
        self.opening = None;
        opened
    }
}

/// Returns whether the disk itself is at fault, and may be well again: not the settings, nor another process.
fn is_temporary(error: &LocalDiskOpenError) -> bool {
    match error {
        LocalDiskOpenError::Tier(error) => matches!(
            error,
            TierError::Full { .. }
                | TierError::ReadOnly { .. }
                | TierError::Vanished { .. }
                | TierError::File { .. }
                | TierError::Newer { .. }
                | TierError::Truncated { .. }
        ),
        LocalDiskOpenError::File { source, .. } => {
            source.kind() != std::io::ErrorKind::PermissionDenied
        }
        _ => false,
    }
}

/// Opens the log of the first directory that is free.
async fn open(
    options: LocalDiskOptions,
    cluster_id: Box<str>,
    environment: Arc<dyn Environment>,
) -> Result<OwnTier, LocalDiskOpenError> {
    let root = options.path.join(&*cluster_id);
    let fresh = environment.random_u128().map_err(LocalDiskOpenError::NoRandomness)?;
    let fresh = LocalDiskId::from_u128(fresh);
    let deadline = Instant::now() + directory::WAIT;
    loop {
        let (root, size) = (root.clone(), options.size);
        let may_wait = Instant::now() < deadline;
        let opening = move || open_log(&root, size, fresh, may_wait);
        let opened = environment.blocking(opening).await.and_then(Result::ok);
        match opened.ok_or(LocalDiskOpenError::Ending)?? {
            Some(opened) => return Ok(opened),
            None => sleep(directory::LOOK_AGAIN).await,
        }
    }
}
