//! Copies and moves of one object.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use mc_meta::{
    Effect, EffectSink, EvictionBlocker, GetError, Master, ObjectView, ObjectsLeft, RemovalCounts,
    RemoveError, ReplicaStatus, ReplicateConfig, SegmentStatus, TenantId, TransferError,
    TransferFinishError, TransferGrant, TransferKind,
};
use mc_types::{Checksum, ErrorCode, Generation, Sequence, Time};

use super::*;

const RELEASE: u64 = 600;

/// Puts an object into segment 0.
fn put_in_first(master: &Master, name: &str, len: u64) {
    put_as(master, at(0), name, len, &ReplicateConfig::default().prefer("segment-0")).unwrap();
}

fn copy(
    master: &Master,
    now: Time,
    name: &str,
    targets: &[&str],
) -> Result<TransferGrant, TransferError> {
    master.copy_start(now, WRITER, key(name), "segment-0", targets)
}

fn a_move(master: &Master, now: Time, name: &str) -> Result<TransferGrant, TransferError> {
    master.move_start(now, WRITER, key(name), "segment-0", "segment-1")
}

/// The segments from which the object can be read, without granting a lease.
fn holders(master: &Master, name: &str) -> Vec<String> {
    let info = master.describe(at(0), key(name)).unwrap();
    let complete = info.replicas.iter().filter(|r| r.status == ReplicaStatus::Complete);
    let mut names: Vec<String> =
        complete.map(|r| r.placement.segment.spec().name.to_string()).collect();
    names.sort();
    names
}

fn used(master: &Master, number: u128) -> u64 {
    let segments = master.report().segments;
    segments.iter().find(|segment| segment.spec.id == id(number)).unwrap().used
}

#[test]
fn a_copy_makes_readable_replicas_when_it_ends() {
    let master = cluster(&[100, 100, 100]);
    let config = ReplicateConfig::default().prefer("segment-0");
    let put = PutStart { key: key("a"), slice_lengths: &[10, 20], config: &config };
    let generation = master.put_start(at(0), WRITER, &put).unwrap().handle.generation;
    let checksums = [1, 2].map(Checksum::from_crc32c);
    let end = PutEnd { checksums: &checksums, ..PutEnd::new(key("a"), newest_put(&master)) };
    master.put_end(at(0), WRITER, &end).unwrap();

    let grant = copy(&master, at(1), "a", &["segment-1", "segment-2"]).unwrap();
    assert_eq!(grant.generation, generation);
    let sums: Vec<_> = grant.slices.as_slice().iter().map(|slice| slice.checksum).collect();
    assert_eq!(sums, checksums.map(Some));
    assert_eq!(grant.source.segment.spec().id, id(0));
    let targets = grant.targets.iter().map(|t| (t.segment.spec().id, t.extent.len()));
    assert_eq!(targets.collect::<Vec<_>>(), [(id(1), 30), (id(2), 30)]);
    // Not readable yet, but shown to administrators.
    let list = master.get_replica_list(at(1), key("a")).unwrap();
    assert_eq!(list.placements.len(), 1);
    let info = master.describe(at(1), key("a")).unwrap();
    let written = info.replicas.iter().filter(|r| r.status == ReplicaStatus::Processing);
    assert_eq!((written.count(), master.report().totals.transfers), (2, 1));

    master.copy_end(at(2), WRITER, key("a"), grant.handle).unwrap();
    let list = master.get_replica_list(at(2), key("a")).unwrap();
    assert_eq!((list.generation, list.placements.len()), (generation, 3));
    let read: Vec<_> = list.placements.iter().map(|p| (p.segment.spec().id, p.extent)).collect();
    for target in &grant.targets {
        assert!(read.contains(&(target.segment.spec().id, target.extent)));
    }
    assert_eq!((master.report().totals.used, master.report().totals.transfers), (90, 0));
    master.remove(secs(6), key("a"), false).unwrap();
    assert_eq!(master.report().totals.used, 0);
}

