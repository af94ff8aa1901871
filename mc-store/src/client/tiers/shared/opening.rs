//! Opening the shared tier. A directory that takes long, that is not there, or whose file system is not mounted
//! yet, is used from when it is, and a bucket from when it can be reached.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::Environment;
use mc_rpc::{StorageConfig, StorageSettings};
use mc_tier::{
    BucketPlace, DirectorySettings, DirectoryTier, InvalidPlace, SharedPlace, Tier, TierError,
};
#[cfg(feature = "s3")]
use mc_tier::{ObjectStoreSettings, ObjectStoreTier, ProfileError, S3Variables};
use mc_types::LocalDiskId;
use thiserror::Error;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::client::tiers::Sealing;

/// How long the start of a client waits for the tier. A server that does not answer takes for ever.
const OPENING: Duration = Duration::from_secs(10);

/// An open shared tier.
#[derive(Debug)]
pub(in crate::client) struct Opened {
    pub(in crate::client) tier: Arc<dyn Tier>,
    /// The same, if it is a directory.
    pub(in crate::client) directory: Option<Arc<DirectoryTier>>,
    /// The id of its file system, if it has one.
    pub(in crate::client) storage: Option<LocalDiskId>,
}

impl Opened {
    /// A tier that is no directory.
    pub(in crate::client) fn of(tier: Arc<dyn Tier>) -> Self {
        Self { tier, directory: None, storage: None }
    }

    /// The same, with what is put into it sealed.
    pub(in crate::client) fn sealed(mut self, sealing: &Sealing) -> Self {
        self.tier = sealing.around(self.tier);
        self
    }
}

/// The client's settings of the shared tier.
#[derive(Debug, Default)]
pub(in crate::client) struct OwnSettings {
    /// The application's own tier.
    pub(in crate::client) tier: Option<Arc<dyn Tier>>,
    /// Where the file system of the directory is mounted on this host.
    pub(in crate::client) root: Option<PathBuf>,
    /// How this host names the master's bucket.
    pub(in crate::client) bucket: Option<BucketPlace>,
    /// How files and folders are made in a directory.
    pub(in crate::client) files: DirectorySettings,
}

/// Where the tier is.
#[derive(Clone, Debug)]
pub(in crate::client) enum Place {
    Directory(DirectoryPlace),
    Bucket(BucketPlace),
}

/// Where the directory is.
#[derive(Clone, Debug)]
pub(in crate::client) struct DirectoryPlace {
    root: PathBuf,
    cluster: String,
    /// Whether the root has a marker, by which a file system that is not mounted is noticed.
    is_marked: bool,
    settings: DirectorySettings,
}

/// Why the tier cannot be opened.
#[derive(Debug, Error)]
pub(in crate::client) enum OpenError {
    #[error(transparent)]
    Tier(#[from] TierError),
    #[cfg(feature = "s3")]
    #[error("there are no credentials for {place}: {source}")]
    Profile { place: BucketPlace, source: ProfileError },
    #[cfg(not(feature = "s3"))]
    #[error(
        "this program was built without S3, which {0} needs: turn on the feature s3 of mc-store"
    )]
    NoFeature(BucketPlace),
}

impl OpenError {
    /// Returns whether a later attempt cannot succeed either.
    const fn is_final(&self) -> bool {
        match self {
            #[cfg(not(feature = "s3"))]
            Self::NoFeature(_) => true,
            Self::Tier(TierError::InvalidUrl { .. }) => true,
            _ => false,
        }
    }
}

impl Place {
    /// The place that the master and the client's settings name; `None` without one. Warns of settings without
    /// effect.
    pub(in crate::client) fn of(
        config: &StorageConfig,
        own: OwnSettings,
    ) -> Option<Result<Self, InvalidPlace>> {
        let StorageSettings { root, shared_tier, cluster_id, .. } = &config.settings;
        let named = match shared_tier.as_deref().map(str::parse).transpose() {
            Ok(named) => named.or_else(|| Some(SharedPlace::Directory(root.as_deref()?.into()))),
            Err(error) => return Some(Err(error)),
        };
        let is_marked = named.is_some();
        let named = match named {
            Some(SharedPlace::Bucket(named)) => {
                if let Some(root) = own.root {
                    warn!(
                        root = %root.display(),
                        "the directory of this client's settings has no effect: the master names a bucket, {named}"
                    );
                }
                let bucket = own.bucket.unwrap_or(named);
                return Some(bucket.within(cluster_id).map(Self::Bucket));
            }
            Some(SharedPlace::Directory(named)) => Some(named),
            None => None,
        };
        if let Some(bucket) = own.bucket {
            warn!(
                %bucket,
                "the bucket of this client's settings has no effect: the master names none; start it with \
                 --shared_tier"
            );
        }
        let (root, cluster) = (own.root.or(named)?, cluster_id.to_string());
        Some(Ok(Self::Directory(DirectoryPlace { root, cluster, is_marked, settings: own.files })))
    }

