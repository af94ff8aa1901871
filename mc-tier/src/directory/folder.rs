//! The files in the folders of a directory tier.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::time::SystemTime;
use std::vec;

use super::DirectoryTier;
use super::file::{ObjectFile, Purpose, ReadError};
use crate::error::{Damage, TierError};
use crate::object::{ObjectId, StoredObject};
use crate::object_file::FORMAT;
use crate::place::{Cursor, FOLDERS, folder, generation_of, is_object, place, run_of_pack};
use crate::tier::{ScanCursor, ScanPage};

/// An object's file, unopened.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundFile {
    pub(super) modified: SystemTime,
    /// Tells the older of two that were written within a tick of the file system's clock.
    generation: u64,
    pub(super) place: String,
    pub(super) len: u64,
}

/// Places of a folder that a scan has yet to come to.
#[derive(Debug)]
pub(super) struct Listed {
    folder: u16,
    /// The last place before them that the scan has come to.
    after: String,
    places: vec::IntoIter<String>,
    /// Whether the folder has others behind them.
    is_cut: bool,
}

/// Most places of a folder that are kept for a scan: of more than 60 million files.
const MAX_LISTED: usize = 1 << 18;

impl DirectoryTier {
    /// Opens an object's file; `None` when there is none.
    pub(super) fn open_object(
        &self,
        id: &ObjectId,
        purpose: Purpose,
    ) -> Result<Option<ObjectFile>, TierError> {
        let place = place(id);
        let file = self.open_file(&place, purpose)?;
        match file {
            Some(file) if file.object().id() != id => Err(self.other_object(&place, &file)),
            file => Ok(file),
        }
    }

    /// Reads what is said of the object in the file at `place`; `None` when there is no such file.
    pub(super) fn describe(&self, at: &str) -> Result<Option<StoredObject>, TierError> {
        let Some(file) = self.open_file(at, Purpose::Header)? else { return Ok(None) };
        if place(file.object().id()) != at {
            return Err(self.other_object(at, &file));
        }
        Ok(Some(file.object().clone()))
    }

    fn open_file(&self, place: &str, purpose: Purpose) -> Result<Option<ObjectFile>, TierError> {
        match ObjectFile::open(&self.directory.join(place), purpose) {
            Err(ReadError::Io(source)) => {
                self.found("read", &self.directory.join(place), Err(source))
            }
            opened => opened.map(Some).map_err(|error| self.read_failure(place, error)),
        }
    }

    fn other_object(&self, place: &str, file: &ObjectFile) -> TierError {
        let found = file.object().id().clone();
        self.read_failure(place, Damage::OtherObject { found }.into())
    }

    /// Returns an error that says why the file at `place` cannot be read.
    pub(super) fn read_failure(&self, place: &str, error: ReadError) -> TierError {
        let path = self.directory.join(place);
        match error {
            ReadError::Io(source) => self.failure("read", &path, source),
            ReadError::Damaged(source) => TierError::Damaged { path, source },
            ReadError::Newer { found } => TierError::Newer { path, found, known: FORMAT },
        }
    }

