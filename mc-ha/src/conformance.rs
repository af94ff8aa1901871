//! The suite that every [`MetadataJournal`] must pass. For tests of an implementation:
//!
//! ```
//! use mc_ha::{MemoryJournal, conformance};
//!
//! let mut journal = MemoryJournal::new();
//! conformance::run(&mut |is_new| {
//!     if is_new {
//!         journal = MemoryJournal::new();
//!     }
//!     Box::new(journal.clone())
//! });
//! ```
//!
//! Its functions panic at what is wrong.

use core::ops::ControlFlow;
use std::io::Read;

use mc_meta::RecordRef;
use mc_types::{Epoch, Generation, Sequence};

use crate::encoding::{Batch, BatchBuilder};
use crate::identity::Identity;
use crate::journal::{JournalError, MetadataJournal};
use crate::position::Position;

/// Runs all tests. `open` opens a new journal when it is called with `true`, and otherwise the last
/// one again, whose former opening has been dropped.
///
/// # Panics
/// When the journal does not do what it has to.
pub fn run(open: &mut dyn FnMut(bool) -> Box<dyn MetadataJournal>) {
    for test in [
        keeps_batches_in_order,
        is_fenced,
        refuses_gaps,
        keeps_snapshots,
        forgets,
        begins_at_a_snapshot,
        keeps_the_identity,
        begins_anew_when_set_aside,
    ] {
        let epoch = Epoch::new(open(true).epoch().as_u64() + 1);
        test(&mut || open(false), epoch);
    }
}

type Open<'a> = &'a mut dyn FnMut() -> Box<dyn MetadataJournal>;

fn at(epoch: Epoch, sequence: u64) -> Position {
    Position::new(epoch, Sequence::new(sequence))
}

/// A batch of the effects from `first` to `last`.
fn batch(epoch: Epoch, first: u64, last: u64) -> Batch {
    let mut builder = BatchBuilder::new(epoch);
    for number in first..=last {
        let record = RecordRef::Generations { next: Generation::new(number) };
        builder.effect(Sequence::new(number), Some(record));
    }
    builder.seal().expect("effects were added")
}

fn read(journal: &dyn MetadataJournal, after: Position) -> Vec<Batch> {
    let mut batches = Vec::new();
    let read = journal.read(after, &mut |batch| {
        batches.push(batch.expect("no batch is damaged"));
        ControlFlow::Continue(())
    });
    read.expect("the journal can be read");
    batches
}

fn append(journal: &dyn MetadataJournal, batch: &Batch) {
    journal.append(journal.epoch(), batch).expect("the batch follows the last one");
}

