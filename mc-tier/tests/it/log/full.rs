//! Media that are full before their logs are.

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::{Random, content, role};
use mc_tier::{
    BackendFaults, FaultyBackend, FileBackend, LogSettings, LogTier, MemoryBackend, ObjectBytes,
    SliceBytes, StorageBackend as _, Tier, TierError, Watermarks,
};
use mc_types::ByteSize;

use super::common::{BLOCK, SEGMENT, fill, id, is_there, medium, object, open, settings};
use crate::mounts::{mount_of, with_mounts};

fn put(tier: &LogTier, number: usize) -> Vec<usize> {
    let mut evicted = Vec::new();
    let gone = |id: mc_tier::ObjectId| evicted.push(id.generation().as_u64() as usize);
    let mut gone = gone;
    tier.put_making_room(&id(number), &object(number), &mut gone).unwrap();
    evicted
}

/// A log of 32 segments on a medium that has space for `space` of them.
fn limited(space: u64, reserves: bool) -> (Arc<FaultyBackend<MemoryBackend>>, LogTier) {
    let faulty = Arc::new(FaultyBackend::new(medium(32), 1));
    set_space(&faulty, Some(space), reserves);
    let mut settings = settings();
    settings.space_pause = Duration::from_secs(3600);
    let tier = LogTier::open(Arc::clone(&faulty), settings).unwrap();
    (faulty, tier)
}

fn set_space(medium: &FaultyBackend<MemoryBackend>, segments: Option<u64>, reserves: bool) {
    let mut faults = BackendFaults::default();
    faults.space =
        segments.map(|segments| ByteSize::bytes(BLOCK + segments * SEGMENT.as_u64() + BLOCK));
    faults.reserves_nothing = !reserves;
    medium.set(faults);
}

/// Puts go on in place of the oldest, and nothing goes that need not.
#[test]
fn a_log_whose_medium_is_full_does_with_what_it_has() {
    for reserves in [true, false] {
        let (_medium, tier) = limited(8, reserves);
        let mut most = 0;
        for number in 0..2000 {
            let used = tier.usage().unwrap().bytes;
            let evicted = put(&tier, number);
            most = most.max(used);
            if number > 200 {
                assert!(used >= most / 2, "{used} of {most}: no more goes than makes room");
            }
            assert!(evicted.len() < 30, "{number}: {} went at once", evicted.len());
        }
        let space = BLOCK + 8 * SEGMENT.as_u64();
        assert!(tier.capacity() <= space, "{} of {space}", tier.capacity());
        assert_eq!(Tier::capacity(&tier).unwrap().as_u64(), tier.capacity());
        // The first are the oldest.
        let there: Vec<_> = (0..2000).filter(|number| is_there(&tier, *number)).collect();
        assert!(there.len() > 20 && *there.first().unwrap() == 2000 - there.len(), "{there:?}");
    }
}

/// A put without an eviction is refused when all space is used, and takes what a removal gives.
#[test]
fn a_removal_from_a_log_whose_medium_is_full_gives_space_that_can_be_written() {
    for reserves in [true, false] {
        let (_medium, tier) = limited(8, reserves);
        let stored = fill(&tier);
        assert!(stored > 20, "{stored}");
        let half: Vec<_> = (0..stored / 2).map(id).collect();
        assert_eq!(tier.remove_many(&half).unwrap(), half.len() as u64);
        for number in stored..stored + stored / 4 {
            tier.put(&id(number), &object(number)).unwrap();
        }
        assert!((stored / 2..stored + stored / 4).all(|number| is_there(&tier, number)));
    }
}

/// An eviction by watermarks asks for more space first, when it is time to.
#[test]
fn a_log_grows_again_when_its_medium_has_space() {
    let faulty = Arc::new(FaultyBackend::new(medium(32), 1));
    set_space(&faulty, Some(8), true);
    let mut now = settings();
    now.space_pause = Duration::ZERO;
    let tier = LogTier::open(Arc::clone(&faulty), now).unwrap();
    (0..500).for_each(|number| drop(put(&tier, number)));
    let full = tier.capacity();
    assert!(full <= BLOCK + 8 * SEGMENT.as_u64(), "{full}");
    set_space(&faulty, Some(16), true);
    let used = tier.usage().unwrap();
    let half = ByteSize::bytes(used.bytes / 2);
    let watermarks = Watermarks { high: half, low: half };
    let mut gone = |id| panic!("{id} went, though there is space");
    assert_eq!(tier.evict(watermarks, &mut gone).unwrap().objects, 0);
    assert!(tier.capacity() >= full + 7 * SEGMENT.as_u64(), "{}", tier.capacity());
    let evicted: usize = (500..500 + 4 * 7).map(|number| put(&tier, number).len()).sum();
    assert_eq!(evicted, 0, "the space is used before anything goes");
    set_space(&faulty, None, true);
    (600..1200).for_each(|number| drop(put(&tier, number)));
    assert_eq!(tier.capacity(), faulty.len());
}

