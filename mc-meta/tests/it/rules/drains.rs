//! Drain jobs: segments are emptied while what they hold stays readable.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mc_meta::{
    Beat, ClientStatus, DrainError, DrainJobInfo, Effect, EffectSink, JobStatus, MAX_DRAIN_JOBS,
    MAX_ENDED_DRAIN_JOBS, Master, Placement, ReplicateConfig, SegmentStatus, TaskAssignment,
    TaskKind, TaskStatus,
};
use mc_types::{ClientId, ErrorCode, JobId, SegmentId, Sequence, Time};

use super::*;

fn into(number: u128) -> ReplicateConfig {
    ReplicateConfig::default().prefer(format!("segment-{number}"))
}

fn drain(master: &Master, now: Time, number: u128) -> JobId {
    master.create_drain_job(now, &[&*format!("segment-{number}")], &[], 4).unwrap()
}

fn tick(master: &Master, now: Time) {
    while master.tick(now) {}
}

fn status(master: &Master, number: u128) -> SegmentStatus {
    let segments = master.report().segments;
    segments.iter().find(|segment| segment.spec.id == id(number)).unwrap().status
}

/// The numbers of the segments that hold an object.
fn holders(master: &Master, name: &str) -> Vec<u128> {
    let info = master.describe(at(0), key(name)).unwrap();
    let mut ids: Vec<u128> =
        info.replicas.iter().map(|r| r.placement.segment.spec().id.as_u128()).collect();
    ids.sort_unstable();
    ids
}

/// Does a client's part of the moves that wait for it.
fn work(master: &Master, now: Time, number: u128) {
    for task in master.fetch_tasks(now, owner(number), 1000) {
        perform(master, now, owner(number), &task, |_, _| {});
    }
}

fn perform(
    master: &Master,
    now: Time,
    client: ClientId,
    task: &TaskAssignment,
    copy: impl FnOnce(&Placement, &Placement),
) {
    let TaskKind::Move { source, target } = &task.kind else { panic!("{:?}", task.kind) };
    let key = task.key.as_ref();
    let grant = master.move_start(now, client, key, source, target).unwrap();
    copy(&grant.source, &grant.targets[0]);
    master.move_end(now, client, key, grant.handle).unwrap();
    master.mark_task_to_complete(now, client, task.id, TaskStatus::Success, "done").unwrap();
}

fn fail(master: &Master, now: Time, number: u128) -> usize {
    let tasks = master.fetch_tasks(now, owner(number), 1000);
    for task in &tasks {
        let status = TaskStatus::Failed;
        master.mark_task_to_complete(now, owner(number), task.id, status, "no").unwrap();
    }
    tasks.len()
}

/// Goes on, second by second, until the job is over.
fn run(master: &Master, from: Time, id: JobId) -> (Time, DrainJobInfo) {
    let mut now = from;
    for _ in 0..1000 {
        tick(master, now);
        let info = master.query_drain_job(id).unwrap();
        if info.status.is_final() {
            return (now, info);
        }
        (0..8).for_each(|number| work(master, now, number));
        now = now + Duration::from_millis(500);
    }
    panic!("{:?}", master.query_drain_job(id));
}

/// The memory of all segments.
#[derive(Default)]
struct Memory(HashMap<SegmentId, Vec<u8>>);

impl Memory {
    fn of(&mut self, place: &Placement) -> &mut [u8] {
        let spec = place.segment.spec();
        let bytes = self.0.entry(spec.id).or_insert_with(|| vec![0; spec.size as usize]);
        let from = place.extent.offset() as usize;
        &mut bytes[from..from + place.extent.len() as usize]
    }

    fn copy(&mut self, from: &Placement, to: &Placement) {
        let bytes = self.of(from).to_vec();
        self.of(to).copy_from_slice(&bytes);
    }
}

