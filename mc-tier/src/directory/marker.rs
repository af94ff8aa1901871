//! A file by which the clients of a cluster tell that they have the same file system.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use mc_types::LocalDiskId;
use tracing::warn;

use super::{DirectorySettings, DirectoryTier};
use crate::error::TierError;

/// Bytes of a marker that are read. It has fewer.
const MAX_LEN: u64 = 1024;

/// The longest id of a cluster whose marker has a file name.
const MAX_NAME: usize = 200;

/// The beginning of the line with the id.
const ID: &str = "id ";

/// How often, and for how long, the marker is looked at that another client is writing.
const LOOKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

impl DirectoryTier {
    /// Opens the directory of a cluster as [`open`](Self::open) does, if the root has the marker with the id
    /// `known`, or an older one, if that will do, too; makes nothing otherwise. The root of a file system that
    /// is not mounted has none, and that of another file system has another.
    ///
    /// Without a known id the marker is made where there is none: the file `.mc-store-CLUSTER_ID` in the root.
    /// The older of two ids is the smaller one, but for what clocks are wrong. Returns the id of the marker;
    /// `None` where none can be made, as in a root that others own.
    ///
    /// # Errors
    /// [`TierError::NotMounted`], and as of [`open`](Self::open).
    pub fn open_marked(
        root: impl AsRef<Path>,
        cluster_id: &str,
        settings: impl Into<DirectorySettings>,
        known: Option<LocalDiskId>,
        or_older: bool,
    ) -> Result<(Self, Option<LocalDiskId>), TierError> {
        let root = root.as_ref();
        let path = marker_path(root, cluster_id)?;
        if let Some(known) = known {
            let found = match &path {
                Some(path) => read(path)?,
                None => None,
            };
            let is_right = |found| found == known || or_older && found < known;
            if !found.is_some_and(is_right) {
                let (root, marker) = (root.to_owned(), path.unwrap_or_default());
                let (known, found) = (Box::new(known), Box::new(found));
                return Err(TierError::NotMounted { root, marker, known, found });
            }
            return Ok((Self::open(root, cluster_id, settings)?, found));
        }
        let tier = Self::open(root, cluster_id, settings)?;
        let Some(path) = path else { return Ok((tier, None)) };
        if let Some(found) = read(&path)? {
            return Ok((tier, Some(found)));
        }
        match tier.make_marker(&path, cluster_id) {
            Ok(id) => Ok((tier, Some(id))),
            Err(
                error @ (TierError::Denied { .. }
                | TierError::DeniedIn { .. }
                | TierError::ReadOnly { .. }),
            ) => {
                warn!(%error, "the root of the shared tier is not marked: one that is not mounted is not told");
                Ok((tier, None))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the marker, unless another client does. Returns its id.
    fn make_marker(&self, path: &Path, cluster_id: &str) -> Result<LocalDiskId, TierError> {
        let failed = |action, source| TierError::from_io(action, path, source);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let id = LocalDiskId::from_u128(now.as_millis() << 64 | u128::from(self.writer));
        let unfinished = path.with_file_name(format!(".mc-store-{:016x}.tmp", self.writer));
        let text = format!(
            "This marks the file system of the shared tier; clients do not use another one.\n{ID}{id}\n\
             cluster {cluster_id}\n"
        );
        let write = |mut file: File| {
            file.write_all(text.as_bytes())?;
            self.settings.permit(&file)?;
            file.sync_all()
        };
        let written = File::create_new(&unfinished).and_then(write);
        let made = written.and_then(|()| fs::hard_link(&unfinished, path));
        let _ = fs::remove_file(&unfinished);
        let made = match made {
            Err(error) if has_no_links(&error) => File::create_new(path).and_then(write),
            made => made,
        };
        match made {
            Ok(()) => Ok(id),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                read(path)?.ok_or_else(|| failed("read the marker", error))
            }
            Err(error) => Err(failed("make the marker", error)),
        }
    }
}

/// Where the marker of a cluster is; `None` where it cannot be named.
fn marker_path(root: &Path, cluster_id: &str) -> Result<Option<PathBuf>, TierError> {
    let metadata = fs::metadata(root);
    let metadata =
        metadata.map_err(|source| TierError::NoRoot { path: root.to_owned(), source })?;
    if !metadata.is_dir() {
        let source = io::ErrorKind::NotADirectory.into();
        return Err(TierError::NoRoot { path: root.to_owned(), source });
    }
    let is_name = cluster_id.len() <= MAX_NAME && !cluster_id.contains(['/', '\0']);
    Ok(is_name.then(|| root.join(format!(".mc-store-{cluster_id}"))))
}

/// The id of a marker; `None` when there is none. Waits for a client that is writing it.
fn read(path: &Path) -> Result<Option<LocalDiskId>, TierError> {
    for look in 1.. {
        let mut text = String::new();
        let file = File::open(path);
        match file.and_then(|file| file.take(MAX_LEN).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(TierError::from_io("read the marker", path, error)),
        }
        let mut ids = text.split_inclusive('\n').filter_map(|line| line.strip_prefix(ID));
        let id = ids.next().and_then(|id| id.strip_suffix('\n')).map(str::parse);
        match id {
            Some(Ok(id)) => return Ok(Some(id)),
            None if look < LOOKS => thread::sleep(PAUSE),
            _ => break,
        }
    }
    let source =
        io::Error::new(io::ErrorKind::InvalidData, "it has no id; remove it to have a new one");
    Err(TierError::from_io("read the marker", path, source))
}

/// Returns whether the file system has no links to files.
fn has_no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, Unsupported};
    matches!(error.kind(), Unsupported | PermissionDenied)
}
