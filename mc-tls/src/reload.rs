//! Values that are read from files, and read again when the files are renewed.

use core::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use thiserror::Error;

/// Why a file's contents cannot be had.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum FileError {
    /// The system does not let it.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The path is a directory, a pipe or a device.
    #[error("{} is no regular file", path.display())]
    NotAFile { path: PathBuf },
    /// The file is larger than anything of its kind.
    #[error("{} has more than {max} bytes; is it the right file?", path.display())]
    TooLarge {
        path: PathBuf,
        /// The limit in bytes.
        max: usize,
    },
}

/// The whole file, if it has no more than `max` bytes.
///
/// # Errors
/// [`FileError`] when it cannot be read, is larger, or is a directory, a pipe or a device.
pub fn read_file(path: &Path, max: usize) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    // Before it is opened, because opening a pipe waits for its writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(FileError::NotAFile { path: path.into() });
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max {
        return Err(FileError::TooLarge { path: path.into(), max });
    }
    Ok(bytes)
}

/// The result of a look at files that may have been renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Reload {
    /// The files are as they were at the last look.
    Unchanged,
    /// The files have changed, and their new content is in use.
    Taken,
    /// The files have changed and cannot be used; the previous value is kept.
    Kept,
}

/// The stamp that distinguishes states of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
    /// Device, inode and the time of its last change, where there are such things.
    inode: [u64; 4],
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let inode = inode(&metadata);
        Some(Self { len: metadata.len(), modified: metadata.modified().ok(), inode })
    }
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> [u64; 4] {
    use std::os::unix::fs::MetadataExt;
    let (seconds, nanos) = (metadata.ctime(), metadata.ctime_nsec());
    [metadata.dev(), metadata.ino(), seconds.cast_unsigned(), nanos.cast_unsigned()]
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> [u64; 4] {
    [0; 4]
}

/// The last good value of what some files say.
///
/// ```
/// use mc_tls::{FileError, Reload, Reloading, read_file};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("motd");
/// std::fs::write(&path, "hello")?;
/// let load = { let path = path.clone(); move || read_file(&path, 1024) };
/// let news = |old: &Vec<u8>, new: &Vec<u8>| format!("{} bytes, were {}", new.len(), old.len());
/// let motd = Reloading::new("the message", vec![path.clone()], load, news)?;
/// assert_eq!(**motd.current(), *b"hello");
/// std::fs::write(&path, "good bye")?;
/// assert_eq!(motd.check(), Reload::Taken);
/// assert_eq!(**motd.current(), *b"good bye");
/// # Ok(())
/// # }
/// ```
pub struct Reloading<T, E> {
    /// The kind of the files, in words.
    what: &'static str,
    files: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, E> + Send + Sync>,
    /// The message about a new value that takes the place of an old one.
    news: fn(&T, &T) -> String,
    current: RwLock<Arc<T>>,
    /// The files when they were last read, before they were. One look at a time.
    seen: Mutex<Vec<Option<Stamp>>>,
}

impl<T, E: fmt::Display> Reloading<T, E> {
    /// Reads the files by `load`, now and whenever [`check`](Self::check) finds that one of
    /// them has changed. `what` they are, in words, and `news`, what there is to say of a
    /// new value that takes the place of an old one, go to the log. Blocks the thread
    /// meanwhile.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + Sync + 'static,
        news: fn(&T, &T) -> String,
    ) -> Result<Self, E> {
        let seen = Mutex::new(stamps(&files));
        let current = RwLock::new(Arc::new(load()?));
        Ok(Self { what, files, load: Box::new(load), news, current, seen })
    }

    /// The value of the files when they were last good. Reads no file.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }

    /// Looks whether the files have changed, and reads them if so. Each state of the
    /// files is tried once and logged once. Blocks the thread meanwhile.
    pub fn check(&self) -> Reload {
        let mut seen = self.seen.lock();
        let stamps = stamps(&self.files);
        if *seen == stamps {
            return Reload::Unchanged;
        }
        *seen = stamps;
        match (self.load)() {
            Ok(value) => {
                let news = (self.news)(&self.current(), &value);
                *self.current.write() = Arc::new(value);
                tracing::info!(files = ?self.files, "read {} again: {news}", self.what);
                Reload::Taken
            }
            Err(error) => {
                tracing::warn!(
                    "cannot load the changed {}; keeping the previous one: {error}",
                    self.what
                );
                Reload::Kept
            }
        }
    }
}

impl<T, E> fmt::Debug for Reloading<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("files", &self.files).finish_non_exhaustive()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|path| Stamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(path: &Path) -> Result<u32, Box<dyn core::error::Error + Send + Sync>> {
        Ok(String::from_utf8(read_file(path, 16)?)?.trim().parse()?)
    }

    #[test]
    fn the_last_good_value_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        let open = || {
            let file = path.clone();
            let news = |old: &u32, new: &u32| format!("{old}, now {new}");
            Reloading::new("the number", vec![path.clone()], move || number(&file), news)
        };
        let missing = open().unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /"), "{missing}");

        fs::write(&path, "1").unwrap();
        let value = open().unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Unchanged, 1));
        let held = value.current();

        fs::write(&path, "22").unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Taken, 22));
        assert_eq!(*held, 1);

        fs::write(&path, "twenty").unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Kept, 22));
        // Tried once, until it changes again.
        assert_eq!(value.check(), Reload::Unchanged);
        fs::remove_file(&path).unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Kept, 22));
        fs::write(&path, "333").unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Taken, 333));
    }

    #[cfg(unix)]
    #[test]
    fn another_file_in_its_place_is_noticed_whatever_its_times() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("number"), dir.path().join("other"));
        fs::write(&path, "1").unwrap();
        fs::write(&other, "2").unwrap();
        let times = fs::metadata(&path).unwrap().modified().unwrap();
        File::options().write(true).open(&other).unwrap().set_modified(times).unwrap();
        let file = path.clone();
        let news = |_: &u32, _: &u32| String::new();
        let value =
            Reloading::new("the number", vec![path.clone()], move || number(&file), news).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!((value.check(), *value.current()), (Reload::Taken, 2));
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        fs::write(&path, [b'x'; 17]).unwrap();
        assert!(matches!(read_file(&path, 16), Err(FileError::TooLarge { max: 16, .. })));
        assert_eq!(read_file(&path, 17).unwrap().len(), 17);
        assert!(matches!(read_file(dir.path(), 16), Err(FileError::NotAFile { .. })));
    }
}
