//! The packs of a directory: files of many objects.

use core::ops::Range;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IoSlice, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

use super::close::close;
use super::{DirectoryTier, SyncPolicy, folder_of};
use crate::error::TierError;
use crate::packs::{PackMedium, Read, Tag};

/// Pieces that are written by one call; the system takes so many.
const PIECES: usize = 1024;

impl PackMedium for DirectoryTier {
    fn read(&self, place: &str, range: Range<u64>, seen: Option<&Tag>) -> Result<Read, TierError> {
        let path = self.directory.join(place);
        let read = || {
            let (file, pack_len, tag) = open(&path, OpenOptions::new().read(true))?;
            if seen.is_some_and(|seen| *seen != tag) {
                return Ok(Read::Changed);
            }
            let (start, end) = (range.start.min(pack_len), range.end.min(pack_len));
            let mut bytes = Vec::new();
            // The length is that of the file.
            bytes.try_reserve_exact((end - start) as usize).map_err(io::Error::from)?;
            bytes.resize((end - start) as usize, 0);
            file.read_exact_at(&mut bytes, start)?;
            Ok(Read::Part { bytes: bytes.into(), pack_len, tag })
        };
        Ok(self.found("read", &path, read())?.unwrap_or(Read::Missing))
    }

    fn write(
        &self,
        place: &str,
        pieces: Vec<Bytes>,
        is_new: bool,
    ) -> Result<Option<Tag>, TierError> {
        let path = self.directory.join(place);
        let unfinished = self.unfinished();
        // What is written anew is as old as its objects.
        let found = if is_new { None } else { fs::metadata(&path).ok() };
        let modified = found.and_then(|found| found.modified().ok());
        let written = self
            .in_folder(&unfinished, || self.write_pieces(&unfinished, &pieces, modified))
            .and_then(|tag| {
                let is_there = self.in_folder(&path, || rename(&unfinished, &path, is_new))?;
                Ok(is_there.then_some(tag))
            });
        if matches!(written, Ok(Some(_))) {
            self.sync_directory(folder_of(&path))?;
        } else {
            // Otherwise `clean_up` does it.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    fn remove(&self, place: &str) -> Result<bool, TierError> {
        self.remove_file(place)
    }

    fn mark(&self, place: &str, at: &[u64], tag: &Tag) -> Result<bool, TierError> {
        let path = self.directory.join(place);
        let mark = || {
            let (file, _, found) = open(&path, OpenOptions::new().write(true))?;
            if found != *tag {
                return Ok(false);
            }
            let modified = file.metadata()?.modified()?;
            for at in at {
                file.write_all_at(&[1], *at)?;
            }
            // Its age is that of its objects. A file of another user keeps the time of this.
            let _ = file.set_modified(modified);
            if self.settings.sync == SyncPolicy::DataAndDirectory {
                file.sync_data()?;
            }
            close(file).map(|()| true)
        };
        Ok(self.found("write", &path, mark())?.unwrap_or(false))
    }

    fn shown(&self, place: &str) -> PathBuf {
        self.directory.join(place)
    }
}

impl DirectoryTier {
    fn write_pieces(
        &self,
        path: &Path,
        pieces: &[Bytes],
        modified: Option<SystemTime>,
    ) -> io::Result<Tag> {
        let mut file = File::create_new(path)?;
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|it| IoSlice::new(it)).collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let most = slices.len().min(PIECES);
            match file.write_vectored(&slices[..most]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut slices, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.settings.permit(&file)?;
        if let Some(modified) = modified {
            file.set_modified(modified)?;
        }
        if self.settings.sync != SyncPolicy::None {
            file.sync_data()?;
        }
        let tag = tag_of(&file.metadata()?);
        close(file).map(|()| tag)
    }
}

/// Returns the tag that tells a file from those that replace it.
fn tag_of(metadata: &Metadata) -> Tag {
    Some(format!("{:x}-{:x}", metadata.ino(), metadata.len()).into())
}

/// Opens a regular file: also its length, and what tells it from those that replace it.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, u64, Tag)> {
    // A pipe or a device of this name must not stop the reader.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok((file, metadata.len(), tag_of(&metadata)))
}

/// Gives a file its place; with `is_new` only where there is none. Returns whether it has it.
fn rename(from: &Path, to: &Path, is_new: bool) -> io::Result<bool> {
    if !is_new {
        return fs::rename(from, to).map(|()| true);
    }
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        // Not every file system supports it. No other client writes the packs of this client's runs,
        // if its master gives no other the same.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            Ok(!to.try_exists()? && fs::rename(from, to).map(|()| true)?)
        }
        Err(error) => Err(error.into()),
    }
}