#[test]
fn a_hundred_objects_are_moved_while_they_are_read() {
    let master = cluster(&[1 << 16, 1 << 16, 1 << 16]);
    let mut memory = Memory::default();
    let mut random = fastrand::Rng::with_seed(9);
    let name = |n: usize| format!("object-{n}");
    for n in 0..100 {
        let grant = put_as(&master, at(0), &name(n), 100 + n as u64, &into(0)).unwrap();
        memory.of(&grant.placements[0]).fill(n as u8 + 1);
    }
    let job = drain(&master, at(0), 0);
    // Readers that hold a list, until when, and what they are to find.
    let mut reading: Vec<(Time, Placement, u8)> = Vec::new();
    let mut now = at(0);
    let mut ended = None;
    while ended.is_none() {
        tick(&master, now);
        let info = master.query_drain_job(job).unwrap();
        assert!(info.active <= 4, "{info:?}");
        ended = info.status.is_final().then_some(info);
        for _ in 0..3 {
            // Any object can be read at any time, and new ones put.
            let n = random.usize(0..100);
            let list = master.get_replica_list(now, key(&name(n))).unwrap();
            let until = now + list.lease;
            reading.extend(list.placements.into_iter().map(|it| (until, it, n as u8 + 1)));
            let grant = put(&master, now, &random.u64(..).to_string(), 60).unwrap();
            assert_ne!(grant.placements[0].segment.spec().id, id(0));
            memory.of(&grant.placements[0]).fill(0);
        }
        // Half of the tasks are done a moment later than fetched.
        for task in master.fetch_tasks(now, owner(0), 2) {
            now = now + Duration::from_millis(random.u64(0..50));
            perform(&master, now, owner(0), &task, |from, to| memory.copy(from, to));
        }
        // A reader whose lease is running finds the bytes of the put.
        for (_, place, byte) in &reading {
            assert!(memory.of(place).iter().all(|it| it == byte), "{place:?}");
        }
        now = now + Duration::from_millis(100);
        reading.retain(|(until, ..)| *until > now);
        assert!(now < secs(60));
    }
    let info = ended.unwrap();
    assert_eq!((info.status, info.moved, info.failed), (JobStatus::Succeeded, 100, 0));
    assert_eq!(info.moved_bytes, (100..200).sum::<u64>());
    assert_eq!(status(&master, 0), SegmentStatus::Drained);
    let segments = master.report().segments;
    let drained = segments.iter().find(|segment| segment.spec.id == id(0)).unwrap();
    assert_eq!(drained.used, 0);
    // Its client can go now, and nothing is lost.
    master.unmount_segment(now, owner(0), id(0)).unwrap();
    for n in 0..100 {
        let list = master.get_replica_list(now, key(&name(n))).unwrap();
        assert!(memory.of(&list.placements[0]).iter().all(|it| *it == n as u8 + 1));
    }
}

#[test]
fn an_empty_segment_is_drained_at_once() {
    let master = cluster(&[100, 100]);
    let job = drain(&master, at(7), 0);
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.created_at), (JobStatus::Created, at(7)));
    assert_eq!(status(&master, 0), SegmentStatus::Draining);
    for n in 0..10 {
        let grant = put(&master, at(7), &n.to_string(), 10).unwrap();
        assert_eq!(grant.placements[0].segment.spec().id, id(1));
    }
    tick(&master, at(8));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.last_updated_at), (JobStatus::Succeeded, at(8)));
    assert_eq!(status(&master, 0), SegmentStatus::Drained);
}

#[test]
fn readers_have_the_time_of_a_lease_before_a_segment_counts_as_drained() {
    let master = cluster(&[100, 100]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    master.get_replica_list(secs(1), key("a")).unwrap();
    work(&master, secs(1), 0);
    tick(&master, secs(2));
    tick(&master, at(6_999));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.moved), (JobStatus::Running, 1));
    assert_eq!(status(&master, 0), SegmentStatus::Draining);
    tick(&master, secs(7));
    assert_eq!(status(&master, 0), SegmentStatus::Drained);
    assert_eq!(master.query_drain_job(job).unwrap().status, JobStatus::Succeeded);
}

