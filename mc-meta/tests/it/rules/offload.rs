//! The clients' local disks: what goes there, and what becomes of it.

use mc_meta::{
    ClientStatus, FoundError, FoundInTier, GetError, LocalDiskConfig, LocalDiskError,
    LocalDiskSpec, Master, OffloadError, OffloadOutcome, PutStartError, RemoveError, ReplicaKind,
    TierEvictError, TierJob, TransferError,
};
use mc_types::{Endpoint, ErrorCode, Generation, LocalDiskId, RemoteKey, SegmentId, Time};

use super::*;

pub(crate) const OTHER: ClientId = ClientId::from_u128(200);

pub(crate) fn endpoint(client: ClientId) -> Endpoint {
    format!("tcp://10.0.0.1:{}", client.as_u128() % 60_000).parse().unwrap()
}

/// The disk that a client mounts first.
pub(crate) fn disk(client: ClientId) -> LocalDiskSpec {
    LocalDiskSpec {
        id: LocalDiskId::from_u128(client.as_u128()),
        endpoint: endpoint(client),
        remote_key: RemoteKey::from_bytes([9; 16]),
        ticket_key: None,
    }
}

/// Settings with local disks: written to at put, or at eviction.
pub(crate) fn with_disks(on_evict: bool) -> MasterConfig {
    let mut config = settings();
    let mut disks = LocalDiskConfig::default();
    disks.on_evict = on_evict;
    config.local_disk = Some(disks);
    config
}

/// A master with one segment, whose client has a disk.
pub(crate) fn with_disk(config: MasterConfig, size: u64) -> Master {
    let master = master_with(config, &[size]);
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    master
}

pub(crate) fn fetch(master: &Master, now: Time) -> Vec<TierJob> {
    let jobs = master.offload_heartbeat(now, NODE, true, usize::MAX).unwrap();
    jobs.into_iter().map(|job| job.job).collect()
}

pub(crate) fn names(jobs: &[TierJob]) -> Vec<&str> {
    jobs.iter().map(|job| job.key.as_str()).collect()
}

#[test]
fn a_disk_has_no_more_objects_than_it_may() {
    for on_evict in [false, true] {
        let mut config = with_disks(on_evict);
        let mut disks = config.local_disk.unwrap();
        disks.max_objects = 2;
        config.local_disk = Some(disks);
        let master = with_disk(config, 100);
        let objects = || master.local_disks()[0].objects;
        for name in ["a", "b", "c"] {
            put(&master, at(0), name, 30).unwrap();
        }
        if on_evict {
            // All of them are wanted.
            let _ = put(&master, at(10_000), "d", 90);
        }
        let jobs = fetch(&master, at(10_000));
        assert_eq!(names(&jobs), ["a", "b", "c"]);
        let outcomes = notify(&master, at(10_000), &jobs, true);
        assert_eq!(outcomes, [Ok(()), Ok(()), Err(OffloadError::TooManyObjects)]);
        assert_eq!(objects(), 2);
        assert_eq!(outcomes[2].unwrap_err().code(), ErrorCode::OffloadQueueFull);
        // It is in memory, or gone with it; it is not listed where it is not.
        let expected = if on_evict { Err(GetError::NotFound) } else { Ok((true, 0)) };
        assert_eq!(read(&master, at(10_000), "c"), expected);
        // One that goes makes room for the next.
        master.remove(at(10_000), key("a"), true).unwrap();
        assert_eq!(objects(), 1);
    }
}

pub(crate) fn notify(
    master: &Master,
    now: Time,
    jobs: &[TierJob],
    written: bool,
) -> Vec<Result<(), OffloadError>> {
    notify_as(master, now, NODE, jobs, written)
}

fn notify_as(
    master: &Master,
    now: Time,
    client: ClientId,
    jobs: &[TierJob],
    written: bool,
) -> Vec<Result<(), OffloadError>> {
    let outcome = |job: &'_ TierJob| (job.key.clone(), job.generation);
    let jobs: Vec<_> = jobs.iter().map(outcome).collect();
    let outcomes: Vec<_> = jobs
        .iter()
        .map(|(key, generation)| OffloadOutcome {
            key: key.as_ref(),
            generation: *generation,
            written,
            too_long: false,
            address: 4096,
        })
        .collect();
    master.notify_offload(now, client, &outcomes)
}

/// Writes everything that waits to be written.
pub(crate) fn write_all(master: &Master, now: Time) {
    let jobs = fetch(master, now);
    notify(master, now, &jobs, true).into_iter().for_each(Result::unwrap);
}

fn found(
    master: &Master,
    client: ClientId,
    name: &str,
    put: Generation,
    len: u64,
) -> Result<(), FoundError> {
    let found =
        FoundInTier { key: key(name), generation: put, slices: one_slice(len), address: 8192 };
    master.report_local_disk(at(0), client, &[found]).remove(0)
}

