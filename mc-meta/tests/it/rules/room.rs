//! Room for one put is made where it lies, and costs no more than it must.

use mc_meta::{MAX_REPLICAS, Master, PutStartError, Removal, ReplicateConfig};

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The objects that the pools are full of.
const SMALL: u64 = 64 * KIB;

/// Objects in a segment of [`pool`].
const IN_SEGMENT: u64 = 512;

fn many_shards() -> MasterConfig {
    let mut config = settings();
    config.shards = 64;
    config
}

fn one_shard() -> MasterConfig {
    let mut config = settings();
    config.shards = 1;
    config
}

/// Segments full of objects of [`SMALL`] bytes: those in segment `s` are called `s-0`, `s-1` and so
/// on, and were put at this time, in milliseconds.
fn pool(config: MasterConfig, segments: u64) -> (Master, Recorder) {
    let events = Recorder::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(events.clone());
    for number in 0..segments {
        let spec = segment(u128::from(number), IN_SEGMENT * SMALL);
        master.mount_segment(at(0), NODE, spec).unwrap();
    }
    for n in 0..IN_SEGMENT {
        for number in 0..segments {
            let there = ReplicateConfig::default().prefer(format!("segment-{number}"));
            put_as(&master, at(n), &format!("{number}-{n}"), SMALL, &there).unwrap();
        }
    }
    (master, events)
}

fn used(master: &Master) -> u64 {
    master.report().totals.used
}

#[test]
fn one_put_costs_at_most_twice_its_bytes() {
    for len in [MIB, 4 * MIB, 16 * MIB] {
        let (master, _) = pool(many_shards(), 4);
        // Objects that were used at different times lie side by side.
        for n in 0..4 * IN_SEGMENT {
            let name = format!("{}-{}", n % 4, n * 263 % IN_SEGMENT);
            master.get_replica_list(secs(10) + Duration::from_millis(n), key(&name)).unwrap();
        }
        for n in 0..3 {
            let before = used(&master);
            put(&master, secs(100 + n), &format!("new-{n}"), len).unwrap();
            let lost = before + len - used(&master);
            assert!(lost <= 2 * len, "{lost} bytes were lost for {len}");
        }
    }
}

#[test]
fn the_coldest_that_allow_it_go() {
    let (master, events) = pool(many_shards(), 4);
    // All but those in one segment are used again and again.
    for now in [secs(10), secs(100), secs(1000)] {
        for n in 0..IN_SEGMENT {
            for number in [0, 1, 3] {
                master.get_replica_list(now, key(&format!("{number}-{n}"))).unwrap();
            }
        }
    }
    for n in 0..4 {
        put(&master, secs(1010), &format!("new-{n}"), 4 * MIB).unwrap();
    }
    let victims = events.removals(Removal::Evicted);
    assert_eq!(victims.len() as u64, 4 * 4 * MIB / SMALL);
    assert!(victims.iter().all(|name| name.starts_with("2-")), "{victims:?}");
}

#[test]
fn what_lay_in_a_lost_segment_is_not_what_a_put_costs() {
    let (master, events) = pool(one_shard(), 2);
    master.mount_segment(at(0), STRANGER, segment(9, MIB)).unwrap();
    // The coldest, of three replicas of which one is lost, would cost a put three times its bytes.
    for name in ["0-0", "1-0"] {
        master.remove(at(0), key(name), true).unwrap();
    }
    let everywhere = ReplicateConfig::default().replicas(3);
    assert_eq!(put_as(&master, at(0), "coldest", SMALL, &everywhere).unwrap().placements.len(), 3);
    for n in 1..IN_SEGMENT {
        for number in 0..2 {
            master.get_replica_list(secs(10), key(&format!("{number}-{n}"))).unwrap();
        }
    }
    master.unmount_segment(at(0), STRANGER, SegmentId::from_u128(9)).unwrap();
    put(&master, secs(100), "new", SMALL).unwrap();
    assert_eq!(events.removals(Removal::Evicted), ["coldest"]);
}

