//! A cluster in one thread, on virtual time: masters and clients as they are in production, on a
//! network that delays, loses and cuts off. One seed gives one history.
//!
//! `MC_SIMULATION_SEED=7 cargo test -p mc-store --test simulation` runs the workload with that seed.
//!
//! The network is made here and not by `turmoil`: that gives each host a runtime of its own and
//! lets time pass in fixed steps for all of them, and what it does not intercept (the order of
//! `select!`) is seeded only with `tokio_unstable`. One runtime whose clock jumps from timer to
//! timer is both repeatable and faster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failover;
mod network;
mod transport;
mod workload;
mod world;

use crate::workload::{History, Plan, run};

/// The seed to run with, and the next one.
fn seed() -> u64 {
    let seed = match std::env::var("MC_SIMULATION_SEED") {
        Ok(seed) => seed.parse().expect("MC_SIMULATION_SEED is a number"),
        Err(_) => 20_260_101,
    };
    println!("MC_SIMULATION_SEED={seed}");
    seed
}

fn count(history: &History, has: impl Fn(&str) -> bool) -> usize {
    history.iter().filter(|line| has(line)).count()
}

#[test]
fn one_seed_gives_one_history() {
    let (seed, plan) = (seed(), Plan::default());
    let (once, again) = (run(seed, plan), run(seed, plan));
    for (nth, (one, two)) in once.iter().zip(&again).enumerate() {
        assert_eq!(one, two, "line {nth} differs");
    }
    assert_eq!(once.len(), again.len());
    let other = run(seed.wrapping_add(1), plan);
    assert_ne!(once, other, "another seed gives another history");
    // It is worth something only if all of it happened.
    for wanted in ["put", "get", "remove", "exist"] {
        assert!(count(&once, |line| line.contains(wanted)) > 20, "{wanted}: {once:#?}");
    }
    assert!(count(&once, |line| line.contains("right bytes")) > 20, "{once:#?}");
    assert!(count(&once, |line| line.contains("segment of 10.0.0.3 is gone")) > 0, "{once:#?}");
    assert!(count(&once, |line| line.contains("segment of 10.0.0.3 is back")) > 0, "{once:#?}");
}

#[test]
fn seeds_find_no_wrong_bytes() {
    let first = seed();
    for seed in first..first.saturating_add(5) {
        println!("MC_SIMULATION_SEED={seed}");
        drop(run(seed, Plan::default()));
    }
}

#[test]
fn a_standby_takes_over_with_all_that_was_acknowledged() {
    let seed = seed();
    let (once, again) = (failover::run(seed), failover::run(seed));
    for (nth, (one, two)) in once.iter().zip(&again).enumerate() {
        assert_eq!(one, two, "line {nth} differs");
    }
    assert_eq!(once.len(), again.len());
    assert_eq!(count(&once, |line| line.ends_with("is killed")), 2, "{once:#?}");
    assert!(count(&once, |line| line.ends_with("leads")) > 2, "{once:#?}");
    assert!(
        count(&once, |line| line.contains("put") && line.contains("Stored")) > 100,
        "{once:#?}"
    );
    for seed in seed.saturating_add(1)..seed.saturating_add(5) {
        println!("MC_SIMULATION_SEED={seed}");
        drop(failover::run(seed));
    }
}
