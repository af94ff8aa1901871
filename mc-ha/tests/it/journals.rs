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
fn a_database_that_is_still_being_closed_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let open = || mc_ha::DirectoryJournal::open(directory.path().join("metadata"));
    drop(open().unwrap());
    let logs = std::fs::read_dir(directory.path().join("metadata/logs")).unwrap();
    let database = logs.map(|entry| entry.unwrap().path().join("db")).next().expect("a database");
    // As sled's threads do: they hold it for a moment after it was dropped.
    let held = std::fs::File::options().write(true).open(database).unwrap();
    held.lock().unwrap();
    std::thread::scope(|scope| {
        let opened = scope.spawn(open);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!opened.is_finished(), "it is locked");
        drop(held);
        opened.join().unwrap().unwrap();
    });
}

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
