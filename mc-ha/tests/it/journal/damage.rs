//! Directories with damage: a clear error, or a master that lacks what is named and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mc_ha::{DirectoryJournal, JournalError, MetadataJournal, RecoverError, WriterSettings};

use super::life::{IDENTITY, Life, config, keys, recover};

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

/// Returns whether the objects lost without being named are those that a crash could have cut off,
/// too.
fn is_at_the_end(prepared: &Prepared, lost: &BTreeSet<String>) -> bool {
    let mut in_order = names("a", 300);
    in_order.extend(names("b", 300));
    in_order.extend(names("c", 1000));
    assert_eq!(in_order.len(), prepared.all.len());
    in_order.iter().rev().take(lost.len()).all(|name| lost.contains(name))
}

#[test]
fn any_damaged_file_costs_what_it_holds() {
    for snapshots in [true, false] {
        let prepared = prepared(snapshots);
        for file in relative(&prepared) {
            let is_small = ["FORMAT", "term", "identity"].iter().any(|name| file.ends_with(name));
            for damage in Damage::ALL {
                let what = format!("{damage:?} of {}", file.display());
                let (there, damaged) = match after(&prepared, &file, damage) {
                    Ok(after) => after,
                    Err(error) => {
                        assert!(is_small, "{what}: {error}");
                        assert!(error.contains(file.to_str().unwrap()), "{what}: {error}");
                        continue;
                    }
                };
                assert!(!file.ends_with("FORMAT"), "{what}");
                // The term is also that of the last batch, so it may be lost.
                let is_lost = matches!(damage, Damage::Removed);
                assert!(is_lost || !file.ends_with("identity"), "{what}: a wrong identity");
                assert!(is_lost || !file.ends_with("term"), "{what}: a wrong term");
                assert!(there.is_subset(&prepared.all), "{what}");
                assert!(prepared.snapshot.is_subset(&there), "{what}: the snapshot stands");
                let lost: BTreeSet<_> = prepared.all.difference(&there).cloned().collect();
                if damaged == 0 {
                    assert!(is_at_the_end(&prepared, &lost), "{what}: {lost:?}");
                }
                match damage {
                    // What sled discards is found again.
                    Damage::Flipped(_) => assert!(lost.len() <= 100, "{what}: {}", lost.len()),
                    Damage::Zeros(_) => assert!(lost.len() <= 300, "{what}: {}", lost.len()),
                    _ => {}
                }
            }
        }
    }
}

fn open(path: &Path) -> Result<DirectoryJournal, JournalError> {
    DirectoryJournal::open(path)
}

fn recovered(path: &Path) -> (BTreeSet<String>, mc_ha::ReplayReport) {
    let (rebuilt, report) = recover(&open(path).unwrap(), &config(8), 2).unwrap();
    (keys(&rebuilt.master), report)
}

fn snapshots(path: &Path) -> Vec<PathBuf> {
    files(&path.join("snapshots"))
}

#[test]
fn when_both_snapshots_are_damaged_the_rest_of_the_newest_is_used_and_the_loss_named() {
    for (damage, least) in
        [(Damage::Flipped(50), 1000), (Damage::Half, 1000), (Damage::Empty, 1000)]
    {
        let prepared = prepared(true);
        let path = prepared.directory.path();
        snapshots(path).iter().for_each(|file| damage.apply(file));
        let (there, report) = recovered(path);
        println!("{damage:?}: {} of {}; {report:?}", there.len(), prepared.all.len());
        assert!(report.damaged > 0, "{damage:?}");
        assert!(there.is_subset(&prepared.all) && report.damages.len() as u64 <= report.damaged);
        // The changes since are there, but for those of a segment that is lost.
        assert!(there.len() >= least || !matches!(damage, Damage::Flipped(_)), "{damage:?}");
        assert_eq!(snapshots(path).len(), 2, "they are kept");
    }
}

/// However many parts read the same batches, and however many damages there are.
#[test]
fn damage_is_counted_once() {
    let prepared = prepared(true);
    let path = prepared.directory.path();
    for file in snapshots(path) {
        let mut bytes = fs::read(&file).unwrap();
        // Every fiftieth byte, behind the header of the first page.
        bytes.iter_mut().skip(1000).step_by(50).for_each(|byte| *byte ^= 1);
        fs::write(&file, bytes).unwrap();
    }
    let journal = open(path).unwrap();
    let reports = [1, 2, 3, 8].map(|threads| recover(&journal, &config(8), threads).unwrap().1);
    println!("{:?}", reports[0]);
    assert!(reports[0].damaged > reports[0].damages.len() as u64, "more than are named");
    for report in &reports[1..] {
        assert_eq!(report.damaged, reports[0].damaged);
        assert_eq!(report.damages.len(), reports[0].damages.len());
    }
}

