//! Eviction, leases and soft pins.

use core::time::Duration;

use mc_evict::PolicyKind;
use mc_lease::SoftPinFrom;
use mc_meta::{Master, PutEnd, PutStartError, Removal, RemoveError, ReplicateConfig};
use mc_types::{StoreEventInfo, Time};

use super::*;

/// A master that reports its victims to a recorder.
fn watched(config: MasterConfig, size: u64) -> (Master, Recorder) {
    let events = Recorder::default();
    let master = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(events.clone());
    master.mount_segment(at(0), NODE, segment(0, size)).unwrap();
    (master, events)
}

fn soft() -> ReplicateConfig {
    ReplicateConfig::default().soft_pin()
}

#[test]
fn with_one_shard_the_least_recently_used_go_first() {
    let (master, events) = watched(settings(), 100);
    for n in 0..10 {
        put(&master, at(n), &format!("{n}"), 10).unwrap();
    }
    for n in [3, 0, 7] {
        master.get_replica_list(at(100), key(&format!("{n}"))).unwrap();
    }
    for n in 0..10 {
        put(&master, secs(10), &format!("new-{n}"), 10).unwrap();
    }
    let order = ["1", "2", "4", "5", "6", "8", "9", "3", "0", "7"];
    assert_eq!(events.removals(Removal::Evicted), order);
}

/// A master by LRU that is full of objects of one byte, named by their numbers, the coldest first.
fn full_of_64_shards(objects: u64) -> (Master, Recorder) {
    let mut config = settings();
    config.shards = 64;
    config.eviction_policy = PolicyKind::Lru;
    let (master, events) = watched(config, objects);
    for n in 0..objects {
        put(&master, at(n), &n.to_string(), 1).unwrap();
    }
    (master, events)
}

#[test]
fn shards_share_one_order() {
    const OBJECTS: u64 = 20_000;
    let (master, events) = full_of_64_shards(OBJECTS);
    let names: Vec<String> = (0..OBJECTS / 4).map(|n| n.to_string()).collect();
    let keys: Vec<KeyRef<'_>> = names.iter().map(|name| key(name)).collect();
    // Of a list the end is used first.
    assert!(master.batch_exist(at(OBJECTS), &keys).into_iter().all(|there| there));
    for n in 0..OBJECTS {
        put(&master, secs(100), &format!("new-{n}"), 1).unwrap();
    }
    let order = (OBJECTS / 4..OBJECTS).chain((0..OBJECTS / 4).rev());
    let order: Vec<String> = order.map(|n| n.to_string()).collect();
    assert_eq!(events.removals(Removal::Evicted), order);
}

#[test]
fn accesses_are_told_before_long() {
    const OBJECTS: u64 = 50_000;
    let (master, events) = full_of_64_shards(OBJECTS);
    for n in (0..OBJECTS).rev() {
        master.get_replica_list(at(OBJECTS), key(&n.to_string())).unwrap();
    }
    for n in 0..OBJECTS / 2 {
        put(&master, secs(100), &format!("new-{n}"), 1).unwrap();
    }
    let victims = events.removals(Removal::Evicted);
    let rank = |key: &String| OBJECTS - 1 - key.parse::<u64>().unwrap();
    let furthest = (0..).zip(&victims).map(|(n, key)| rank(key).abs_diff(n)).max();
    assert!(furthest.unwrap() < OBJECTS / 8, "one went {furthest:?} from its place");
}