/// The same log opened again on the same medium has what it had.
#[test]
fn a_log_of_a_full_medium_is_opened_again() {
    let (medium, tier) = limited(8, true);
    (0..700).for_each(|number| drop(put(&tier, number)));
    let used = tier.usage().unwrap();
    drop(tier);
    let tier = open(medium);
    assert_eq!((tier.usage().unwrap(), tier.recovery().damaged), (used, 0));
    (700..1400).for_each(|number| drop(put(&tier, number)));
    assert!(tier.usage().unwrap().bytes > used.bytes / 4 * 3);
}

/// Bytes of an object of the tests with file systems, and their header in whole blocks.
const LEN: usize = 32 << 10;

/// The eight logs' segment has the part of the file system that it has on a large one.
const FILE_SYSTEM: u64 = 128 << 20;

fn large(number: usize) -> ObjectBytes {
    static BYTES: LazyLock<Bytes> = LazyLock::new(|| content("large", LEN + 1000).into());
    ObjectBytes::new(vec![SliceBytes::new(BYTES.slice(number % 1000..number % 1000 + LEN))])
        .unwrap()
}

/// As a node's first start makes it: nine tenths of what is free.
fn log_on(root: &Path, number: usize, pause: Duration) -> LogTier {
    let space = rustix::fs::statvfs(root).unwrap();
    let free = space.f_bavail * space.f_frsize;
    let len = ByteSize::bytes(free / 10 * 9);
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::bytes((len.as_u64() / 128).max(256 << 10) / BLOCK * BLOCK);
    settings.space_pause = pause;
    let directory = root.join(number.to_string());
    LogTier::open(FileBackend::open(directory, len).unwrap(), settings).unwrap()
}

/// A file of another program, which grows until there is no space left.
fn foreign_file(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).unwrap();
    let block = vec![1; 64 << 10];
    while file.write_all(&block).is_ok() {}
}

#[test]
fn eight_logs_fill_one_file_system_and_none_empties_itself() {
    let Some(root) = role::role() else {
        return with_mounts("log::full::eight_logs_fill_one_file_system_and_none_empties_itself");
    };
    let root = Path::new(&root);
    mount_of(root, FILE_SYSTEM);
    let mut random = Random::seeded("MC_TIER_LOG_SEED");
    let logs: Vec<_> = (0..8).map(|number| log_on(root, number, Duration::ZERO)).collect();
    let objects = 3 * FILE_SYSTEM as usize / LEN;
    let (mut least, mut before) = (u64::MAX, vec![0; logs.len()]);
    for number in 0..objects {
        let log = random.below(logs.len());
        let put = logs[log].put_making_room(&id(number), &large(number), &mut drop);
        put.unwrap_or_else(|error| panic!("put {number}: {error}"));
        let used: Vec<_> = logs.iter().map(|log| log.usage().unwrap().bytes).collect();
        if number > 2 * objects / 3 {
            least = least.min(used.iter().sum());
            let shrunk = used.iter().zip(&before).all(|(now, before)| now * 2 > *before);
            assert!(shrunk, "{before:?} to {used:?}");
        }
        before = used;
    }
    let part = least as f64 / FILE_SYSTEM as f64;
    eprintln!("objects take {part:.3} of the file system at least");
    assert!(part >= 0.9, "{part}: {before:?}");
    let capacity: u64 = logs.iter().map(LogTier::capacity).sum();
    assert!(capacity <= FILE_SYSTEM, "{capacity} is what there is, and not what there was to be");
    role::say("done");
}

#[test]
fn puts_go_on_beside_a_foreign_file_and_the_log_grows_back_without_it() {
    let Some(root) = role::role() else {
        return with_mounts(
            "log::full::puts_go_on_beside_a_foreign_file_and_the_log_grows_back_without_it",
        );
    };
    let root = Path::new(&root);
    let file_system = 64 << 20;
    mount_of(root, file_system);
    let log = log_on(root, 0, Duration::ZERO);
    let put = |number| {
        let put = log.put_making_room(&id(number), &large(number), &mut drop);
        put.unwrap_or_else(|error| panic!("put {number}: {error}"));
    };
    (0..400).for_each(put);
    let used = || log.usage().unwrap().bytes;
    let before = used();
    foreign_file(&root.join("foreign"));
    (400..1000).for_each(put);
    assert!(used() > before * 3 / 4, "{} of {before}", used());
    assert!(log.capacity() < file_system / 2, "{}", log.capacity());
    fs::remove_file(root.join("foreign")).unwrap();
    (1000..4000).for_each(put);
    assert!(used() > file_system * 8 / 10, "{} of {file_system}", used());
    role::say("done");
}

/// Without an eviction a put says that there is no room, as before.
#[test]
fn a_put_without_an_eviction_says_that_the_medium_is_full() {
    let (_medium, tier) = limited(8, true);
    let stored = fill(&tier);
    let error = tier.put(&id(stored), &object(stored)).unwrap_err();
    assert!(matches!(error, TierError::Full { .. }), "{error:?}");
    assert!((0..stored).all(|number| is_there(&tier, number)));
}
