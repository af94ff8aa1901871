//! Copies and moves that clients do for the master.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use mc_meta::{
    ConfigError, CreateTaskError, Effect, EffectSink, Master, MasterConfig, ReplicateConfig,
    SegmentStatus, TaskAssignment, TaskError, TaskKind, TaskStatus, TransferError,
};
use mc_types::{ClientId, ErrorCode, Sequence, TaskId, Time};

use super::*;

fn fill(master: &Master, segments: u128) {
    for number in 0..segments {
        master.mount_segment(at(0), owner(number), segment(number, 1000)).unwrap();
    }
}

/// A master whose segments of 1000 bytes each belong to a client of their own.
fn cluster(segments: u128) -> Master {
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET);
    fill(&master, segments);
    master
}

fn put_in(master: &Master, name: &str, number: u128) {
    let config = ReplicateConfig::default().prefer(format!("segment-{number}"));
    put_as(master, at(0), name, 10, &config).unwrap();
}

/// Puts an object into the segments of these two numbers.
fn put_in_two(master: &Master, name: &str, numbers: [u128; 2]) {
    let config = ReplicateConfig::default().replicas(2);
    let config = numbers.iter().fold(config, |c, number| c.prefer(format!("segment-{number}")));
    put_as(master, at(0), name, 10, &config).unwrap();
}

fn copy_task(master: &Master, name: &str, target: &str) -> TaskId {
    master.create_copy_task(at(0), key(name), &[target]).unwrap()
}

/// Does what a client does with a task.
fn perform(master: &Master, now: Time, client: ClientId, task: &TaskAssignment) {
    let key = task.key.as_ref();
    match &task.kind {
        TaskKind::Copy { source, targets } => {
            let targets: Vec<&str> = targets.iter().map(|name| &**name).collect();
            let grant = master.copy_start(now, client, key, source, &targets).unwrap();
            master.copy_end(now, client, key, grant.handle).unwrap();
        }
        TaskKind::Move { source, target } => {
            let grant = master.move_start(now, client, key, source, target).unwrap();
            master.move_end(now, client, key, grant.handle).unwrap();
        }
    }
    let done = "Task completed successfully";
    master.mark_task_to_complete(now, client, task.id, TaskStatus::Success, done).unwrap();
}

#[test]
fn a_task_is_done_by_the_client_that_holds_the_source() {
    let master = cluster(3);
    put_in(&master, "a", 1);
    let copy = master.create_copy_task(at(5), key("a"), &["segment-0", "segment-2"]).unwrap();
    let info = master.query_task(copy).unwrap();
    assert_eq!((info.status, info.assigned_client), (TaskStatus::Pending, owner(1)));
    assert_eq!((info.key.as_str(), info.created_at, info.last_updated_at), ("a", at(5), at(5)));
    let targets = vec!["segment-0".into(), "segment-2".into()];
    assert_eq!(info.kind, TaskKind::Copy { source: "segment-1".into(), targets });
    assert_eq!((master.ping(at(6), owner(0)).tasks, master.ping(at(6), owner(1)).tasks), (0, 1));

    assert_eq!(master.fetch_tasks(at(7), owner(0), 16), []);
    let fetched = master.fetch_tasks(at(7), owner(1), 16);
    assert_eq!((fetched.len(), fetched[0].id, fetched[0].max_retry_attempts), (1, copy, 10));
    assert_eq!(master.query_task(copy).unwrap().status, TaskStatus::Processing);
    assert_eq!(master.ping(at(7), owner(1)).tasks, 0);
    perform(&master, at(8), owner(1), &fetched[0]);
    let info = master.query_task(copy).unwrap();
    assert_eq!((info.status, info.last_updated_at), (TaskStatus::Success, at(8)));
    assert_eq!(&*info.message, "Task completed successfully");
    assert_eq!(master.get_replica_list(at(8), key("a")).unwrap().placements.len(), 3);
}

#[test]
fn a_move_is_of_the_replica_that_it_names() {
    let master = cluster(3);
    put_in_two(&master, "a", [0, 1]);
    let task = master.create_move_task(at(0), key("a"), "segment-1", "segment-2").unwrap();
    assert_eq!(master.query_task(task).unwrap().assigned_client, owner(1));
    perform(&master, at(0), owner(1), &master.fetch_tasks(at(0), owner(1), 1)[0]);
    let list = master.get_replica_list(at(0), key("a")).unwrap();
    let mut segments: Vec<_> = list.placements.iter().map(|p| p.segment.spec().id).collect();
    segments.sort();
    assert_eq!(segments, [id(0), id(2)]);
}