/// The blocks of prompts, put one by one, in turns.
#[test]
fn what_continues_another_goes_before_it() {
    let mut config = settings();
    config.shards = 64;
    for by_info in [false, true] {
        let (master, events) = watched(config.clone(), 20);
        for n in 0..10i32 {
            for chain in ["a", "b"] {
                let (name, parent) = (format!("{chain}{n}"), format!("{chain}{}", n - 1));
                let mut config = ReplicateConfig::default();
                if n > 0 && !by_info {
                    config = config.parent(key(&parent).to_owned());
                }
                let grant = start_as(&master, at(0), &name, 1, &config).unwrap();
                let info = StoreEventInfo {
                    block_hash: format!("hash of {name}"),
                    parent_block_hash: format!("hash of {parent}"),
                    ..StoreEventInfo::default()
                };
                let end = PutEnd::new(key(&name), grant.handle);
                let end = PutEnd { event_info: by_info.then_some(&info), ..end };
                master.put_end(at(0), WRITER, &end).unwrap();
            }
        }
        for n in 0..20 {
            put(&master, secs(100), &format!("new-{n}"), 1).unwrap();
        }
        let chain = |chain| (0..10).rev().map(move |n| format!("{chain}{n}"));
        let order: Vec<String> = chain("a").chain(chain("b")).collect();
        assert_eq!(events.removals(Removal::Evicted), order, "by what events say: {by_info}");
    }
}

/// Puts objects in one call, the first of which continues another one.
fn put_together(master: &Master, now: Time, names: &[String], parent: Option<&str>) {
    let config = ReplicateConfig::default();
    let mut batch = master.batch();
    let handles: Vec<PutHandle> = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let mut config = config.clone();
            config.parent = parent.filter(|_| n == 0).map(|parent| key(parent).to_owned());
            let put = PutStart { key: key(name), slice_lengths: &[1], config: &config };
            batch.put_start(now, WRITER, &put).unwrap().handle
        })
        .collect();
    for (name, handle) in names.iter().zip(handles) {
        batch.put_end(now, WRITER, &PutEnd::new(key(name), handle)).unwrap();
    }
}

fn names(prefix: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("{prefix}{n}")).collect()
}

/// A long prompt is put while it is computed, in several calls.
#[test]
fn what_continues_another_call_goes_before_it() {
    for policy in [PolicyKind::Adaptive, PolicyKind::Lru, PolicyKind::Prefix] {
        let mut config = settings();
        (config.shards, config.eviction_policy) = (64, policy);
        let (master, events) = watched(config, 22);
        for first in (0..10).step_by(5) {
            for prompt in ["a", "b"] {
                let parent = format!("{prompt}{}", first.max(1) - 1);
                let parent = (first > 0).then_some(&*parent);
                put_together(&master, at(0), &names(prompt, first..first + 5), parent);
            }
        }
        put_together(&master, at(0), &names("alone", 0..2), None);
        put_together(&master, at(0), &names("new", 0..22), None);
        let prompt = |prompt| names(prompt, 0..10).into_iter().rev();
        let mut order: Vec<String> = prompt("a").chain(prompt("b")).collect();
        if policy == PolicyKind::Prefix {
            // Of two leaves it is the one that was put first; then there are the leaves above.
            order = names("a", 5..10).into_iter().rev().collect();
        }
        assert!(events.removals(Removal::Evicted).starts_with(&order), "{policy}");
    }
}

/// The policy that knows of prefixes learns them from the order of a call.
#[test]
fn leaves_go_first_although_nobody_named_a_parent() {
    let mut config = settings();
    config.eviction_policy = PolicyKind::Prefix;
    let (master, events) = watched(config, 10);
    put_together(&master, at(0), &names("a", 0..5), None);
    put_together(&master, at(0), &names("b", 0..5), None);
    // The last ones are used last, and are leaves all the same.
    for n in 0..5 {
        master.exist(at(1), key(&format!("a{n}")));
    }
    put_together(&master, secs(100), &names("new", 0..8), None);
    let order = ["b4", "b3", "b2", "b1", "b0", "a4", "a3", "a2"];
    assert_eq!(events.removals(Removal::Evicted), order);
}