/// Whether it is read from memory, and from how many clients' disks.
pub(crate) fn read(master: &Master, now: Time, name: &str) -> Result<(bool, usize), GetError> {
    let list = master.get_replica_list(now, key(name))?;
    Ok((!list.placements.is_empty(), list.local_disks.len()))
}

fn used(master: &Master) -> u64 {
    master.local_disks().iter().map(|disk| disk.usage.used).sum()
}

#[test]
fn without_the_setting_no_disk_is_mounted() {
    let master = master(&[100]);
    let refused = master.mount_local_disk(at(0), NODE, disk(NODE), true);
    assert_eq!(refused, Err(LocalDiskError::Unsupported));
    assert_eq!(master.unmount_local_disk(at(0), NODE, false), Err(LocalDiskError::Unsupported));
    let put = put(&master, at(0), "a", 10).unwrap().handle.generation;
    assert_eq!(master.offload_heartbeat(at(0), NODE, true, 9), Err(OffloadError::NoDisk));
    assert_eq!(found(&master, NODE, "a", put, 10), Err(FoundError::NoDisk));
    assert!(master.local_disks().is_empty());
}

#[test]
fn an_object_is_written_when_its_put_ends() {
    let master = with_disk(with_disks(false), 100);
    let grant = start(&master, at(0), "a", 10).unwrap();
    assert!(fetch(&master, at(0)).is_empty(), "not before");
    end(&master, at(0), "a", grant.handle.generation).unwrap();
    let jobs = fetch(&master, at(0));
    let key = key("a").to_owned();
    assert_eq!(jobs, [TierJob { key, generation: grant.handle.generation, len: 10 }]);
    assert!(fetch(&master, at(0)).is_empty(), "handed out once");
    assert_eq!(read(&master, at(0), "a"), Ok((true, 0)));
    assert_eq!(notify(&master, at(0), &jobs, true), [Ok(())]);
    let list = master.get_replica_list(at(0), KeyRef::new("a").unwrap()).unwrap();
    assert_eq!(
        (list.local_disks[0].client, &list.local_disks[0].disk.endpoint),
        (NODE, &endpoint(NODE))
    );
    assert_eq!((used(&master), master.report().totals.offload_written_bytes), (10, 10));
    assert_eq!(notify(&master, at(0), &jobs, true), [Err(OffloadError::NotPending)]);
}

#[test]
fn a_heartbeat_hands_out_no_more_than_it_asks_for_and_oldest_first() {
    let master = with_disk(with_disks(false), 100);
    for name in ["a", "b", "c"] {
        put(&master, at(0), name, 10).unwrap();
    }
    let some = |max| -> Vec<TierJob> {
        let jobs = master.offload_heartbeat(at(0), NODE, true, max).unwrap();
        jobs.into_iter().map(|job| job.job).collect()
    };
    assert_eq!(names(&some(2)), ["a", "b"]);
    assert!(some(0).is_empty());
    assert_eq!(names(&some(9)), ["c"]);
}

#[test]
fn what_is_on_its_way_to_a_disk_is_not_evicted() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "a", 100).unwrap();
    assert_eq!(start(&master, at(1), "b", 1).unwrap_err(), PutStartError::AllLeased { len: 1 });
    let jobs = fetch(&master, at(1));
    notify(&master, at(1), &jobs, true)[0].unwrap();
    put(&master, secs(10), "b", 1).unwrap();
    assert_eq!(read(&master, secs(10), "a"), Ok((false, 1)));
    assert_eq!(master.report().totals.tier_only_objects, 1);
}

#[test]
fn what_is_not_written_stays_in_memory_and_can_be_evicted() {
    for give_up in [
        |master: &Master, jobs: &[TierJob]| {
            assert_eq!(notify(master, at(1), jobs, false), [Ok(())]);
        },
        |master: &Master, _: &[TierJob]| while master.tick(secs(601)) {},
        |master: &Master, _: &[TierJob]| master.unmount_local_disk(at(1), NODE, false).unwrap(),
    ] {
        let master = with_disk(with_disks(false), 1000);
        put(&master, at(0), "a", 900).unwrap();
        let jobs = fetch(&master, at(0));
        give_up(&master, &jobs);
        assert_eq!(read(&master, secs(602), "a"), Ok((true, 0)));
        put(&master, secs(610), "b", 900).unwrap();
        assert_eq!(read(&master, secs(610), "a"), Err(GetError::NotFound));
        let late = notify(&master, secs(610), &jobs, true)[0];
        assert!(matches!(late, Err(OffloadError::NotPending | OffloadError::NoDisk)));
    }
}

