//! Simulations that must find nothing, and must give the same history each time.
//!
//! The first seed is printed; `MC_SIM_SEED=7` repeats one. The first seeds are always the same ones,
//! too. For a long run see `mc-sim soak`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use mc_sim::{MasterKind, Plan, Report, Soak, run, shrink, soak};

const PACE: Duration = Duration::from_millis(100);
const NODES: u32 = 8;

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

fn plan(seed: u64) -> Plan {
    Plan::new(seed, NODES, minutes(3), PACE).unwrap()
}

/// The first seed of this run.
fn seed() -> u64 {
    mc_testkit::seed("MC_SIM_SEED")
}

/// Fails with the seed and the smallest plan that fails.
#[track_caller]
fn passed(soak: &Soak) {
    let Some(failed) = soak.failed.first() else { return };
    let shrunk = shrink(failed, Duration::from_secs(30)).unwrap();
    panic!(
        "seed {}: {:#?}\n{}\n{}",
        failed.seed,
        shrunk.report.violations,
        serde_json::to_string(&shrunk.plan).unwrap(),
        shrunk.last_lines.join("\n")
    );
}

fn print_seed(report: &Report) {
    let Report { seed, promise, operations, undone, digest, .. } = report;
    println!("seed {seed}: {promise}, {operations} operations, {undone} undone, history {digest}");
}

#[test]
fn seeds_find_nothing() {
    let threads = NonZeroUsize::new(2).unwrap();
    let undone = Mutex::new(BTreeMap::<String, u64>::new());
    let note = |report: &Report| {
        print_seed(report);
        *undone.lock().unwrap().entry(report.promise.clone()).or_default() += report.undone;
    };
    let fixed = soak(1..31, threads, None, false, plan, note).unwrap();
    passed(&fixed);
    // Each durability with each replication; those that promise less lost something.
    let undone = undone.into_inner().unwrap();
    assert_eq!(undone.len(), 7, "{undone:?}");
    assert!(undone["three masters, durability sync, replication async"] > 0, "{undone:?}");
    assert!(undone["three masters, durability async, replication async"] > 0, "{undone:?}");
    let first = seed();
    let drawn = soak(first..first + 20, threads, None, false, plan, print_seed).unwrap();
    passed(&drawn);
    // It is worth something only if much happened.
    assert!(fixed.operations + drawn.operations > 200_000, "{fixed:?} {drawn:?}");
}

#[test]
fn one_plan_gives_one_history() {
    // Of each kind of masters, with and without files and disks.
    let mut kinds = BTreeSet::new();
    let plans = (1..).map(plan).filter(|plan| {
        let kind = match plan.masters {
            MasterKind::Alone => 0,
            MasterKind::Journaled => 1,
            MasterKind::Three => 2,
        };
        kinds.insert((kind, plan.has_files, plan.has_disks))
    });
    let plans: Vec<Plan> = plans.take(12).collect();
    let again: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> =
            plans.iter().map(|plan| scope.spawn(|| run(plan, None).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let mut digests = BTreeSet::new();
    for (plan, other) in plans.iter().zip(again) {
        let report = run(plan, None).unwrap();
        assert_eq!((report.digest, report.lines), (other.digest, other.lines), "{plan:?}");
        assert!(report.operations > 1000, "{report:?}");
        digests.insert(report.digest.to_string());
    }
    assert_eq!(digests.len(), plans.len(), "another seed gives another history");
}

#[test]
fn a_thousand_nodes_find_nothing() {
    let mut plan = Plan::new(seed(), 1000, minutes(2), Duration::from_secs(20)).unwrap();
    plan.masters = MasterKind::Three;
    let report = run(&plan, None).unwrap();
    println!("{:.0} node-hours per CPU-hour", report.speed());
    assert_eq!(report.violations, Vec::<String>::new(), "MC_SIM_SEED={}", plan.seed);
    assert!(report.operations > 3000, "{report:?}");
}
