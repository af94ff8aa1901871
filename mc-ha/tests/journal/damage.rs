//! Directories with damage: a clear error, or a master that lacks what is named and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_ha::{DirectoryJournal, JournalError, MetadataJournal, RecoverError, WriterSettings};
use mc_types::Epoch;

use crate::life::{IDENTITY, Life, config, keys, recover};

/// A directory with two snapshots, and changes before, between and after.
struct Prepared {
    directory: tempfile::TempDir,
    /// The keys that the last snapshot has.
    snapshot: BTreeSet<String>,
    all: BTreeSet<String>,
}

fn names(group: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{group}-{number:040}")).collect()
}

fn prepared(snapshots: bool) -> Prepared {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(DirectoryJournal::open(directory.path()).unwrap());
    journal.set_identity(&IDENTITY).unwrap();
    let life = Life::with_segment(journal, WriterSettings::default());
    for group in ["a", "b"] {
        for names in names(group, 300).chunks(30) {
            life.put_all(names.to_vec());
            life.settle();
        }
        if snapshots {
            life.snapshot();
        }
    }
    let snapshot = if snapshots { keys(&life.master) } else { BTreeSet::new() };
    for names in names("c", 1000).chunks(100) {
        life.put_all(names.to_vec());
        life.settle();
    }
    Prepared { directory, snapshot, all: keys(&life.master) }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// All files below, without the directory's own name, the longest first.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Removed,
    Empty,
    Half,
    /// A page of zeros at this part of it, in percent.
    Zeros(u64),
    Flipped(u64),
}

impl Damage {
    const ALL: [Self; 9] = [
        Self::Removed,
        Self::Empty,
        Self::Half,
        Self::Zeros(0),
        Self::Zeros(50),
        Self::Zeros(95),
        Self::Flipped(0),
        Self::Flipped(50),
        Self::Flipped(99),
    ];

    fn apply(self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        let at = |percent: u64| (bytes.len() as u64 * percent / 100) as usize;
        match self {
            Self::Removed => return fs::remove_file(path).unwrap(),
            Self::Empty => bytes.clear(),
            Self::Half => bytes.truncate(at(50)),
            Self::Zeros(percent) => {
                let (at, len) = (at(percent), bytes.len());
                bytes[at..(at + 4096).min(len)].fill(0);
            }
            Self::Flipped(percent) => {
                let at = at(percent);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 0x10;
                }
            }
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Damages one file of a copy and opens it: all keys that came back, and whether a loss was named.
fn after(
    prepared: &Prepared,
    file: &Path,
    damage: Damage,
) -> Result<(BTreeSet<String>, u64), String> {
    let copied = tempfile::tempdir().unwrap();
    copy(prepared.directory.path(), copied.path());
    damage.apply(&copied.path().join(file));
    let before: u64 = files(copied.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    let opened = DirectoryJournal::open(copied.path()).map_err(|error| error.to_string());
    let result = opened.and_then(|journal| {
        journal.identity().map_err(|error| error.to_string())?;
        let (rebuilt, report) =
            recover(&journal, &config(8), 2).map_err(|error| error.to_string())?;
        Ok((keys(&rebuilt.master), report.damaged))
    });
    let kept: u64 = files(copied.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(kept >= before, "{damage:?} of {}: {before} bytes became {kept}", file.display());
    // A second start finds what the first one left.
    if let Ok((first, _)) = &result {
        let journal = DirectoryJournal::open(copied.path()).unwrap();
        let (rebuilt, _) = recover(&journal, &config(8), 2).unwrap();
        assert_eq!(&keys(&rebuilt.master), first, "{damage:?} of {}", file.display());
    }
    result
}

fn relative(prepared: &Prepared) -> Vec<PathBuf> {
    let root = prepared.directory.path();
    files(root).iter().map(|path| path.strip_prefix(root).unwrap().into()).collect()
}

#[test]
fn any_damaged_file_costs_what_it_holds() {
    for snapshots in [true, false] {
        let prepared = prepared(snapshots);
        for file in relative(&prepared) {
            for damage in Damage::ALL {
                let what = format!("{damage:?} of {}", file.display());
                match after(&prepared, &file, damage) {
                    Err(error) => {
                        println!("{what}: {error}");
                        let is_small =
                            ["FORMAT", "term", "identity"].iter().any(|name| file.ends_with(name));
                        assert!(is_small, "{what}: {error}");
                        assert!(
                            error.contains(file.to_str().unwrap()) || error.contains("FORMAT"),
                            "{what}: {error}"
                        );
                    }
                    Ok((there, damaged)) => {
                        let lost = prepared.all.difference(&there).count();
                        println!("{what}: {lost} lost, {damaged} named");
                        assert!(there.is_subset(&prepared.all), "{what}");
                        assert!(prepared.snapshot.is_subset(&there), "{what}: the snapshot stands");
                    }
                }
            }
        }
    }
}