#[test]
fn which_holder_copies_is_drawn_from_the_seed() {
    let assigned = |seed| {
        let master = Master::new(settings(), seed).unwrap().with_secret(SECRET);
        fill(&master, 3);
        put_in_two(&master, "a", [0, 1]);
        let tasks = (0..40).map(|_| copy_task(&master, "a", "segment-2"));
        let tasks: Vec<TaskId> = tasks.collect();
        let clients = tasks.iter().map(|task| master.query_task(*task).unwrap().assigned_client);
        (tasks.clone(), clients.collect::<Vec<ClientId>>())
    };
    let (tasks, clients) = assigned(7);
    assert_eq!(assigned(7), (tasks.clone(), clients.clone()));
    assert_ne!(assigned(8).0, tasks);
    let first = clients.iter().filter(|client| **client == owner(0)).count();
    assert!((5..=35).contains(&first), "{first} of 40 went to one of two");
}

#[test]
fn a_task_that_cannot_be_done_is_refused_for_its_cause() {
    let master = cluster(4);
    put_in(&master, "a", 0);
    let open = ReplicateConfig::default().prefer("segment-0");
    start_as(&master, at(0), "open", 10, &open).unwrap();
    let copy =
        |name, targets: &[&str]| master.create_copy_task(at(0), key(name), targets).unwrap_err();
    let a_move = |name, source: &str, target: &str| {
        master.create_move_task(at(0), key(name), source, target).unwrap_err()
    };
    let transfer = CreateTaskError::Transfer;
    let not_found = || transfer(TransferError::SegmentNotFound { name: "gone".into() });
    assert_eq!(copy("a", &[]), transfer(TransferError::TargetCount { count: 0 }));
    assert_eq!(copy("a", &["segment-1"; 33]), transfer(TransferError::TargetCount { count: 33 }));
    assert_eq!(copy("a", &["segment-1", "gone"]), not_found());
    assert_eq!(copy("none", &["segment-1"]), transfer(TransferError::NotFound));
    assert_eq!(copy("open", &["segment-1"]), transfer(TransferError::NotReady));
    assert_eq!(a_move("a", "segment-0", "segment-0"), transfer(TransferError::SameSegment));
    assert_eq!(a_move("a", "segment-0", "gone"), not_found());
    assert_eq!(a_move("a", "gone", "segment-0"), not_found());
    assert_eq!(a_move("none", "segment-0", "segment-1"), transfer(TransferError::NotFound));
    assert_eq!(a_move("open", "segment-0", "segment-1"), transfer(TransferError::NotReady));
    let elsewhere = TransferError::ReplicaNotFound { segment: "segment-1".into() };
    assert_eq!(a_move("a", "segment-1", "segment-2"), transfer(elsewhere));
    let grace = Duration::from_secs(60);
    master.graceful_unmount_segment(at(0), owner(3), id(3), grace).unwrap();
    let leaving = transfer(TransferError::SegmentUnavailable {
        name: "segment-3".into(),
        status: SegmentStatus::GracefullyUnmounting,
    });
    assert_eq!(copy("a", &["segment-1", "segment-3"]), leaving);
    assert_eq!(a_move("a", "segment-0", "segment-3"), leaving);
    assert_eq!(leaving.code(), ErrorCode::UnavailableInCurrentStatus);
    assert_eq!(master.report().totals.tasks_pending, 0);
}

#[test]
fn no_more_tasks_wait_than_may() {
    let mut config = settings();
    config.tasks.max_pending = 2;
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    fill(&master, 2);
    put_in(&master, "a", 0);
    copy_task(&master, "a", "segment-1");
    copy_task(&master, "a", "segment-1");
    let error = master.create_copy_task(at(0), key("a"), &["segment-1"]).unwrap_err();
    assert_eq!(error, CreateTaskError::Task(TaskError::PendingLimit { limit: 2 }));
    assert_eq!(error.code(), ErrorCode::TaskPendingLimitExceeded);
    assert!(error.is_retryable());
    master.fetch_tasks(at(0), owner(0), 1);
    copy_task(&master, "a", "segment-1");
}

