//! Two-phase puts, their limits, and puts whose writers vanish.

use mc_meta::{
    GetError, InvalidPut, MAX_NAMED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, PutEnd, PutFinishError,
    PutStart, PutStartError, RemoveError, ReplicaStatus, ReplicateConfig,
};
use mc_types::{Checksum, Generation};

use super::*;

#[test]
fn the_longest_objects_overflow_nothing() {
    const LONGEST: u64 = i64::MAX as u64;
    let master = master(&[u64::MAX, u64::MAX, u64::MAX]);
    let config = ReplicateConfig::default().replicas(3);
    put_as(&master, at(0), "a", LONGEST, &config).unwrap();
    put_as(&master, at(0), "b", LONGEST, &config).unwrap();
    assert_eq!(master.report().totals.used, u64::MAX, "the sum stays at the largest number");
    // Makes room, which adds the victims' bytes up.
    put_as(&master, at(1), "c", LONGEST, &config).unwrap();
    assert!(!has(&master, "a"));
    master.tick(at(2));
    assert!(master.report().totals.evicted_objects >= 2, "above the watermark");
    master.remove_all(at(2), true);
    assert_eq!(master.report().totals.used, 0);
}

#[test]
fn an_object_stays_as_it_is_until_it_is_removed() {
    let master = master(&[100]);
    let first = put(&master, at(0), "a", 10).unwrap();
    let error = start(&master, secs(100), "a", 20).unwrap_err();
    assert_eq!(error, PutStartError::AlreadyExists);
    assert!(!error.is_retryable());
    let list = master.get_replica_list(secs(100), key("a")).unwrap();
    assert_eq!((list.generation, list.slices.total_len()), (first.handle.generation, 10));
    assert_eq!(list.placements[0].extent, first.placements[0].extent);
    master.remove(secs(200), key("a"), false).unwrap();
    let second = put(&master, secs(200), "a", 20).unwrap();
    assert_ne!(first.handle.generation, second.handle.generation);
    assert_eq!(master.remove(secs(200), key("b"), true), Err(RemoveError::NotFound));
}

#[test]
fn a_put_is_ended_and_revoked_by_whoever_began_it() {
    let master = master(&[100]);
    let grant = start(&master, at(0), "a", 10).unwrap();
    let named = |handle| PutEnd::new(key("a"), handle);
    let revoke =
        |client, handle| master.put_revoke(at(0), client, key("a"), handle, LateWrites::Impossible);
    let refused = Err(PutFinishError::IllegalClient);
    for put in [grant.handle, handle(Generation::new(7))] {
        assert_eq!(master.put_end(at(0), STRANGER, &named(put)), refused);
        assert_eq!(revoke(STRANGER, put), refused);
    }
    let other = handle(Generation::new(7));
    assert_eq!(master.put_end(at(0), WRITER, &named(other)), Err(PutFinishError::NotOpen));
    assert_eq!(revoke(WRITER, other), Err(PutFinishError::NotOpen));
    assert_eq!(master.put_end(at(0), WRITER, &named(grant.handle)), Ok(()));
}

#[test]
fn an_ended_put_may_be_ended_again_but_not_revoked() {
    let master = master(&[100]);
    let grant = put(&master, at(0), "a", 10).unwrap();
    assert_eq!(end(&master, at(0), "a", grant.handle.generation), Ok(()));
    for late in [LateWrites::Impossible, LateWrites::Possible] {
        let revoked = master.put_revoke(at(0), WRITER, key("a"), grant.handle, late);
        assert_eq!(revoked, Err(PutFinishError::NotOpen));
    }
    assert!(has(&master, "a"));
    assert_eq!(master.report().totals.put_ends, 1);
    assert_eq!(end(&master, at(0), "b", grant.handle.generation), Err(PutFinishError::NotFound));
}

