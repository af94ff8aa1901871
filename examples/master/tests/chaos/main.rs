//! Masters, etcd and the ways between them fail at random, while clients put and get.
//!
//! The form for CI has [`FAULTS`] faults for each mode. The long one is
//! `MC_CHAOS_FAULTS=200 cargo test -p mc-master --test chaos -- --nocapture`, which takes about 15
//! minutes for each test; `MC_CHAOS_SEED` repeats the faults of a run, which prints its seed, and
//! `MC_CHAOS_LOGS=DIR` keeps what the masters have logged.
//!
//! What is proven is told by [`mc_history::check`]. In the mode `sync` (`--durability=sync
//! --replication=semi_sync`) nothing that was acknowledged is ever undone. In the mode `async` what was
//! acknowledged within [`UNDONE_WITHIN`] of the last sign of a leader that was replaced may be undone,
//! and nothing else. In the mode `planned`, which has the default settings, leaders hand over or are ended,
//! and nothing is undone. In all of them no bytes are ever wrong, no two masters lead in one epoch, and
//! epochs grow.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod cluster;
mod faults;
mod network;
mod watch;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mc_history::{Rules, check, longest_outage};
use mc_store::ByteSize;
use mc_testkit::{EtcdCluster, Random, eventually_async, eventually_blocking, role};

use clients::{KEYS, Record, Worker, join};
use cluster::Cluster;
use faults::{Chaos, Fault};
use network::Network;
use watch::{Term, Watch, undoable};

const MASTERS: usize = 3;
const ETCD_MEMBERS: usize = 3;

/// Clients that use the store; two more contribute memory.
const WORKERS: u32 = 3;

/// Faults of a run, without a wish.
const FAULTS: usize = 8;

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// In the mode `async`: the bound of a standby's lag within which it is in sync (2 s), that of the
/// journal (100 ms), and as much again for a machine on which everything takes longer.
const UNDONE_WITHIN: Duration = Duration::from_secs(5);

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Sync,
    Async,
    /// The default settings, and planned changes of leaders.
    Planned,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Sync => {
                &["--durability=sync", "--replication=semi_sync", "--unclean_takeover_after=never"]
            }
            Self::Async => {
                &["--durability=async", "--replication=async", "--unclean_takeover_after=never"]
            }
            Self::Planned => &[],
        }
    }
}

/// A node, in a process of its own.
#[test]
fn plays_its_role() {
    if role::role().is_none() {
        return;
    }
    let masters = std::env::var("MC_CHAOS_MASTERS").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = runtime.block_on(join(&masters, ByteSize::mib(64)));
    role::say("ready");
    while role::hear().is_some() {}
    drop(node);
}

#[test]
#[ignore = "as in namespaces, where more can fail; `./test soak`, or `cargo test -p mc-master --test chaos -- --ignored`"]
fn sync_masters_undo_nothing() {
    if EtcdCluster::is_installed() {
        run(Mode::Sync, Network::on_loopback);
    }
}

#[test]
fn async_masters_undo_no_more_than_they_say() {
    if EtcdCluster::is_installed() {
        run(Mode::Async, Network::on_loopback);
    }
}

#[test]
fn planned_changes_of_the_leader_undo_nothing() {
    if EtcdCluster::is_installed() {
        run(Mode::Planned, Network::on_loopback);
    }
}

#[test]
fn sync_masters_in_namespaces_undo_nothing() {
    if !EtcdCluster::is_installed() {
        return;
    }
    match Network::in_namespaces(ETCD_MEMBERS) {
        Ok(ways) => run(Mode::Sync, |_, _| ways),
        Err(why) => {
            skipped(&format!("network namespaces: {why}"));
            run(Mode::Sync, Network::on_loopback);
        }
    }
}

/// Prints that a test is skipped, past the harness, which shows what is printed by failing tests
/// alone.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "left out: {what}");
}