    /// The directory of the cluster's files; `None` for a bucket.
    pub(in crate::client) fn directory(&self) -> Option<PathBuf> {
        match self {
            Self::Directory(DirectoryPlace { root, cluster, .. }) => Some(root.join(cluster)),
            Self::Bucket(_) => None,
        }
    }

    /// Its name in the log.
    pub(in crate::client) fn shown(&self) -> String {
        match self {
            Self::Directory(directory) => directory.root.display().to_string(),
            Self::Bucket(bucket) => bucket.to_string(),
        }
    }

    /// Opens it. Blocks; a bucket for a minute or so at most.
    fn open(self, known: Option<LocalDiskId>, or_older: bool) -> Result<Opened, OpenError> {
        match self {
            Self::Directory(directory) => Ok(directory.open(known, or_older)?),
            #[cfg(feature = "s3")]
            Self::Bucket(place) => open_bucket(place),
            #[cfg(not(feature = "s3"))]
            Self::Bucket(place) => Err(OpenError::NoFeature(place)),
        }
    }
}

impl DirectoryPlace {
    fn open(self, known: Option<LocalDiskId>, or_older: bool) -> Result<Opened, TierError> {
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

/// Opens a bucket, with what variables and files say of credentials now.
#[cfg(feature = "s3")]
fn open_bucket(place: BucketPlace) -> Result<Opened, OpenError> {
    let variables = match S3Variables::from_env().with_files() {
        Ok(variables) => variables,
        Err(source) => return Err(OpenError::Profile { place, source }),
    };
    let mut settings = ObjectStoreSettings::default();
    settings.s3.variables = variables;
    let tier = ObjectStoreTier::open(&place.to_string(), &settings)?;
    info!(%place, "the shared tier is open");
    Ok(Opened::of(Arc::new(tier)))
}

/// `None` when the client ends.
type Opening = Pin<Box<dyn Future<Output = Option<Result<Opened, OpenError>>> + Send>>;

/// A tier that is not open, or a directory that may have to be opened anew.
pub(in crate::client) struct LaterTier {
    place: Place,
    environment: Arc<dyn Environment>,
    /// The attempt that is under way. It is not begun again: each that hangs has a thread.
    opening: Option<Opening>,
    failures: u64,
    /// Whether the client was told that its file system is another one than the cluster's. Until then it may
    /// be the master that was told of the wrong one, after a restart.
    pub(in crate::client) was_wrong: bool,
    /// Whether no later attempt can succeed.
    pub(in crate::client) is_hopeless: bool,
}

impl LaterTier {
    pub(in crate::client) fn new(place: Place, environment: Arc<dyn Environment>) -> Self {
        Self {
            place,
            environment,
            opening: None,
            failures: 0,
            was_wrong: false,
            is_hopeless: false,
        }
    }

    /// Waits for the attempt that is under way, or begins one. It goes on when this is dropped. `None` when
    /// the client ends.
    pub(in crate::client) async fn attempt(
        &mut self,
        known: Option<LocalDiskId>,
    ) -> Option<Result<Opened, OpenError>> {
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

    /// Opens the tier if that takes no long time.
    pub(in crate::client) async fn first(&mut self, known: Option<LocalDiskId>) -> Option<Opened> {
        match timeout(OPENING, self.attempt(known)).await {
            Ok(opened) => self.outcome(opened?),
            Err(_) => {
                warn!(
                    place = self.place.shown(),
                    "the shared tier did not answer for {OPENING:?}; this client writes and reads no \
                     files until it does"
                );
                None
            }
        }
    }

    /// Returns whether the tier is to be opened later, or to be looked after.
    pub(in crate::client) fn is_needed(&self, opened: Option<&Opened>) -> bool {
        !self.is_hopeless && opened.is_none_or(|opened| opened.storage.is_some())
    }

    pub(in crate::client) fn outcome(
        &mut self,
        opened: Result<Opened, OpenError>,
    ) -> Option<Opened> {
        let error = match opened {
            Ok(opened) => {
                self.failures = 0;
                return Some(opened);
            }
            Err(error) => error,
        };
        let place = self.place.shown();
        self.is_hopeless = error.is_final();
        if self.is_hopeless {
            warn!(
                %error, place,
                "the shared tier cannot be used; this client writes and reads no files, others may"
            );
            return None;
        }
        self.failures += 1;
        if self.failures.is_power_of_two() {
            warn!(
                %error, place, failures = self.failures,
                "the shared tier cannot be used now; this client writes and reads no files, others may; \
                 retrying"
            );
        }
        None
    }
}