#[test]
fn readers_get_the_slices_and_checksums_of_the_writer() {
    let master = master(&[100]);
    let config = ReplicateConfig::default();
    let lens = [1, 20, 3];
    let put = PutStart { key: key("a"), slice_lengths: &lens, config: &config };
    let grant = master.put_start(at(0), WRITER, &put).unwrap();
    assert_eq!(grant.placements[0].extent.len(), 24);
    let sums: Vec<Checksum> = (0..4).map(Checksum::from_crc32c).collect();
    let finish = |checksums| {
        let put = PutEnd { checksums, ..PutEnd::new(key("a"), grant.handle) };
        master.put_end(at(0), WRITER, &put)
    };
    for given in [1, 2, 4] {
        let refused = PutFinishError::ChecksumCount { given, slices: 3 };
        assert_eq!(finish(&sums[..given]), Err(refused));
    }
    assert_eq!(master.get_replica_list(at(0), key("a")).unwrap_err(), GetError::NotReady);
    finish(&sums[..3]).unwrap();
    let list = master.get_replica_list(at(0), key("a")).unwrap();
    let slices: Vec<_> = list.slices.as_slice().iter().map(|s| (s.len, s.checksum)).collect();
    assert_eq!(slices, [(1, Some(sums[0])), (20, Some(sums[1])), (3, Some(sums[2]))]);
}

#[test]
fn malformed_puts_are_refused_and_cost_nothing() {
    let master = master(&[100]);
    let start = |lens: &[u64], config: &ReplicateConfig| {
        let put = PutStart { key: key("a"), slice_lengths: lens, config };
        match master.put_start(at(0), WRITER, &put) {
            Err(PutStartError::Invalid(why)) => Some(why),
            _ => None,
        }
    };
    let plain = ReplicateConfig::default();
    assert_eq!(start(&[], &plain), Some(InvalidPut::EmptySlice));
    assert_eq!(start(&[5, 0], &plain), Some(InvalidPut::EmptySlice));
    let many = vec![1; MAX_SLICES + 1];
    let too_many = InvalidPut::TooManySlices { count: MAX_SLICES + 1 };
    assert_eq!(start(&many, &plain), Some(too_many));
    for lens in [&[u64::MAX, 1][..], &[u64::MAX], &[1 << 63], &[i64::MAX as u64, 1]] {
        assert_eq!(start(lens, &plain), Some(InvalidPut::LengthOverflow));
    }
    for replica_num in [0, MAX_REPLICAS as u32 + 1, u32::MAX] {
        let config = ReplicateConfig::default().replicas(replica_num);
        assert_eq!(start(&[1], &config), Some(InvalidPut::ReplicaCount { replica_num }));
    }
    let day = Duration::from_secs(24 * 60 * 60);
    let ttl = day + Duration::from_millis(1);
    let config = plain.clone().soft_pin_for(ttl);
    assert_eq!(start(&[1], &config), Some(InvalidPut::SoftPinTtl { ttl, max: day }));
    let mut config = ReplicateConfig::default();
    config.preferred_segments = vec!["x".into(); MAX_NAMED_SEGMENTS + 1];
    let too_many = InvalidPut::TooManySegments { count: MAX_NAMED_SEGMENTS + 1 };
    assert_eq!(start(&[1], &config), Some(too_many));
    assert_eq!(master.report().totals.objects, 0);
    // What lies at the limits is fine.
    let config = ReplicateConfig::default().replicas(MAX_REPLICAS as u32).soft_pin_for(day);
    assert_eq!(start(&many[1..], &config), None);
}

#[test]
fn each_replica_is_complete_when_the_put_ends() {
    let master = master(&[100, 100]);
    let config = ReplicateConfig::default().replicas(2);
    put_as(&master, at(0), "a", 10, &config).unwrap();
    let info = master.describe(at(0), key("a")).unwrap();
    assert_eq!(info.replicas.len(), 2);
    assert!(info.replicas.iter().all(|replica| replica.status == ReplicaStatus::Complete));
}