#[test]
fn targets_that_hold_the_object_are_skipped() {
    let master = cluster(&[100, 100, 100]);
    put_in_first(&master, "a", 30);
    let twice = ["segment-1", "segment-0", "segment-1"];
    let grant = copy(&master, at(0), "a", &twice).unwrap();
    assert_eq!(grant.targets.len(), 1);
    master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master)).unwrap();
    assert_eq!(holders(&master, "a"), ["segment-0", "segment-1"]);
    // Nothing to do, nothing to end.
    let grant = copy(&master, at(0), "a", &twice).unwrap();
    assert!(grant.targets.is_empty());
    let end = master.copy_end(at(0), WRITER, key("a"), grant.handle);
    assert_eq!(end, Err(TransferFinishError::NotOpen));
    assert_eq!(TransferFinishError::NotOpen.code(), ErrorCode::ObjectNoReplicationTask);
    assert_eq!(master.report().totals.used, 60);
}

#[test]
fn an_object_has_one_transfer_at_a_time() {
    let master = cluster(&[100, 100, 100]);
    put_in_first(&master, "a", 30);
    copy(&master, at(0), "a", &["segment-1"]).unwrap();
    let again = copy(&master, at(0), "a", &["segment-2"]).unwrap_err();
    assert_eq!(again, TransferError::InTransfer);
    assert_eq!(again.code(), ErrorCode::ObjectHasReplicationTask);
    assert!(again.is_retryable());
    assert_eq!(a_move(&master, at(0), "a").unwrap_err(), TransferError::InTransfer);
    master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master)).unwrap();
    copy(&master, at(0), "a", &["segment-2"]).unwrap();
}

#[test]
fn a_transfer_that_cannot_be_done_is_refused_for_its_cause() {
    let master = cluster(&[100, 100, 100]);
    put_in_first(&master, "a", 30);
    let first = ReplicateConfig::default().prefer("segment-0");
    start_as(&master, at(0), "open", 1, &first).unwrap();
    let start = |name, source, targets: &[&str]| {
        master.copy_start(at(0), WRITER, key(name), source, targets).unwrap_err()
    };
    assert_eq!(start("a", "segment-0", &[]), TransferError::TargetCount { count: 0 });
    let many = ["segment-1"; 33];
    assert_eq!(start("a", "segment-0", &many), TransferError::TargetCount { count: 33 });
    assert_eq!(start("none", "segment-0", &["segment-1"]), TransferError::NotFound);
    assert_eq!(start("open", "segment-0", &["segment-1"]), TransferError::NotReady);
    for (source, target) in [("segment-0", "gone"), ("gone", "segment-1")] {
        let error = start("a", source, &[target]);
        assert_eq!(error, TransferError::SegmentNotFound { name: "gone".into() });
        assert_eq!(error.code(), ErrorCode::SegmentNotFound);
    }
    let error = start("a", "segment-1", &["segment-2"]);
    assert_eq!(error, TransferError::ReplicaNotFound { segment: "segment-1".into() });
    assert_eq!(error.code(), ErrorCode::ReplicaNotFound);
    let same = master.move_start(at(0), WRITER, key("a"), "segment-0", "segment-0");
    assert_eq!(same.unwrap_err(), TransferError::SameSegment);

    let grace = Duration::from_secs(60);
    master.graceful_unmount_segment(at(0), owner(2), id(2), grace).unwrap();
    let error = start("a", "segment-0", &["segment-1", "segment-2"]);
    let (name, status) = ("segment-2".into(), SegmentStatus::GracefullyUnmounting);
    assert_eq!(error, TransferError::SegmentUnavailable { name, status });
    assert_eq!(error.code(), ErrorCode::UnavailableInCurrentStatus);
    // Nothing was taken on the way.
    assert_eq!((used(&master, 1), master.report().totals.transfers), (0, 0));
}

#[test]
fn a_source_that_leaves_in_peace_can_still_be_copied_from() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 30);
    let grace = Duration::from_secs(60);
    master.graceful_unmount_segment(at(0), owner(0), id(0), grace).unwrap();
    a_move(&master, at(1), "a").unwrap();
    master.move_end(at(2), WRITER, key("a"), newest_transfer(&master)).unwrap();
    master.tick(secs(60));
    assert_eq!(holders(&master, "a"), ["segment-1"]);
}

