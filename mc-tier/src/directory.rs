//! A tier of files in a directory that many hosts share.

mod close;
mod evict;
mod file;
mod folder;
mod marker;
mod pack;
mod settings;
mod sync;

use core::num::NonZeroUsize;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use mc_types::ByteSize;
use parking_lot::Mutex;
use tracing::warn;

use crate::error::TierError;
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::object_file::encode_header;
use crate::pack_file::MOST;
use crate::packs::Packs;
use crate::place::{place, run_of_pack};
use crate::tier::{MediumSpace, ScanCursor, ScanPage, Tier, TierUsage, Watermarks};

use file::Purpose;
use folder::Listed;

pub use settings::{DirectorySettings, FolderMode, InvalidFolderMode};
pub use sync::{SyncPolicy, UnknownSyncPolicy};

/// The folder of files that are being written.
const UNFINISHED: &str = "tmp";

/// A file that was not written to for so long is abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Keeps objects in files in `ROOT/CLUSTER_ID` on a file system that all hosts of a cluster have mounted: the
/// multi-layer storage of Mooncake. What is [put together](Tier::put_many) shares files, every other object has
/// one of its own.
///
/// Any number of processes may use the directory at once. A put writes a file in `tmp/` and renames it
/// when it is complete: readers see the object as a whole or not at all. Files of writers that died
/// are removed after an hour. [`object_file`](crate::object_file) and [`pack_file`](crate::pack_file) describe the
/// files.
///
/// A tier lists, counts and evicts by reading the directory, which takes time in the number of
/// objects. It runs no threads: its owner calls [`evict`](Tier::evict) and
/// [`clean_up`](Tier::clean_up) from time to time.
///
/// Where the directory has gone, because its file system is not mounted any more, operations fail with
/// [`TierError::Vanished`]: nothing is written to the disk below the mount point.
#[derive(Debug)]
pub struct DirectoryTier {
    directory: PathBuf,
    /// The policy is never [`SyncPolicy::Auto`].
    settings: DirectorySettings,
    /// Tells the unfinished files of this tier from those of others.
    writer: u64,
    /// The number of the next unfinished file.
    next: AtomicU64,
    /// The rest of the last scan.
    listed: Mutex<Option<Listed>>,
    packs: Packs,
}

impl DirectoryTier {
    /// The path of an object's file in the [directory](Self::directory) of a tier, whether or not it is
    /// there.
    #[must_use]
    pub fn path_in(directory: &Path, id: &ObjectId) -> PathBuf {
        directory.join(place(id))
    }

    /// The path of the file that an object is in, or would have if it shares none: that of a pack, if this process
    /// has written or read it. Asks nothing of the file system.
    #[must_use]
    pub fn path_of(&self, id: &ObjectId) -> PathBuf {
        let place = self.packs.place_if_known(id).unwrap_or_else(|| place(id));
        self.directory.join(place)
    }

    /// Opens the directory of a cluster and makes it if it is missing. The root must exist.
    ///
    /// Removes unfinished files as [`clean_up`](Tier::clean_up) does, and logs a failure to do so.
    ///
    /// # Errors
    /// [`TierError::InvalidClusterId`], [`TierError::NoRoot`], and what the file system says.
    pub fn open(
        root: impl AsRef<Path>,
        cluster_id: &str,
        settings: impl Into<DirectorySettings>,
    ) -> Result<Self, TierError> {
        let root = root.as_ref();
        if matches!(cluster_id, "" | "." | "..")
            || cluster_id.len() > 255
            || cluster_id.contains(['/', '\0'])
        {
            return Err(TierError::InvalidClusterId { id: cluster_id.to_owned() });
        }
        let path = || root.to_owned();
        let metadata =
            fs::metadata(root).map_err(|source| TierError::NoRoot { path: path(), source })?;
        if !metadata.is_dir() {
            let source = io::ErrorKind::NotADirectory.into();
            return Err(TierError::NoRoot { path: path(), source });
        }
        let writer = getrandom::u64().map_err(|error| TierError::File {
            action: "draw a random number for names of files in",
            path: path(),
            source: error.into(),
        })?;
        let directory = root.join(cluster_id);
        let settings = settings.into();
        let (next, listed, packs) = (AtomicU64::new(0), Mutex::default(), Packs::default());
        let mut tier = Self { directory, settings, writer, next, listed, packs };
        for path in [tier.directory.clone(), tier.directory.join(UNFINISHED)] {
            let made = tier.settings.create_folder(&path);
            made.map_err(|source| tier.failure("make the directory", &path, source))?;
        }
        tier.settings.sync = settings.sync.on(&tier.directory).map_err(|source| {
            tier.failure("find out the kind of the file system of", &tier.directory, source)
        })?;
        if let Err(error) = tier.remove_unfinished() {
            warn!(%error, "unfinished files are not removed");
        }
        Ok(tier)
    }

    /// Reads what a tier knows of an object without its bytes; `None` when it has no such object.
    ///
    /// # Errors
    /// As [`get`](Tier::get).
    pub fn stat(&self, id: &ObjectId) -> Result<Option<StoredObject>, TierError> {
        match self.packs.stat(self, id)? {
            Some(object) => Ok(Some(object)),
            None => Ok(self.open_object(id, Purpose::Header)?.map(|file| file.object().clone())),
        }
    }

