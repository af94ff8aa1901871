//! One simulation, from its plan to its verdict.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use mc_cluster_testkit::simulation::{run_simulated, virtual_time};
use mc_history::{Rules, Window, check};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::LocalSet;

use crate::history::{Digest, History};
use crate::plan::Plan;
use crate::world::World;

/// The outcome of a simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The plan's seed.
    pub seed: u64,
    /// The masters of the plan, and when they acknowledge a change.
    pub promise: String,
    /// Number of nodes.
    pub nodes: u32,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// Time of a processor that it took.
    pub cpu_time: Duration,
    /// Operations of clients.
    pub operations: u64,
    /// Operations by call and answer.
    pub answers: BTreeMap<String, u64>,
    /// Acknowledged changes that a new master did not know of, and was allowed not to.
    pub undone: u64,
    /// The history's digest: the same plan gives the same.
    pub digest: Digest,
    /// Lines of the history.
    pub lines: u64,
    /// The violations that were found.
    pub violations: Vec<String>,
}

impl Report {
    /// Node-hours of virtual time for each hour of a processor.
    #[must_use]
    pub fn speed(&self) -> f64 {
        node_hours(self.nodes, self.virtual_time) / (self.cpu_time.as_secs_f64() / 3600.0).max(1e-9)
    }
}

/// Hours of virtual time, counted once for each node.
#[must_use]
pub fn node_hours(nodes: u32, time: Duration) -> f64 {
    f64::from(nodes) * time.as_secs_f64() / 3600.0
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

thread_local! {
    /// The first panic of the simulation of this thread: those of its tasks are caught by the runtime.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Has panics noted as violations from now on.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.with_borrow_mut(|panicked| {
                panicked.get_or_insert_with(|| info.to_string());
            });
            before(info);
        }));
    });
}

/// Runs a simulation, and copies the lines of its history to `copy`.
///
/// # Errors
/// When the copy cannot be written.
pub fn run(plan: &Plan, copy: Option<Box<dyn io::Write + Send>>) -> io::Result<Report> {
    note_panics();
    PANICKED.take();
    let begun = cpu_time();
    let history = History::new(copy);
    let simulation = || simulate(plan, Arc::clone(&history));
    let (time, undone, mut violations) = match catch_unwind(AssertUnwindSafe(simulation)) {
        Ok(ended) => ended,
        // The hook has noted it.
        Err(panic) => (Duration::ZERO, 0, drop_panic(panic)),
    };
    violations.extend(PANICKED.take().map(|panic| format!("a panic: {panic}")));
    let ended = history.end();
    if let Some(error) = ended.copy_error {
        return Err(error);
    }
    violations.extend(ended.violations);
    violations.extend(
        check(&ended.operations, &rules(ended.undoable, ended.undone))
            .iter()
            .map(ToString::to_string),
    );
    let answers = ended.answers.into_iter();
    let answers: BTreeMap<_, _> =
        answers.map(|((call, it), n)| (format!("{call} {it}"), n)).collect();
    Ok(Report {
        seed: plan.seed,
        promise: plan.masters.promise(plan.durability, plan.replication),
        nodes: plan.nodes,
        virtual_time: time,
        cpu_time: cpu_time() - begun,
        operations: answers.values().sum(),
        answers,
        undone,
        digest: ended.digest,
        lines: ended.lines,
        violations,
    })
}

fn simulate(plan: &Plan, history: Arc<History>) -> (Duration, u64, Vec<String>) {
    run_simulated(async {
        let world = World::new(plan, history);
        let ledger = Arc::clone(&world.ledger);
        LocalSet::new().run_until(world.run()).await;
        (virtual_time(), ledger.undone(), ledger.take_violations())
    })
}

fn drop_panic(panic: Box<dyn Any + Send>) -> Vec<String> {
    drop(panic);
    Vec::new()
}

/// The rules for the histories: objects may be evicted and nodes may be away, but nothing that was
/// replaced or removed comes back, unless that was undone.
fn rules(undoable: Vec<Window>, undone: BTreeMap<u32, Vec<Window>>) -> Rules {
    Rules {
        undoable,
        undone,
        // Bytes are late by a minute at most, behind a fault of a minute and a half.
        late: Duration::from_secs(300),
        may_evict: true,
        may_suspend: true,
        may_repeat: true,
        may_store_existing: true,
        ..Rules::default()
    }
}