fn run(mode: Mode, ways: impl FnOnce(&tokio::runtime::Runtime, usize) -> (Network, EtcdCluster)) {
    // One at a time: each of them needs the whole machine.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
    let wished = std::env::var("MC_CHAOS_FAULTS").ok();
    let faults = wished.map_or(FAULTS, |faults| faults.parse().expect("a number of faults"));
    let mut random = Random::seeded("MC_CHAOS_SEED");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = Cluster::start(mode, ways(&runtime, ETCD_MEMBERS));
    let began = Instant::now();
    let record = Arc::<Record>::default();
    let stop = Arc::<AtomicBool>::default();
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let worker = Worker {
                number,
                client: runtime.block_on(join(&cluster.addresses(), ByteSize::bytes(0))),
                random: Random::new(random.next_u64()),
                record: Arc::clone(&record),
                began,
                versions: AtomicU32::new(0),
            };
            runtime.spawn(worker.work(Arc::clone(&stop)))
        })
        .collect();
    let watch = runtime.block_on(async { Watch::start(&cluster, began) });
    let plan = match mode {
        Mode::Planned => Fault::planned(faults),
        Mode::Sync | Mode::Async => Fault::plan(&mut random, faults, cluster.has_disks),
    };
    let random = Random::new(random.next_u64());
    let mut chaos = Chaos { cluster: &cluster, watch: &watch, runtime: &runtime, random, began };
    let mut violations = Vec::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in plan {
        chaos.inflict(fault);
        *kinds.entry(fault.kind()).or_default() += 1;
        let healed = began.elapsed();
        eventually_blocking(LIMIT, format_args!("a put after {fault}"), || {
            violations.extend(cluster.tend());
            record.has_written_since(healed)
        });
    }
    eventually_blocking(LIMIT, "all masters in sync", || {
        violations.extend(cluster.tend());
        watch.in_sync() == MASTERS - 1 || watch.in_sync() == MASTERS
    });
    stop.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for worker in workers {
            let worker = worker.await.unwrap();
            for key in 0..KEYS {
                let what = format_args!("key {key} is read or known to be gone").to_string();
                eventually_async(LIMIT, what, async || worker.get(key).await).await;
            }
            worker.client.shutdown().await;
        }
    });
    let terms = watch.terms();
    violations.extend(watch.violations());
    drop(watch);
    let epochs = cluster.end(&mut violations);
    let operations = record.operations();
    let rules = Rules {
        undoable: match mode {
            Mode::Sync | Mode::Planned => Vec::new(),
            Mode::Async => undoable(&terms, UNDONE_WITHIN),
        },
        may_suspend: true,
        may_repeat: true,
        may_store_existing: true,
        ..Rules::default()
    };
    violations.extend(record.faults());
    violations.extend(check(&operations, &rules).iter().map(ToString::to_string));
    report(mode, &kinds, &record, &terms, epochs, began.elapsed(), &violations);
    assert!(violations.is_empty(), "{} violations", violations.len());
}

fn report(
    mode: Mode,
    kinds: &BTreeMap<&str, usize>,
    record: &Record,
    terms: &[Term],
    epochs: usize,
    time: Duration,
    violations: &[String],
) {
    let operations = record.operations();
    let mut failovers: Vec<Duration> =
        terms.windows(2).map(|pair| pair[1].first.saturating_sub(pair[0].last)).collect();
    failovers.sort_unstable();
    let mut out = std::io::stderr().lock();
    for violation in violations.iter().take(20) {
        let _ = writeln!(out, "violation: {violation}");
    }
    let _ = writeln!(
        out,
        "chaos, {mode:?}: {} faults in {time:.0?} {kinds:?}; {} operations, failed {:?}; \
         longest time without a put {:.1?}; {epochs} epochs; failover p50 {:.1?}, max {:.1?}; \
         violations {}",
        kinds.values().sum::<usize>(),
        operations.len(),
        record.failures(),
        longest_outage(&operations),
        failovers.get(failovers.len() / 2).copied().unwrap_or_default(),
        failovers.last().copied().unwrap_or_default(),
        violations.len(),
    );
}