#[test]
fn pins_groups_and_leases_do_not_keep_an_object_from_being_moved() {
    let master = cluster(&[1000, 1000]);
    let configs = [into(0), into(0).soft_pin(), into(0).hard_pin(), into(0).group("g")];
    for (n, config) in configs.iter().enumerate() {
        put_as(&master, at(0), &n.to_string(), 10, config).unwrap();
        master.get_replica_list(at(0), key(&n.to_string())).unwrap();
    }
    let job = drain(&master, at(0), 0);
    let (_, info) = run(&master, at(0), job);
    assert_eq!((info.status, info.moved), (JobStatus::Succeeded, 4));
    assert!((0..4).all(|n| holders(&master, &n.to_string()) == [1]));
}

#[test]
fn no_more_moves_are_under_way_than_asked_for() {
    let master = cluster(&[1000, 1000]);
    for n in 0..10 {
        put_as(&master, at(0), &n.to_string(), 10, &into(0)).unwrap();
    }
    let job = master.create_drain_job(at(0), &["segment-0"], &[], 3).unwrap();
    tick(&master, at(0));
    assert_eq!(master.query_drain_job(job).unwrap().active, 3);
    let tasks = master.fetch_tasks(at(0), owner(0), 100);
    assert_eq!(tasks.len(), 3);
    perform(&master, at(0), owner(0), &tasks[0], |_, _| {});
    tick(&master, at(1));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.active, info.moved, info.status), (3, 1, JobStatus::Running));
}

#[test]
fn each_object_goes_to_the_least_used_target_that_does_not_hold_it() {
    // Segment 1 is the emptiest by part, segment 2 by bytes.
    let master = cluster(&[1000, 100, 1000, 1000]);
    put_as(&master, at(0), "used", 500, &into(2)).unwrap();
    put_as(&master, at(0), "full", 900, &into(3)).unwrap();
    let both = into(0).prefer("segment-1").replicas(2);
    put_as(&master, at(0), "both", 10, &both).unwrap();
    for n in 0..4 {
        put_as(&master, at(0), &n.to_string(), 20, &into(0)).unwrap();
    }
    let job = master.create_drain_job(at(0), &["segment-0"], &[], 100).unwrap();
    tick(&master, at(0));
    let tasks = master.fetch_tasks(at(0), owner(0), 100);
    let target = |name: &str| {
        let task = tasks.iter().find(|task| task.key.as_str() == name).unwrap();
        let TaskKind::Move { target, .. } = &task.kind else { panic!("{task:?}") };
        target.to_string()
    };
    assert_eq!(target("both"), "segment-2");
    // What is on its way counts: 10 bytes, then 30, 50, 70 of 100 are used in segment 1,
    // 510 of 1000 in segment 2.
    let targets: Vec<String> = (0..4).map(|n| target(&n.to_string())).collect();
    assert_eq!(targets, ["segment-1", "segment-1", "segment-1", "segment-2"]);
    tasks.iter().for_each(|task| perform(&master, at(0), owner(0), task, |_, _| {}));
    assert_eq!(run(&master, at(0), job).1.moved, 5);
    assert_eq!(holders(&master, "both"), [1, 2]);
}

#[test]
fn only_targets_that_were_named_are_used() {
    let master = cluster(&[1000, 1000, 1000]);
    for n in 0..10 {
        put_as(&master, at(0), &n.to_string(), 10, &into(0)).unwrap();
    }
    let job = master.create_drain_job(at(0), &["segment-0"], &["segment-2"], 4).unwrap();
    assert_eq!(run(&master, at(0), job).1.status, JobStatus::Succeeded);
    assert!((0..10).all(|n| holders(&master, &n.to_string()) == [2]));
}

#[test]
fn two_replicas_are_moved_one_after_the_other() {
    let master = cluster(&[1000, 1000, 1000, 1000]);
    let both = into(0).prefer("segment-1").replicas(2);
    put_as(&master, at(0), "a", 10, &both).unwrap();
    let job = master.create_drain_job(at(0), &["segment-0", "segment-1"], &[], 4).unwrap();
    let (_, info) = run(&master, at(0), job);
    assert_eq!((info.status, info.moved), (JobStatus::Succeeded, 2));
    assert_eq!(holders(&master, "a"), [2, 3]);
    assert_eq!([0, 1].map(|n| status(&master, n)), [SegmentStatus::Drained; 2]);
}