#[test]
fn lost_snapshots_are_named() {
    let prepared = prepared(true);
    let path = prepared.directory.path();
    for file in snapshots(path) {
        fs::remove_file(file).unwrap();
    }
    let (_, report) = recovered(path);
    assert!(report.damaged > 0, "the journal does not begin at the beginning: {report:?}");
}

#[test]
fn an_empty_or_lost_snap_file_of_the_database_costs_nothing() {
    let prepared = prepared(false);
    let files = relative(&prepared);
    let log = files.iter().find(|file| file.ends_with("db")).unwrap().parent().unwrap();
    let is_snap =
        |file: &&PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("snap.");
    let snap = files.iter().find(is_snap).cloned();
    // sled writes one at a clean end alone; what a power cut leaves looks like this one.
    let snap = snap.unwrap_or_else(|| log.join("snap.0000000000000010"));
    let path = prepared.directory.path().join(&snap);
    if !path.exists() {
        fs::write(path, b"something").unwrap();
    }
    for damage in Damage::ALL {
        let (there, damaged) = after(&prepared, &snap, damage).unwrap();
        assert_eq!((there.len(), damaged), (prepared.all.len(), 0), "{damage:?}");
    }
}

#[test]
fn a_newer_version_is_left_alone() {
    let prepared = prepared(true);
    let path = prepared.directory.path();
    let newest = snapshots(path).pop().unwrap();
    let bytes = fs::read(&newest).unwrap();
    let mut newer = bytes.clone();
    newer[4] = 9;
    fs::write(&newest, &newer).unwrap();
    let refused = recover(&open(path).unwrap(), &config(8), 1);
    assert!(matches!(refused, Err(RecoverError::Newer { found: 9 })), "{refused:?}");
    assert_eq!(fs::read(&newest).unwrap(), newer);
    fs::write(&newest, bytes).unwrap();
    fs::write(path.join("FORMAT"), "mc-ha metadata 2\n").unwrap();
    let refused = open(path);
    assert!(matches!(refused, Err(JournalError::Newer { found: 2, .. })), "{refused:?}");
    fs::write(path.join("FORMAT"), "mc-ha metadata 1\n").unwrap();
    assert_eq!(recovered(path).0, prepared.all);
}

#[test]
fn a_directory_of_others_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("letter.txt"), "dear").unwrap();
    let refused = open(directory.path());
    assert!(matches!(refused, Err(JournalError::Foreign { .. })), "{refused:?}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let file = directory.path().join("letter.txt");
    assert!(matches!(open(&file), Err(JournalError::File { .. })));
}

#[test]
fn a_start_that_was_killed_early_does_not_prevent_the_next() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["LOCK", "FORMAT.part"] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    open(directory.path()).unwrap();
}

#[test]
fn a_directory_has_one_user() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).unwrap();
    let second = open(directory.path());
    assert!(matches!(second, Err(JournalError::InUse { .. })), "{second:?}");
    drop(first);
    open(directory.path()).unwrap();
}

/// Root may write anywhere, but for file systems that are read-only.
#[test]
fn a_read_only_directory_is_refused_and_named() {
    let prepared = prepared(true);
    let path = prepared.directory.path();
    let set = |mode| {
        let mode: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    };
    set(0o500);
    fs::remove_file(path.join("LOCK")).map_or_else(
        |_| {
            let lock: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o400);
            fs::set_permissions(path.join("LOCK"), lock).unwrap();
            let refused = open(path).map(drop).unwrap_err().to_string();
            assert!(refused.contains("LOCK") && refused.contains("cannot write"), "{refused}");
        },
        |()| eprintln!("NOT RUN: a read-only directory, because this user may write to it"),
    );
    set(0o700);
}

/// Logs that a reader still reads may be removed meanwhile.
#[test]
fn a_log_that_is_removed_while_it_is_read_harms_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(open(directory.path()).unwrap());
    let life = Life::with_segment(Arc::clone(&journal) as _, WriterSettings::default());
    life.put_all(names("a", 300));
    life.settle();
    let mut seen = 0;
    let mut snapshots = 0;
    let read = journal.read(mc_ha::Position::EMPTY, &mut |batch| {
        batch.unwrap();
        seen += 1;
        while snapshots < 3 {
            life.put(&format!("while-{snapshots}"));
            life.settle();
            life.snapshot();
            snapshots += 1;
        }
        core::ops::ControlFlow::Continue(())
    });
    println!("{seen} batches: {read:?}");
    let expected = keys(&life.master);
    drop((life, journal));
    assert_eq!(recovered(directory.path()).0, expected);
}