#[test]
fn a_client_that_takes_no_objects_gets_none_and_hands_back_those_not_fetched() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "fetched", 10).unwrap();
    let jobs = fetch(&master, at(0));
    put(&master, at(0), "queued", 10).unwrap();
    assert!(master.offload_heartbeat(at(0), NODE, false, 9).unwrap().is_empty());
    put(&master, at(0), "later", 10).unwrap();
    assert!(fetch(&master, at(0)).is_empty());
    assert_eq!(notify(&master, at(0), &jobs, true), [Ok(())]);
    let usage = master.local_disks()[0].usage;
    assert_eq!((usage.queued, usage.writing, usage.used), (0, 0, 10));
}

#[test]
fn an_object_that_goes_is_not_written() {
    for go in [
        |master: &Master| master.remove(at(0), key("a"), true).unwrap(),
        |master: &Master| {
            let config = ReplicateConfig::default();
            let put = PutStart { key: key("a"), slice_lengths: &[20], config: &config };
            let new = master.upsert_start(at(0), WRITER, &put).unwrap();
            end(master, at(0), "a", new.handle.generation).unwrap();
            let jobs = fetch(master, at(0));
            assert_eq!(jobs[0].generation, new.handle.generation, "the new value is");
        },
    ] {
        let master = with_disk(with_disks(false), 100);
        put(&master, at(0), "a", 10).unwrap();
        let jobs = fetch(&master, at(0));
        go(&master);
        assert_eq!(notify(&master, at(0), &jobs, true), [Err(OffloadError::NotPending)]);
        assert_eq!(used(&master), 0);
    }
}

#[test]
fn with_on_evict_an_object_is_written_before_it_is_evicted() {
    let master = with_disk(with_disks(true), 100);
    put(&master, at(0), "a", 60).unwrap();
    put(&master, at(1), "b", 40).unwrap();
    assert!(fetch(&master, at(1)).is_empty());
    // The put has to wait until it is written, and asking again offers no more of them.
    for now in 2..5 {
        let error = start(&master, at(now), "c", 50).unwrap_err();
        assert_eq!(error, PutStartError::AllLeased { len: 50 });
    }
    let jobs = fetch(&master, at(5));
    assert_eq!(names(&jobs), ["a"]);
    assert_eq!(master.report().totals.used, 100);
    notify(&master, at(5), &jobs, true)[0].unwrap();
    assert_eq!(master.report().totals.used, 40);
    put(&master, at(6), "c", 50).unwrap();
    assert_eq!(read(&master, at(6), "a"), Ok((false, 1)));
    // What is on a disk is evicted at once.
    assert_eq!(master.report().totals.evicted_objects, 1);
}

#[test]
fn with_on_evict_only_the_replica_that_is_read_stays_until_it_is_written() {
    let master = with_disk(with_disks(true), 100);
    master.mount_segment(at(0), OTHER, segment(1, 100)).unwrap();
    put_as(&master, at(0), "a", 100, &ReplicateConfig::default().replicas(2)).unwrap();
    put(&master, at(1), "b", 100).unwrap();
    assert_eq!(master.report().totals.used, 200);
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs), ["a"]);
    let list = master.get_replica_list(at(1), key("a")).unwrap();
    assert_eq!(list.placements[0].segment.client(), NODE);
    // It is used now, so that it stays when it is written.
    notify(&master, at(2), &jobs, true)[0].unwrap();
    assert_eq!(read(&master, at(2), "a"), Ok((true, 1)));
    put(&master, secs(10), "c", 100).unwrap();
    put(&master, secs(10), "d", 100).unwrap();
    assert_eq!(read(&master, secs(10), "a"), Ok((false, 1)));
}

#[test]
fn above_the_watermark_a_tick_has_written_what_it_would_evict() {
    let mut config = with_disks(true);
    config.eviction_high_watermark_ratio = 0.5;
    config.eviction_ratio = 0.1;
    let master = with_disk(config, 100);
    for n in 0..10 {
        put(&master, at(n), &n.to_string(), 10).unwrap();
    }
    (0..3).for_each(|now| assert!(!master.tick(secs(now)), "nothing to do until they are written"));
    let jobs = fetch(&master, secs(3));
    assert_eq!(names(&jobs), ["0", "1", "2", "3", "4", "5"]);
    notify(&master, secs(3), &jobs, true);
    assert_eq!((master.report().totals.used, master.report().totals.tier_only_objects), (40, 6));
}

#[test]
fn a_full_queue_keeps_objects_in_memory_unless_eviction_is_forced() {
    for force in [false, true] {
        let mut config = with_disks(true);
        let disks = config.local_disk.as_mut().unwrap();
        disks.offload.queue_limit = 1;
        disks.force_evict = force;
        let master = with_disk(config, 100);
        for name in ["a", "b"] {
            put(&master, at(0), name, 50).unwrap();
        }
        let outcome = start(&master, at(1), "c", 100);
        assert_eq!(outcome.unwrap_err(), PutStartError::AllLeased { len: 100 });
        assert_eq!(names(&fetch(&master, at(1))), ["a"]);
        assert_eq!(has(&master, "b"), !force);
    }
}