#[test]
fn what_cannot_be_moved_now_is_moved_later() {
    let master = cluster(&[1000, 1000, 1000]);
    let open = start_as(&master, at(0), "open", 10, &into(0)).unwrap();
    put_as(&master, at(0), "copied", 10, &into(1)).unwrap();
    // Towards the segment that is about to be drained.
    let to = ["segment-0"];
    let copy = master.copy_start(at(0), WRITER, key("copied"), "segment-1", &to).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.blocked, info.active), (JobStatus::Planning, 2, 0));
    end(&master, secs(1), "open", open.handle.generation).unwrap();
    master.copy_end(secs(1), WRITER, key("copied"), copy.handle).unwrap();
    let (_, info) = run(&master, secs(2), job);
    assert_eq!((info.status, info.moved, info.blocked), (JobStatus::Succeeded, 2, 0));
    assert_eq!(holders(&master, "copied"), [1, 2]);
    assert_ne!(holders(&master, "open"), [0]);
}

#[test]
fn what_no_target_has_room_for_waits_and_what_fits_nowhere_fails() {
    let master = cluster(&[1000, 300, 100]);
    put_as(&master, at(0), "in the way", 200, &into(1).hard_pin()).unwrap();
    put_as(&master, at(0), "waits", 150, &into(0)).unwrap();
    put_as(&master, at(0), "too large", 400, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.active, info.blocked, info.failed), (0, 1, 1));
    master.remove(at(0), key("in the way"), false).unwrap();
    let (now, info) = run(&master, secs(1), job);
    assert_eq!((info.status, info.moved, info.failed), (JobStatus::Failed, 1, 1));
    assert!(info.message.contains("1 objects could not be moved"), "{}", info.message);
    // Nothing is lost, and the segment is in use again.
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
    assert_eq!((holders(&master, "waits"), holders(&master, "too large")), (vec![1], vec![0]));
    assert!(master.get_replica_list(now, key("too large")).is_ok());
}

#[test]
fn a_move_is_tried_again_three_times() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    let mut failures = 0;
    let mut second = 0;
    while !master.query_drain_job(job).unwrap().status.is_final() {
        tick(&master, secs(second));
        failures += fail(&master, secs(second), 0);
        second += 1;
        assert!(second < 100);
    }
    assert_eq!(failures, 4);
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.moved, info.failed), (JobStatus::Failed, 0, 1));
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
    // Three failures are not too many.
    let job = drain(&master, secs(second), 0);
    let mut failures = 0;
    while failures < 3 {
        tick(&master, secs(second));
        failures += fail(&master, secs(second), 0);
        second += 1;
        assert!(second < 200);
    }
    let (_, info) = run(&master, secs(second), job);
    assert_eq!((info.status, info.moved), (JobStatus::Succeeded, 1));
}

#[test]
fn a_report_of_success_does_not_count_where_the_object_still_is() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    let task = master.fetch_tasks(at(0), owner(0), 1).remove(0);
    let success = TaskStatus::Success;
    master.mark_task_to_complete(at(0), owner(0), task.id, success, "as if").unwrap();
    tick(&master, at(1));
    assert_eq!(master.query_drain_job(job).unwrap().moved, 0);
    assert_eq!(run(&master, secs(2), job).1.moved, 1);
}

#[test]
fn objects_that_go_by_themselves_are_not_counted() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    put_as(&master, at(0), "b", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    master.remove(at(0), key("a"), true).unwrap();
    master.remove(at(0), key("b"), true).unwrap();
    fail(&master, at(0), 0);
    let (_, info) = run(&master, at(1), job);
    assert_eq!((info.status, info.moved, info.failed), (JobStatus::Succeeded, 0, 0));
}

