//! Masters that are killed while they work.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mc_ha::{DirectoryJournal, Durability, WriterSettings};
use mc_meta::RemoveError;
use mc_testkit::{Input, Program, Random, eventually_blocking, role};
use mc_types::{KeyRef, Sequence};

use super::life::{LONG, Life, NOW, config, keys, put, recover};

const LIVES: usize = 20;
const THREADS: usize = 3;
/// Keys of each thread.
const KEYS: usize = 50;
const BOUND: Duration = Duration::from_millis(20);

/// Plays a child, which reports its operations: `put KEY` or `removed KEY`, with the microseconds
/// from before and after.
fn play(mode: &str, directory: &Path) {
    let mut settings = WriterSettings::default();
    settings.durability = match mode {
        "sync" => Durability::Sync,
        _ => Durability::Async(BOUND),
    };
    // The parent has closed it. A process that another of its threads started in that moment holds
    // the lock as well, until it runs its own program.
    let journal =
        eventually_blocking(LONG, "the directory is free", || DirectoryJournal::open(directory));
    let life = Life::with_segment(Arc::new(journal), settings);
    assert_eq!(life.report.damaged, 0, "{:?}", life.report);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let life = &life;
            scope.spawn(move || {
                let mut random = Random::new(micros());
                loop {
                    act(life, &mut random, thread);
                }
            });
        }
        loop {
            life.snapshot();
        }
    });
}

fn act(life: &Life, random: &mut Random, thread: usize) {
    let name = format!("{thread}-{}", random.below(KEYS));
    let begin = micros();
    let done = match life.master.remove(NOW, KeyRef::new(&name).unwrap(), true) {
        Ok(()) => "removed",
        Err(RemoveError::NotFound) => {
            put(&life.master, &name, 100).unwrap();
            "put"
        }
        // A life before this one was killed between the two halves of a put.
        Err(RemoveError::NotReady) => return,
        Err(other) => panic!("{name}: {other}"),
    };
    let last = life.master.last_sequence();
    acknowledged(life, last);
    role::say(format!("{done} {name} {begin} {}", micros()));
}

/// Waits until a client may be told.
fn acknowledged(life: &Life, until: Sequence) {
    let deadline = std::time::Instant::now() + LONG;
    while life.progress.acknowledged() < until {
        assert!(std::time::Instant::now() < deadline, "{until:?} is not acknowledged");
        std::thread::yield_now();
    }
}

fn micros() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64
}

/// The last report about a key.
#[derive(Debug)]
struct Said {
    is_put: bool,
    after: u64,
}

fn kill_again_and_again(mode: &str, player: &str, may_miss: impl Fn(&Said, u64) -> bool) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    let mut random = Random::seeded("MC_HA_CRASH_SEED");
    let mut said: BTreeMap<String, Said> = BTreeMap::new();
    let mut total = 0;
    for life in 0..LIVES {
        let role = format!("{mode}:{}", path.display());
        let mut child = Program::start(LONG, &mut role::command(player, &role), Input::None);
        let lines = 1 + random.below(400);
        let mut last_begin = 0;
        let mut heard = 0;
        while heard < lines {
            let words = child.hear();
            last_begin = note(&words, &mut said).max(last_begin);
            heard += 1;
        }
        child.kill();
        // The pipe may hold more, and half a line.
        while let Some(words) = child.hear_or_end() {
            if words.split(' ').count() == 4 && words.len() > 30 {
                last_begin = note(&words, &mut said).max(last_begin);
                heard += 1;
            }
        }
        total += heard;
        let journal = DirectoryJournal::open(&path).unwrap();
        let (rebuilt, report) = recover(&journal, &config(8), 2).unwrap();
        assert_eq!(report.damaged, 0, "life {life}: {report:?}");
        let there = keys(&rebuilt.master);
        for (key, said) in &mut said {
            // One that was not acknowledged may have happened after it.
            if said.is_put != there.contains(key) && !may_miss(said, last_begin) {
                // Each key's next action begins after its last was said, one at a time per thread:
                // that one may be done and not said.
                said.after = 0;
            }
        }
        let wrong: Vec<_> = said.iter().filter(|(_, said)| said.after == 0).collect();
        // Each thread had one action under way.
        assert!(wrong.len() <= THREADS, "life {life}: {wrong:?}");
        let mut threads: Vec<_> = wrong.iter().map(|(key, _)| &key[..1]).collect();
        threads.dedup();
        assert_eq!(threads.len(), wrong.len(), "life {life}: one action under way for each thread");
        // What is there now counts.
        for (key, said) in &mut said {
            *said = Said { is_put: there.contains(key), after: said.after.max(1) };
        }
    }
    println!("{total} acknowledged changes in {LIVES} lives");
}

fn note(words: &str, said: &mut BTreeMap<String, Said>) -> u64 {
    let words: Vec<_> = words.split(' ').collect();
    let [done, key, begin, after] = words[..] else { panic!("{words:?}") };
    let after = after.parse().unwrap();
    said.insert(key.to_owned(), Said { is_put: done == "put", after });
    begin.parse().unwrap()
}

/// Plays the part of the master in a process of its own.
fn played() -> bool {
    let Some(role) = role::role() else { return false };
    let (mode, directory) = role.split_once(':').unwrap();
    play(mode, Path::new(directory));
    true
}

#[test]
fn nothing_that_was_acknowledged_in_sync_mode_is_lost() {
    if !played() {
        let player = "journal::crash::nothing_that_was_acknowledged_in_sync_mode_is_lost";
        kill_again_and_again("sync", player, |_, _| false);
    }
}

/// Lost changes were acknowledged no longer before the last acknowledgement than the bound.
#[test]
fn only_changes_within_the_bound_are_lost_in_async_mode() {
    if !played() {
        let player = "journal::crash::only_changes_within_the_bound_are_lost_in_async_mode";
        let bound = BOUND.as_micros() as u64;
        kill_again_and_again("async", player, |said, last| said.after + bound > last);
    }
}
