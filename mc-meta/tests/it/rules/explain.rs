//! Why a key is as it is.

use core::time::Duration;

use mc_meta::{EvictionBlocker, KeyEvent, KeyEventKind, Removal, ReplicateConfig};
use mc_types::ErrorCode;

use super::*;

fn kept_by(master: &Master, now: Time, name: &str) -> Vec<EvictionBlocker> {
    master.explain(now, key(name)).kept_by
}

#[test]
fn what_keeps_an_object_is_named() {
    let master = master(&[1000]);
    start(&master, at(0), "open", 10).unwrap();
    let age = Duration::from_millis(7);
    assert_eq!(kept_by(&master, at(7), "open"), [EvictionBlocker::Unfinished { age }]);
    put(&master, at(0), "plain", 10).unwrap();
    assert_eq!(kept_by(&master, at(0), "plain"), []);
    put_as(&master, at(0), "soft", 10, &ReplicateConfig::default().soft_pin()).unwrap();
    let remaining = Duration::from_secs(30 * 60);
    assert_eq!(kept_by(&master, at(0), "soft"), [EvictionBlocker::SoftPin { remaining }]);
    put_as(&master, at(0), "hard", 10, &ReplicateConfig::default().hard_pin()).unwrap();
    assert!(master.exist(at(0), key("hard")));
    let lease = EvictionBlocker::Lease { remaining: Duration::from_secs(4) };
    assert_eq!(kept_by(&master, secs(1), "hard"), [EvictionBlocker::HardPin, lease]);
    let group = ReplicateConfig::default().group("g");
    put_as(&master, at(0), "one", 10, &group).unwrap();
    put_as(&master, at(0), "two", 10, &group).unwrap();
    assert!(master.exist(at(0), key("one")));
    let remaining = Duration::from_secs(4);
    assert_eq!(kept_by(&master, secs(1), "two"), [EvictionBlocker::Group { remaining }]);
}

#[test]
fn what_is_gone_says_why() {
    let master = master(&[100]);
    put(&master, at(0), "a", 100).unwrap();
    put(&master, at(1), "b", 100).unwrap();
    let explanation = master.explain(at(5), key("a"));
    assert!(explanation.object.is_none());
    let [KeyEvent { ago, kind: KeyEventKind::Removed { cause: Removal::Evicted, .. } }] =
        explanation.history[..]
    else {
        panic!("{explanation:?}");
    };
    assert_eq!(ago, Duration::from_millis(4));
    assert!(master.exist(at(5), key("b")));
    put(&master, at(6), "a", 1).unwrap_err();
    let refused = KeyEventKind::Refused { code: ErrorCode::AllLeased };
    let history = master.explain(at(6), key("a")).history;
    assert_eq!(history.len(), 2);
    assert_eq!(history[0].kind, refused);
    assert!(master.explain(at(6), key("never")).history.is_empty());
}

#[test]
fn only_the_latest_is_remembered() {
    let master = master(&[100]);
    for n in 0..5000 {
        put(&master, at(n), &format!("k{n}"), 1).unwrap();
        master.remove(at(n), key(&format!("k{n}")), false).unwrap();
    }
    assert!(master.explain(secs(5), key("k0")).history.is_empty());
    assert_eq!(master.explain(secs(5), key("k4999")).history.len(), 1);
}
