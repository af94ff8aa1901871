//! Leases that are extended while a long read runs.

use mc_meta::{RemoveError, RenewError};
use mc_types::ErrorCode;

use crate::*;

const LEASE: Duration = Duration::from_secs(5);

#[test]
fn a_lease_is_renewed_from_now_on() {
    let master = master(&[100]);
    let grant = put(&master, at(0), "a", 60).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!(master.renew_lease(secs(4), key("a"), grant.generation), Ok(LEASE));
    let remaining = Duration::from_secs(1);
    assert_eq!(master.remove(secs(8), key("a"), false), Err(RemoveError::Leased { remaining }));
    assert_eq!(start(&master, secs(8), "b", 60).unwrap_err(), PutStartError::AllLeased { len: 60 });
    // One that has ended as well: the bytes are the same.
    assert_eq!(master.renew_lease(secs(100), key("a"), grant.generation), Ok(LEASE));
    assert_eq!(master.describe(secs(100), key("a")).unwrap().lease, LEASE);
    let report = master.report();
    assert_eq!((report.get_hits, report.get_misses), (1, 0));
}

#[test]
fn a_lease_is_that_of_one_put() {
    let master = master(&[100]);
    let first = put(&master, at(0), "a", 40).unwrap();
    let config = ReplicateConfig::default();
    let second = PutStart { key: key("a"), slice_lengths: &[40], config: &config };
    let second = master.upsert_start(at(1), WRITER, &second).unwrap();
    // The old value is there until the new one is.
    assert_eq!(master.renew_lease(at(2), key("a"), first.generation), Ok(LEASE));
    let early = master.renew_lease(at(2), key("a"), second.generation);
    assert_eq!(early, Err(RenewError::Replaced));
    end(&master, at(3), "a", second.generation).unwrap();
    let late = master.renew_lease(at(3), key("a"), first.generation);
    assert_eq!(late, Err(RenewError::Replaced));
    assert_eq!(late.unwrap_err().code(), ErrorCode::LeaseExpired);
    // Its space is kept as long as was promised, and no longer.
    master.tick(at(5001));
    assert_eq!(master.report().used, 80);
    master.tick(at(5002));
    assert_eq!(master.report().used, 40);
    assert_eq!(master.renew_lease(secs(6), key("a"), second.generation), Ok(LEASE));
}

#[test]
fn nothing_is_renewed_of_what_cannot_be_read() {
    let mut config = settings();
    config.client_ttl = Duration::from_secs(10);
    let master = master_with(config, &[100]);
    let renew = |now, name, generation| master.renew_lease(now, key(name), generation);
    let grant = start(&master, at(0), "a", 10).unwrap();
    assert_eq!(renew(at(0), "a", grant.generation), Err(RenewError::NotReady));
    assert_eq!(renew(at(0), "b", grant.generation), Err(RenewError::NotFound));
    end(&master, at(0), "a", grant.generation).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    master.tick(secs(11));
    let away = renew(secs(11), "a", grant.generation).unwrap_err();
    assert!(away == RenewError::NotReady && away.is_retryable());
    master.mount_segment(secs(12), NODE, segment(0, 100)).unwrap();
    assert_eq!(renew(secs(12), "a", grant.generation), Ok(LEASE));
    master.remove(secs(12), key("a"), true).unwrap();
    assert_eq!(renew(secs(12), "a", grant.generation), Err(RenewError::NotFound));
}

#[test]
fn renewing_does_not_begin_an_objects_end() {
    let mut config = settings();
    config.ttl_after_get = Some(Duration::from_secs(1));
    let master = master_with(config, &[100]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    assert_eq!(master.renew_lease(at(0), key("a"), grant.generation), Ok(LEASE));
    master.tick(secs(10));
    assert!(has(&master, "a"));
    // Nor does it put it off.
    master.get_replica_list(secs(10), key("a")).unwrap();
    assert_eq!(master.renew_lease(at(10_999), key("a"), grant.generation), Ok(LEASE));
    let late = master.renew_lease(secs(11), key("a"), grant.generation);
    assert_eq!(late, Err(RenewError::NotFound));
}

#[test]
fn a_batch_answers_for_each_read() {
    let master = master(&[100]);
    let a = put(&master, at(0), "a", 10).unwrap().generation;
    let b = put(&master, at(0), "b", 10).unwrap().generation;
    let answers = master
        .batch_renew_lease(at(0), &[(key("a"), a), (key("c"), a), (key("b"), a), (key("b"), b)]);
    let refused = [RenewError::NotFound, RenewError::Replaced].map(Err);
    assert_eq!(answers, [Ok(LEASE), refused[0], refused[1], Ok(LEASE)]);
}