#[test]
fn force_does_nothing_without_on_evict() {
    let mut config = with_disks(false);
    config.local_disk.as_mut().unwrap().force_evict = true;
    let master = with_disk(config, 100);
    put(&master, at(0), "a", 100).unwrap();
    assert!(start(&master, at(1), "b", 1).is_err());
    let jobs = fetch(&master, at(1));
    notify(&master, at(1), &jobs, false)[0].unwrap();
    assert!(has(&master, "a"));
}

#[test]
fn with_on_evict_what_cannot_be_written_is_evicted_or_stays() {
    for force in [false, true] {
        let mut config = with_disks(true);
        config.local_disk.as_mut().unwrap().force_evict = force;
        let master = with_disk(config, 100);
        put(&master, at(0), "a", 100).unwrap();
        assert!(start(&master, at(1), "b", 1).is_err());
        let jobs = fetch(&master, at(1));
        notify(&master, at(1), &jobs, false)[0].unwrap();
        assert_eq!((has(&master, "a"), master.report().totals.used == 0), (!force, force));
        // Offered again when room is wanted again.
        assert_eq!(start(&master, at(2), "b", 1).is_ok(), force);
        assert_eq!(fetch(&master, at(2)).len(), usize::from(!force));
    }
}

#[test]
fn a_ping_says_when_there_is_work_for_a_disk() {
    let master = with_disk(with_disks(false), 100);
    let has_work = |now| master.ping(at(now), NODE).disk_work;
    // Puts before its first ping do not count as news for it.
    has_work(0);
    assert!(!has_work(1));
    put(&master, at(2), "a", 10).unwrap();
    assert!(has_work(2) && has_work(3));
    write_all(&master, at(3));
    assert!(!has_work(4));
    master.remove(at(5), key("a"), true).unwrap();
    assert!(has_work(5) && has_work(6));
    assert_eq!(master.local_disk_deletions(NODE, 9).objects.len(), 1);
    assert!(!has_work(7));
    // Where there are puts there will be work soon.
    start(&master, at(8), "b", 10).unwrap();
    assert!(has_work(8) && !has_work(9));
    master.unmount_local_disk(at(10), NODE, true).unwrap();
    assert!(has_work(10), "it is to mount the disk again");
}

/// Two clients with disks, of which this one has fetched what to write and says nothing more.
fn with_a_hung_disk() -> (Master, Vec<TierJob>) {
    let master = with_disk(with_disks(true), 100);
    master.mount_segment(at(0), OTHER, segment(1, 100)).unwrap();
    master.mount_local_disk(at(0), OTHER, disk(OTHER), true).unwrap();
    for (at_segment, name) in [(0, "a"), (0, "b"), (1, "c"), (1, "d")] {
        let near = ReplicateConfig::default().prefer(format!("segment-{at_segment}"));
        put_as(&master, at(0), name, 50, &near).unwrap();
    }
    assert!(start(&master, at(1), "e", 50).is_err());
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs), ["a"]);
    (master, jobs)
}

#[test]
fn a_put_does_not_wait_for_a_disk_that_hangs() {
    let (master, jobs) = with_a_hung_disk();
    assert!(start(&master, at(500), "e", 50).is_err(), "it may be written any time now");
    // Its memory is taken without a copy.
    put(&master, at(501), "e", 50).unwrap();
    assert!(!has(&master, "a"));
    // The others are written by the disk that answers, as long as it does.
    for (n, name) in ["f", "g", "h", "i"].into_iter().enumerate() {
        let now = at(5000 + n as u64 * 10);
        if start(&master, now, name, 50).is_err() {
            let jobs = master.offload_heartbeat(now, OTHER, true, usize::MAX).unwrap();
            let jobs: Vec<_> = jobs.into_iter().map(|job| job.job).collect();
            assert_eq!(jobs.len(), 1);
            notify_as(&master, now, OTHER, &jobs, true)[0].unwrap();
            start(&master, now, name, 50).unwrap();
        }
    }
    assert_eq!(notify(&master, at(6000), &jobs, true), [Err(OffloadError::NotPending)]);
}

#[test]
fn the_watermark_counts_on_no_disk_that_hangs() {
    let mut config = with_disks(true);
    config.eviction_high_watermark_ratio = 0.5;
    config.eviction_ratio = 0.1;
    let master = with_disk(config, 100);
    for n in 0..10 {
        put(&master, at(n), &n.to_string(), 10).unwrap();
    }
    while master.tick(at(1000)) {}
    assert_eq!(fetch(&master, at(1000)).len(), 6);
    while master.tick(secs(3)) {}
    assert_eq!(master.report().totals.used, 100, "they are being written");
    while master.tick(secs(4)) {}
    assert_eq!(master.report().totals.used, 60, "others go without a disk");
}

