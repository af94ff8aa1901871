//! Every journal does what the suite wants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mc_ha::{FaultyJournal, MemoryJournal, MetadataJournal, conformance};

#[test]
fn a_journal_in_memory() {
    let journal = MemoryJournal::new();
    conformance::run(&mut || Box::new(journal.clone()), &mut || journal.clear().unwrap());
}

#[test]
fn a_journal_without_faults_that_could_have_some() {
    let journal = MemoryJournal::new();
    conformance::run(&mut || Box::new(FaultyJournal::new(journal.clone())), &mut || {
        journal.clear().unwrap()
    });
}

#[cfg(feature = "sled")]
#[test]
fn a_journal_in_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    conformance::run(&mut || Box::new(mc_ha::DirectoryJournal::open(&path).unwrap()), &mut || {
        if path.exists() {
            std::fs::remove_dir_all(&path).unwrap();
        }
    });
}
