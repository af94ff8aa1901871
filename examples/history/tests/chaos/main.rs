//! Real programs on loopback: a master with a journal, nodes and recorders are killed and stopped at
//! random while the recorders work, and `mc-history check` finds nothing wrong in their logs.
//!
//! Runs for ten seconds. For ten minutes, or with the seed of a run that failed:
//!
//! ```sh
//! HISTORY_SECONDS=600 HISTORY_SEED=7 cargo test -p mc-history --test chaos -- --nocapture
//! ```
//!
//! `HISTORY_LOGS=DIR` keeps the logs of the recorders and of the master.
//!
//! Nothing is excused but what is killed with a node: every acknowledged change is durable before
//! it is answered, and objects of a node that was stopped come back with it. The recorders
//! exchange bytes over TCP, because a process that shares memory and is stopped in the middle of a copy
//! continues it later (`docs/security.md`).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cluster::{Cluster, NODES, RECORDERS};
use mc_history::{Action, History, LogWriter, Moment, Operation, Outcome, Window, now};
use mc_testkit::{Finished, Input, Program, Random, eventually_blocking};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// How long faults are inflicted, without a wish.
const SECONDS: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillMaster,
    KillNode,
    KillRecorder,
    FreezeMaster,
    FreezeNode,
    FreezeRecorder,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::KillMaster,
        Self::KillNode,
        Self::KillRecorder,
        Self::FreezeMaster,
        Self::FreezeNode,
        Self::FreezeRecorder,
    ];
}

/// A directory that is removed in the end, unless the logs are to be kept.
fn directory() -> (PathBuf, Option<tempfile::TempDir>) {
    if let Some(kept) = std::env::var_os("HISTORY_LOGS") {
        fs::create_dir_all(&kept).unwrap();
        return (kept.into(), None);
    }
    let dir = tempfile::Builder::new().prefix("mc-history-").tempdir().unwrap();
    (dir.path().to_owned(), Some(dir))
}

fn check(logs: &[PathBuf], flags: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mc-history"));
    Program::start(LIMIT, command.arg("check").args(flags).args(logs), Input::None).finish()
}

/// Lets a fault last, for a random time between these milliseconds.
fn last(random: &mut Random, from: usize, to: usize) {
    std::thread::sleep(Duration::from_millis((from + random.below(to - from)) as u64));
}

#[test]
fn programs_that_are_killed_and_stopped_keep_the_promises() {
    let wished = std::env::var("HISTORY_SECONDS").ok();
    let seconds = wished.map_or(SECONDS, |seconds| seconds.parse().expect("a number of seconds"));
    let mut random = Random::seeded("HISTORY_SEED");
    let (dir, _removed_in_the_end) = directory();
    let mut faults_log = LogWriter::create(&dir.join("faults.log")).unwrap();
    let mut cluster = Cluster::start(&dir);
    let mut faults: BTreeMap<Fault, u32> = BTreeMap::new();
    let (began, mut round) = (Instant::now(), Vec::new());
    while began.elapsed() < Duration::from_secs(seconds) || faults.len() < Fault::ALL.len() {
        if round.is_empty() {
            round.extend(Fault::ALL);
        }
        let fault = round.swap_remove(random.below(round.len()));
        println!("{:8.2?} {fault:?}", began.elapsed());
        *faults.entry(fault).or_default() += 1;
        match fault {
            Fault::KillMaster => {
                cluster.kill_master();
                last(&mut random, 0, 1500);
                cluster.start_master();
            }
            Fault::KillNode => {
                let (node, from) = (random.below(NODES), now());
                cluster.kill_node(node);
                faults_log.loss(Window { from, to: now() }).unwrap();
                last(&mut random, 0, 1500);
                cluster.start_node(node);
            }
            Fault::KillRecorder => {
                let recorder = random.below(RECORDERS);
                cluster.kill_recorder(recorder);
                cluster.start_recorder(recorder, &mut random);
            }
            Fault::FreezeMaster => {
                cluster.master().freeze();
                last(&mut random, 100, 3000);
                cluster.master().resume();
            }
            Fault::FreezeNode => {
                let node = random.below(NODES);
                cluster.node(node).freeze();
                // Beyond the time after which the master suspends its segment, or not.
                last(&mut random, 100, 4000);
                cluster.node(node).resume();
            }
            Fault::FreezeRecorder => {
                let recorder = random.below(RECORDERS);
                cluster.recorder(recorder).freeze();
                last(&mut random, 100, 3000);
                cluster.recorder(recorder).resume();
            }
        }
        let healed = now();
        eventually_blocking(LIMIT, format_args!("a write after {fault:?}"), || {
            cluster.assert_all_run();
            cluster.has_written_since(healed)
        });
        // The programs work undisturbed for a while.
        last(&mut random, 100, 700);
    }
    let mut logs = cluster.end();
    logs.push(dir.join("faults.log"));
    let checked = check(&logs, &[]);
    let shown = format!("{faults:?} in {:.0?}\n{}", began.elapsed(), checked.text());
    let _ = writeln!(std::io::stderr(), "history chaos: {shown}");
    assert_eq!((checked.code, &*checked.err), (Some(0), ""), "{shown}");
    assert_worth(&logs, &shown);
}