#[test]
fn what_a_disk_never_takes_is_evicted_without_it() {
    // Too long for the disk, or failed twice.
    for (too_long, tries) in [(true, 1), (false, 2)] {
        let master = with_disk(with_disks(true), 100);
        put(&master, at(0), "a", 100).unwrap();
        for n in 1..=tries {
            assert!(start(&master, at(n), "b", 1).is_err(), "try {n}");
            let jobs = fetch(&master, at(n));
            let outcome = OffloadOutcome {
                key: key("a"),
                generation: jobs[0].generation,
                written: false,
                too_long,
                address: 0,
            };
            assert_eq!(master.notify_offload(at(n), NODE, &[outcome]), [Ok(())]);
        }
        assert!(!has(&master, "a"));
        put(&master, at(9), "b", 100).unwrap();
    }
}

#[test]
fn what_waits_for_a_disk_that_is_slow_gives_way_to_puts() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "a", 60).unwrap();
    put(&master, at(300), "b", 40).unwrap();
    assert!(start(&master, at(400), "c", 50).is_err(), "it may be fetched any time now");
    let grant = start(&master, at(500), "c", 50).unwrap();
    end(&master, at(500), "c", grant.handle.generation).unwrap();
    assert!(!has(&master, "a"));
    assert_eq!(names(&fetch(&master, at(501))), ["b", "c"]);
    // What was fetched has as long to be written.
    assert!(start(&master, at(900), "d", 50).is_err());
    put(&master, at(1001), "d", 50).unwrap();
}

#[test]
fn without_a_disk_near_it_an_object_is_evicted_at_once() {
    let master = master_with(with_disks(true), &[100]);
    master.mount_local_disk(at(0), OTHER, disk(OTHER), true).unwrap();
    put(&master, at(0), "a", 100).unwrap();
    put(&master, at(1), "b", 100).unwrap();
    assert!(!has(&master, "a"));
}

#[test]
fn a_group_that_is_evicted_goes_to_the_disk_member_by_member() {
    let master = with_disk(with_disks(true), 100);
    let group = ReplicateConfig::default().group("g");
    for name in ["a", "b"] {
        put_as(&master, at(0), name, 50, &group).unwrap();
    }
    assert!(start(&master, at(1), "c", 10).is_err());
    let jobs = fetch(&master, at(1));
    assert_eq!(names(&jobs), ["a", "b"]);
    notify(&master, at(1), &jobs, true).into_iter().for_each(Result::unwrap);
    put(&master, at(1), "c", 10).unwrap();
    for name in ["a", "b"] {
        assert_eq!(read(&master, at(1), name), Ok((false, 1)));
    }
}

#[test]
fn an_object_on_its_way_to_a_disk_is_removed_all_the_same() {
    let master = with_disk(with_disks(true), 100);
    put(&master, at(0), "a", 100).unwrap();
    assert!(start(&master, at(1), "b", 1).is_err());
    master.remove(at(1), key("a"), false).unwrap();
    // Nothing is promised any more, so that others are offered.
    put(&master, at(2), "b", 100).unwrap();
    assert!(start(&master, at(3), "c", 1).is_err());
    assert_eq!(names(&fetch(&master, at(3))), ["b"]);
}

#[test]
fn what_is_on_its_way_to_a_disk_is_neither_copied_nor_moved() {
    let master = with_disk(with_disks(false), 100);
    master.mount_segment(at(0), OTHER, segment(1, 100)).unwrap();
    let near = ReplicateConfig::default().prefer("segment-0");
    put_as(&master, at(0), "a", 10, &near).unwrap();
    let copy = || master.copy_start(at(0), OTHER, key("a"), "segment-0", &["segment-1"]);
    assert!(matches!(copy(), Err(TransferError::InTransfer)));
    assert!(master.batch_replica_clear(at(0), WRITER, &[key("a")], Some("segment-0")).len() == 1);
    put_as(&master, at(0), "a", 10, &near).unwrap();
    write_all(&master, at(0));
    assert!(copy().is_ok());
}