#[test]
fn segments_that_a_put_cannot_use_lose_nothing() {
    let (master, events) = pool(many_shards(), 4);
    // The coldest are in segments that are excluded, and in one that is being emptied.
    for n in 0..IN_SEGMENT {
        master.get_replica_list(secs(10), key(&format!("3-{n}"))).unwrap();
    }
    master.create_drain_job(at(0), &["segment-2"], &[], 1).unwrap();
    let there = ReplicateConfig::default().exclude("segment-0").exclude("segment-1");
    for (n, len) in [SMALL, MIB, 4 * MIB].into_iter().enumerate() {
        let grant = put_as(&master, secs(100), &format!("new-{n}"), len, &there).unwrap();
        assert_eq!(grant.placements[0].segment.spec().name, "segment-3".into());
    }
    let victims = events.removals(Removal::Evicted);
    assert!(victims.iter().all(|name| name.starts_with("3-")), "{victims:?}");
    let nowhere = there.exclude("segment-3");
    assert!(start_as(&master, secs(200), "nowhere", SMALL, &nowhere).is_err());
    assert_eq!(events.removals(Removal::Evicted), Vec::<String>::new());
}

#[test]
fn nothing_is_lost_for_a_put_that_cannot_be_helped_and_its_search_is_remembered() {
    let (master, events) = pool(many_shards(), 2);
    // Every eighth object stays, so that no more than seven beside each other can go.
    for n in (0..IN_SEGMENT).step_by(8) {
        for number in 0..2 {
            let name = format!("{number}-{n}");
            let there = ReplicateConfig::default().prefer(format!("segment-{number}"));
            master.remove(at(0), key(&name), true).unwrap();
            put_as(&master, at(1000), &name, SMALL, &there.hard_pin()).unwrap();
        }
    }
    let objects = master.report().totals.objects;
    let error = start(&master, secs(100), "large", 8 * SMALL).unwrap_err();
    assert_eq!(error, PutStartError::Full { len: 8 * SMALL });
    let offers = master.report().totals.eviction_offers;
    for n in 0..100 {
        let now = secs(100) + Duration::from_millis(n / 2);
        start(&master, now, "large", 8 * SMALL + n).unwrap_err();
    }
    let report = master.report();
    assert_eq!(report.totals.objects, objects, "{:?}", events.removals(Removal::Evicted));
    // The coldest object is looked at each time, and no others.
    assert!(
        report.totals.eviction_offers - offers <= 200,
        "{}",
        report.totals.eviction_offers - offers
    );
    put(&master, secs(100), "small", 7 * SMALL).unwrap();
    assert_eq!(events.removals(Removal::Evicted).len(), 7);
}

#[test]
fn objects_with_many_replicas_are_counted_with_all_of_them() {
    let (master, _) = pool(many_shards(), 4);
    let wide = ReplicateConfig::default().replicas(MAX_REPLICAS.min(3) as u32);
    for n in 0..100 {
        put_as(&master, secs(10), &format!("wide-{n}"), SMALL, &wide).unwrap();
    }
    for n in 0..8 {
        let before = used(&master);
        put(&master, secs(100), &format!("new-{n}"), MIB).unwrap();
        let lost = before + MIB - used(&master);
        assert!(lost <= 2 * MIB, "{lost} bytes were lost for {MIB}");
    }
}

#[test]
fn pinned_objects_are_part_of_a_run_only_when_no_others_make_the_room() {
    let mut config = many_shards();
    config.soft_pin_ttl = Duration::from_secs(1 << 30);
    config.max_soft_pin_ttl = config.soft_pin_ttl;
    let (master, events) = pool(config, 2);
    for n in (0..IN_SEGMENT).step_by(4) {
        master.remove(at(0), key(&format!("0-{n}")), true).unwrap();
        let there = ReplicateConfig::default().prefer("segment-0");
        put_as(&master, at(1), &format!("pinned-{n}"), SMALL, &there.soft_pin()).unwrap();
    }
    for n in 0..IN_SEGMENT * SMALL / MIB {
        put(&master, secs(10), &format!("new-{n}"), MIB).unwrap();
    }
    let victims = events.removals(Removal::Evicted);
    assert!(!victims.iter().any(|name| name.starts_with("pinned")), "{victims:?}");
    let config = ReplicateConfig::default().exclude("segment-1");
    put_as(&master, secs(20), "last", MIB, &config).unwrap();
    let victims = events.removals(Removal::Evicted);
    assert_eq!(victims.iter().filter(|name| name.starts_with("pinned")).count(), 4, "{victims:?}");
}
