//! Many simulations, one for each seed.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::run::{Report, node_hours, run};

/// The outcome of many simulations.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Soak {
    /// Simulations that were run.
    pub simulations: u64,
    /// Their operations.
    pub operations: u64,
    /// Their virtual time, counted once for each node, in hours.
    pub node_hours: f64,
    /// Time of processors that they took.
    pub cpu_time: Duration,
    /// The plans that failed, by seed.
    pub failed: Vec<Plan>,
    /// Whether time was up before all seeds had their turn.
    pub is_cut_short: bool,
}

/// Runs the simulation that `plan` makes of each seed, in so many threads, until time is up or, unless
/// it `keeps_going`, one has failed. `on_end` is called for each one, in the order in which they end.
///
/// # Errors
/// None, but for those of a history that is not copied.
pub fn soak(
    seeds: Range<u64>,
    threads: NonZeroUsize,
    limit: Option<Duration>,
    keeps_going: bool,
    plan: impl Fn(u64) -> Plan + Sync,
    on_end: impl Fn(&Report) + Sync,
) -> io::Result<Soak> {
    let end = limit.map(|limit| Instant::now() + limit);
    let next = Mutex::new(seeds);
    let all = Mutex::new(Soak::default());
    let work = || -> io::Result<()> {
        loop {
            let mut soak = all.lock().unwrap_or_else(PoisonError::into_inner);
            if end.is_some_and(|end| Instant::now() >= end) {
                soak.is_cut_short = true;
            }
            if soak.is_cut_short || !(keeps_going || soak.failed.is_empty()) {
                return Ok(());
            }
            drop(soak);
            let seed = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(seed) = seed else { return Ok(()) };
            let plan = plan(seed);
            let report = run(&plan, None)?;
            on_end(&report);
            let mut soak = all.lock().unwrap_or_else(PoisonError::into_inner);
            soak.simulations += 1;
            soak.operations += report.operations;
            soak.node_hours += node_hours(report.nodes, report.virtual_time);
            soak.cpu_time += report.cpu_time;
            if !report.violations.is_empty() {
                soak.failed.push(plan);
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.get()).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let mut soak = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    soak.failed.sort_by_key(|plan| plan.seed);
    Ok(soak)
}
