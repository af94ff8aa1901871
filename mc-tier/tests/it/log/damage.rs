//! Media that do not hold what was written.

use mc_testkit::Random;
use mc_tier::{LogTier, MemoryBackend, StorageBackend, Tier, TierError};

use super::common::{BLOCK, id, is_there, medium, object, open, put, scan_all, settings};

/// A log with three objects.
fn three() -> MemoryBackend {
    let medium = medium(4);
    let tier = open(medium.clone());
    (0..3).for_each(|number| put(&tier, number));
    medium
}

fn all(medium: &MemoryBackend) -> Vec<u8> {
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes).unwrap();
    bytes
}

/// The offsets of the records of the three objects, and of the end of the last.
fn records(medium: &MemoryBackend) -> Vec<usize> {
    let blocks = all(medium);
    let mut found: Vec<_> = (0..blocks.len()).step_by(BLOCK as usize).collect();
    found.retain(|at| blocks[*at..].starts_with(b"MCTR"));
    assert_eq!(found.len(), 3);
    let last = id(2).key().as_str().len() + object(2).slices()[1].bytes().len();
    found.push(found[2] + last);
    found
}

#[test]
fn a_flipped_bit_costs_one_object_and_no_wrong_byte() {
    let medium = three();
    let original = all(&medium);
    let records = records(&medium);
    for byte in (records[1]..records[1] + 120).chain((records[1] + 120..records[2]).step_by(61)) {
        medium.write(0, &original).unwrap();
        medium.write(byte as u64, &[original[byte] ^ (1 << (byte % 8))]).unwrap();
        let tier = open(medium.clone());
        assert!(is_there(&tier, 0) && is_there(&tier, 2), "byte {byte}");
        match tier.get(&id(1)) {
            // Behind the bytes, or in those that have no meaning.
            Ok(Some(found)) => assert_eq!(found, object(1), "byte {byte}"),
            Ok(None) => assert_eq!(tier.recovery().damaged, 1, "byte {byte}"),
            Err(error) => assert!(matches!(error, TierError::Damaged { .. }), "{error:?}"),
        }
        put(&tier, 1);
        assert!(is_there(&tier, 1), "it can be put again");
    }
}

#[test]
fn a_torn_record_at_the_end_is_not_there() {
    let medium = three();
    let original = all(&medium);
    let records = records(&medium);
    for end in (records[2]..records[3]).step_by(13) {
        let mut torn = original.clone();
        torn[end..].fill(0);
        medium.write(0, &torn).unwrap();
        let tier = open(medium.clone());
        assert_eq!(tier.recovery().damaged, 0, "{end}");
        assert!(is_there(&tier, 0) && is_there(&tier, 1), "{end}");
        // Also where the whole header is: the other bytes are in its block.
        assert_eq!(tier.get(&id(2)).unwrap(), None, "{end}");
        put(&tier, 2);
        drop(tier);
        assert!((0..3).all(|number| is_there(&open(medium.clone()), number)), "{end}");
    }
}

/// A value may hold the bytes of another tenant's record: it is not taken for one, even where the
/// record around it is damaged.
#[test]
fn bytes_of_an_object_are_never_taken_for_a_record() {
    use mc_tier::{ObjectBytes, SliceBytes};
    let other = three();
    let forged = all(&other)[records(&other)[0]..records(&other)[1]].to_vec();
    let medium = medium(4);
    let tier = open(medium.clone());
    // The header takes less than a block: the next ones begin with the forged record.
    let padding = vec![0; BLOCK as usize - (16 + 24 + 6 + 6 + 12 + 4)];
    let slices = [padding, forged].concat();
    let object = ObjectBytes::new(vec![SliceBytes::new(slices.into())]).unwrap();
    tier.put(&id(100 - 1), &object).unwrap();
    drop(tier);
    // Behind the log's block and both copies of the segment's table.
    let record = (3 * BLOCK) as usize;
    assert!(all(&medium)[record..].starts_with(b"MCTR"));
    assert!(
        all(&medium)[record + BLOCK as usize..].starts_with(b"MCTR"),
        "the forged one is at a block"
    );
    medium.write(record as u64 + 20, &[0xff]).unwrap();
    let tier = open(medium);
    assert_eq!(scan_all(&tier).objects.len(), 0);
    assert_eq!(tier.get(&id(0)).unwrap(), None);
}