/// Blocks that were put without their parents.
#[test]
fn a_question_for_a_prefix_tells_what_continues_what() {
    let mut config = settings();
    config.shards = 64;
    let (master, events) = watched(config, 10);
    for name in names("a", 0..5).iter().chain(&names("b", 0..5)) {
        put(&master, at(0), name, 1).unwrap();
    }
    let asked = [names("a", 0..4), names("absent", 0..1), names("a", 4..5)].concat();
    assert_eq!(master.longest_prefix(at(0), asked.iter().map(|name| key(name))), 4);
    for name in names("new", 0..10) {
        put(&master, at(0), &name, 1).unwrap();
    }
    let order = ["a4", "b0", "b1", "b2", "b3", "b4", "a3", "a2", "a1", "a0"];
    assert_eq!(events.removals(Removal::Evicted), order);
}

#[test]
fn what_comes_back_from_a_lease_keeps_its_order() {
    let (master, events) = watched(settings(), 50);
    for n in 0..50 {
        put(&master, at(0), &format!("{n}"), 1).unwrap();
        master.exist(at(n * 10), key(&format!("{n}")));
    }
    // All are set aside here, and come back one after the other.
    assert_eq!(start(&master, at(500), "new", 1).unwrap_err(), PutStartError::AllLeased { len: 1 });
    for millis in (500..6_000).step_by(100) {
        master.tick(at(millis));
    }
    put(&master, at(6_000), "new", 50).unwrap();
    let order: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(events.removals(Removal::Evicted), order);
}

#[test]
fn only_as_much_is_evicted_as_a_put_needs() {
    let (master, _) = watched(settings(), 1000);
    for n in 0..100 {
        put(&master, at(n), &format!("{n}"), 10).unwrap();
    }
    put(&master, secs(10), "new", 95).unwrap();
    assert_eq!(master.report().totals.evicted_objects, 10);
}

#[test]
fn another_watermark_holds_from_the_next_tick_on() {
    let mut config = settings();
    config.eviction_high_watermark_ratio = 0.9;
    config.eviction_ratio = 0.1;
    let (master, _) = watched(config, 1000);
    for n in 0..80 {
        put(&master, at(n), &format!("{n}"), 10).unwrap();
    }
    while master.tick(secs(10)) {}
    assert_eq!(master.report().totals.used, 800, "not above the watermark");
    master.set_watermark(0.5, 0.2);
    assert_eq!(master.report().totals.used, 800, "the setting itself evicts nothing");
    while master.tick(secs(10)) {}
    assert_eq!(master.report().totals.used, 300);
    master.set_watermark(2.0, -1.0);
    for n in 0..70 {
        put(&master, secs(20), &format!("again {n}"), 10).unwrap();
    }
    while master.tick(secs(30)) {}
    assert_eq!(master.report().totals.used, 1000, "clamped to all memory");
}

#[test]
fn above_the_high_watermark_a_tick_evicts_down_by_the_ratio() {
    let mut config = settings();
    config.eviction_high_watermark_ratio = 0.9;
    config.eviction_ratio = 0.2;
    let (master, events) = watched(config, 1000);
    for n in 0..90 {
        put(&master, at(n), &format!("{n}"), 10).unwrap();
    }
    assert!(!master.tick(secs(10)));
    assert_eq!(master.report().totals.used, 900, "not above the watermark");
    put(&master, secs(10), "one-more", 10).unwrap();
    while master.tick(secs(10)) {}
    assert_eq!(master.report().totals.used, 700);
    assert_eq!(events.removals(Removal::Evicted)[..3], ["0", "1", "2"]);
}

#[test]
fn what_one_tick_begins_to_evict_others_end() {
    let mut config = settings();
    config.eviction_high_watermark_ratio = 0.9;
    config.eviction_ratio = 0.8;
    let (master, _) = watched(config, 4000);
    for n in 0..3601 {
        put(&master, at(n), &format!("{n}"), 1).unwrap();
    }
    let mut before = master.report().totals.used;
    let mut ticks = 0;
    while master.tick(secs(100)) {
        let used = master.report().totals.used;
        assert!(before - used <= 512, "one tick is short");
        before = used;
        ticks += 1;
    }
    assert!(ticks > 4);
    assert_eq!(master.report().totals.used, 400, "although 3600 are below the watermark");
    for n in 0..3200 {
        put(&master, secs(100), &format!("again {n}"), 1).unwrap();
    }
    assert!(!master.tick(secs(200)));
    assert_eq!(master.report().totals.used, 3600, "the next round begins above the watermark");
}