#[test]
fn objects_on_the_disk_of_a_client_that_goes_cannot_be_read() {
    let mut config = with_disks(false);
    config.client_ttl = Duration::from_secs(10);
    let master = with_disk(config, 100);
    put(&master, at(0), "both", 30).unwrap();
    put(&master, at(0), "disk-only", 70).unwrap();
    write_all(&master, at(0));
    master.exist(at(0), key("both"));
    master.mount_segment(at(1), OTHER, segment(1, 50)).unwrap();
    put(&master, at(1), "new", 70).unwrap();
    assert_eq!(read(&master, at(1), "disk-only"), Ok((false, 1)));
    // The other one stays.
    (0..20).for_each(|now| {
        master.ping(secs(now), OTHER);
        while master.tick(secs(now)) {}
    });
    for name in ["disk-only", "both"] {
        assert_eq!(read(&master, secs(20), name), Err(GetError::NotReady));
    }
    assert_eq!(master.offload_heartbeat(secs(20), NODE, true, 9), Err(OffloadError::NoDisk));
    assert_eq!((master.report().totals.objects, master.local_disks().len()), (3, 0));
    // Too long.
    let day = 24 * 3600;
    master.ping(secs(day + 100), OTHER);
    while master.tick(secs(day + 100)) {}
    assert_eq!(read(&master, secs(day + 100), "disk-only"), Err(GetError::NotFound));
}

#[test]
fn unmounting_drops_only_what_is_on_this_disk() {
    let master = with_disk(with_disks(false), 100);
    master.mount_segment(at(0), OTHER, segment(1, 100)).unwrap();
    master.mount_local_disk(at(0), OTHER, disk(OTHER), true).unwrap();
    let put = put_as(&master, at(0), "a", 10, &ReplicateConfig::default().prefer("segment-0"));
    write_all(&master, at(0));
    found(&master, OTHER, "a", put.unwrap().handle.generation, 10).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, 2)));
    master.unmount_local_disk(at(0), NODE, false).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, 1)));
    master.unmount_local_disk(at(0), NODE, false).unwrap();
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((false, 1)));
    assert_eq!(master.local_disks().len(), 1);
    assert_eq!(master.ping(at(0), OTHER).status, ClientStatus::Ok);
}

#[test]
fn what_is_on_an_unmounted_disk_alone_is_gone_unless_it_is_kept() {
    for (keep, expected) in [(true, GetError::NotReady), (false, GetError::NotFound)] {
        let master = with_disk(with_disks(false), 100);
        put(&master, at(0), "a", 10).unwrap();
        write_all(&master, at(0));
        master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
        assert_eq!(read(&master, at(0), "a"), Ok((false, 1)));
        master.unmount_local_disk(at(0), NODE, keep).unwrap();
        assert_eq!(read(&master, at(0), "a"), Err(expected));
        while master.tick(at(0)) {}
        assert_eq!(master.report().totals.objects, u64::from(keep));
    }
}

#[test]
fn a_client_with_a_disk_alone_lives_by_its_pings() {
    let mut config = with_disks(false);
    config.client_ttl = Duration::from_secs(10);
    let master = Master::new(config, 1).unwrap().with_secret(SECRET);
    let pings = |now| {
        // It has no segment to mount, and need not know that.
        assert_eq!(master.ping(now, NODE).status, ClientStatus::NeedRemount);
    };
    pings(at(0));
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    pings(secs(5));
    master.tick(secs(15));
    assert_eq!((master.local_disks().len(), master.report().totals.clients), (1, 1));
    pings(secs(15));
    master.tick(secs(26));
    assert_eq!((master.local_disks().len(), master.report().totals.clients), (0, 0));
    pings(secs(26));
    master.mount_local_disk(secs(26), NODE, disk(NODE), true).unwrap();
    master.unmount_local_disk(secs(26), NODE, false).unwrap();
    pings(secs(26));
}

#[test]
fn a_client_is_told_of_its_segments_also_when_its_disk_is_back_first() {
    let mut config = with_disks(false);
    config.client_ttl = Duration::from_secs(10);
    let master = with_disk(config, 100);
    put(&master, at(0), "a", 10).unwrap();
    assert_eq!(master.ping(secs(5), NODE).status, ClientStatus::Ok);
    while master.tick(secs(16)) {}
    assert_eq!(read(&master, secs(16), "a"), Err(GetError::NotReady));
    master.mount_local_disk(secs(16), NODE, disk(NODE), true).unwrap();
    assert_eq!(master.ping(secs(17), NODE).status, ClientStatus::NeedRemount);
    master.reattach_segment(secs(17), NODE, &segment(0, 100)).unwrap();
    assert_eq!(master.ping(secs(18), NODE).status, ClientStatus::Ok);
    assert_eq!(read(&master, secs(18), "a"), Ok((true, 0)));
    // Of a master that knows nothing, too.
    let master = Master::new(with_disks(false), 2).unwrap().with_secret(SECRET);
    master.mount_local_disk(secs(19), NODE, disk(NODE), true).unwrap();
    assert_eq!(master.ping(secs(19), NODE).status, ClientStatus::NeedRemount);
    master.mount_segment(secs(19), NODE, segment(0, 100)).unwrap();
    assert_eq!(master.ping(secs(19), NODE).status, ClientStatus::Ok);
}