/// The logs hold enough of each kind that the check means something.
fn assert_worth(logs: &[PathBuf], shown: &str) {
    let history = read(logs);
    let count = |is_it: &dyn Fn(&Operation) -> bool| {
        history.operations.iter().filter(|operation| is_it(operation)).count()
    };
    let done = |it: &Operation| it.outcome == Outcome::Done;
    assert!(count(&|it| matches!(it.action, Action::Put(_)) && done(it)) > 200, "{shown}");
    assert!(count(&|it| it.outcome == Outcome::Existing) > 100, "{shown}");
    assert!(count(&|it| matches!(it.action, Action::Upsert(_)) && done(it)) > 200, "{shown}");
    assert!(count(&|it| matches!(it.action, Action::Found(_))) > 400, "{shown}");
    assert!(count(&|it| it.action == Action::Missed) > 100, "{shown}");
    assert!(count(&|it| it.action == Action::Exist(true)) > 100, "{shown}");
    assert!(count(&|it| it.action == Action::Exist(false)) > 100, "{shown}");
    assert!(count(&|it| it.action == Action::Remove && done(it)) > 100, "{shown}");
    assert!(count(&|it| it.outcome == Outcome::Unknown) > 0, "{shown}");
    assert!(!history.losses.is_empty());
}

fn read(logs: &[PathBuf]) -> History {
    let mut history = History::default();
    logs.iter().for_each(|log| history.read(log).unwrap());
    history
}

#[test]
fn a_stale_read_in_a_real_log_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    eventually_blocking(LIMIT, "a value that was replaced", || {
        replaced_value(&read(&cluster.logs())).is_some()
    });
    let logs = cluster.end();
    let right = check(&logs, &[]);
    assert_eq!(right.code, Some(0), "{right:?}");
    let history = read(&logs);
    let (replaced, begin) = replaced_value(&history).unwrap();
    let action = Action::Found(replaced.action.written().unwrap());
    let end = begin + Duration::from_millis(1);
    let stale = Operation { client: 1000, action, outcome: Outcome::Done, begin, end, ..replaced };
    let planted = dir.path().join("planted.log");
    let mut log = LogWriter::create(&planted).unwrap();
    log.operation(&stale).unwrap();
    let logs = [logs, vec![planted]].concat();
    let wrong = check(&logs, &[]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.text().contains(&format!("violation: key {}: ", replaced.key)), "{wrong:?}");
    assert!(wrong.text().contains(&stale.to_string()), "{wrong:?}");
    let json = check(&logs, &["--json"]);
    let report: serde_json::Value = serde_json::from_str(json.text()).unwrap();
    assert_eq!((json.code, report["violations"].as_array().unwrap().is_empty()), (Some(1), false));
    assert_eq!(report["violations"][0]["name"], format!("history/{}", replaced.key));
}

/// An upsert that was over when another one of its key began, and a moment after both.
fn replaced_value(history: &History) -> Option<(Operation, Moment)> {
    let upserts = || {
        let is_upsert = |it: &&Operation| matches!(it.action, Action::Upsert(_));
        history.operations.iter().filter(is_upsert).filter(|it| it.outcome == Outcome::Done)
    };
    upserts().find_map(|one| {
        let next = upserts().find(|next| next.key == one.key && one.end < next.begin)?;
        Some((*one, next.end + Duration::from_millis(1)))
    })
}

#[test]
fn a_recorder_ends_by_itself_and_says_how_much_it_has_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path());
    let log = dir.path().join("short.log");
    let recorded = record(&cluster.address(), &log, &["--first_client=900", "--seconds=1"]);
    let (text, history) = (recorded.text().to_owned(), read(std::slice::from_ref(&log)));
    assert_eq!(recorded.assert_ok().code, Some(0));
    let count = text.lines().last().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(count, history.operations.len() as u64 + history.failed_reads);
    assert!(count > 0 && history.operations.iter().all(|it| it.end != Moment::NEVER));
    // Values of the other recorders are in other logs.
    assert_eq!(check(&[cluster.end(), vec![log]].concat(), &[]).code, Some(0));
}

fn record(master: &str, log: &Path, flags: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mc-history"));
    command.args(["record", "--master", master, "--output"]).arg(log).args(flags);
    Program::start(LIMIT, &mut command, Input::None).finish()
}