#[test]
fn unfinished_puts_are_not_evicted() {
    let (master, _) = watched(settings(), 100);
    let grant = start(&master, at(0), "open", 100).unwrap();
    assert_eq!(start(&master, secs(5), "new", 1).unwrap_err(), PutStartError::Full { len: 1 });
    master.tick(secs(5));
    end(&master, secs(6), "open", grant.handle.generation).unwrap();
    assert!(has(&master, "open"));
}

#[test]
fn exist_and_get_protect_for_as_long_as_they_say() {
    let ask: [fn(&Master, Time); 2] = [
        |master, now| assert!(master.exist(now, key("a"))),
        |master, now| {
            let list = master.get_replica_list(now, key("a")).unwrap();
            assert_eq!(list.lease, Duration::from_secs(5));
        },
    ];
    for ask in ask {
        let (master, _) = watched(settings(), 100);
        put(&master, at(0), "a", 100).unwrap();
        ask(&master, secs(10));
        let last = at(14_999);
        let remaining = Duration::from_millis(1);
        assert_eq!(master.remove(last, key("a"), false), Err(RemoveError::Leased { remaining }));
        assert_eq!(master.remove_all(last, false), 0);
        assert_eq!(start(&master, last, "b", 1).unwrap_err(), PutStartError::AllLeased { len: 1 });
        put(&master, secs(15), "b", 1).unwrap();
        assert!(!has(&master, "a"));
    }
}

#[test]
fn a_new_object_has_no_lease() {
    let (master, _) = watched(settings(), 100);
    put(&master, at(0), "a", 100).unwrap();
    put(&master, at(0), "b", 100).unwrap();
    assert!(!has(&master, "a"));
}

#[test]
fn a_lease_is_renewed_by_asking_again_also_while_set_aside() {
    let (master, _) = watched(settings(), 100);
    put(&master, at(0), "a", 100).unwrap();
    master.exist(secs(0), key("a"));
    for now in [4, 8, 12] {
        assert_eq!(
            start(&master, secs(now), "b", 1).unwrap_err(),
            PutStartError::AllLeased { len: 1 }
        );
        master.exist(secs(now), key("a"));
        master.tick(secs(now));
    }
    put(&master, secs(17), "b", 1).unwrap();
}

#[test]
fn force_and_only_force_disregards_a_lease() {
    let (master, _) = watched(settings(), 100);
    put(&master, at(0), "a", 10).unwrap();
    put(&master, at(0), "b", 10).unwrap();
    put(&master, at(0), "c", 10).unwrap();
    start(&master, at(0), "open", 10).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    master.get_replica_list(at(0), key("b")).unwrap();
    assert!(master.remove(at(0), key("a"), false).is_err());
    assert_eq!(master.remove(at(0), key("a"), true), Ok(()));
    assert_eq!(master.remove_all(at(0), false), 1);
    assert_eq!(master.remove_all(at(0), true), 1);
    assert_eq!(master.remove(at(0), key("open"), true), Err(RemoveError::NotReady));
    // They are not found any more; their readers go on until the leases end.
    assert_eq!((master.report().totals.objects, master.report().totals.used), (1, 30));
    master.tick(at(4999));
    assert_eq!(master.report().totals.used, 30);
    master.tick(at(5000));
    assert_eq!(master.report().totals.used, 10);
}