#[test]
fn a_target_without_room_says_why_and_takes_nothing() {
    let master = cluster(&[1000, 1000, 50, 100, 200]);
    put_in_first(&master, "a", 100);
    // Segment 3 is full but for 40 bytes; segment 4 has two holes of 60.
    let fill = |name: &str, number, len| {
        let config = ReplicateConfig::default().prefer(format!("segment-{number}"));
        put_as(&master, at(0), name, len, &config).unwrap();
    };
    fill("b", 3, 60);
    for (name, len) in [("c", 60), ("d", 40), ("e", 60), ("f", 40)] {
        fill(name, 4, len);
    }
    master.remove(at(0), key("c"), false).unwrap();
    master.remove(at(0), key("e"), false).unwrap();
    let to = |target: &str| copy(&master, at(0), "a", &["segment-1", target]).unwrap_err();
    let segment = |number| format!("segment-{number}").into();
    let too_large = TransferError::TooLarge { segment: segment(2), len: 100, largest_object: 50 };
    assert_eq!(to("segment-2"), too_large);
    assert_eq!((too_large.code(), too_large.is_retryable()), (ErrorCode::ObjectTooLarge, false));
    let full = TransferError::Full { segment: segment(3), len: 100, free: 40 };
    assert_eq!(to("segment-3"), full);
    assert_eq!((full.code(), full.is_retryable()), (ErrorCode::Full, true));
    let fragmented = TransferError::Fragmented { segment: segment(4), len: 100, free: 120 };
    assert_eq!(to("segment-4"), fragmented);
    assert_eq!(fragmented.code(), ErrorCode::Fragmented);
    assert_eq!((used(&master, 1), master.report().totals.transfers), (0, 0));
    master.remove(at(0), key("a"), false).unwrap();
}

#[test]
fn space_that_is_due_makes_room_for_a_copy() {
    let master = cluster(&[100, 100]);
    let config = ReplicateConfig::default().prefer("segment-1");
    start_as(&master, at(0), "open", 100, &config).unwrap();
    put_in_first(&master, "a", 30);
    let full = copy(&master, secs(RELEASE - 1), "a", &["segment-1"]).unwrap_err();
    assert!(matches!(full, TransferError::Full { free: 0, .. }), "{full}");
    // Without a tick.
    copy(&master, secs(RELEASE), "a", &["segment-1"]).unwrap();
}

#[test]
fn only_who_began_a_transfer_can_name_its_end() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 30);
    let none = master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master));
    assert_eq!(none, Err(TransferFinishError::NotOpen));
    let missing = master.copy_end(at(0), WRITER, key("none"), newest_transfer(&master));
    assert_eq!(missing, Err(TransferFinishError::NotFound));
    let grant = copy(&master, at(0), "a", &["segment-1"]).unwrap();
    let (ours, a) = (grant.handle, key("a"));
    let next = handle(Generation::new(ours.id.as_u64() + 1));
    let other = transfer_of(next);
    let guessed = TransferHandle { token: PutToken::from_u64(ours.token.as_u64() ^ 1), ..ours };
    let (late, now) = (LateWrites::Impossible, at(0));
    for (client, named, error) in [
        (STRANGER, ours, TransferFinishError::IllegalClient),
        (WRITER, guessed, TransferFinishError::IllegalClient),
        (WRITER, other, TransferFinishError::NotOpen),
    ] {
        assert_eq!(master.copy_end(now, client, a, named), Err(error));
        assert_eq!(master.copy_revoke(now, client, a, named, late), Err(error));
    }
    for wrong in [
        master.move_end(now, WRITER, a, ours).unwrap_err(),
        master.move_revoke(now, WRITER, a, ours, late).unwrap_err(),
    ] {
        assert_eq!(wrong, TransferFinishError::WrongKind { kind: TransferKind::Copy });
        assert_eq!(wrong.code(), ErrorCode::InvalidParams);
    }
    master.copy_end(at(0), WRITER, key("a"), grant.handle).unwrap();
    let again = master.copy_end(at(0), WRITER, key("a"), grant.handle);
    assert_eq!(again, Err(TransferFinishError::NotOpen));
}

