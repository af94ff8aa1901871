//! Transfers, tasks and drain jobs from many threads at once: nothing waits for ever, and
//! all space comes back.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use mc_meta::{
    LateWrites, Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, TaskKind, TaskStatus,
    TransferHandle,
};
use mc_types::{ClientId, KeyRef, ObjectKey, Time};

use crate::common::segment;

const SEGMENTS: u64 = 6;
const KEYS: u64 = 64;
const THREADS: u64 = 4;
const STEPS: u64 = 40_000;

fn client(number: u64) -> ClientId {
    ClientId::from_u128(100 + u128::from(number))
}

fn name(number: u64) -> String {
    format!("segment-{number}")
}

fn key(number: u64) -> ObjectKey {
    ObjectKey::new(format!("key-{number}")).unwrap()
}

fn put(master: &Master, now: Time, writer: ClientId, key: KeyRef<'_>, random: &mut fastrand::Rng) {
    let config = ReplicateConfig::default().replicas(random.u32(1..3));
    let put = PutStart { key, slice_lengths: &[random.u64(1..200)], config: &config };
    if let Ok(grant) = master.put_start(now, writer, &put) {
        let put = PutEnd::new(key, grant.handle);
        let _ = master.put_end(now, writer, &put);
    }
}

/// Does a client's part of the tasks that wait for it.
fn work(master: &Master, now: Time, client: ClientId) {
    for task in master.fetch_tasks(now, client, 4) {
        let key = task.key.as_ref();
        let ended = match &task.kind {
            TaskKind::Copy { source, targets } => {
                let targets: Vec<&str> = targets.iter().map(|target| &**target).collect();
                let grant = master.copy_start(now, client, key, source, &targets);
                grant.is_ok_and(|it| master.copy_end(now, client, key, it.handle).is_ok())
            }
            TaskKind::Move { source, target } => {
                let grant = master.move_start(now, client, key, source, target);
                grant.is_ok_and(|it| master.move_end(now, client, key, it.handle).is_ok())
            }
        };
        let status = if ended { TaskStatus::Success } else { TaskStatus::Failed };
        let _ = master.mark_task_to_complete(now, client, task.id, status, "");
    }
}

/// Copies and moves that a thread has begun, and may never end.
type Begun = Vec<(ObjectKey, TransferHandle)>;

fn step(master: &Master, now: Time, me: ClientId, random: &mut fastrand::Rng, begun: &mut Begun) {
    let name_of = key(random.u64(..KEYS));
    let key = name_of.as_ref();
    let (from, to) = (name(random.u64(..SEGMENTS)), name(random.u64(..SEGMENTS)));
    match random.u32(..100) {
        0..20 => put(master, now, me, key, random),
        20..35 => drop(master.get_replica_list(now, key)),
        at @ 35..60 => {
            let grant = match at {
                35..50 => master.copy_start(now, me, key, &from, &[&to]),
                _ => master.move_start(now, me, key, &from, &to),
            };
            begun.extend(grant.map(|grant| (name_of.clone(), grant.handle)));
        }
        at @ 60..80 => {
            if begun.is_empty() {
                return;
            }
            let (key, transfer) = begun.swap_remove(random.usize(..begun.len()));
            let key = key.as_ref();
            let _ = match at {
                60..70 => master.copy_end(now, me, key, transfer),
                70..73 => master.copy_revoke(now, me, key, transfer, LateWrites::Impossible),
                73..75 => master.copy_revoke(now, me, key, transfer, LateWrites::Possible),
                _ => master.move_end(now, me, key, transfer),
            };
        }
        80..83 => drop(master.remove(now, key, random.bool())),
        83..86 => drop(master.create_copy_task(now, key, &[&to])),
        86..94 => (0..SEGMENTS).for_each(|number| work(master, now, client(number))),
        94 => drop(master.create_drain_job(now, &[&from], &[], 4)),
        95 => {
            for job in master.list_drain_jobs() {
                let _ = master.cancel_drain_job(now, job.id);
            }
        }
        96 => drop(master.reopen_segment(now, &from)),
        97 => {
            let number = random.u64(..SEGMENTS);
            let _ = master.unmount_segment(now, client(number), segment(number.into(), 4096).id);
        }
        _ => {
            let number = random.u64(..SEGMENTS);
            let _ = master.mount_segment(now, client(number), segment(number.into(), 4096));
        }
    }
}

#[test]
fn nothing_is_lost_between_threads() {
    let mut config = MasterConfig::default();
    config.shards = 4;
    config.client_ttl = Duration::from_secs(1 << 40);
    let master = Arc::new(Master::new(config, 1).unwrap());
    for number in 0..SEGMENTS {
        master.mount_segment(Time::ORIGIN, client(number), segment(number.into(), 4096)).unwrap();
    }
    let clock = Arc::new(AtomicU64::new(0));
    let threads = (0..THREADS).map(|thread| {
        let (master, clock) = (Arc::clone(&master), Arc::clone(&clock));
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(thread);
            let mut begun = Begun::new();
            for _ in 0..STEPS {
                let now = Time::from_millis(clock.fetch_add(5, Ordering::Relaxed));
                // The tokens prove who began a transfer; that clients differ is seen elsewhere.
                step(&master, now, client(thread), &mut random, &mut begun);
                if random.u32(..20) == 0 {
                    master.tick(now);
                    let report = master.report();
                    assert!(report.totals.used <= report.totals.capacity);
                }
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    // Open transfers are cancelled in the end, and then everything can be removed.
    let end = Time::from_millis(clock.load(Ordering::Relaxed)) + Duration::from_secs(10_000);
    for job in master.list_drain_jobs() {
        let _ = master.cancel_drain_job(end, job.id);
    }
    while master.tick(end) {}
    assert_eq!(master.report().totals.transfers, 0);
    master.remove_all(end, true);
    let report = master.report();
    assert_eq!((report.totals.objects, report.totals.used, report.totals.drain_jobs), (0, 0, 0));
}
