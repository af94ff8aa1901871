//! Every journal does what the suite wants.

use mc_ha::{FaultyJournal, MemoryJournal, conformance};

#[test]
fn a_journal_in_memory() {
    let mut journal = MemoryJournal::new();
    conformance::run(&mut |is_new| {
        if is_new {
            journal = MemoryJournal::new();
        }
        Box::new(journal.clone())
    });
}

#[test]
fn a_journal_without_faults_that_could_have_some() {
    let mut journal = MemoryJournal::new();
    conformance::run(&mut |is_new| {
        if is_new {
            journal = MemoryJournal::new();
        }
        Box::new(FaultyJournal::new(journal.clone()))
    });
}

#[cfg(feature = "sled")]
#[test]
fn a_journal_in_a_directory() {
    let mut directory = tempfile::tempdir().unwrap();
    conformance::run(&mut |is_new| {
        if is_new {
            directory = tempfile::tempdir().unwrap();
        }
        Box::new(mc_ha::DirectoryJournal::open(directory.path().join("metadata")).unwrap())
    });
}