#[test]
fn a_job_that_cannot_be_done_is_refused_for_its_cause() {
    let master = cluster(&[100, 100, 100, 100]);
    let create = |segments: &[&str], targets: &[&str], concurrency| {
        master.create_drain_job(at(0), segments, targets, concurrency).unwrap_err()
    };
    assert_eq!(create(&[], &[], 4), DrainError::SegmentCount { count: 0 });
    let many = vec!["segment-0"; 1025];
    assert_eq!(create(&many, &[], 4), DrainError::SegmentCount { count: 1025 });
    assert_eq!(create(&["segment-0"], &many, 4), DrainError::SegmentCount { count: 1025 });
    for given in [0, 1025] {
        assert_eq!(create(&["segment-0"], &[], given), DrainError::Concurrency { given });
    }
    let gone = DrainError::SegmentNotFound { name: "gone".into() };
    assert_eq!(create(&["segment-0", "gone"], &[], 4), gone);
    assert_eq!(create(&["segment-0"], &["gone"], 4), gone);
    assert_eq!(gone.code(), ErrorCode::SegmentNotFound);
    let both = DrainError::SegmentIsTarget { name: "segment-0".into() };
    assert_eq!(create(&["segment-0"], &["segment-1", "segment-0"], 4), both);
    let all = ["segment-0", "segment-1", "segment-2", "segment-3"];
    assert_eq!(create(&all, &[], 4), DrainError::NoTarget);
    // Nothing was changed on the way.
    assert!((0..4).all(|n| status(&master, n) == SegmentStatus::Ok));
    drain(&master, at(0), 3);
    let draining = DrainError::SegmentUnavailable {
        name: "segment-3".into(),
        status: SegmentStatus::Draining,
    };
    assert_eq!(create(&["segment-0", "segment-3"], &[], 4), draining);
    assert_eq!(create(&["segment-0"], &["segment-3"], 4), draining);
    assert_eq!(draining.code(), ErrorCode::UnavailableInCurrentStatus);
    let unknown = master.query_drain_job(JobId::from_u128(1)).unwrap_err();
    assert_eq!((unknown.clone(), unknown.code()), (DrainError::NotFound, ErrorCode::JobNotFound));
    let unknown = master.cancel_drain_job(at(0), JobId::from_u128(1));
    assert_eq!(unknown, Err(DrainError::NotFound));
}

#[test]
fn a_canceled_job_ends_at_once_when_no_client_has_begun_a_move() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    assert_eq!(master.ping(at(0), owner(0)).tasks, 1);
    assert_eq!(master.cancel_drain_job(at(1), job), Ok(JobStatus::Canceled));
    assert_eq!(master.ping(at(1), owner(0)).tasks, 0);
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
    let again = master.cancel_drain_job(at(1), job);
    assert_eq!(again, Err(DrainError::Ended { status: JobStatus::Canceled }));
    tick(&master, at(2));
    assert_eq!((status(&master, 0), holders(&master, "a")), (SegmentStatus::Ok, vec![0]));
}

#[test]
fn a_canceled_job_lets_moves_that_were_begun_end() {
    let master = cluster(&[1000, 1000]);
    for n in 0..10 {
        put_as(&master, at(0), &n.to_string(), 10, &into(0)).unwrap();
    }
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    let task = master.fetch_tasks(at(0), owner(0), 1).remove(0);
    for _ in 0..2 {
        assert_eq!(master.cancel_drain_job(at(1), job), Ok(JobStatus::Running));
    }
    tick(&master, at(2));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.active), (JobStatus::Running, 1));
    assert_eq!(status(&master, 0), SegmentStatus::Draining);
    perform(&master, at(3), owner(0), &task, |_, _| {});
    tick(&master, at(4));
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.moved, info.active), (JobStatus::Canceled, 1, 0));
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
}