#[test]
fn soft_pinned_objects_go_last() {
    let (master, events) = watched(settings(), 100);
    put_as(&master, at(0), "pinned", 10, &soft()).unwrap();
    for n in 0..9 {
        put(&master, at(1 + n), &format!("{n}"), 10).unwrap();
    }
    for n in 0..3 {
        put(&master, secs(1), &format!("new-{n}"), 90 - n).unwrap();
        assert!(has(&master, "pinned"));
    }
    events.removals(Removal::Evicted);
    put(&master, secs(1), "all", 100).unwrap();
    assert_eq!(events.removals(Removal::Evicted), ["new-2", "pinned"]);
}

#[test]
fn soft_pinned_objects_stay_when_the_settings_say_so() {
    let mut config = settings();
    config.allow_evict_soft_pinned_objects = false;
    let (master, _) = watched(config, 100);
    put_as(&master, at(0), "pinned", 99, &soft()).unwrap();
    assert_eq!(start(&master, secs(1), "a", 10).unwrap_err(), PutStartError::Full { len: 10 });
    while master.tick(secs(2)) {}
    assert!(has(&master, "pinned"), "above the watermark, and yet");
    // Removal on request is not eviction.
    assert_eq!(master.remove(secs(2), key("pinned"), false), Ok(()));
}

#[test]
fn a_soft_pin_lapses_without_access_and_comes_back_with_it() {
    let half_an_hour = 30 * 60;
    let mut config = settings();
    config.allow_evict_soft_pinned_objects = false;
    let (master, _) = watched(config, 100);
    let pinned = |now| master.describe(now, key("a")).unwrap().soft_pinned;
    put_as(&master, secs(0), "a", 50, &soft()).unwrap();
    assert!(pinned(at(half_an_hour * 1000 - 1)));
    assert!(!pinned(secs(half_an_hour)));
    master.tick(secs(half_an_hour));
    assert_eq!(master.report().totals.soft_pinned, 0);
    master.exist(secs(half_an_hour), key("a"));
    assert_eq!(master.report().totals.soft_pinned, 1);
    let later = half_an_hour + 60;
    assert_eq!(start(&master, secs(later), "b", 60).unwrap_err(), PutStartError::Full { len: 60 });
    // Lapsed again, without a tick in between.
    put(&master, secs(2 * half_an_hour), "b", 60).unwrap();
    assert!(!has(&master, "a"));
}

#[test]
fn a_soft_pin_that_lapsed_while_set_aside_comes_back_with_an_access() {
    let (master, _) = watched(settings(), 100);
    put_as(&master, secs(0), "a", 90, &soft()).unwrap();
    master.exist(secs(0), key("a"));
    let refused = start(&master, secs(1), "b", 20).unwrap_err();
    assert_eq!(refused, PutStartError::AllLeased { len: 20 });
    let an_hour = secs(60 * 60);
    while master.tick(an_hour) {}
    assert_eq!(master.report().totals.soft_pinned, 0);
    master.exist(an_hour, key("a"));
    assert_eq!(master.report().totals.soft_pinned, 1);
}

fn lasting(millis: u64) -> ReplicateConfig {
    ReplicateConfig::default().soft_pin_for(Duration::from_millis(millis))
}