fn keeps_batches_in_order(open: Open<'_>, epoch: Epoch) {
    let next = Epoch::new(epoch.as_u64() + 1);
    let all = [batch(epoch, 0, 0), batch(epoch, 1, 3), batch(epoch, 4, 4), batch(next, 0, 2)];
    let journal = open();
    assert_eq!(journal.last(), None);
    journal.begin_epoch(epoch).expect("a term begins");
    for batch in &all[..3] {
        append(&*journal, batch);
    }
    journal.begin_epoch(next).expect("a younger term begins");
    append(&*journal, &all[3]);
    journal.sync().expect("the journal can be written");
    drop(journal);
    let journal = open();
    assert_eq!((journal.epoch(), journal.last()), (next, Some(at(next, 2))));
    assert_eq!(read(&*journal, Position::default()), all);
    assert_eq!(read(&*journal, at(epoch, 0)), all[1..], "behind the first");
    assert_eq!(read(&*journal, at(epoch, 2)), all[1..], "a batch that was begun comes whole");
    assert_eq!(read(&*journal, at(epoch, 4)), all[3..]);
    assert_eq!(read(&*journal, at(next, 2)), []);
    let mut seen = 0;
    let stopped = journal.read(Position::default(), &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    stopped.expect("the journal can be read");
    assert_eq!(seen, 1, "reading stops when it is told to");
}

fn is_fenced(open: Open<'_>, epoch: Epoch) {
    let next = Epoch::new(epoch.as_u64() + 1);
    let journal = open();
    journal.begin_epoch(epoch).expect("a term begins");
    append(&*journal, &batch(epoch, 0, 1));
    let fenced = |result: Result<(), JournalError>| {
        assert!(matches!(result, Err(JournalError::Fenced { .. })), "{result:?}");
    };
    fenced(journal.begin_epoch(epoch));
    fenced(journal.append(next, &batch(next, 0, 1)));
    fenced(journal.append(epoch, &batch(next, 0, 1)));
    journal.begin_epoch(next).expect("a younger term begins");
    fenced(journal.append(epoch, &batch(epoch, 2, 2)));
    drop(journal);
    let journal = open();
    fenced(journal.append(epoch, &batch(epoch, 2, 2)));
    fenced(journal.begin_epoch(epoch));
    // A standby gets what its leader has of former terms.
    append(&*journal, &batch(epoch, 2, 2));
    append(&*journal, &batch(next, 0, 0));
    let past = journal.append(next, &batch(epoch, 3, 3));
    assert!(matches!(past, Err(JournalError::Gap { .. })), "{past:?}");
}

fn refuses_gaps(open: Open<'_>, epoch: Epoch) {
    let journal = open();
    journal.begin_epoch(epoch).expect("a term begins");
    let gap = |result: Result<(), JournalError>| {
        assert!(matches!(result, Err(JournalError::Gap { .. })), "{result:?}");
    };
    gap(journal.append(epoch, &batch(epoch, 1, 1)));
    append(&*journal, &batch(epoch, 0, 2));
    gap(journal.append(epoch, &batch(epoch, 4, 4)));
    gap(journal.append(epoch, &batch(epoch, 2, 3)));
    append(&*journal, &batch(epoch, 3, 3));
}

fn keeps_snapshots(open: Open<'_>, epoch: Epoch) {
    let journal = open();
    journal.begin_epoch(epoch).expect("a term begins");
    append(&*journal, &batch(epoch, 0, 5));
    assert!(matches!(
        journal.open_snapshot(at(epoch, 5)).map(drop),
        Err(JournalError::NoSnapshot { .. })
    ));
    let mut builder = BatchBuilder::new(epoch);
    let page = builder.page(Sequence::new(5), None);
    for (sequence, pages) in [(3, 1), (5, 2)] {
        let mut writer = journal.begin_snapshot(at(epoch, sequence)).expect("a snapshot begins");
        for _ in 0..pages {
            writer.write(&page).expect("a page is written");
        }
        let info = writer.finish().expect("the snapshot is written");
        assert_eq!(info.at, at(epoch, sequence));
        assert_eq!(info.bytes, (pages * page.bytes().len()) as u64);
    }
    let unfinished = journal.begin_snapshot(at(epoch, 9)).expect("a snapshot begins");
    drop(unfinished);
    drop(journal);
    let journal = open();
    let known: Vec<_> =
        journal.snapshots().expect("they are listed").iter().map(|info| info.at).collect();
    assert_eq!(known, [at(epoch, 5), at(epoch, 3)], "the newest first, finished ones alone");
    let mut bytes = Vec::new();
    let mut reader = journal.open_snapshot(at(epoch, 5)).expect("it is there");
    reader.read_to_end(&mut bytes).expect("it is read");
    assert_eq!(bytes, page.bytes().repeat(2));
    assert!(journal.usage().snapshot_bytes >= 3 * page.bytes().len() as u64);
}

fn forgets(open: Open<'_>, epoch: Epoch) {
    let journal = open();
    journal.begin_epoch(epoch).expect("a term begins");
    let all = [batch(epoch, 0, 0), batch(epoch, 1, 3), batch(epoch, 4, 6)];
    all.iter().for_each(|batch| append(&*journal, batch));
    for sequence in [1, 3] {
        let writer = journal.begin_snapshot(at(epoch, sequence)).expect("a snapshot begins");
        writer.finish().expect("the snapshot is written");
    }
    journal.forget(at(epoch, 3)).expect("it forgets");
    assert_eq!(read(&*journal, at(epoch, 3)), all[2..]);
    assert_eq!(journal.snapshots().expect("they are listed").len(), 1);
}

fn begins_at_a_snapshot(open: Open<'_>, epoch: Epoch) {
    let journal = open();
    journal.begin_epoch(epoch).expect("a term begins");
    let all = [batch(epoch, 0, 0), batch(epoch, 1, 3)];
    all.iter().for_each(|batch| append(&*journal, batch));
    let contains = |journal: &dyn MetadataJournal, sequence| {
        journal.contains(at(epoch, sequence)).expect("it can be read")
    };
    assert!(contains(&*journal, 3) && !contains(&*journal, 2) && !contains(&*journal, 6));
    assert!(matches!(journal.begin_at(at(epoch, 6)), Err(JournalError::NoSnapshot { .. })));
    let next = Epoch::new(epoch.as_u64() + 1);
    journal.begin_epoch(next).expect("a younger term begins");
    for sequence in [4, 6] {
        let writer = journal.begin_snapshot(at(next, sequence)).expect("a snapshot begins");
        writer.finish().expect("the snapshot is written");
    }
    journal.begin_at(at(next, 6)).expect("it forgets");
    assert_eq!(read(&*journal, Position::default()), []);
    assert_eq!(journal.snapshots().expect("they are listed").len(), 1);
    assert_eq!((journal.last(), journal.epoch()), (Some(at(next, 6)), next));
    append(&*journal, &batch(next, 7, 8));
    drop(journal);
    let journal = open();
    assert_eq!(journal.last(), Some(at(next, 8)));
    let kept = read(&*journal, at(next, 6));
    assert_eq!(kept.iter().map(Batch::last).collect::<Vec<_>>(), [at(next, 8)]);
    let has = |sequence| journal.contains(at(next, sequence)).expect("it can be read");
    assert!(has(6) && has(8) && !has(7));
    assert!(!contains(&*journal, 3), "what was before is forgotten");
}

fn begins_anew_when_set_aside(open: Open<'_>, epoch: Epoch) {
    let journal = open();
    let identity = Identity { seed: 7, secret: [9; 16] };
    journal.set_identity(&identity).expect("it is written");
    journal.begin_epoch(epoch).expect("a term begins");
    let all = [batch(epoch, 0, 0), batch(epoch, 1, 3)];
    all.iter().for_each(|batch| append(&*journal, batch));
    journal.sync().expect("the journal can be written");
    let checksum = |sequence| journal.checksum_at(at(epoch, sequence)).expect("it can be read");
    assert_eq!(checksum(3), Some(all[1].checksum()));
    assert_eq!(checksum(2), None, "no batch ends there");
    let writer = journal.begin_snapshot(at(epoch, 3)).expect("a snapshot begins");
    writer.finish().expect("the snapshot is written");
    journal.set_aside().expect("it is moved");
    let is_new = |journal: &dyn MetadataJournal| {
        assert_eq!((journal.last(), journal.epoch()), (None, Epoch::new(0)));
        assert_eq!(journal.identity().expect("it is read"), None);
        assert_eq!(read(journal, Position::default()), []);
        assert_eq!(journal.snapshots().expect("they are listed"), []);
    };
    is_new(&*journal);
    drop(journal);
    let journal = open();
    is_new(&*journal);
    assert_eq!(journal.set_aside().expect("there is nothing to move"), None);
    // An older term of another history.
    let older = Epoch::new(1);
    journal.begin_epoch(older).expect("a term begins");
    let other = batch(older, 0, 2);
    append(&*journal, &other);
    journal.sync().expect("the journal can be written");
    drop(journal);
    assert_eq!(read(&*open(), Position::default()), [other]);
}

fn keeps_the_identity(open: Open<'_>, _: Epoch) {
    let journal = open();
    let identity = Identity { seed: 7, secret: [9; 16] };
    journal.set_identity(&identity).expect("it is written");
    drop(journal);
    let journal = open();
    assert_eq!(journal.identity().expect("it is read"), Some(identity));
    assert!(!format!("{identity:?}").contains('7'), "secrets are not shown");
}