    /// The directory of the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes unfinished files that were not written to for an hour, by the clock of the file
    /// system. Returns their number.
    fn remove_unfinished(&self) -> Result<u64, TierError> {
        let mut removed = 0;
        let now = self.file_system_time()?;
        let folder = self.directory.join(UNFINISHED);
        let entries =
            fs::read_dir(&folder).map_err(|source| self.failure("list", &folder, source))?;
        for entry in entries {
            let path = entry.map_err(|source| self.failure("list", &folder, source))?.path();
            let Some(metadata) = self.found("read", &path, fs::symlink_metadata(&path))? else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(now);
            if now.duration_since(modified).is_ok_and(|age| age >= ABANDONED_AFTER)
                && self.found("remove", &path, fs::remove_file(&path))?.is_some()
            {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The time by the clock that the times of files are taken from, which may be another host's.
    fn file_system_time(&self) -> Result<SystemTime, TierError> {
        let path = self.unfinished();
        let time = self.in_folder(&path, || File::create_new(&path)?.metadata()?.modified());
        let _ = fs::remove_file(&path);
        time
    }

    /// The path of a new file that is to be renamed when it is complete.
    fn unfinished(&self) -> PathBuf {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.directory.join(UNFINISHED).join(format!("{:016x}-{number}", self.writer))
    }

    /// Gives a complete file its place.
    fn publish(&self, unfinished: &Path, place: &str) -> Result<(), TierError> {
        let path = self.directory.join(place);
        self.in_folder(&path, || fs::rename(unfinished, &path))?;
        self.sync_directory(folder_of(&path))
    }

    /// Removes what is at `place`. Returns whether there was something.
    fn remove_file(&self, place: &str) -> Result<bool, TierError> {
        let path = self.directory.join(place);
        let was_there = self.found("remove", &path, fs::remove_file(&path))?.is_some();
        if was_there {
            self.sync_directory(folder_of(&path))?;
        }
        Ok(was_there)
    }

    /// Writes the file at `path`. Makes its folder where it is missing: an administrator may have
    /// emptied the directory.
    fn in_folder<T>(&self, path: &Path, write: impl Fn() -> io::Result<T>) -> Result<T, TierError> {
        let mut written = write();
        if matches!(&written, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            let folder = folder_of(path);
            let made = self.settings.create_folder(folder);
            made.map_err(|source| self.failure("make the directory", folder, source))?;
            self.sync_directory(&self.directory)?;
            written = write();
        }
        written.map_err(|source| self.failure("write", path, source))
    }

    /// Makes durable which files a folder has, where the policy wants it.
    fn sync_directory(&self, folder: &Path) -> Result<(), TierError> {
        if self.settings.sync != SyncPolicy::DataAndDirectory {
            return Ok(());
        }
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| self.failure("sync the directory", folder, source))
    }

    /// The result of an operation on a file; `None` when there is no such file.
    fn found<T>(
        &self,
        action: &'static str,
        path: &Path,
        result: io::Result<T>,
    ) -> Result<Option<T>, TierError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(source) => match self.failure(action, path, source) {
                TierError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                    Ok(None)
                }
                error => Err(error),
            },
        }
    }

    /// Returns an error that names the failed action and its cause.
    fn failure(&self, action: &'static str, path: &Path, source: io::Error) -> TierError {
        match TierError::from_io(action, path, source) {
            TierError::File { action, source, .. } if self.has_vanished() => {
                TierError::Vanished { action, directory: self.directory.clone(), source }
            }
            TierError::Denied { action, path, source } => denied(action, path, source),
            error => error,
        }
    }

    fn has_vanished(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound, StaleNetworkFileHandle};
        match fs::metadata(&self.directory) {
            Ok(metadata) => !metadata.is_dir(),
            Err(error) => {
                matches!(error.kind(), NotADirectory | NotFound | StaleNetworkFileHandle)
            }
        }
    }
}

/// Names the folder whose permissions forbid something, if it is one of another user.
fn denied(action: &'static str, path: PathBuf, source: io::Error) -> TierError {
    use std::os::unix::fs::MetadataExt as _;
    let folders = path.ancestors().skip(1);
    let found = folders.filter_map(|it| Some((it.to_owned(), fs::metadata(it).ok()?))).next();
    let user = rustix::process::geteuid().as_raw();
    match found {
        Some((folder, found)) if found.uid() != user => TierError::DeniedIn {
            action,
            path: path.into(),
            folder: folder.into(),
            owner: found.uid(),
            group: found.gid(),
            mode: found.mode() & 0o7777,
            user,
            source,
        },
        _ => TierError::Denied { action, path, source },
    }
}

/// The folder of a file of the tier.
fn folder_of(path: &Path) -> &Path {
    path.parent().expect("files are in folders of the tier's directory")
}

