//! The descriptions that segments have of their records: tables and footers.

use std::cell::Cell;

use mc_tier::{LogTier, MemoryBackend, StorageBackend, Tier};

use super::common::{BLOCK, SEGMENT, id, is_there, medium, open, put, settings};

const OBJECTS: usize = 40;

/// Objects in several segments, each third of them removed.
fn several() -> MemoryBackend {
    let medium = medium(16);
    let tier = open(medium.clone());
    (0..OBJECTS).for_each(|number| put(&tier, number));
    (0..OBJECTS).step_by(3).for_each(|number| assert!(tier.remove(&id(number)).unwrap()));
    medium
}

fn check(medium: &MemoryBackend, context: &str) {
    let tier = open(medium.clone());
    assert_eq!(tier.recovery().damaged, 0, "{context}");
    for number in 0..OBJECTS {
        assert_eq!(is_there(&tier, number), number % 3 > 0, "{context}: {number}");
    }
}

fn read(medium: &MemoryBackend, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    medium.read(at, &mut bytes).unwrap();
    bytes
}

/// The begins of the segments that are used.
fn used(medium: &MemoryBackend) -> Vec<u64> {
    let begins = (BLOCK..medium.len()).step_by(SEGMENT.as_u64() as usize);
    begins.filter(|begin| read(medium, *begin, 8) == b"MCTSEGMT").collect()
}

/// Where the footers are, counted from the first byte of the medium, and their lengths.
fn footers(medium: &MemoryBackend) -> Vec<(u64, usize)> {
    let number = |at| u64::from_le_bytes(read(medium, at, 8).try_into().unwrap());
    let footer = |begin: u64| (begin + number(begin + 24), number(begin + 32) as usize);
    used(medium).into_iter().map(footer).filter(|(_, len)| *len > 0).collect()
}

fn flip(medium: &MemoryBackend, at: u64) {
    let byte = read(medium, at, 1)[0];
    medium.write(at, &[byte ^ (1 << (at % 8))]).unwrap();
}

#[test]
fn all_segments_but_the_last_have_footers() {
    let medium = several();
    assert!(used(&medium).len() > 5);
    assert_eq!(footers(&medium).len(), used(&medium).len() - 1);
    check(&medium, "as it was written");
    // The footers, and the segment that has none.
    let seen = Cell::new((0, 0));
    LogTier::open_with_progress(medium.clone(), settings(), |done, total| {
        assert!(done.as_u64() >= seen.get().0 && done <= total);
        seen.set((done.as_u64(), total.as_u64()));
    })
    .unwrap();
    let of_footers: usize = footers(&medium).iter().map(|(_, len)| len).sum();
    assert_eq!(seen.get(), (seen.get().1, of_footers as u64 + SEGMENT.as_u64()));
}

#[test]
fn a_segment_with_a_damaged_footer_is_read_record_by_record() {
    let medium = several();
    let footers = footers(&medium);
    for step in 0..20 {
        let medium_before = read(&medium, 0, medium.len() as usize);
        footers.iter().for_each(|(at, len)| flip(&medium, at + (step * 31 % *len) as u64));
        check(&medium, &format!("step {step}"));
        medium.write(0, &medium_before).unwrap();
    }
    // They are written again when the log is opened.
    footers.iter().for_each(|(at, _)| flip(&medium, *at));
    let (at, len) = footers[0];
    let damaged = read(&medium, at, len);
    check(&medium, "when they are written again");
    assert!(read(&medium, at, len) != damaged);
    put(&open(medium.clone()), 1);
    check(&medium, "written again");
}

/// Each sector of a table is there twice.
#[test]
fn a_flipped_bit_in_a_table_costs_nothing() {
    let medium = several();
    for begin in used(&medium) {
        for at in (begin..begin + 2 * BLOCK).step_by(37) {
            let before = read(&medium, begin, 2 * BLOCK as usize);
            flip(&medium, at);
            check(&medium, &format!("byte {at}"));
            medium.write(begin, &before).unwrap();
        }
    }
}

/// Power has failed while a table was written, and fails again while its segment is released.
#[test]
fn a_removal_that_one_copy_of_a_table_has_is_not_lost_with_it() {
    let medium = several();
    let (one, two) = (used(&medium)[0], used(&medium)[0] + BLOCK);
    let before = read(&medium, two, BLOCK as usize);
    assert!(open(medium.clone()).remove(&id(1)).unwrap());
    medium.write(two, &before).unwrap();
    let tier = open(medium.clone());
    assert!(!is_there(&tier, 1));
    assert!(!tier.remove(&id(1)).unwrap());
    drop(tier);
    medium.write(one, &[0; BLOCK as usize]).unwrap();
    let tier = open(medium);
    assert!(!is_there(&tier, 1) && is_there(&tier, 2));
}

/// Objects that were removed must not come back: those with them go, and no others.
#[test]
fn a_table_that_is_damaged_twice_costs_the_objects_of_its_segment() {
    let medium = several();
    let begin = used(&medium)[1];
    [begin + 512, begin + BLOCK + 512].into_iter().for_each(|at| flip(&medium, at));
    let tier = open(medium.clone());
    let there: Vec<_> = (0..OBJECTS).filter(|number| is_there(&tier, *number)).collect();
    assert!(there.iter().all(|number| number % 3 > 0), "{there:?}");
    assert!((OBJECTS / 3..OBJECTS * 2 / 3).contains(&there.len()), "{there:?}");
    assert!(tier.recovery().damaged > 0);
}