#[test]
fn a_move_gives_the_source_up_when_nobody_can_be_reading_there() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 100);
    let grant = a_move(&master, secs(1), "a").unwrap();
    assert_eq!(grant.targets.len(), 1);
    master.get_replica_list(secs(2), key("a")).unwrap();
    master.move_end(secs(3), WRITER, key("a"), grant.handle).unwrap();
    assert_eq!(holders(&master, "a"), ["segment-1"]);
    // The reader that came at 2 s has until 7 s.
    master.tick(at(6_999));
    assert_eq!((used(&master, 0), used(&master, 1)), (100, 100));
    master.tick(secs(7));
    assert_eq!((used(&master, 0), used(&master, 1)), (0, 100));
}

#[test]
fn a_move_of_what_nobody_reads_frees_the_source_at_once() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 100);
    a_move(&master, secs(1), "a").unwrap();
    master.move_end(secs(1), WRITER, key("a"), newest_transfer(&master)).unwrap();
    assert_eq!((used(&master, 0), used(&master, 1)), (0, 100));
    assert_eq!(holders(&master, "a"), ["segment-1"]);
}

#[test]
fn a_move_to_where_a_replica_is_only_gives_the_source_up() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 100);
    copy(&master, at(0), "a", &["segment-1"]).unwrap();
    master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master)).unwrap();
    let grant = a_move(&master, at(0), "a").unwrap();
    assert!(grant.targets.is_empty());
    assert_eq!(holders(&master, "a"), ["segment-0", "segment-1"]);
    master.move_end(at(0), WRITER, key("a"), grant.handle).unwrap();
    assert_eq!(holders(&master, "a"), ["segment-1"]);
    assert_eq!(master.report().totals.used, 100);
}

#[test]
fn nobody_removes_what_is_being_copied() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 30);
    copy(&master, at(0), "a", &["segment-1"]).unwrap();
    for force in [false, true] {
        let error = master.remove(at(0), key("a"), force).unwrap_err();
        assert_eq!(error, RemoveError::InTransfer);
        assert_eq!(error.code(), ErrorCode::ObjectHasReplicationTask);
        assert!(error.is_retryable());
        assert_eq!(master.remove_all(at(0), force), 0);
    }
    master
        .copy_revoke(at(0), WRITER, key("a"), newest_transfer(&master), LateWrites::Impossible)
        .unwrap();
    assert_eq!(master.remove_all(at(0), false), 1);
}

#[test]
fn what_is_being_copied_is_explained() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 30);
    copy(&master, secs(1), "a", &["segment-1"]).unwrap();
    let remaining = Duration::from_secs(RELEASE - 2);
    let kept = EvictionBlocker::Transfer { kind: TransferKind::Copy, remaining };
    assert_eq!(master.explain(secs(3), key("a")).kept_by, [kept]);
}

#[test]
fn eviction_leaves_what_is_being_copied_alone() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 60);
    let copy = copy(&master, at(0), "a", &["segment-1"]).unwrap().handle;
    // Whatever the room, and however often it is asked for.
    for second in 0..100 {
        assert!(put(&master, secs(second), "b", 80).is_err());
        assert!(has(&master, "a"));
    }
    put(&master, secs(100), "small", 40).unwrap();
    master.copy_end(secs(100), WRITER, key("a"), copy).unwrap();
    put(&master, secs(200), "b", 80).unwrap();
    assert!(!has(&master, "a"));
}