#[test]
fn soft_pins_of_their_own_durations_lapse_each_at_its_time() {
    for from in [SoftPinFrom::LastAccess, SoftPinFrom::Commit] {
        let mut config = settings();
        config.allow_evict_soft_pinned_objects = false;
        config.soft_pin_from = from;
        let (master, events) = watched(config, 100);
        // What was put first lasts longest, so that they do not lapse in their order.
        for (name, config) in [
            ("hours", lasting(7_200_000)),
            ("half an hour", soft()),
            ("a minute", lasting(60_000)),
            ("ten seconds", lasting(10_000)),
        ] {
            put_as(&master, at(0), name, 25, &config).unwrap();
        }
        let full = PutStartError::Full { len: 25 };
        assert_eq!(start(&master, at(9_999), "a", 25).unwrap_err(), full);
        put(&master, at(10_000), "a", 25).unwrap();
        assert_eq!(events.removals(Removal::Evicted), ["ten seconds"], "{from:?}");
        assert!(master.remove(at(10_000), key("a"), true).is_ok());
        put_as(&master, at(10_000), "b", 25, &lasting(86_400_000)).unwrap();
        assert_eq!(start(&master, at(59_999), "c", 25).unwrap_err(), full);
        // Noticed by a tick as well.
        while master.tick(at(60_060)) {}
        assert_eq!(master.report().totals.soft_pinned, 3, "{from:?}");
        put_as(&master, at(60_060), "c", 25, &lasting(86_400_000)).unwrap();
        assert_eq!(events.removals(Removal::Evicted), ["a minute"], "{from:?}");
        put(&master, secs(30 * 60), "d", 25).unwrap();
        assert_eq!(events.removals(Removal::Evicted), ["half an hour"], "{from:?}");
        assert!(has(&master, "hours"));
    }
}

#[test]
fn a_soft_pin_of_its_own_duration_lasts_while_the_object_is_used() {
    let mut config = settings();
    config.allow_evict_soft_pinned_objects = false;
    let (master, _) = watched(config, 100);
    put_as(&master, at(0), "a", 60, &lasting(60_000)).unwrap();
    for minute in 1..30 {
        let now = at(minute * 59_000);
        assert!(master.exist(now, key("a")));
        while master.tick(now) {}
        assert_eq!(master.report().totals.soft_pinned, 1);
    }
    let last = 29 * 59_000;
    assert_eq!(
        start(&master, at(last + 59_999), "b", 60).unwrap_err(),
        PutStartError::Full { len: 60 }
    );
    put(&master, at(last + 60_060), "b", 60).unwrap();
    assert!(!has(&master, "a"));
}

#[test]
fn of_soft_pinned_objects_the_least_recently_used_goes_first_whatever_its_duration() {
    let (master, events) = watched(settings(), 100);
    let configs = [lasting(7_200_000), soft(), lasting(3_600_000), soft()];
    for (n, config) in (0..).zip(&configs) {
        put_as(&master, at(n), &n.to_string(), 25, config).unwrap();
    }
    master.exist(at(10), key("0"));
    for n in 0..4 {
        put(&master, at(60_000 + n), &format!("new-{n}"), 25).unwrap();
        assert!(master.remove(at(60_000 + n), key(&format!("new-{n}")), true).is_ok());
        put_as(&master, at(60_000 + n), &format!("kept-{n}"), 25, &soft()).unwrap();
    }
    assert_eq!(events.removals(Removal::Evicted), ["1", "2", "3", "0"]);
}

#[test]
fn without_a_soft_pin_access_makes_none() {
    let (master, _) = watched(settings(), 100);
    put(&master, at(0), "a", 50).unwrap();
    master.exist(at(0), key("a"));
    assert!(!master.describe(at(0), key("a")).unwrap().soft_pinned);
}

#[test]
fn a_clock_that_stands_still_or_leaps_breaks_nothing() {
    let (master, _) = watched(settings(), 100);
    for now in [at(5), at(5), at(u64::MAX), at(u64::MAX), at(0), at(7)] {
        master.mount_segment(now, NODE, segment(0, 100)).unwrap();
        let _ = put(&master, now, "a", 60);
        let _ = put_as(&master, now, "b", 60, &soft());
        let _ = start(&master, now, "open", 30);
        let _ = master.get_replica_list(now, key("a"));
        master.exist(now, key("b"));
        master.ping(now, NODE);
        master.tick(now);
        assert!(master.report().totals.used <= 100);
    }
}

#[test]
fn a_clock_that_goes_back_shortens_no_lease() {
    let (master, _) = watched(settings(), 100);
    put(&master, at(0), "a", 100).unwrap();
    master.exist(secs(10), key("a"));
    master.exist(secs(3), key("a"));
    assert!(master.remove(at(14_999), key("a"), false).is_err());
}
