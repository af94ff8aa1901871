//! Each allocation strategy reaches the master, and all keep its rules of placement.

use std::collections::BTreeSet;

use mc_meta::ReplicateConfig;
use mc_types::SegmentId;

use super::*;

fn with_strategy(strategy: AllocationStrategy) -> Master {
    let mut config = settings();
    config.allocation_strategy = strategy;
    Master::new(config, 1).unwrap().with_secret(SECRET)
}

/// Mounts a segment of this size on this host.
fn mount(master: &Master, client: ClientId, number: u128, host: &str, size: u64) {
    let mut spec = segment(number, size);
    spec.endpoint = format!("tcp://{host}:{}", 1000 + number).parse().unwrap();
    master.mount_segment(at(0), client, spec).unwrap();
}

/// The segments that a put of one byte is placed in.
fn numbers(master: &Master, name: &str, config: &ReplicateConfig) -> Vec<u128> {
    let grant = put_as(master, at(0), name, 1, config).unwrap();
    grant.placements.iter().map(|placement| placement.segment.spec().id.as_u128()).collect()
}

#[test]
fn replicas_are_on_distinct_hosts_with_every_strategy() {
    for strategy in AllocationStrategy::ALL {
        let master = with_strategy(strategy);
        for number in 0..6 {
            let host = if number < 3 { "10.0.0.1" } else { "10.0.0.2" };
            mount(&master, NODE, number, host, 1000);
        }
        for n in 0..50 {
            let two =
                numbers(&master, &format!("two-{n}"), &ReplicateConfig::default().replicas(2));
            assert_ne!(two[0] < 3, two[1] < 3, "{strategy}: {two:?}");
            // Two hosts hold three replicas too, in three segments.
            let config = ReplicateConfig::default().replicas(3);
            let three = numbers(&master, &format!("three-{n}"), &config);
            assert_eq!(three.iter().collect::<BTreeSet<_>>().len(), 3, "{strategy}");
            let on_first = three.iter().filter(|number| **number < 3).count();
            assert!((1..=2).contains(&on_first), "{strategy}: {three:?}");
        }
    }
}

#[test]
fn preferred_segments_are_used_though_they_share_a_host() {
    for strategy in AllocationStrategy::ALL {
        let master = with_strategy(strategy);
        for (number, host) in [(0, "a"), (1, "a"), (2, "b"), (3, "c")] {
            mount(&master, NODE, number, host, 1000);
        }
        let config = ReplicateConfig::default().replicas(2).prefer("segment-1").prefer("segment-0");
        assert_eq!(numbers(&master, "a", &config), [1, 0], "{strategy}");
    }
}

#[test]
fn every_segment_with_room_is_looked_at_before_one_object_is_evicted() {
    for strategy in AllocationStrategy::ALL {
        let master = with_strategy(strategy);
        for number in 0..200 {
            mount(&master, NODE, number, &format!("host-{}", number / 50), 10);
        }
        for n in 0..200 {
            put(&master, at(0), &format!("key-{n}"), 10).unwrap();
        }
        master.remove(at(0), key("key-123"), false).unwrap();
        put(&master, at(0), "new", 10).unwrap();
        let report = master.report();
        assert_eq!((report.totals.evicted_objects, report.totals.used), (0, 2000), "{strategy}");
    }
}

/// Where a hundred puts of one byte go.
fn load(master: &Master, segments: usize) -> Vec<u32> {
    let mut load = vec![0; segments];
    for n in 0..100 {
        let placed = numbers(master, &format!("key-{n}"), &ReplicateConfig::default());
        load[placed[0] as usize] += 1;
    }
    load
}

#[test]
fn round_robin_loads_all_alike() {
    let master = with_strategy(AllocationStrategy::RoundRobin);
    for number in 0..10 {
        mount(&master, NODE, number, "one", 1000);
    }
    assert_eq!(load(&master, 10), [10; 10]);
}

#[test]
fn free_ratio_first_takes_the_emptier() {
    let master = with_strategy(AllocationStrategy::FreeRatioFirst);
    mount(&master, NODE, 0, "a", 2000);
    mount(&master, NODE, 1, "b", 400);
    let full = ReplicateConfig::default().prefer("segment-0");
    put_as(&master, at(0), "ballast", 1400, &full).unwrap();
    // 600 of 2000 bytes are free against all of 400: more bytes, but a smaller part.
    assert_eq!(load(&master, 2), [0, 100]);
}

#[test]
fn least_fragmented_takes_the_largest_region() {
    let master = with_strategy(AllocationStrategy::LeastFragmented);
    mount(&master, NODE, 0, "a", 3000);
    mount(&master, NODE, 1, "b", 1200);
    // Two thirds of the first are free, in pieces of a thousand bytes at most.
    let on = |n: u32| ReplicateConfig::default().prefer(format!("segment-{n}"));
    for name in ["low", "middle", "high"] {
        put_as(&master, at(0), name, 1000, &on(0)).unwrap();
    }
    master.remove(at(0), key("low"), false).unwrap();
    master.remove(at(0), key("high"), false).unwrap();
    assert_eq!(load(&master, 2), [0, 100]);
}

#[test]
fn local_first_takes_the_writer_s_host() {
    let master = with_strategy(AllocationStrategy::LocalFirst);
    for number in 0..20 {
        mount(&master, NODE, number, &format!("10.0.0.{}", number / 2), 150);
    }
    // A writer without segments has no host that the master knows of.
    let spread = load(&master, 20).into_iter().filter(|puts| *puts > 0).count();
    assert!(spread > 10);
    master.remove_all(at(0), true);

    // Its own segment and those of its neighbours are near.
    mount(&master, WRITER, 20, "10.0.0.3", 150);
    let near = load(&master, 21);
    assert!([6, 7, 20].iter().all(|number| near[*number] > 15), "{near:?}");
    assert_eq!(near[6] + near[7] + near[20], 100);

    // The table moves its last segment into each gap, and still knows who is near.
    master.remove_all(at(0), true);
    for number in [0, 6, 1] {
        master.unmount_segment(at(0), NODE, SegmentId::from_u128(number)).unwrap();
    }
    let near = load(&master, 21);
    assert!(near[7].min(near[20]) > 25, "{near:?}");
    assert_eq!(near[7] + near[20], 100);

    master.remove_all(at(0), true);
    master.unmount_segment(at(0), WRITER, SegmentId::from_u128(20)).unwrap();
    assert!(load(&master, 21)[7] < 50);
}

#[test]
fn what_does_not_fit_near_the_writer_goes_elsewhere() {
    let master = with_strategy(AllocationStrategy::LocalFirst);
    mount(&master, WRITER, 0, "near", 10);
    mount(&master, NODE, 1, "far", 10);
    assert_eq!(put(&master, at(0), "a", 10).unwrap().placements[0].segment.client(), WRITER);
    assert_eq!(put(&master, at(0), "b", 10).unwrap().placements[0].segment.client(), NODE);
    assert_eq!(master.report().totals.evicted_objects, 0);
}
