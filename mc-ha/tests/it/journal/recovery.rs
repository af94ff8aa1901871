//! A master that works on several threads while snapshots are taken, and its next lives.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_ha::{
    DirectoryJournal, Durability, Identity, MemoryJournal, MetadataJournal, Replica, WriterSettings,
};
use mc_meta::{LateWrites, Master, PutEnd, PutHandle, PutStart, ReplicateConfig};
use mc_testkit::Random;
use mc_types::{KeyRef, SegmentId};

use super::life::{Life, NODE, NOW, WRITER, config, keys, put_with, recover, segment, state};

const KEYS: usize = 40;
const SEGMENTS: usize = 6;

fn replicate(random: &mut Random) -> ReplicateConfig {
    let config = ReplicateConfig::default().replicas(1 + random.below(3) as u32);
    match random.below(8) {
        0 => config.soft_pin(),
        1 => config.hard_pin(),
        2 => config.group("one"),
        3 => config.parent(KeyRef::new("key-0").unwrap().to_owned()),
        _ => config,
    }
}

/// One command. Answers are not looked at: what counts is that state and journal agree.
fn act(master: &Master, random: &mut Random, puts: &mut HashMap<String, PutHandle>) {
    let name = format!("key-{}", random.below(KEYS));
    let key = KeyRef::new(&name).unwrap();
    let number = random.below(SEGMENTS) as u128;
    let handle = puts.get(&name).copied();
    let config = replicate(random);
    let len = 1 + random.below(500) as u64;
    match random.below(100) {
        0..45 => drop(put_with(master, &name, len, &config)),
        45..60 => {
            let start = PutStart { key, slice_lengths: &[len, 7], config: &config };
            let granted = match random.below(2) {
                0 => master.put_start(NOW, WRITER, &start),
                _ => master.upsert_start(NOW, WRITER, &start),
            };
            puts.extend(granted.ok().map(|grant| (name.clone(), grant.handle)));
        }
        60..68 => {
            let end = |handle| master.put_end(NOW, WRITER, &PutEnd::new(key, handle));
            let _ = handle.map(end);
        }
        68..72 => {
            let revoke =
                |handle| master.put_revoke(NOW, WRITER, key, handle, LateWrites::Impossible);
            let _ = handle.map(revoke);
        }
        72..92 => drop(master.remove(NOW, key, random.below(2) == 0)),
        92..96 => drop(master.mount_segment(NOW, NODE, segment(number, 4000))),
        96..98 => drop(master.unmount_segment(NOW, NODE, SegmentId::from_u128(number))),
        98 => {
            let id = SegmentId::from_u128(number);
            drop(master.graceful_unmount_segment(NOW, NODE, id, Duration::from_secs(5)));
        }
        _ => drop(master.tick(NOW)),
    }
}

/// Leads `lives` one after the other.
fn lead(mut open: impl FnMut() -> Arc<dyn MetadataJournal>, lives: usize, actions: usize) {
    let mut random = Random::seeded("MC_HA_RECOVERY_SEED");
    let mut settings = WriterSettings::default();
    for number in 0..lives {
        settings.durability = match random.below(2) {
            0 => Durability::Sync,
            _ => Durability::Async(Duration::from_millis(50)),
        };
        let shards = 1 + random.below(8);
        let threads = [1, 3][random.below(2)];
        let life = Life::begin(open(), &config(shards), threads, settings);
        assert_eq!(life.report.damaged, 0, "{:?}", life.report);
        if number == 0 {
            for number in 0..4 {
                life.master.mount_segment(NOW, NODE, segment(number, 4000)).unwrap();
            }
        }
        let is_over = AtomicBool::new(false);
        let seeds: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        std::thread::scope(|scope| {
            let workers: Vec<_> = seeds
                .iter()
                .map(|&seed| {
                    let master = &life.master;
                    scope.spawn(move || {
                        let (mut random, mut puts) = (Random::new(seed), HashMap::new());
                        (0..actions).for_each(|_| act(master, &mut random, &mut puts));
                    })
                })
                .collect();
            // Snapshots while they work; in some lives none.
            let takes_snapshots = random.below(3) > 0;
            let (life, is_over) = (&life, &is_over);
            scope.spawn(move || {
                while takes_snapshots && !is_over.load(Ordering::SeqCst) {
                    life.snapshot();
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            is_over.store(true, Ordering::SeqCst);
        });
        life.settle();
        let journal = Arc::clone(life.writer.journal());
        for (shards, threads) in [(1, 1), (5, 3)] {
            let (rebuilt, report) = recover(&*journal, &config(shards), threads).unwrap();
            assert_eq!(report.damaged, 0, "{report:?}");
            assert_eq!(rebuilt.report.dropped.total(), 0, "life {number}: {:?}", rebuilt.report);
            assert_eq!(state(&rebuilt.master), state(&life.master), "life {number}");
        }
    }
}

#[test]
fn lives_in_memory_go_on_from_each_other() {
    let journal = MemoryJournal::new();
    lead(|| Arc::new(journal.clone()), 12, 300);
}

#[test]
fn lives_in_a_directory_go_on_from_each_other() {
    let directory = tempfile::tempdir().unwrap();
    lead(|| Arc::new(DirectoryJournal::open(directory.path()).unwrap()), 8, 300);
}

#[test]
fn a_snapshot_lets_the_journal_before_it_go() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(DirectoryJournal::open(directory.path()).unwrap());
    let life = Life::with_segment(journal, WriterSettings::default());
    let logs = || std::fs::read_dir(directory.path().join("logs")).unwrap().count();
    for round in 0..6 {
        life.put_all((0..50).map(|number| format!("{round}-{number}")));
        life.settle();
        life.snapshot();
        assert!(logs() <= 3, "round {round}: {} logs", logs());
        assert!(life.writer.journal().snapshots().unwrap().len() <= 2);
    }
}

#[test]
fn lost_secrets_cost_no_object() {
    let life = Life::with_segment(Arc::new(MemoryJournal::new()), WriterSettings::default());
    life.put_all((0..200).map(|number| format!("key-{number}")));
    life.settle();
    life.snapshot();
    life.put("after");
    life.settle();
    let drawn_anew = Identity { seed: 2, secret: [8; 16] };
    for threads in [1, 2, 8] {
        let journal = &**life.writer.journal();
        let threads = NonZeroUsize::new(threads).unwrap();
        let replica = Replica::load(journal, &config(8), &drawn_anew, threads).unwrap();
        let (rebuilt, report) = replica.finish(NOW).unwrap();
        assert_eq!((keys(&rebuilt.master), report.damaged), (keys(&life.master), 0));
    }
}
