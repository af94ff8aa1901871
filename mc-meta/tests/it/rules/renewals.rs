//! Leases that are extended while a long read runs.

use mc_meta::{RemoveError, RenewError};
use mc_types::ErrorCode;

use super::*;

const LEASE: Duration = Duration::from_secs(5);

fn renew(
    master: &Master,
    now: Time,
    name: &str,
    generation: Generation,
) -> Result<Duration, RenewError> {
    master.renew_lease(now, key(name), generation).map(|renewed| renewed.lease)
}

#[test]
fn a_lease_is_renewed_from_now_on() {
    let master = master(&[100]);
    let grant = put(&master, at(0), "a", 60).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!(renew(&master, secs(4), "a", grant.handle.generation), Ok(LEASE));
    let remaining = Duration::from_secs(1);
    assert_eq!(master.remove(secs(8), key("a"), false), Err(RemoveError::Leased { remaining }));
    assert_eq!(start(&master, secs(8), "b", 60).unwrap_err(), PutStartError::AllLeased { len: 60 });
    // One that has ended as well: the bytes are the same.
    assert_eq!(renew(&master, secs(100), "a", grant.handle.generation), Ok(LEASE));
    assert_eq!(master.describe(secs(100), key("a")).unwrap().lease, LEASE);
    let report = master.report();
    assert_eq!((report.totals.get_hits, report.totals.get_misses), (1, 0));
}

#[test]
fn a_lease_is_that_of_one_put() {
    let master = master(&[100]);
    let first = put(&master, at(0), "a", 40).unwrap();
    let config = ReplicateConfig::default();
    let second = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
    let second = master.upsert_start(at(1), WRITER, &second).unwrap();
    // The old value is there until the new one is.
    assert_eq!(renew(&master, at(2), "a", first.handle.generation), Ok(LEASE));
    let early = renew(&master, at(2), "a", second.handle.generation);
    assert_eq!(early, Err(RenewError::Replaced));
    end(&master, at(3), "a", second.handle.generation).unwrap();
    let late = renew(&master, at(3), "a", first.handle.generation);
    assert_eq!(late, Err(RenewError::Replaced));
    assert_eq!(late.unwrap_err().code(), ErrorCode::LeaseExpired);
    // Its space is kept as long as was promised, and no longer.
    master.tick(at(5001));
    assert_eq!(master.report().totals.used, 80);
    master.tick(at(5002));
    assert_eq!(master.report().totals.used, 40);
    assert_eq!(renew(&master, secs(6), "a", second.handle.generation), Ok(LEASE));
}

#[test]
fn nothing_is_renewed_of_what_cannot_be_read() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    let renew = |now, name, generation| renew(&master, now, name, generation);
    let grant = start(&master, at(0), "a", 10).unwrap();
    assert_eq!(renew(at(0), "a", grant.handle.generation), Err(RenewError::NotReady));
    assert_eq!(renew(at(0), "b", grant.handle.generation), Err(RenewError::NotFound));
    end(&master, at(0), "a", grant.handle.generation).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    master.tick(secs(11));
    let away = renew(secs(11), "a", grant.handle.generation).unwrap_err();
    assert!(away == RenewError::NotReady && away.is_retryable());
    master.mount_segment(secs(12), NODE, segment(0, 100)).unwrap();
    assert_eq!(renew(secs(12), "a", grant.handle.generation), Ok(LEASE));
    master.remove(secs(12), key("a"), true).unwrap();
    assert_eq!(renew(secs(12), "a", grant.handle.generation), Err(RenewError::NotFound));
}

#[test]
fn renewing_does_not_begin_an_objects_end() {
    let mut config = settings();
    config.ttl_after_get = Some(Duration::from_secs(1));
    let master = master_with(config, &[100]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    assert_eq!(renew(&master, at(0), "a", grant.handle.generation), Ok(LEASE));
    master.tick(secs(10));
    assert!(has(&master, "a"));
    // Nor does it put it off.
    master.get_replica_list(secs(10), key("a")).unwrap();
    assert_eq!(renew(&master, at(10_999), "a", grant.handle.generation), Ok(LEASE));
    let late = renew(&master, secs(11), "a", grant.handle.generation);
    assert_eq!(late, Err(RenewError::NotFound));
}

#[test]
fn a_batch_answers_for_each_read() {
    let master = master(&[100]);
    let a = put(&master, at(0), "a", 10).unwrap().handle.generation;
    let b = put(&master, at(0), "b", 10).unwrap().handle.generation;
    let reads = [(key("a"), a), (key("c"), a), (key("b"), a), (key("b"), b)];
    let answers = master.batch_renew_lease(at(0), &reads).into_iter();
    let answers: Vec<_> = answers.map(|answer| answer.map(|renewed| renewed.lease)).collect();
    let refused = [RenewError::NotFound, RenewError::Replaced].map(Err);
    assert_eq!(answers, [Ok(LEASE), refused[0], refused[1], Ok(LEASE)]);
}

/// The segments whose memory a renewed lease protects.
fn protected(master: &Master, now: Time, name: &str, generation: Generation) -> Vec<String> {
    let renewed = master.renew_lease(now, key(name), generation).unwrap();
    let segments = renewed.placements.iter().map(|at| at.segment.spec().name.to_string());
    segments.collect()
}

#[test]
fn after_a_move_another_place_is_protected() {
    let master = master(&[100, 100]);
    let there = ReplicateConfig::default().prefer("segment-0");
    let put = put_as(&master, at(0), "a", 60, &there).unwrap().handle.generation;
    let moved = master.move_start(at(0), WRITER, key("a"), "segment-0", "segment-1").unwrap();
    let list = master.get_replica_list(at(1), key("a")).unwrap();
    assert_eq!(protected(&master, at(2), "a", put), ["segment-0"]);
    master.move_end(secs(1), WRITER, key("a"), moved.handle).unwrap();
    // A yes, but not for the bytes that are being read.
    assert_eq!(protected(&master, at(4900), "a", put), ["segment-1"]);
    assert!(master.batch_renew_lease(at(4900), &[(key("a"), put)])[0].is_ok());
    assert!(start_as(&master, at(5001), "b", 60, &there).is_err());
    let reused = start_as(&master, at(5002), "b", 60, &there).unwrap();
    assert_eq!(reused.placements[0].extent, list.placements[0].extent);
}

#[test]
fn after_a_replica_went_the_others_are_protected() {
    let master = master(&[100, 100, 100]);
    let three = ReplicateConfig::default().replicas(3);
    let put = put_as(&master, at(0), "a", 60, &three).unwrap().handle.generation;
    master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!(protected(&master, at(0), "a", put).len(), 3);
    // Its lease has ended, and it reads on.
    let cleared = master.batch_replica_clear(secs(6), WRITER, &[key("a")], Some("segment-1"));
    assert_eq!(cleared.len(), 1);
    assert_eq!(protected(&master, secs(6), "a", put), ["segment-0", "segment-2"]);
    master.unmount_segment(secs(7), NODE, SegmentId::from_u128(0)).unwrap();
    assert_eq!(protected(&master, secs(7), "a", put), ["segment-2"]);
}
