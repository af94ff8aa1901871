//! Eviction costs O(victims): counted by the objects that were looked at, not by
//! the clock.

use core::time::Duration;

use mc_evict::PolicyKind;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, PutStartError, ReplicateConfig};
use mc_types::{ClientId, KeyRef, Time};

use crate::common::segment;

const CLIENT: ClientId = ClientId::from_u128(1);

/// A master that is full of `objects` one-byte objects.
fn full_master(mut settings: MasterConfig, objects: u64, config: &ReplicateConfig) -> Master {
    settings.client_ttl = Duration::from_secs(1 << 40);
    let master = Master::new(settings, 1).unwrap();
    master.mount_segment(Time::ORIGIN, CLIENT, segment(1, objects)).unwrap();
    for n in 0..objects {
        put(&master, Time::ORIGIN, &format!("{n}"), config).unwrap();
    }
    master
}

fn put(
    master: &Master,
    now: Time,
    key: &str,
    config: &ReplicateConfig,
) -> Result<(), PutStartError> {
    let key = KeyRef::new(key).unwrap();
    let grant = master.put_start(now, CLIENT, &PutStart { key, slice_lengths: &[1], config })?;
    let put = PutEnd::new(key, grant.handle);
    master.put_end(now, CLIENT, &put).unwrap();
    Ok(())
}

fn lease_all(master: &Master, objects: u64, now: Time) {
    for n in 0..objects {
        assert!(master.exist(now, KeyRef::new(&format!("{n}")).unwrap()));
    }
}

#[test]
fn each_put_looks_at_its_victims_and_no_other_object() {
    for objects in [1_000, 100_000] {
        let config = ReplicateConfig::default();
        let master = full_master(MasterConfig::default(), objects, &config);
        for n in 0..500 {
            put(&master, Time::from_millis(n), &format!("new-{n}"), &config).unwrap();
        }
        let report = master.report();
        assert_eq!(
            (report.totals.evicted_objects, report.totals.eviction_offers),
            (500, 500),
            "{objects}"
        );
    }
}

#[test]
fn leased_objects_are_looked_at_once_for_each_lease() {
    const OBJECTS: u64 = 100_000;
    let plain = ReplicateConfig::default();
    for config in [plain.clone(), plain.clone().soft_pin()] {
        let master = full_master(MasterConfig::default(), OBJECTS, &config);
        lease_all(&master, OBJECTS, Time::ORIGIN);
        let now = Time::from_millis(1);
        for n in 0..100 {
            let error = put(&master, now, &format!("new-{n}"), &plain).unwrap_err();
            assert_eq!(error, PutStartError::AllLeased { len: 1 });
            master.tick(now);
        }
        assert_eq!(master.report().totals.eviction_offers, OBJECTS);
        // Renewed while they are set aside: not looked at again for it.
        let later = Time::from_millis(4_000);
        lease_all(&master, OBJECTS, later);
        while master.tick(Time::from_millis(5_000)) {}
        assert!(put(&master, Time::from_millis(5_000), "new", &plain).is_err());
        assert_eq!(master.report().totals.eviction_offers, OBJECTS);
        // The leases have ended: one victim, one look.
        while master.tick(Time::from_millis(9_000)) {}
        put(&master, Time::from_millis(9_000), "new", &plain).unwrap();
        assert_eq!(
            master.report().totals.eviction_offers - OBJECTS,
            master.report().totals.evicted_objects
        );
    }
}

#[test]
fn soft_pinned_objects_stay_while_one_call_cannot_look_at_all_others() {
    const OBJECTS: u64 = 100_000;
    let config = ReplicateConfig::default();
    let mut settings = MasterConfig::default();
    settings.shards = 1;
    settings.eviction_policy = PolicyKind::Lru;
    let master = full_master(settings, OBJECTS, &config);
    // Both are put after the others were read, so they are warmer than those.
    for n in OBJECTS - 2..OBJECTS {
        let key = format!("{n}");
        master.remove(Time::ORIGIN, KeyRef::new(&key).unwrap(), false).unwrap();
    }
    lease_all(&master, OBJECTS - 2, Time::ORIGIN);
    let now = Time::from_millis(1);
    put(&master, now, "pinned", &config.clone().soft_pin()).unwrap();
    put(&master, now, "ordinary", &config).unwrap();
    let error = put(&master, now, "new", &config).unwrap_err();
    assert_eq!(error, PutStartError::AllLeased { len: 1 });
    put(&master, now, "new", &config).unwrap();
    let there = |key| master.longest_prefix(now, [KeyRef::new(key).unwrap()]) == 1;
    assert!(there("pinned") && !there("ordinary"));
}