    /// See [`scan`](crate::Tier::scan).
    pub(super) fn scan_files(
        &self,
        after: Option<&ScanCursor>,
        limit: usize,
    ) -> Result<ScanPage, TierError> {
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next: None };
        let mut cursor = Cursor::new(after);
        let mut place = cursor.within.map(|_| cursor.place.clone());
        loop {
            let Some(at) =
                place.take().map_or_else(|| self.next_place(&cursor.place), |it| Ok(Some(it)))?
            else {
                return Ok(page);
            };
            let free = limit - page.objects.len() - page.unreadable.len();
            match self.describe_all(&at, cursor.within, free) {
                Ok(objects) => {
                    let is_cut = run_of_pack(&at).is_some() && objects.len() == free;
                    let next = objects.last().map(|it| it.id().generation().place_in_run() + 1);
                    page.objects.extend(objects);
                    cursor = Cursor { place: at, within: next.filter(|_| is_cut) };
                }
                Err(error @ TierError::Vanished { .. }) => return Err(error),
                Err(error) => {
                    page.unreadable.push(error);
                    cursor = Cursor { place: at, within: None };
                }
            }
            if page.objects.len() + page.unreadable.len() == limit {
                page.next = Some(cursor.into());
                return Ok(page);
            }
        }
    }

    /// The objects in the file at `at`, of a pack those from a place in their run on, at most so many.
    fn describe_all(
        &self,
        at: &str,
        within: Option<u32>,
        most: usize,
    ) -> Result<Vec<StoredObject>, TierError> {
        match run_of_pack(at) {
            Some(run) => self.packs.list(self, run, within.unwrap_or(0), most),
            // It may have been removed in the meantime.
            None => Ok(self.describe(at)?.into_iter().collect()),
        }
    }

    /// The ids of all objects in the file at `at`.
    pub(super) fn ids_in(&self, at: &str) -> Result<Vec<ObjectId>, TierError> {
        let objects = self.describe_all(at, None, usize::MAX)?;
        Ok(objects.into_iter().map(|object| object.id().clone()).collect())
    }

    /// The place that follows `after`.
    fn next_place(&self, after: &str) -> Result<Option<String>, TierError> {
        let first = u16::from_str_radix(after.get(..2).unwrap_or("0"), 16).unwrap_or(0);
        for number in first..FOLDERS {
            let place = self.next_in_folder(number, after)?;
            if place.is_some() {
                return Ok(place);
            }
        }
        Ok(None)
    }

    /// The place of a folder that follows `after`. A scan lists a folder once, when it comes to it.
    fn next_in_folder(&self, number: u16, after: &str) -> Result<Option<String>, TierError> {
        loop {
            let kept = self.listed.lock().take();
            let mut listed = match kept.filter(|kept| kept.folder == number && kept.after == after)
            {
                Some(kept) => kept,
                None => self.list(number, after)?,
            };
            let next = listed.places.next();
            if next.is_some() || !listed.is_cut {
                listed.after = next.clone().unwrap_or_else(|| after.to_owned());
                *self.listed.lock() = Some(listed);
                return Ok(next);
            }
        }
    }

    /// Lists the first places of a folder that come after `after`.
    fn list(&self, number: u16, after: &str) -> Result<Listed, TierError> {
        let (mut places, mut is_cut) = (BTreeSet::new(), false);
        self.for_each_entry(number, &mut |place, _| {
            if *place > *after {
                places.insert(place);
                if places.len() > MAX_LISTED {
                    places.pop_last();
                    is_cut = true;
                }
            }
            Ok(())
        })?;
        let places: Vec<String> = places.into_iter().collect();
        Ok(Listed { folder: number, after: after.to_owned(), places: places.into_iter(), is_cut })
    }

    /// Visits the files of all objects.
    pub(super) fn for_each_file(&self, visit: &mut dyn FnMut(FoundFile)) -> Result<(), TierError> {
        for number in 0..FOLDERS {
            self.for_each_entry(number, &mut |place, entry| {
                let metadata = entry.metadata();
                if let Some(metadata) = self.found("read", &entry.path(), metadata)? {
                    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    let generation = generation_of(&place);
                    visit(FoundFile { modified, generation, place, len: metadata.len() });
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Visits the places of a folder, which may be missing. Files that are no objects' are passed over.
    fn for_each_entry(
        &self,
        number: u16,
        visit: &mut dyn FnMut(String, &DirEntry) -> Result<(), TierError>,
    ) -> Result<(), TierError> {
        let folder = folder(number);
        let path = self.directory.join(&folder);
        let Some(entries) = self.found("list", &path, fs::read_dir(&path))? else { return Ok(()) };
        for entry in entries {
            let entry = entry.map_err(|source| self.failure("list", &path, source))?;
            if let Some(name) = entry.file_name().to_str().filter(|name| is_object(name)) {
                visit(format!("{folder}/{name}"), &entry)?;
            }
        }
        Ok(())
    }
}