#[test]
fn a_disk_that_comes_back_brings_its_objects_along() {
    let master = with_disk(with_disks(false), 100);
    let both = put(&master, at(0), "both", 30).unwrap().handle.generation;
    let only = put(&master, at(0), "disk-only", 20).unwrap().handle.generation;
    let lost = put(&master, at(0), "lost", 10).unwrap().handle.generation;
    let removed = put(&master, at(0), "removed", 10).unwrap().handle.generation;
    let replaced = put(&master, at(0), "replaced", 10).unwrap().handle.generation;
    write_all(&master, at(0));
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(0)).unwrap();
    master.mount_segment(at(0), NODE, segment(1, 100)).unwrap();
    master.unmount_local_disk(at(1), NODE, true).unwrap();
    while master.tick(at(1)) {}
    assert_eq!(read(&master, at(1), "disk-only"), Err(GetError::NotReady));
    assert!(master.local_disks().is_empty());
    master.remove(at(1), key("removed"), false).unwrap();
    put(&master, at(1), "replaced", 5).unwrap();

    // The same disk, mounted by the node's next client.
    master
        .mount_local_disk(at(1), OTHER, LocalDiskSpec { id: disk(NODE).id, ..disk(OTHER) }, true)
        .unwrap();
    assert_eq!(read(&master, at(1), "disk-only"), Err(GetError::NotReady), "where is it?");
    for (name, put, len) in [("both", both, 30), ("disk-only", only, 20)] {
        assert_eq!(found(&master, OTHER, name, put, len), Ok(()));
        assert_eq!(found(&master, OTHER, name, put, len), Ok(()), "once more");
    }
    for (name, put) in [("removed", removed), ("replaced", replaced)] {
        assert_eq!(found(&master, OTHER, name, put, 10), Err(FoundError::OtherObject));
    }
    assert_eq!(read(&master, at(1), "disk-only"), Ok((false, 1)));
    let list = master.get_replica_list(at(1), key("disk-only")).unwrap();
    let place = &list.local_disks[0];
    assert_eq!((place.client, place.extent.offset(), place.extent.len()), (OTHER, 8192, 20));
    assert_eq!(place.disk.endpoint, endpoint(OTHER));
    assert_eq!(start(&master, at(1), "disk-only", 1).unwrap_err(), PutStartError::AlreadyExists);
    // Of another master.
    let theirs = Generation::new(1 << 62);
    assert_eq!(found(&master, OTHER, "older", theirs, 5), Ok(()));
    assert_eq!(master.get_replica_list(at(1), key("older")).unwrap().slices.total_len(), 5);

    assert_eq!(read(&master, at(1), "lost"), Err(GetError::NotReady));
    master.local_disk_reported(OTHER).unwrap();
    assert_eq!(master.local_disk_reported(NODE), Err(FoundError::NoDisk));
    while master.tick(at(1)) {}
    assert_eq!(read(&master, at(1), "lost"), Err(GetError::NotFound));
    assert_eq!(found(&master, OTHER, "lost", lost, 10), Err(FoundError::OtherObject));
    let disk = &master.local_disks()[0];
    assert_eq!((disk.client, disk.objects, disk.usage.used), (OTHER, 3, 55));
}

#[test]
fn a_disk_belongs_to_the_client_that_mounted_it_last() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "a", 10).unwrap();
    let jobs = fetch(&master, at(0));
    master
        .mount_local_disk(at(0), OTHER, LocalDiskSpec { id: disk(NODE).id, ..disk(OTHER) }, true)
        .unwrap();
    assert_eq!(notify(&master, at(0), &jobs, true), [Err(OffloadError::NoDisk)]);
    assert_eq!(master.offload_heartbeat(at(0), NODE, true, 9), Err(OffloadError::NoDisk));
    assert_eq!(master.local_disks().iter().map(|disk| disk.client).collect::<Vec<_>>(), [OTHER]);
    master.unmount_local_disk(at(0), NODE, false).unwrap();
    assert_eq!(master.local_disks().len(), 1, "it was not NODE's any more");
}

#[test]
fn of_clients_that_mount_a_disk_at_once_one_has_it() {
    let master = with_disk(with_disks(false), 100);
    let clients = [NODE, OTHER];
    let together = std::sync::Barrier::new(clients.len());
    for _ in 0..2000 {
        std::thread::scope(|scope| {
            for client in clients {
                let (master, together) = (&master, &together);
                scope.spawn(move || {
                    let spec = LocalDiskSpec { id: disk(NODE).id, ..disk(client) };
                    together.wait();
                    master.mount_local_disk(at(0), client, spec, true).unwrap();
                });
            }
        });
        let holders: Vec<_> = master.local_disks().iter().map(|disk| disk.client).collect();
        assert_eq!(holders.len(), 1, "{holders:?}");
        for client in clients {
            let asked = master.offload_heartbeat(at(0), client, true, 9);
            assert_eq!(asked.is_ok(), holders == [client]);
        }
    }
}