#[test]
fn a_copy_of_one_member_protects_its_group() {
    for hard_pin in [false, true] {
        let master = cluster(&[100, 100]);
        let mut config = ReplicateConfig::default().group("g").prefer("segment-0");
        put_as(&master, at(0), "b", 50, &config).unwrap();
        config.with_hard_pin = hard_pin;
        put_as(&master, at(0), "a", 50, &config).unwrap();
        copy(&master, at(0), "a", &["segment-1"]).unwrap();
        assert!(put(&master, secs(1), "c", 80).is_err());
        assert!(has(&master, "a") && has(&master, "b"));
        master
            .copy_revoke(
                secs(1),
                WRITER,
                key("a"),
                newest_transfer(&master),
                LateWrites::Impossible,
            )
            .unwrap();
        let pinned = ReplicateConfig::default().hard_pin();
        put_as(&master, secs(1), "d", 100, &pinned).unwrap();
        // A hard pin still protects.
        assert_eq!(put(&master, secs(99), "c", 80).is_err(), hard_pin);
        assert_eq!(has(&master, "b"), hard_pin);
    }
}

#[test]
fn a_revoked_copy_gives_its_space_back_at_once() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 60);
    let grant = copy(&master, at(0), "a", &["segment-1"]).unwrap();
    assert_eq!(used(&master, 1), 60);
    master.copy_revoke(at(0), WRITER, key("a"), grant.handle, LateWrites::Impossible).unwrap();
    assert_eq!((used(&master, 0), used(&master, 1)), (60, 0));
    a_move(&master, at(0), "a").unwrap();
    master
        .move_revoke(at(0), WRITER, key("a"), newest_transfer(&master), LateWrites::Impossible)
        .unwrap();
    assert_eq!((used(&master, 0), used(&master, 1)), (60, 0));
    assert_eq!(holders(&master, "a"), ["segment-0"]);
}

#[test]
fn a_forgotten_transfer_is_given_up_after_the_release_time_out() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 60);
    let grant = a_move(&master, secs(1), "a").unwrap();
    master.tick(at(RELEASE * 1000 + 999));
    assert_eq!(used(&master, 1), 60);
    master.tick(secs(RELEASE + 1));
    assert_eq!((used(&master, 0), used(&master, 1)), (60, 0));
    let late = master.move_end(secs(RELEASE + 1), WRITER, key("a"), grant.handle);
    assert_eq!(late, Err(TransferFinishError::NotOpen));
    assert_eq!(holders(&master, "a"), ["segment-0"]);
    a_move(&master, secs(RELEASE + 1), "a").unwrap();
}

#[test]
fn many_forgotten_transfers_are_given_up_over_several_ticks() {
    let master = cluster(&[10_000, 10_000]);
    for n in 0..5_000 {
        let name = n.to_string();
        put_in_first(&master, &name, 1);
        copy(&master, at(n), &name, &["segment-1"]).unwrap();
    }
    while master.tick(at(RELEASE * 1000 + 999)) {}
    assert_eq!(master.report().totals.transfers, 4_000);
    let mut ticks = 1;
    while master.tick(secs(10 * RELEASE)) {
        ticks += 1;
    }
    assert!(ticks > 1, "no single tick holds a shard for all of them");
    assert_eq!((master.report().totals.transfers, master.report().totals.used), (0, 5_000));
}

#[test]
fn a_copy_whose_source_went_makes_no_replica() {
    let master = cluster(&[100, 100, 100]);
    let both = ReplicateConfig::default().replicas(2).prefer("segment-0").exclude("segment-2");
    for name in ["a", "b"] {
        put_as(&master, at(0), name, 30, &both).unwrap();
    }
    let copied = copy(&master, at(0), "a", &["segment-2"]).unwrap().handle;
    let moved = master.move_start(at(0), WRITER, key("b"), "segment-0", "segment-2");
    let moved = moved.unwrap().handle;
    master.unmount_segment(at(0), owner(0), id(0)).unwrap();
    let error = master.copy_end(at(0), WRITER, key("a"), copied).unwrap_err();
    assert_eq!(error, TransferFinishError::ReplicaIsGone);
    assert_eq!(error.code(), ErrorCode::ReplicaIsGone);
    let error = master.move_end(at(0), WRITER, key("b"), moved);
    assert_eq!(error, Err(TransferFinishError::ReplicaIsGone));
    for name in ["a", "b"] {
        assert_eq!(holders(&master, name), ["segment-1"]);
    }
    assert_eq!((used(&master, 2), master.report().totals.transfers), (0, 0));
}