impl Tier for DirectoryTier {
    /// A put that fails may have stored the object if only the sync of the directory failed.
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let header = encode_header(&StoredObject::of(id.clone(), object));
        let unfinished = self.unfinished();
        let stored = self
            .in_folder(&unfinished, || file::write(&unfinished, &header, object, self.settings))
            .and_then(|()| self.publish(&unfinished, &place(id)));
        if stored.is_err() {
            // Otherwise `clean_up` does it.
            let _ = fs::remove_file(&unfinished);
        }
        stored.and_then(|()| self.packs.is_replaced(self, id))
    }

    fn put_many(&self, objects: &[(ObjectId, ObjectBytes)]) -> Result<(), TierError> {
        let alone = self.packs.put(self, objects)?;
        alone.into_iter().try_for_each(|(id, object)| self.put(id, object))
    }

    fn put_at_once(&self) -> usize {
        MOST
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        if let Some(object) = self.packs.get(self, id)? {
            return Ok(Some(object));
        }
        let Some(mut file) = self.open_object(id, Purpose::Bytes)? else { return Ok(None) };
        let whole = 0..file.object().object_len();
        let cover = file.object().cover(&whole).expect("an object is not empty");
        let read = file.read(&cover);
        let (_, slices) = read.map_err(|error| self.read_failure(&place(id), error))?;
        Ok(Some(ObjectBytes::new(slices).expect("the header was checked")))
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        if let Some(bytes) = self.packs.get_range(self, id, &range)? {
            return Ok(Some(bytes));
        }
        let Some(mut file) = self.open_object(id, Purpose::Bytes)? else { return Ok(None) };
        let Some(cover) = file.object().cover(&range) else {
            return Err(TierError::Range { range, len: file.object().object_len() });
        };
        let read = file.read(&cover);
        let (bytes, _) = read.map_err(|error| self.read_failure(&place(id), error))?;
        Ok(Some(bytes.slice(cover.within(&range))))
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        if let Some(bytes) = self.packs.get_unverified(self, id, &range)? {
            return Ok(Some(bytes));
        }
        let Some(mut file) = self.open_object(id, Purpose::Bytes)? else { return Ok(None) };
        let len = file.object().object_len();
        if range.is_empty() || range.end > len {
            return Err(TierError::Range { range, len });
        }
        let read = file.read_unverified(&range);
        read.map(Some).map_err(|error| self.read_failure(&place(id), error))
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        match self.packs.remove(self, core::slice::from_ref(id))?[..] {
            [Some(was_there)] => Ok(was_there),
            _ => self.remove_file(&place(id)),
        }
    }

    /// Removes objects that share a pack by one operation.
    fn remove_many(&self, ids: &[ObjectId]) -> Result<u64, TierError> {
        let mut removed = 0;
        for (id, outcome) in ids.iter().zip(self.packs.remove(self, ids)?) {
            removed += u64::from(match outcome {
                Some(was_there) => was_there,
                None => self.remove_file(&place(id))?,
            });
        }
        Ok(removed)
    }

    /// Reads the header of each file. Lists each of 256 folders, over which the objects are spread evenly, once
    /// in a scan, and keeps the names of one between two pages: up to 2^18.
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        self.scan_files(after, limit.get())
    }

    /// Counts the files of all processes that use the directory, by listing it. Of a pack it counts what was written
    /// to it, without what this process knows to be removed.
    fn usage(&self) -> Result<TierUsage, TierError> {
        let (mut usage, mut packs) = (TierUsage::default(), Vec::new());
        self.for_each_file(&mut |file| {
            match run_of_pack(&file.place) {
                Some(run) => packs.push((run, file.len)),
                None => usage.objects += 1,
            }
            usage.bytes += file.len;
        })?;
        for (run, len) in packs {
            // One that is damaged has none that can be read.
            usage.objects += self.packs.count(self, run, len).unwrap_or(0);
        }
        Ok(usage)
    }

    /// Evicts the objects whose files were written first, those of other processes included. An
    /// object that cannot be read is removed in its turn and logged, since its id is not known.
    ///
    /// Lists the directory once, and a second time to evict. A file that cannot be removed is passed over, and
    /// younger ones go in its place; that is an error when no file can be removed. The age is that of the file system's
    /// clock; where clocks jump, the order of eviction suffers and nothing else.
    fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        self.evict_oldest(watermarks, evicted)
    }

    /// Removes unfinished files that were not written to for an hour, by the clock of the file
    /// system, and rewrites packs of which half of the objects were removed. Counts the files.
    fn clean_up(&self) -> Result<u64, TierError> {
        let unfinished = self.remove_unfinished()?;
        Ok(unfinished + self.packs.clean_up(self)?)
    }

    fn wants_clean_up(&self) -> bool {
        self.packs.wants_clean_up()
    }

    fn medium(&self) -> Result<Option<MediumSpace>, TierError> {
        let found = rustix::fs::statvfs(&self.directory);
        let found =
            found.map_err(|error| self.failure("examine", &self.directory, error.into()))?;
        let bytes = |blocks: u64| ByteSize::bytes(blocks.saturating_mul(found.f_frsize));
        Ok(Some(MediumSpace { total: bytes(found.f_blocks), free: bytes(found.f_bavail) }))
    }
}