#[test]
fn a_job_says_where_the_object_is_in_memory() {
    let master = with_disk(with_disks(false), 100);
    let grant = put(&master, at(0), "a", 10).unwrap();
    let jobs = master.offload_heartbeat(at(0), NODE, true, 9).unwrap();
    let placement = grant.placements.iter().next().unwrap();
    assert_eq!(jobs[0].source.segment, placement.segment.spec().id);
    assert_eq!(jobs[0].source.extent, placement.extent);
    assert_eq!(jobs[0].slices.total_len(), 10);
}

#[test]
fn what_is_found_must_be_what_is_known() {
    let master = with_disk(with_disks(false), 100);
    let put = put(&master, at(0), "a", 30).unwrap().handle.generation;
    let open = start(&master, at(0), "open", 30).unwrap().handle.generation;
    let other = Generation::new(put.as_u64() - 1);
    let to_come = Generation::new(open.as_u64() + 1);
    assert_eq!(found(&master, NODE, "a", other, 30), Err(FoundError::OtherObject));
    assert_eq!(found(&master, NODE, "open", open, 30), Err(FoundError::OtherObject));
    assert_eq!(found(&master, NODE, "b", to_come, 30), Err(FoundError::OtherObject));
    assert_eq!(found(&master, NODE, "a", put, 31), Err(FoundError::WrongLength));
    for len in [0, u64::MAX] {
        assert_eq!(found(&master, NODE, "b", other, len), Err(FoundError::WrongLength));
    }
    assert_eq!(found(&master, OTHER, "a", put, 30), Err(FoundError::NoDisk));
    assert_eq!(master.report().totals.objects, 2);
}

#[test]
fn a_disk_at_another_endpoint_is_read_when_its_content_is_reported() {
    let master = with_disk(with_disks(false), 100);
    let put = put(&master, at(0), "a", 30).unwrap().handle.generation;
    write_all(&master, at(0));
    master.mount_local_disk(at(0), NODE, disk(NODE), true).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, 1)), "mounted as before");
    let moved = LocalDiskSpec { endpoint: endpoint(OTHER), ..disk(NODE) };
    master.mount_local_disk(at(0), NODE, moved, true).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, 0)));
    found(&master, NODE, "a", put, 30).unwrap();
    assert_eq!(read(&master, at(0), "a"), Ok((true, 1)));
    assert_eq!(used(&master), 30);
    // Another disk instead.
    let other = LocalDiskSpec { id: LocalDiskId::from_u128(7), ..disk(NODE) };
    master.mount_local_disk(at(0), NODE, other, true).unwrap();
    assert_eq!((read(&master, at(0), "a"), used(&master)), (Ok((true, 0)), 0));
    assert_eq!(found(&master, NODE, "a", put, 30), Ok(()));
}

#[test]
fn what_leaves_a_disk_gives_its_room_back() {
    let master = with_disk(with_disks(false), 100);
    master.report_ssd_capacity(NODE, 500).unwrap();
    assert_eq!(master.report_ssd_capacity(OTHER, 500), Err(OffloadError::NoDisk));
    for name in ["removed", "evicted"] {
        put(&master, at(0), name, 30).unwrap();
    }
    write_all(&master, at(0));
    assert_eq!((used(&master), master.local_disks()[0].usage.capacity), (60, 500));
    master.remove(at(0), key("removed"), false).unwrap();
    assert_eq!(used(&master), 30);
    let evict = |client| {
        master.evict_from_tier(at(0), client, key("evicted"), None, ReplicaKind::LocalDisk)
    };
    assert_eq!(evict(OTHER), Err(TierEvictError::NoReplica));
    assert_eq!(evict(NODE), Ok(()));
    assert_eq!((used(&master), read(&master, at(0), "evicted")), (0, Ok((true, 0))));
}

#[test]
fn removing_everything_by_force_has_the_disks_wiped() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "a", 30).unwrap();
    write_all(&master, at(0));
    put(&master, at(0), "b", 30).unwrap();
    master.exist(at(0), key("b"));
    assert_eq!(master.remove_all(at(0), false), 1);
    assert!(!master.poll_remove_all(NODE));
    assert_eq!(master.remove_all(at(0), true), 1);
    assert!(master.poll_remove_all(NODE));
    assert!(!master.poll_remove_all(NODE), "told once");
    assert!(fetch(&master, at(0)).is_empty());
}

#[test]
fn a_lease_protects_what_is_on_a_local_disk_from_removal() {
    let master = with_disk(with_disks(false), 100);
    put(&master, at(0), "a", 100).unwrap();
    write_all(&master, at(0));
    put(&master, at(1), "b", 100).unwrap();
    read(&master, at(1), "a").unwrap();
    let refused = master.remove(at(1), key("a"), false);
    assert!(matches!(refused, Err(RemoveError::Leased { .. })));
}