#[test]
fn a_target_that_went_leaves_the_others() {
    let master = cluster(&[100, 100, 100]);
    put_in_first(&master, "a", 30);
    copy(&master, at(0), "a", &["segment-1", "segment-2"]).unwrap();
    master.unmount_segment(at(0), owner(1), id(1)).unwrap();
    let end = master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master));
    assert_eq!(end, Err(TransferFinishError::ReplicaIsGone));
    assert_eq!(holders(&master, "a"), ["segment-0", "segment-2"]);
    assert_eq!(master.report().totals.used, 60);
}

#[test]
fn a_move_whose_target_is_away_leaves_the_object_where_it_was() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    for target_already_holds in [false, true] {
        let master = cluster_with(config.clone(), &[100, 100]);
        put_in_first(&master, "a", 30);
        if target_already_holds {
            copy(&master, at(0), "a", &["segment-1"]).unwrap();
            master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master)).unwrap();
        }
        a_move(&master, at(0), "a").unwrap();
        master.ping(secs(9), owner(0));
        master.tick(secs(11));
        let end = master.move_end(secs(11), WRITER, key("a"), newest_transfer(&master));
        assert_eq!(end, Err(TransferFinishError::ReplicaIsGone));
        let list = master.get_replica_list(secs(11), key("a")).unwrap();
        assert_eq!(list.placements[0].segment.spec().id, id(0));
        // Back, the target has what it had before and nothing else.
        master.mount_segment(secs(12), owner(1), segment(1, 100)).unwrap();
        assert_eq!(used(&master, 1), if target_already_holds { 30 } else { 0 });
    }
}

#[test]
fn an_object_that_goes_during_its_copy_keeps_the_target_from_being_used() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 100);
    let grant = copy(&master, secs(1), "a", &["segment-1"]).unwrap();
    master.unmount_segment(secs(2), owner(0), id(0)).unwrap();
    assert!(!has(&master, "a"));
    let end = master.copy_end(secs(2), WRITER, key("a"), grant.handle);
    assert_eq!(end, Err(TransferFinishError::NotFound));
    // Its client may still be writing there.
    assert!(put(&master, secs(3), "a", 10).is_err());
    master.tick(at(RELEASE * 1000 + 999));
    assert_eq!((used(&master, 1), master.report().totals.transfers), (100, 0));
    master.tick(secs(RELEASE + 1));
    put(&master, secs(RELEASE + 1), "a", 100).unwrap();
}

#[test]
fn a_put_over_what_is_away_keeps_the_target_too() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = cluster_with(config, &[100, 100]);
    put_in_first(&master, "a", 60);
    copy(&master, at(0), "a", &["segment-1"]).unwrap();
    master.ping(secs(9), owner(1));
    master.tick(secs(11));
    assert_eq!(master.get_replica_list(secs(11), key("a")).unwrap_err(), GetError::NotReady);
    let again = put(&master, secs(11), "a", 40).unwrap();
    assert_eq!(again.placements[0].extent.len(), 40);
    assert_eq!((used(&master, 1), master.report().totals.transfers), (100, 0));
    let end = master.copy_end(secs(11), WRITER, key("a"), newest_transfer(&master));
    assert_eq!(end, Err(TransferFinishError::NotOpen));
}

#[test]
fn a_copy_at_the_end_of_time_is_given_up_then() {
    let master = cluster(&[100, 100]);
    put_in_first(&master, "a", 60);
    copy(&master, at(u64::MAX), "a", &["segment-1"]).unwrap();
    assert!(!master.tick(at(u64::MAX)));
    assert_eq!((master.report().totals.transfers, used(&master, 1)), (0, 0));
}