#[test]
fn tasks_are_fetched_in_order_and_no_more_than_asked_for() {
    let master = cluster(2);
    put_in(&master, "a", 0);
    let tasks: Vec<TaskId> = (0..5).map(|_| copy_task(&master, "a", "segment-1")).collect();
    let fetch = |max| {
        let fetched = master.fetch_tasks(at(0), owner(0), max);
        fetched.iter().map(|task| task.id).collect::<Vec<TaskId>>()
    };
    assert_eq!(fetch(0), []);
    assert_eq!(fetch(2), tasks[..2]);
    assert_eq!(fetch(usize::MAX), tasks[2..]);
    assert_eq!(fetch(1), []);
}

#[test]
fn a_report_counts_once_and_from_the_client_alone() {
    let master = cluster(2);
    put_in(&master, "a", 0);
    let task = copy_task(&master, "a", "segment-1");
    let report =
        |client, task, status| master.mark_task_to_complete(at(1), client, task, status, "why");
    let early = report(owner(0), task, TaskStatus::Success).unwrap_err();
    assert!(matches!(early, TaskError::BadTransition { from: TaskStatus::Pending, .. }));
    master.fetch_tasks(at(0), owner(0), 1);
    let unknown = report(owner(0), TaskId::from_u128(1), TaskStatus::Success).unwrap_err();
    assert_eq!((unknown, unknown.code()), (TaskError::NotFound, ErrorCode::TaskNotFound));
    let stranger = report(owner(1), task, TaskStatus::Success);
    assert_eq!(stranger, Err(TaskError::IllegalClient));
    let still = report(owner(0), task, TaskStatus::Processing).unwrap_err();
    assert_eq!(still.code(), ErrorCode::InvalidParams);
    assert_eq!(report(owner(0), task, TaskStatus::Failed), Ok(TaskStatus::Failed));
    assert_eq!(report(owner(0), task, TaskStatus::Success), Ok(TaskStatus::Failed));
    assert_eq!(&*master.query_task(task).unwrap().message, "why");
}

#[test]
fn a_task_fails_when_its_time_is_up() {
    let master = cluster(2);
    put_in(&master, "a", 0);
    let tasks = [copy_task(&master, "a", "segment-1"), copy_task(&master, "a", "segment-1")];
    master.fetch_tasks(secs(200), owner(0), 1);
    let status = |task| {
        let info = master.query_task(task).unwrap();
        (info.status, info.message.to_string())
    };
    master.tick(at(299_999));
    assert_eq!(tasks.map(|task| status(task).0), [TaskStatus::Processing, TaskStatus::Pending]);
    master.tick(secs(300));
    assert_eq!(status(tasks[1]), (TaskStatus::Failed, "pending timeout".to_owned()));
    master.tick(secs(500));
    assert_eq!(status(tasks[0]), (TaskStatus::Failed, "processing timeout".to_owned()));
    let late = master.mark_task_to_complete(secs(501), owner(0), tasks[0], TaskStatus::Success, "");
    assert_eq!(late, Ok(TaskStatus::Failed));
}

#[test]
fn many_tasks_expire_over_several_ticks() {
    let master = cluster(2);
    put_in(&master, "a", 0);
    for _ in 0..2000 {
        copy_task(&master, "a", "segment-1");
    }
    let mut ticks = 1;
    while master.tick(secs(300)) {
        ticks += 1;
    }
    assert!(ticks > 1);
    assert_eq!(
        (master.report().totals.tasks_pending, master.report().totals.tasks_finished),
        (0, 2000)
    );
}

#[test]
fn the_oldest_ended_tasks_are_forgotten() {
    let mut config = settings();
    config.tasks.max_finished = 0;
    let refused = Master::new(config.clone(), 1).unwrap_err();
    assert_eq!(refused, ConfigError::ZeroLimit { name: "tasks.max_finished" });
    config.tasks.max_finished = 1;
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    fill(&master, 2);
    put_in(&master, "a", 0);
    let tasks = [copy_task(&master, "a", "segment-1"), copy_task(&master, "a", "segment-1")];
    master.fetch_tasks(at(0), owner(0), 2);
    for task in tasks {
        master.mark_task_to_complete(at(0), owner(0), task, TaskStatus::Failed, "").unwrap();
    }
    assert_eq!(master.query_task(tasks[0]).unwrap_err(), TaskError::NotFound);
    assert_eq!(master.query_task(tasks[1]).unwrap().status, TaskStatus::Failed);
}

