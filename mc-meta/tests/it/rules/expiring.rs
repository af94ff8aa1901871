//! Objects that go some time after they were first read.

use mc_meta::{GetError, ListCursor, Pattern, SharedTierConfig};

use super::*;

/// One second, as the store that first had it.
fn once(millis: u64) -> MasterConfig {
    let mut config = settings();
    config.ttl_after_get = Some(Duration::from_millis(millis));
    config
}

fn get(master: &Master, now: Time, name: &str) -> Result<Generation, GetError> {
    master.get_replica_list(now, key(name)).map(|list| list.generation)
}

#[test]
fn by_default_reading_costs_nothing() {
    let master = master(&[100]);
    put(&master, at(0), "a", 10).unwrap();
    get(&master, at(0), "a").unwrap();
    master.tick(secs(1 << 30));
    assert!(has(&master, "a"));
}

#[test]
fn an_object_goes_some_time_after_it_was_first_read() {
    let removals = Recorder::default();
    let master = master_with(once(1000), &[100]).with_sink(removals.clone());
    put(&master, at(0), "read", 10).unwrap();
    put(&master, at(0), "unread", 10).unwrap();
    master.tick(secs(100));
    get(&master, secs(100), "read").unwrap();
    get(&master, at(100_999), "read").unwrap();
    master.tick(at(100_999));
    assert!(removals.removals(Removal::Expired).is_empty());
    // The first request finds it expired, and so do all later ones.
    assert_eq!(get(&master, secs(101), "read"), Err(GetError::NotFound));
    assert_eq!(removals.removals(Removal::Expired), ["read"]);
    assert!(!master.exist(secs(101), key("read")));
    master.tick(secs(200));
    assert!(has(&master, "unread"));
    assert_eq!((master.report().totals.expired_objects, master.report().totals.objects), (1, 1));
}

#[test]
fn nobody_need_ask_for_it_to_go() {
    let removals = Recorder::default();
    let master = master_with(once(1000), &[100]).with_sink(removals.clone());
    for name in ["a", "b", "c"] {
        put(&master, at(0), name, 10).unwrap();
    }
    get(&master, at(10), "b").unwrap();
    get(&master, at(20), "a").unwrap();
    master.tick(at(1009));
    assert!(removals.removals(Removal::Expired).is_empty());
    master.tick(at(1010));
    assert_eq!(removals.removals(Removal::Expired), ["b"]);
    master.tick(at(1020));
    assert_eq!(removals.removals(Removal::Expired), ["a"]);
}

#[test]
fn who_reads_it_may_do_so_until_the_lease_ends() {
    let master = master_with(once(1000), &[100]);
    put(&master, at(0), "a", 60).unwrap();
    get(&master, at(0), "a").unwrap();
    get(&master, at(900), "a").unwrap();
    master.tick(at(1000));
    assert_eq!((master.report().totals.objects, master.report().totals.used), (0, 60));
    let leased = PutStartError::AllLeased { len: 60 };
    assert_eq!(start(&master, at(1000), "b", 60).unwrap_err(), leased);
    master.tick(at(5899));
    assert_eq!(master.report().totals.used, 60);
    master.tick(at(5900));
    assert_eq!(master.report().totals.used, 0);
    // The same when a request comes before a tick.
    put(&master, secs(10), "a", 60).unwrap();
    get(&master, secs(10), "a").unwrap();
    assert_eq!(get(&master, secs(11), "a"), Err(GetError::NotFound));
    assert_eq!(master.report().totals.used, 60);
    put(&master, secs(15), "b", 60).unwrap();
}

#[test]
fn looking_is_not_reading() {
    let master = master_with(once(0), &[100]);
    put(&master, at(0), "a", 10).unwrap();
    assert!(master.exist(at(0), key("a")));
    assert_eq!(master.longest_prefix(at(0), [key("a")]), 1);
    master.describe(at(0), key("a")).unwrap();
    master.list_keys("", ListCursor::default(), 9);
    master.tick(secs(100));
    assert!(has(&master, "a"));
}

#[test]
fn every_way_to_read_counts() {
    let master = master_with(once(0), &[100]);
    let pattern = Pattern::new("^c$").unwrap();
    for name in ["a", "b", "c"] {
        put(&master, at(0), name, 10).unwrap();
    }
    get(&master, at(0), "a").unwrap();
    assert!(master.batch_get_replica_list(at(0), &[key("b")])[0].is_ok());
    let page =
        |now| master.get_replica_list_by_regex(now, &pattern, ListCursor::default(), 9).objects;
    assert_eq!(page(at(0)).len(), 1);
    for name in ["a", "b"] {
        assert_eq!(get(&master, at(0), name), Err(GetError::NotFound));
    }
    assert!(page(at(0)).is_empty());
    master.tick(at(0));
    assert_eq!(master.report().totals.objects, 0);
}