#[test]
fn objects_with_damaged_records_are_dropped_by_compaction() {
    let medium = medium(4);
    let tier = open(medium.clone());
    (0..3).for_each(|number| put(&tier, number));
    let damaged = records(&medium)[1] as u64;
    medium.write(damaged + 30, &[0xff]).unwrap();
    assert!(matches!(tier.get(&id(1)), Err(TierError::Damaged { .. })));
    // The segment that has the fewest bytes is compacted: this one, when all others are full.
    (10..16).for_each(|number| put(&tier, number));
    (10..16).for_each(|number| assert!(tier.remove(&id(number)).unwrap()));
    let mut stored = (20..).take_while(|number| tier.put(&id(*number), &object(*number)).is_ok());
    assert!(stored.any(|_| tier.get(&id(1)).is_ok()), "it was compacted");
    assert_eq!(tier.get(&id(1)).unwrap(), None);
    assert!(is_there(&tier, 0) && is_there(&tier, 2));
    drop(tier);
    let tier = open(medium);
    assert_eq!(tier.recovery().damaged, 0);
    assert!(is_there(&tier, 0) && is_there(&tier, 2));
}

#[test]
fn a_medium_with_something_else_is_left_alone() {
    let medium = medium(4);
    medium.write(0, b"#!/bin/sh").unwrap();
    let before = all(&medium);
    let error = LogTier::open(medium.clone(), settings()).unwrap_err();
    assert!(matches!(error, TierError::Foreign { .. }), "{error:?}");
    assert!(all(&medium) == before);
}

#[test]
fn a_log_of_another_version_is_told() {
    let medium = three();
    // With the checksum that it has to have.
    let mut block = b"MCTS\x02\0\0\0\0\0\x01\0\0\0\0\0".to_vec();
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block) as u32;
    block.extend(checksum.to_le_bytes());
    medium.write(0, &block).unwrap();
    let error = LogTier::open(medium, settings()).unwrap_err();
    assert!(matches!(error, TierError::Newer { found: 2, known: 1, .. }), "{error:?}");
}

/// Blocks that are flipped, erased, copied and mixed up: nothing panics, and no byte is wrong.
#[test]
fn a_medium_of_any_bytes_is_survived() {
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let medium = medium(6);
    for _ in 0..100 {
        let Ok(tier) = LogTier::open(medium.clone(), settings()) else {
            // The first block was hit.
            medium.write(0, &[0; BLOCK as usize]).unwrap();
            continue;
        };
        for _ in 0..50 {
            let number = random.below(30);
            let result = match random.below(3) {
                0 => tier.remove(&id(number)).map(|_| ()),
                _ => tier.put(&id(number), &object(number)),
            };
            if let Err(error) = result {
                assert!(matches!(error, TierError::Full { .. }), "{error:?}");
            }
        }
        for number in 0..30 {
            if let Ok(Some(found)) = tier.get(&id(number)) {
                assert_eq!(found, object(number));
            }
        }
        scan_all(&tier);
        let blocks = medium.len() / BLOCK;
        for _ in 0..random.below(20) {
            let mut block = [0; BLOCK as usize];
            medium.read(random.below(blocks as usize) as u64 * BLOCK, &mut block).unwrap();
            match random.below(3) {
                0 => block[random.below(64)] ^= 1 << random.below(8),
                1 => block.fill(0),
                _ => {}
            }
            medium.write(random.below(blocks as usize) as u64 * BLOCK, &block).unwrap();
        }
    }
}
