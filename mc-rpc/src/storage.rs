//! Where clients keep files of objects.

/// The default name of a cluster's directory, which is Mooncake's.
const CLUSTER_ID: &str = "mooncake_cluster";

/// Where clients keep files of objects, as an operator configured it at the master.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageSettings {
    /// The directory that every client has mounted; `None` without a shared tier.
    pub root: Option<Box<str>>,
    /// The URL of a shared tier that is no directory, such as `s3://BUCKET/PREFIX`, without credentials;
    /// `None` with a directory, and without a shared tier.
    pub shared_tier: Option<Box<str>>,
    /// The name of the cluster's directory in it. The default is `mooncake_cluster`.
    pub cluster_id: Box<str>,
    /// Whether clients delete the oldest files when there is no room; the default.
    pub evicts: bool,
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self { root: None, shared_tier: None, cluster_id: CLUSTER_ID.into(), evicts: true }
    }
}

impl StorageSettings {
    /// Files in `root`, in the directory of the default cluster.
    #[must_use]
    pub fn in_directory(root: impl Into<Box<str>>) -> Self {
        Self { root: Some(root.into()), ..Self::default() }
    }

    /// Files at this URL of an object store, below the name of the default cluster.
    #[must_use]
    pub fn in_object_store(url: impl Into<Box<str>>) -> Self {
        Self { shared_tier: Some(url.into()), ..Self::default() }
    }

    /// Sets the name of the cluster's directory.
    #[must_use]
    pub fn cluster_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.cluster_id = id.into();
        self
    }

    /// Sets whether clients delete the oldest files when there is no room.
    #[must_use]
    pub const fn evicts(mut self, yes: bool) -> Self {
        self.evicts = yes;
        self
    }
}
