//! Processes that are killed while they write.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mc_testkit::{Input, Program, Random, role};
use mc_tier::{DirectoryTier, Tier};

use crate::common::{LONG, id, object, open, scan_all, unfinished};

const LIVES: usize = 100;
const THREADS: usize = 3;
/// Keys of each thread.
const KEYS: usize = 20;

fn len(key: &str) -> usize {
    key.bytes().map(|byte| usize::from(byte) * 1000).sum()
}

/// Puts and removes, and says `put KEY .` or `removed KEY .` after each.
fn play(root: &Path) {
    let tier = open(root);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let tier = &tier;
            scope.spawn(move || {
                let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
                let mut random = Random::new(since.as_nanos() as u64);
                loop {
                    let key = format!("{thread}-{}", random.below(KEYS));
                    let done = if random.below(3) == 0 {
                        tier.remove(&id(&key)).unwrap();
                        "removed"
                    } else {
                        tier.put(&id(&key), &object(&id(&key), len(&key))).unwrap();
                        "put"
                    };
                    role::say(format!("{done} {key} ."));
                }
            });
        }
    });
}

/// Takes what was said of a key. Half a line, the last one, says nothing.
fn note(words: &str, there: &mut BTreeMap<String, bool>) {
    if let [done, key, "."] = words.split(' ').collect::<Vec<_>>()[..] {
        there.insert(key.to_owned(), done == "put");
    }
}

#[test]
fn what_was_put_is_there_when_the_process_is_killed() {
    if let Some(root) = role::role() {
        return play(Path::new(&root));
    }
    let root = tempfile::tempdir().unwrap();
    let tier = open(root.path());
    let player = "crash::what_was_put_is_there_when_the_process_is_killed";
    let mut random = Random::seeded("MC_TIER_CRASH_SEED");
    let mut there = BTreeMap::new();
    let (mut said, mut torn) = (0, 0);
    for life in 0..LIVES {
        let mut command = role::command(player, root.path().to_str().unwrap());
        let mut child = Program::start(LONG, &mut command, Input::None);
        for _ in 0..1 + random.below(60) {
            note(&child.hear(), &mut there);
            said += 1;
        }
        child.kill();
        while let Some(words) = child.hear_or_end() {
            note(&words, &mut there);
            said += 1;
        }
        check(&tier, life, &mut there);
        torn = unfinished(&tier).len();
    }
    println!("{said} changes in {LIVES} lives, {torn} files were not finished");
    abandoned_files_are_removed(root.path(), &tier);
    check(&tier, LIVES, &mut there);
}

/// Everything is as it was said, but for one change of each thread that was not said any more.
fn check(tier: &DirectoryTier, life: usize, there: &mut BTreeMap<String, bool>) {
    let page = scan_all(tier);
    assert!(page.unreadable.is_empty(), "life {life}: {:?}", page.unreadable);
    let mut unsaid = Vec::new();
    for thread in 0..THREADS {
        for number in 0..KEYS {
            let key = format!("{thread}-{number}");
            let found = tier.get(&id(&key)).unwrap();
            let is_there = found.is_some();
            assert!(found.is_none_or(|found| found == object(&id(&key), len(&key))), "{key}");
            if there.insert(key, is_there).unwrap_or(false) != is_there {
                unsaid.push(thread);
            }
        }
    }
    let changes = unsaid.len();
    unsaid.dedup();
    assert_eq!(unsaid.len(), changes, "life {life}: one change under way for each thread");
    assert_eq!(page.objects.len(), there.values().filter(|is_there| **is_there).count());
}

fn abandoned_files_are_removed(root: &Path, tier: &DirectoryTier) {
    let count = unfinished(tier).len() as u64;
    assert_eq!(tier.clean_up().unwrap(), 0, "their writers may be at work");
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    for path in unfinished(tier) {
        File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let (young, future) = (tier.directory().join("tmp/young"), tier.directory().join("tmp/future"));
    File::create(&young).unwrap();
    let ahead = SystemTime::now() + Duration::from_secs(2 * 3600);
    File::create(&future).unwrap().set_modified(ahead).unwrap();
    assert_eq!(tier.clean_up().unwrap(), count);
    assert_eq!(unfinished(tier).len(), 2, "the young one, and one from before a clock jumped");
    File::options().write(true).open(young).unwrap().set_modified(long_ago).unwrap();
    open(root);
    assert_eq!(unfinished(tier), [future], "opening a tier cleans up");
}
