//! Processes that are killed while they write: nothing that was acknowledged is lost, no byte is wrong.
//!
//! A program of its own: each of the many processes that it starts has, until it runs its own program, the
//! files that other tests have locked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::{Input, Program, Random, content, role};
use mc_tier::{
    DirectIo, DirectoryTier, FileBackend, FileSettings, LogSettings, LogTier, ObjectBytes,
    ObjectId, ReadQueue, SliceBytes, SyncPolicy, Tier,
};
use mc_types::{ByteSize, Generation, ObjectKey};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const LIVES: usize = 100;
const THREADS: usize = 3;
/// Keys of each thread.
const KEYS: usize = 20;

type Open = fn(&Path) -> Box<dyn Tier>;

fn directory(root: &Path) -> Box<dyn Tier> {
    Box::new(DirectoryTier::open(root, "cluster", SyncPolicy::None).unwrap())
}

/// So small that it is compacted all the time.
fn log(path: &Path, file: FileSettings) -> Box<dyn Tier> {
    let backend = FileBackend::open_with(path, ByteSize::mib(20), file).unwrap();
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(2);
    let log = LogTier::open(backend, settings).unwrap();
    assert_eq!(log.recovery().damaged, 0);
    Box::new(log)
}

fn id(key: &str) -> ObjectId {
    ObjectId::new("tenant", ObjectKey::new(key).unwrap(), Generation::new(1)).unwrap()
}

/// The only bytes that are ever put under this key: two slices, together of 145 to 251 kB.
fn object(key: &str) -> ObjectBytes {
    let len = key.bytes().map(|byte| usize::from(byte) * 1000).sum();
    let bytes = Bytes::from(content(key, len));
    ObjectBytes::new(vec![SliceBytes::new(bytes.slice(..10)), SliceBytes::new(bytes.slice(10..))])
        .unwrap()
}

/// Puts and removes, and says `put KEY .` or `removed KEY .` after each.
fn play(tier: &dyn Tier, seed: u64) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random::new(seed + thread as u64);
                loop {
                    let key = format!("{thread}-{}", random.below(KEYS));
                    let done = if random.below(3) == 0 {
                        tier.remove(&id(&key)).unwrap();
                        "removed"
                    } else {
                        tier.put(&id(&key), &object(&key)).unwrap();
                        "put"
                    };
                    role::say(format!("{done} {key} ."));
                }
            });
        }
    });
}

/// Takes what was said of a key. Half a line, the last one, says nothing.
fn note(words: &str, there: &mut BTreeMap<String, bool>) -> usize {
    let words: Vec<_> = words.split(' ').collect();
    let [done, key, "."] = words[..] else { return 0 };
    there.insert(key.to_owned(), done == "put");
    1
}

fn kill_again_and_again(player: &str, open: Open) {
    if let Some(role) = role::role() {
        let (seed, path) = role.split_once(' ').unwrap();
        return play(&*open(Path::new(path)), seed.parse().unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random::seeded("MC_TIER_CRASH_SEED");
    let (mut there, mut said, mut unsaid) = (BTreeMap::new(), 0, 0);
    for life in 0..LIVES {
        let role = format!("{} {}", random.next_u64() >> 8, directory.path().display());
        let mut command = role::command(player, &role);
        let mut child = Program::start(LONG, &mut command, Input::None);
        for _ in 0..1 + random.below(60) {
            said += note(&child.hear(), &mut there);
        }
        child.kill();
        while let Some(words) = child.hear_or_end() {
            said += note(&words, &mut there);
        }
        unsaid += check(&*open(directory.path()), life, &mut there);
    }
    println!("{said} acknowledged changes and {unsaid} others in {LIVES} lives");
}

/// Everything is as it was said, but for one change of each thread that was not said any more. Returns
/// the number of these.
fn check(tier: &dyn Tier, life: usize, there: &mut BTreeMap<String, bool>) -> usize {
    let page = tier.scan(None, NonZeroUsize::MAX).unwrap();
    assert!(page.unreadable.is_empty(), "life {life}: {:?}", page.unreadable);
    let mut unsaid = Vec::new();
    for thread in 0..THREADS {
        for number in 0..KEYS {
            let key = format!("{thread}-{number}");
            let found = tier.get(&id(&key)).unwrap();
            let is_there = found.is_some();
            assert!(found.is_none_or(|found| found == object(&key)), "life {life}: {key}");
            if there.insert(key, is_there).unwrap_or(false) != is_there {
                unsaid.push(thread);
            }
        }
    }
    let changes = unsaid.len();
    unsaid.dedup();
    assert_eq!(unsaid.len(), changes, "life {life}: one change under way for each thread");
    assert_eq!(page.objects.len(), there.values().filter(|is_there| **is_there).count());
    changes
}

#[test]
fn a_directory_keeps_what_was_put_when_the_process_is_killed() {
    let player = "a_directory_keeps_what_was_put_when_the_process_is_killed";
    kill_again_and_again(player, directory);
}

#[test]
fn a_log_keeps_what_was_put_when_the_process_is_killed() {
    let player = "a_log_keeps_what_was_put_when_the_process_is_killed";
    kill_again_and_again(player, |path| log(path, FileSettings::default()));
}

#[test]
fn a_log_in_the_page_cache_keeps_what_was_put_when_the_process_is_killed() {
    let player = "a_log_in_the_page_cache_keeps_what_was_put_when_the_process_is_killed";
    kill_again_and_again(player, |path| {
        let mut cached = FileSettings::default();
        (cached.direct, cached.queue) = (DirectIo::Never, ReadQueue::Threads);
        log(path, cached)
    });
}