#[test]
fn a_segment_that_goes_before_it_is_empty_fails_the_job() {
    let master = cluster(&[1000, 1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    put_as(&master, at(0), "b", 10, &into(1)).unwrap();
    let one = drain(&master, at(0), 0);
    tick(&master, at(0));
    master.unmount_segment(at(0), owner(0), id(0)).unwrap();
    let (_, info) = run(&master, at(1), one);
    assert_eq!((info.status, info.active), (JobStatus::Failed, 0));
    assert!(info.message.contains("\"segment-0\" went"), "{}", info.message);

    // Of several the others are emptied all the same.
    master.mount_segment(at(0), owner(0), segment(0, 1000)).unwrap();
    let two = master.create_drain_job(at(0), &["segment-0", "segment-1"], &[], 4).unwrap();
    master.unmount_segment(at(0), owner(0), id(0)).unwrap();
    let (_, info) = run(&master, at(1), two);
    assert_eq!((info.status, info.moved), (JobStatus::Failed, 1));
    assert_eq!((status(&master, 1), holders(&master, "b")), (SegmentStatus::Drained, vec![2]));
}

#[test]
fn a_segment_that_was_away_is_drained_on() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = cluster_with(config, &[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    tick(&master, at(0));
    master.ping(secs(9), owner(1));
    tick(&master, secs(11));
    tick(&master, secs(13));
    assert_eq!(status(&master, 0), SegmentStatus::Suspended);
    let info = master.query_drain_job(job).unwrap();
    assert_eq!((info.status, info.blocked), (JobStatus::Running, 1));
    master.mount_segment(secs(14), owner(0), segment(0, 1000)).unwrap();
    tick(&master, secs(14));
    assert_eq!(status(&master, 0), SegmentStatus::Draining);
    master.ping(secs(14), owner(1));
    let (_, info) = run(&master, secs(15), job);
    assert_eq!((info.status, info.moved), (JobStatus::Succeeded, 1));
}

/// The client of segment 0 is silent until that is suspended, and comes back with it.
fn pause(master: &Master, away: impl FnOnce(Time)) {
    master.ping(secs(9), owner(1));
    tick(master, secs(11));
    assert_eq!(status(master, 0), SegmentStatus::Suspended);
    away(secs(11));
    master.reattach_segment(secs(12), owner(0), &segment(0, 1000)).unwrap();
    tick(master, secs(12));
}

fn with_short_ttl() -> Master {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    cluster_with(config, &[1000, 1000])
}

#[test]
fn a_drained_segment_stays_drained_over_a_pause_of_its_node() {
    let master = with_short_ttl();
    let job = drain(&master, at(0), 0);
    run(&master, at(0), job);
    pause(&master, |_| {});
    assert_eq!(status(&master, 0), SegmentStatus::Drained);
    for n in 0..20 {
        put_as(&master, secs(12), &n.to_string(), 10, &into(0)).unwrap();
        assert_eq!(holders(&master, &n.to_string()), [1]);
    }
    master.reopen_segment(secs(12), "segment-0").unwrap();
    put_as(&master, secs(12), "a", 10, &into(0)).unwrap();
    assert_eq!(holders(&master, "a"), [0]);
}

#[test]
fn a_segment_can_be_taken_into_use_again_while_its_node_is_away() {
    let master = with_short_ttl();
    let away = SegmentStatus::Suspended;
    let job = drain(&master, at(0), 0);
    run(&master, at(0), job);
    pause(&master, |now| {
        master.reopen_segment(now, "segment-0").unwrap();
        assert_eq!(status(&master, 0), away);
        // It is not there, whatever is wanted of it.
        let error = DrainError::SegmentUnavailable { name: "segment-0".into(), status: away };
        assert_eq!(master.reopen_segment(now, "segment-0"), Err(error));
    });
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
}

#[test]
fn a_job_that_is_canceled_while_a_node_is_away_leaves_its_segment_in_use() {
    let master = with_short_ttl();
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    pause(&master, |now| {
        assert_eq!(master.cancel_drain_job(now, job), Ok(JobStatus::Canceled));
    });
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
}

#[test]
fn a_client_of_a_drained_segment_is_not_told_to_attach_it_again() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let beat = || {
        let beat = Beat { segments: 1, ..Beat::default() };
        master.beat(at(1), owner(0), beat).status
    };
    let job = drain(&master, at(0), 0);
    assert_eq!((status(&master, 0), beat()), (SegmentStatus::Draining, ClientStatus::Ok));
    run(&master, at(1), job);
    assert_eq!((status(&master, 0), beat()), (SegmentStatus::Drained, ClientStatus::Ok));
}

#[test]
fn a_segment_that_leaves_in_peace_can_be_emptied_on_its_way() {
    let master = cluster(&[1000, 1000]);
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    let grace = Duration::from_secs(60);
    master.graceful_unmount_segment(at(0), owner(0), id(0), grace).unwrap();
    let (_, info) = run(&master, at(1), job);
    assert_eq!((info.status, info.moved), (JobStatus::Succeeded, 1));
    assert_eq!(status(&master, 0), SegmentStatus::GracefullyUnmounting);
}

#[test]
fn a_drained_segment_can_be_taken_into_use_again() {
    let master = cluster(&[1000, 1000]);
    let job = drain(&master, at(0), 0);
    let draining = DrainError::SegmentUnavailable {
        name: "segment-0".into(),
        status: SegmentStatus::Draining,
    };
    assert_eq!(master.reopen_segment(at(0), "segment-0"), Err(draining));
    run(&master, at(0), job);
    master.reopen_segment(at(1), "segment-0").unwrap();
    master.reopen_segment(at(1), "segment-0").unwrap();
    assert_eq!(status(&master, 0), SegmentStatus::Ok);
    put_as(&master, at(1), "a", 10, &into(0)).unwrap();
    assert_eq!(holders(&master, "a"), [0]);
    let none = master.reopen_segment(at(1), "none");
    assert_eq!(none, Err(DrainError::SegmentNotFound { name: "none".into() }));
}

#[test]
fn a_tick_looks_at_a_bounded_number_of_objects() {
    let master = cluster(&[1 << 20, 1 << 20]);
    for n in 0..30_000 {
        put_as(&master, at(0), &n.to_string(), 1, &into(1)).unwrap();
    }
    put_as(&master, at(0), "last", 1, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    let mut ticks = 1;
    while master.tick(at(0)) {
        ticks += 1;
    }
    assert!(ticks >= 3, "{ticks}");
    assert_eq!(master.query_drain_job(job).unwrap().active, 1);
    assert_eq!(run(&master, at(0), job).1.moved, 1);
}

#[test]
fn only_so_many_jobs_are_at_work_and_known() {
    let sizes = vec![100; MAX_DRAIN_JOBS + 2];
    let master = cluster(&sizes);
    let jobs: Vec<JobId> =
        (0..MAX_DRAIN_JOBS as u128).map(|number| drain(&master, at(0), number)).collect();
    let name = format!("segment-{MAX_DRAIN_JOBS}");
    let refused = master.create_drain_job(at(0), &[&name], &[], 4).unwrap_err();
    assert_eq!(refused, DrainError::TooManyJobs);
    assert!(refused.is_retryable());
    assert_eq!(master.report().totals.drain_jobs, MAX_DRAIN_JOBS as u64);
    tick(&master, at(0));
    assert!(
        jobs.iter()
            .all(|job| { master.query_drain_job(*job).unwrap().status == JobStatus::Succeeded })
    );
    for _ in 0..=MAX_ENDED_DRAIN_JOBS {
        let job = master.create_drain_job(at(0), &[&name], &[], 4).unwrap();
        master.cancel_drain_job(at(0), job).unwrap();
    }
    assert_eq!(master.list_drain_jobs().len(), MAX_ENDED_DRAIN_JOBS);
    assert_eq!(master.query_drain_job(jobs[0]).unwrap_err(), DrainError::NotFound);
}

/// Records the effects on jobs and segments.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl EffectSink for Told {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let line = match effect {
            Effect::DrainJob { job } => format!("job {}", job.status),
            Effect::SegmentChanged { segment, status } => {
                format!("{} {status}", segment.spec().name)
            }
            _ => return,
        };
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn where_a_job_and_its_segments_are_is_told() {
    let told = Told::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(told.clone());
    for number in 0..2 {
        master.mount_segment(at(0), owner(number), segment(number, 100)).unwrap();
    }
    put_as(&master, at(0), "a", 10, &into(0)).unwrap();
    let job = drain(&master, at(0), 0);
    run(&master, at(0), job);
    master.reopen_segment(secs(9), "segment-0").unwrap();
    let job = drain(&master, secs(9), 0);
    master.cancel_drain_job(secs(9), job).unwrap();
    assert_eq!(
        *told.0.lock().unwrap(),
        [
            "segment-0 draining",
            "job created",
            "job running",
            "job succeeded",
            "segment-0 drained",
            "segment-0 ok",
            "segment-0 draining",
            "job created",
            "job canceled",
            "segment-0 ok",
        ]
    );
}
