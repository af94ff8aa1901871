//! Pins of objects that are there already.

use core::time::Duration;

use mc_lease::SoftPinFrom;
use mc_meta::{EvictionBlocker, PinError, ReplicateConfig};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn kept_by(master: &Master, now: Time, name: &str) -> Vec<EvictionBlocker> {
    master.explain(now, key(name)).kept_by
}

fn configured(sizes: &[u64], change: impl FnOnce(&mut MasterConfig)) -> Master {
    let mut config = settings();
    change(&mut config);
    master_with(config, sizes)
}

fn is_there(master: &Master, now: Time, name: &str) -> bool {
    master.probe(now, key(name))
}

#[test]
fn a_pin_keeps_an_object_that_would_have_been_next() {
    let master = master(&[100]);
    put(&master, at(0), "a", 50).unwrap();
    put(&master, at(1), "b", 50).unwrap();
    master.pin(at(2), key("a"), None).unwrap();
    put(&master, at(3), "c", 50).unwrap();
    assert!(is_there(&master, at(3), "a") && !is_there(&master, at(3), "b"));
    let remaining = Duration::from_secs(30 * 60 - 60) + Duration::from_millis(2);
    assert_eq!(kept_by(&master, secs(60), "a"), [EvictionBlocker::SoftPin { remaining }]);
    // And with it gone the object goes in its turn.
    master.unpin(secs(60), key("a")).unwrap();
    assert_eq!(kept_by(&master, secs(60), "a"), []);
    assert!(master.exist(secs(61), key("c")));
    put(&master, secs(90), "d", 50).unwrap();
    assert!(!is_there(&master, secs(90), "a") && is_there(&master, secs(90), "c"));
}

#[test]
fn it_lasts_from_now_on_whatever_pins_of_puts_are_counted_from() {
    for from in [SoftPinFrom::Commit, SoftPinFrom::LastAccess] {
        let master = configured(&[100], |config| config.soft_pin_from = from);
        put(&master, at(0), "old", 10).unwrap();
        let much_later = at(0) + 24 * HOUR;
        master.pin(much_later, key("old"), Some(HOUR)).unwrap();
        let kept = kept_by(&master, much_later, "old");
        let [EvictionBlocker::Lease { .. }, EvictionBlocker::SoftPin { remaining }] = kept[..]
        else {
            panic!("{kept:?}")
        };
        assert!(remaining >= HOUR && remaining < HOUR + HOUR / 1000, "{remaining:?}");
        let over = much_later + HOUR + HOUR / 100;
        assert_eq!(kept_by(&master, over, "old"), [], "{from:?}");
        put(&master, over, "new", 100).unwrap();
        assert!(!is_there(&master, over, "old"));
    }
}

#[test]
fn a_pin_takes_the_place_of_another() {
    let master = master(&[100]);
    put_as(&master, at(0), "a", 50, &ReplicateConfig::default().soft_pin()).unwrap();
    master.pin(at(1), key("a"), Some(Duration::from_secs(10))).unwrap();
    assert_eq!(master.report().totals.soft_pinned, 1);
    put(&master, at(2), "b", 50).unwrap();
    // It has lapsed, and is as old as its last use.
    master.tick(secs(20));
    put(&master, secs(20), "c", 50).unwrap();
    assert!(!is_there(&master, secs(20), "a") && is_there(&master, secs(20), "b"));
    assert_eq!(master.report().totals.soft_pinned, 0);
}

#[test]
fn what_is_pinned_for_ever_stays_so_until_it_is_unpinned() {
    let master = master(&[100]);
    put_as(&master, at(0), "a", 100, &ReplicateConfig::default().hard_pin()).unwrap();
    master.pin(at(1), key("a"), Some(Duration::from_millis(1))).unwrap();
    put(&master, secs(9), "b", 100).unwrap_err();
    assert!(kept_by(&master, secs(9), "a").contains(&EvictionBlocker::HardPin));
    master.unpin(secs(9), key("a")).unwrap();
    assert_eq!(kept_by(&master, secs(9), "a"), []);
    put(&master, secs(9), "b", 100).unwrap();
    assert!(!is_there(&master, secs(9), "a"));
}

#[test]
fn the_objects_of_a_group_go_together_again() {
    let master = master(&[100]);
    let group = ReplicateConfig::default().group("g");
    put_as(&master, at(0), "one", 30, &group).unwrap();
    put_as(&master, at(0), "two", 30, &group.clone().hard_pin()).unwrap();
    put(&master, at(1), "plain", 40).unwrap();
    master.unpin(at(2), key("two")).unwrap();
    put(&master, at(3), "new", 50).unwrap();
    assert!(!is_there(&master, at(3), "one") && !is_there(&master, at(3), "two"));
}

#[test]
fn an_object_that_would_go_after_its_read_stays() {
    let ttl = Duration::from_secs(10);
    let master = configured(&[100], |config| config.ttl_after_get = Some(ttl));
    put(&master, at(0), "a", 10).unwrap();
    master.get_replica_list(at(0), key("a")).unwrap();
    master.pin(at(1), key("a"), Some(HOUR)).unwrap();
    master.tick(secs(60));
    assert!(is_there(&master, secs(60), "a"));
    // Unpinned it goes some time after the next read.
    master.unpin(secs(60), key("a")).unwrap();
    master.get_replica_list(secs(61), key("a")).unwrap();
    master.tick(secs(90));
    assert!(!is_there(&master, secs(90), "a"));
}

#[test]
fn what_cannot_be_pinned_is_refused() {
    let master = master(&[100]);
    assert_eq!(master.pin(at(0), key("none"), None), Err(PinError::NotFound));
    assert_eq!(master.unpin(at(0), key("none")), Err(PinError::NotFound));
    start(&master, at(0), "open", 10).unwrap();
    assert_eq!(master.pin(at(0), key("open"), None), Err(PinError::NotReady));
    put(&master, at(0), "a", 10).unwrap();
    assert_eq!(master.pin(at(0), key("a"), Some(Duration::ZERO)), Err(PinError::Zero));
    let (ttl, max) = (25 * HOUR, 24 * HOUR);
    assert_eq!(master.pin(at(0), key("a"), Some(ttl)), Err(PinError::TooLong { ttl, max }));
    assert_eq!(kept_by(&master, at(0), "a"), []);
    master.unpin(at(0), key("a")).unwrap();
}
