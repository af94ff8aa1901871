//! The tier below memory: where the blocks are kept that memory has no room for.

use std::io;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::str::FromStr;

use mc_cli::UsageError;
use mc_store::TierMetrics;
use serde::Serialize;
use tempfile::TempDir;

use crate::error::ReplayError;

/// A kind of tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TierKind {
    /// A disk of each node: the master has a block written there before it evicts it from memory.
    Ssd,
    /// A directory that all clients share: a worker writes a file for each block that it puts.
    Dfs,
}

impl TierKind {
    /// The kind's name in the flag and in the report.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ssd => "ssd",
            Self::Dfs => "dfs",
        }
    }
}

/// A tier as the user describes it: `ssd:DIR` or `dfs:DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tier {
    pub(crate) kind: TierKind,
    pub(crate) directory: PathBuf,
}

impl FromStr for Tier {
    type Err = ParseTierError;

    fn from_str(text: &str) -> Result<Self, ParseTierError> {
        let (kind, directory) = text.split_once(':').ok_or(ParseTierError::Kind)?;
        let kinds = [TierKind::Ssd, TierKind::Dfs];
        let kind = kinds.into_iter().find(|known| known.as_str() == kind);
        let kind = kind.ok_or(ParseTierError::Kind)?;
        match directory {
            "" => Err(ParseTierError::NoDirectory),
            directory => Ok(Self { kind, directory: directory.into() }),
        }
    }
}

/// Why a text is no tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ParseTierError {
    #[error("expected ssd:DIR or dfs:DIR, such as ssd:/mnt/ssd")]
    Kind,
    #[error("no directory is named; write one behind the colon, such as ssd:/mnt/ssd")]
    NoDirectory,
}

impl Tier {
    /// Makes the directory of this run in the user's directory.
    ///
    /// # Errors
    /// [`UsageError`] when the user's directory is missing or cannot be written to.
    pub(crate) fn make_directory(&self) -> Result<TierDirectory, UsageError> {
        let refused = |error: io::Error| {
            UsageError::new(format!(
                "--tier: '{}' cannot be used: {error}; name a directory that exists and can be \
                 written to",
                self.directory.display()
            ))
        };
        let parent = self.directory.canonicalize().map_err(refused)?;
        let directory = tempfile::Builder::new().prefix("mc-replay-").tempdir_in(parent);
        let directory = directory.map_err(refused)?;
        // The master tells it to the clients in a message.
        let Some(path) = directory.path().to_str() else {
            let error = "its name is not UTF-8";
            return Err(refused(io::Error::new(io::ErrorKind::InvalidFilename, error)));
        };
        let path = path.to_owned();
        Ok(TierDirectory { kind: self.kind, directory, path })
    }
}

/// The directory of one run, which is removed with all that is in it when it is dropped.
#[derive(Debug)]
pub(crate) struct TierDirectory {
    kind: TierKind,
    directory: TempDir,
    path: String,
}

impl TierDirectory {
    pub(crate) const fn kind(&self) -> TierKind {
        self.kind
    }

    /// The directory that all clients share.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The directory of a node's local disk.
    pub(crate) fn of_node(&self, number: u32) -> PathBuf {
        self.directory.path().join(format!("node-{number}"))
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// [`ReplayError::RemoveTier`] when something is left.
    pub(crate) fn remove(self) -> Result<(), ReplayError> {
        let Self { directory, path, .. } = self;
        directory.close().map_err(|source| ReplayError::RemoveTier { path, source })
    }
}

/// The clients' counters of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TierUse {
    /// Bytes read from it.
    pub(crate) bytes_got: u64,
    /// Reads and writes that failed, and blocks that were missing, not written or deleted because the
    /// tier could not take more.
    pub(crate) failures: u64,
}

impl TierUse {
    /// Nothing without a tier.
    pub(crate) fn of(metrics: Option<&TierMetrics>) -> Self {
        let Some(metrics) = metrics else { return Self::default() };
        let reads = metrics.failed_reads + metrics.missing;
        let writes = metrics.failed_writes + metrics.dropped + metrics.evicted;
        Self { bytes_got: metrics.read_bytes, failures: reads + writes }
    }
}

impl AddAssign for TierUse {
    fn add_assign(&mut self, other: Self) {
        self.bytes_got += other.bytes_got;
        self.failures += other.failures;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn tiers_are_a_kind_and_a_directory() {
        for (text, kind, directory) in [
            ("ssd:/mnt/ssd", TierKind::Ssd, "/mnt/ssd"),
            ("dfs:.", TierKind::Dfs, "."),
            ("ssd:a:b", TierKind::Ssd, "a:b"),
        ] {
            let tier = Tier { kind, directory: directory.into() };
            assert_eq!(text.parse(), Ok(tier), "{text}");
        }
        for text in ["", "ssd", "/mnt/ssd", "SSD:/mnt", "nvme:/mnt", ":/mnt", " ssd:/mnt"] {
            assert_eq!(text.parse::<Tier>(), Err(ParseTierError::Kind), "{text}");
        }
        assert_eq!("dfs:".parse::<Tier>(), Err(ParseTierError::NoDirectory));
    }

    #[test]
    fn two_runs_do_not_meet_and_leave_nothing() {
        let user = tempfile::tempdir().unwrap();
        let tier = Tier { kind: TierKind::Ssd, directory: user.path().to_owned() };
        let [one, two] = [(), ()].map(|()| tier.make_directory().unwrap());
        assert_ne!(one.path(), two.path());
        assert_ne!(one.of_node(1), one.of_node(2));
        for directory in [&one, &two] {
            fs::create_dir(directory.of_node(1)).unwrap();
            fs::write(directory.of_node(1).join("block"), "bytes").unwrap();
        }
        one.remove().unwrap();
        drop(two);
        assert_eq!(fs::read_dir(user.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_that_cannot_be_used_are_named() {
        let user = tempfile::tempdir().unwrap();
        let file = user.path().join("file");
        fs::write(&file, "").unwrap();
        for (directory, says) in [(user.path().join("none"), "No such file"), (file, "Not a dir")] {
            let tier = Tier { kind: TierKind::Dfs, directory: directory.clone() };
            let error = tier.make_directory().unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("--tier"), "{error}");
            assert!(error.contains(directory.to_str().unwrap()), "{error}");
        }
    }
}