/// Records the effects on replicas and transfers.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl EffectSink for Told {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let view = |object: &ObjectView<'_>| {
            let names: Vec<_> =
                object.placements().iter().map(|p| p.segment.spec().name.clone()).collect();
            let transfer = object.transfer().map(|transfer| {
                let to: Vec<_> =
                    transfer.targets.iter().map(|p| p.segment.spec().name.clone()).collect();
                format!(" {} to {}", transfer.kind, to.join(","))
            });
            format!("{} in {}{}", object.key(), names.join(","), transfer.unwrap_or_default())
        };
        let line = match effect {
            Effect::Changed { object, .. } | Effect::Transferring { object } => {
                format!("changed: {}", view(object))
            }
            Effect::SpaceKept { space, left } => {
                format!("kept: {} for {left:?}", space.placements()[0].segment.spec().name)
            }
            Effect::SpaceFreed { .. } => "freed".to_owned(),
            Effect::Removed { key, .. } => format!("removed: {key}"),
            _ => return,
        };
        self.0.lock().unwrap().push(line);
    }
}

#[test]
fn what_changes_is_told_with_the_whole_object() {
    let told = Told::default();
    let master = Master::new(settings(), 1).unwrap().with_secret(SECRET).with_sink(told.clone());
    for number in 0..3 {
        master.mount_segment(at(0), owner(number), segment(number, 100)).unwrap();
    }
    put_in_first(&master, "a", 30);
    copy(&master, at(0), "a", &["segment-1"]).unwrap();
    master.copy_end(at(0), WRITER, key("a"), newest_transfer(&master)).unwrap();
    let began = "changed: a in segment-0 copy to segment-1";
    assert_eq!(told.take(), [began, "changed: a in segment-0,segment-1"]);

    master.get_replica_list(at(0), key("a")).unwrap();
    master.move_start(at(0), WRITER, key("a"), "segment-0", "segment-2").unwrap();
    master.move_end(secs(1), WRITER, key("a"), newest_transfer(&master)).unwrap();
    let began = "changed: a in segment-0,segment-1 move to segment-2";
    let kept = "kept: segment-0 for 4s";
    assert_eq!(told.take(), [began, kept, "changed: a in segment-1,segment-2"]);
    master.tick(secs(5));
    assert_eq!(told.take(), ["freed"]);

    master.copy_start(secs(5), WRITER, key("a"), "segment-1", &["segment-0"]).unwrap();
    master
        .copy_revoke(secs(5), WRITER, key("a"), newest_transfer(&master), LateWrites::Impossible)
        .unwrap();
    let began = "changed: a in segment-1,segment-2 copy to segment-0";
    assert_eq!(told.take(), [began, "changed: a in segment-1,segment-2"]);

    // A replica that is lost with its segment is reported once, the last one as a removal.
    master.unmount_segment(secs(6), owner(1), id(1)).unwrap();
    while master.tick(secs(6)) {}
    assert!(has(&master, "a"));
    assert_eq!(told.take(), ["changed: a in segment-2"]);
    master.copy_start(secs(6), WRITER, key("a"), "segment-2", &["segment-0"]).unwrap();
    told.take();
    master.unmount_segment(secs(16), owner(2), id(2)).unwrap();
    while master.tick(secs(16)) {}
    assert_eq!(told.take(), ["kept: segment-0 for 590s", "removed: a"]);
}

#[test]
fn a_removal_of_all_counts_what_it_leaves() {
    let master = cluster(&[100, 100]);
    for name in ["leased", "copied", "gone"] {
        put_in_first(&master, name, 10);
    }
    start(&master, at(0), "open", 10).unwrap();
    master.get_replica_list(at(0), key("leased")).unwrap();
    copy(&master, at(0), "copied", &["segment-1"]).unwrap();
    let counts = |force| master.remove_all_of(at(1), &TenantId::DEFAULT, force);
    let left = |leased| ObjectsLeft { leased, in_transfer: 1, unfinished: 1 };
    assert_eq!(counts(false), RemovalCounts { removed: 1, left: left(1) });
    assert_eq!(counts(true), RemovalCounts { removed: 1, left: left(0) });
    assert_eq!(counts(true), RemovalCounts { removed: 0, left: left(0) });
}