/// Every way in which a client leaves.
fn leave(master: &Master, how: &str) -> Time {
    match how {
        "unmounts" => master.unmount_segment(secs(1), owner(0), id(0)).unwrap(),
        "unmounts with grace" => {
            let grace = Duration::from_secs(1);
            master.graceful_unmount_segment(at(0), owner(0), id(0), grace).unwrap();
        }
        "is replaced" => {
            let again = SegmentSpec { id: id(100), ..segment(0, 1000) };
            master.mount_segment(secs(1), owner(100), again).unwrap();
        }
        _ => {
            for number in 1..4 {
                master.ping(secs(9), owner(number));
            }
            master.tick(secs(11));
            return secs(11);
        }
    }
    master.tick(secs(1));
    secs(1)
}

#[test]
fn the_tasks_of_a_client_that_leaves_go_to_others_or_fail() {
    for how in ["unmounts", "unmounts with grace", "is replaced", "is silent"] {
        let mut config: MasterConfig = settings();
        config.client_ttl = Duration::from_secs(10);
        let master = Master::new(config, 1).unwrap().with_secret(SECRET);
        fill(&master, 4);
        put_in_two(&master, "two", [0, 1]);
        put_in(&master, "one", 0);
        let lone = copy_task(&master, "one", "segment-3");
        let a_move = master.create_move_task(at(0), key("two"), "segment-0", "segment-3").unwrap();
        // Some of these are drawn for each of the holders.
        let copies: Vec<TaskId> = (0..40).map(|_| copy_task(&master, "two", "segment-3")).collect();
        let fetched = master.fetch_tasks(at(0), owner(0), 3);
        assert_eq!((fetched[0].id, fetched[1].id), (lone, a_move));
        let worked_on = fetched[2].id;
        let lone = copy_task(&master, "one", "segment-3");
        let a_move = master.create_move_task(at(0), key("two"), "segment-0", "segment-3").unwrap();

        let now = leave(&master, how);
        for task in [lone, a_move, worked_on, fetched[0].id, fetched[1].id] {
            let info = master.query_task(task).unwrap();
            assert_eq!((info.status, info.assigned_client), (TaskStatus::Failed, owner(0)));
            assert!(info.message.contains("has gone"), "{}", info.message);
        }
        for task in copies.iter().filter(|task| **task != worked_on) {
            let info = master.query_task(*task).unwrap();
            assert_eq!((info.status, info.assigned_client), (TaskStatus::Pending, owner(1)));
            assert_eq!(info.kind.source(), "segment-1");
        }
        assert_eq!(master.ping(now, owner(1)).tasks, copies.len() - 1, "{how}");
        let first = &master.fetch_tasks(now, owner(1), 1)[0];
        perform(&master, now, owner(1), first);
    }
}

#[test]
fn a_client_that_keeps_a_segment_keeps_its_tasks() {
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET);
    fill(&master, 2);
    master.mount_segment(at(0), owner(0), segment(50, 1000)).unwrap();
    put_in(&master, "a", 0);
    let task = copy_task(&master, "a", "segment-1");
    master.unmount_segment(at(1), owner(0), id(50)).unwrap();
    assert_eq!(master.query_task(task).unwrap().status, TaskStatus::Pending);
}

/// Keeps how each task became what.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(TaskId, TaskStatus, ClientId)>>>);

impl EffectSink for Told {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Task { task } = effect {
            self.0.lock().unwrap().push((task.id, task.status, task.assigned_client));
        }
    }
}

#[test]
fn every_change_of_a_task_is_told() {
    let told = Told::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(told.clone());
    fill(&master, 3);
    put_in_two(&master, "a", [0, 1]);
    let next = || std::mem::take(&mut *told.0.lock().unwrap());
    let first = copy_task(&master, "a", "segment-2");
    let holder = master.query_task(first).unwrap().assigned_client;
    let (own, other) = if holder == owner(0) { (id(0), owner(1)) } else { (id(1), owner(0)) };
    assert_eq!(next(), [(first, TaskStatus::Pending, holder)]);
    master.unmount_segment(at(0), holder, own).unwrap();
    assert_eq!(next(), [(first, TaskStatus::Pending, other)]);
    master.fetch_tasks(at(0), other, 1);
    assert_eq!(next(), [(first, TaskStatus::Processing, other)]);
    for _ in 0..2 {
        master.mark_task_to_complete(at(0), other, first, TaskStatus::Success, "").unwrap();
    }
    assert_eq!(next(), [(first, TaskStatus::Success, other)]);
    let second = copy_task(&master, "a", "segment-2");
    master.tick(secs(300));
    assert_eq!(next(), [TaskStatus::Pending, TaskStatus::Failed].map(|it| (second, it, other)));
}
