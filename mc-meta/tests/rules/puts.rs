//! Two-phase puts, their limits, and puts whose writers vanish.

use mc_meta::{
    GetError, InvalidPut, MAX_PREFERRED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, PutEnd, PutFinishError,
    PutStart, PutStartError, RemoveError, ReplicaStatus, ReplicateConfig,
};
use mc_types::{Checksum, Generation};

use crate::*;

#[test]
fn the_longest_objects_overflow_nothing() {
    const LONGEST: u64 = i64::MAX as u64;
    let master = master(&[u64::MAX, u64::MAX, u64::MAX]);
    let config = ReplicateConfig::default().replicas(3);
    put_as(&master, at(0), "a", LONGEST, &config).unwrap();
    put_as(&master, at(0), "b", LONGEST, &config).unwrap();
    assert_eq!(master.report().used, u64::MAX, "the sum stays at the largest number");
    // Makes room, which adds the victims' bytes up.
    put_as(&master, at(1), "c", LONGEST, &config).unwrap();
    assert!(!has(&master, "a"));
    master.tick(at(2));
    assert!(master.report().evicted_objects >= 2, "above the watermark");
    master.remove_all(at(2), true);
    assert_eq!(master.report().used, 0);
}