#[test]
fn pinned_objects_stay() {
    let master = master_with(once(1000), &[100]);
    put_as(&master, at(0), "hard", 10, &ReplicateConfig::default().hard_pin()).unwrap();
    put_as(&master, at(0), "soft", 10, &ReplicateConfig::default().soft_pin()).unwrap();
    for name in ["hard", "soft"] {
        get(&master, at(0), name).unwrap();
    }
    master.tick(secs(100));
    assert!(has(&master, "hard") && has(&master, "soft"));
}

#[test]
fn a_new_value_has_a_time_of_its_own() {
    let master = master_with(once(1000), &[100]);
    put(&master, at(0), "a", 10).unwrap();
    get(&master, at(0), "a").unwrap();
    let config = ReplicateConfig::default();
    let new = PutStart { key: key("a"), slice_lengths: &[10], config: &config };
    let new = master.upsert_start(at(500), WRITER, &new).unwrap();
    end(&master, at(600), "a", new.handle.generation).unwrap();
    master.tick(secs(100));
    assert_eq!(get(&master, secs(100), "a"), Ok(new.handle.generation));
    // Removed and put again is new as well.
    master.remove(secs(100), key("a"), true).unwrap();
    put(&master, secs(100), "a", 10).unwrap();
    master.tick(secs(102));
    assert!(has(&master, "a"));
    // The key of one that has gone is free at once.
    get(&master, secs(200), "a").unwrap();
    put(&master, secs(201), "a", 10).unwrap();
}

#[test]
fn a_value_that_goes_leaves_its_key_to_its_replacement() {
    let master = master_with(once(1000), &[100]);
    put(&master, at(0), "a", 10).unwrap();
    get(&master, at(0), "a").unwrap();
    let config = ReplicateConfig::default();
    let new = PutStart { key: key("a"), slice_lengths: &[20], config: &config };
    let new = master.upsert_start(at(500), WRITER, &new).unwrap();
    assert_eq!(get(&master, at(1000), "a"), Err(GetError::NotReady));
    end(&master, at(1001), "a", new.handle.generation).unwrap();
    assert_eq!(get(&master, at(1001), "a"), Ok(new.handle.generation));
}

#[test]
fn many_go_over_several_ticks_and_leave_nothing() {
    let mut config = once(1000);
    config.shards = 2;
    let master = master_with(config, &[100_000]);
    for n in 0..5000u64 {
        put(&master, at(0), &format!("{n}"), 1).unwrap();
        // The clock is not the same everywhere.
        get(&master, at(n * 7919 % 500), &format!("{n}")).unwrap();
    }
    for n in (0..5000).step_by(2) {
        master.remove(at(500), key(&format!("{n}")), true).unwrap();
    }
    let mut ticks = 1;
    while master.tick(secs(100)) {
        ticks += 1;
    }
    assert!(ticks > 1, "no single tick holds a shard for all of them");
    let report = master.report();
    assert_eq!(
        (report.totals.objects, report.totals.used, report.totals.expired_objects),
        (0, 0, 2500)
    );
}

#[test]
fn a_clock_at_the_end_of_time_breaks_nothing() {
    let master = master_with(once(1000), &[100]);
    put(&master, at(0), "late", 10).unwrap();
    get(&master, at(u64::MAX), "late").unwrap();
    put(&master, at(0), "a", 10).unwrap();
    get(&master, at(0), "a").unwrap();
    master.tick(secs(1));
    assert!(!has(&master, "a"));
    assert_eq!(get(&master, at(u64::MAX), "late"), Err(GetError::NotFound));
}

#[test]
fn a_file_goes_with_the_rest_and_is_read_like_it() {
    let mut config = once(1000);
    config.shared_tier = Some(SharedTierConfig::default());
    let removals = Recorder::default();
    let master = master_with(config, &[100]).with_sink(removals.clone());
    let grant = start(&master, at(0), "a", 60).unwrap();
    master.file_put_end(at(0), WRITER, key("a"), grant.handle).unwrap();
    // Its memory is still being written, so nothing of it goes for being read.
    get(&master, at(0), "a").unwrap();
    master.tick(secs(10));
    end(&master, secs(10), "a", grant.handle.generation).unwrap();
    get(&master, secs(10), "a").unwrap();
    master.tick(secs(11));
    assert_eq!(removals.removals(Removal::Expired), ["a"]);
    assert_eq!(get(&master, secs(11), "a"), Err(GetError::NotFound));
    master.tick(secs(15));
    assert_eq!((master.report().totals.used, master.report().totals.objects), (0, 0));
}
