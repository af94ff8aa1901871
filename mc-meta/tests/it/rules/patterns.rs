//! Reads and removals of all keys that match.

use std::collections::BTreeSet;

use mc_meta::{ListCursor, Pattern, ReplicaPage};

use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::new(text).unwrap()
}

/// Every page, and how many there were.
fn pages(master: &Master, now: Time, pattern: &Pattern, limit: usize) -> (Vec<String>, usize) {
    let (mut keys, mut pages) = (Vec::new(), 0);
    let mut cursor = Some(ListCursor::default());
    while let Some(from) = cursor {
        let page = master.get_replica_list_by_regex(now, pattern, from, limit);
        assert!(page.objects.len() <= limit);
        keys.extend(page.objects.iter().map(|(key, _)| key.as_str().to_owned()));
        cursor = page.next.map(|next| ListCursor::from_u64(next.to_u64()));
        pages += 1;
    }
    (keys, pages)
}

fn found(master: &Master, text: &str) -> BTreeSet<String> {
    pages(master, at(0), &pattern(text), 100).0.into_iter().collect()
}

#[test]
fn a_pattern_finds_what_it_matches_anywhere_in_the_key() {
    let mut config = settings();
    config.shards = 8;
    let master = master_with(config, &[1000]);
    for name in ["model/a/0", "model/a/1", "model/b/0", "other/a/0", "a+b"] {
        put(&master, at(0), name, 10).unwrap();
    }
    for (text, keys) in [
        ("^model/", &["model/a/0", "model/a/1", "model/b/0"][..]),
        ("/a/", &["model/a/0", "model/a/1", "other/a/0"]),
        ("a/[01]$", &["model/a/0", "model/a/1", "other/a/0"]),
        ("^(model|other)/.*/0$", &["model/a/0", "model/b/0", "other/a/0"]),
        (r"\+", &["a+b"]),
        ("^a$", &[]),
        ("nothing", &[]),
        ("", &["model/a/0", "model/a/1", "model/b/0", "other/a/0", "a+b"]),
    ] {
        let expected: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(found(&master, text), expected, "{text}");
    }
}

#[test]
fn what_a_pattern_finds_is_under_lease_and_counted() {
    let master = master(&[100]);
    let grant = put(&master, at(0), "found", 10).unwrap();
    put(&master, at(0), "other", 10).unwrap();
    let ReplicaPage { objects, next } =
        master.get_replica_list_by_regex(at(0), &pattern("fou"), ListCursor::default(), 5);
    assert_eq!(next, None);
    let [(_, list)] = &objects[..] else { panic!("one matches: {objects:?}") };
    assert_eq!((list.generation, list.lease), (grant.handle.generation, Duration::from_secs(5)));
    assert_eq!(list.placements[0].extent, grant.placements[0].extent);
    assert!(!master.describe(at(0), key("found")).unwrap().lease.is_zero());
    assert!(master.describe(at(0), key("other")).unwrap().lease.is_zero());
    assert_eq!((master.report().totals.get_hits, master.report().totals.get_misses), (1, 0));
}

#[test]
fn what_cannot_be_read_is_not_found() {
    let master = master(&[100, 100]);
    let there = ReplicateConfig::default().prefer("segment-1");
    start(&master, at(0), "unfinished", 10).unwrap();
    put_as(&master, at(0), "lost", 10, &there).unwrap();
    let here = ReplicateConfig::default().prefer("segment-0");
    put_as(&master, at(0), "replaced", 10, &here).unwrap();
    let config = ReplicateConfig::default();
    let new = PutStart { key: key("replaced"), slice_lengths: &[20], config: &config };
    master.upsert_start(at(0), WRITER, &new).unwrap();
    master.unmount_segment(at(0), NODE, SegmentId::from_u128(1)).unwrap();
    let page = master.get_replica_list_by_regex(at(0), &pattern(""), ListCursor::default(), 9);
    let found: Vec<_> =
        page.objects.iter().map(|(key, list)| (key.as_str(), list.slices.total_len())).collect();
    assert_eq!(found, [("replaced", 10)]);
}

#[test]
fn pages_are_bounded_and_complete() {
    let mut config = settings();
    config.shards = 4;
    let master = master_with(config, &[100_000]);
    for n in 0..20_000 {
        put(&master, at(0), &format!("key-{n}"), 1).unwrap();
    }
    let (keys, count) = pages(&master, at(0), &pattern("^key-.*7$"), 300);
    assert_eq!((keys.len(), keys.iter().collect::<BTreeSet<_>>().len()), (2000, 2000));
    assert!(count >= 7, "{count} pages");
    let (none, count) = pages(&master, at(0), &pattern("absent"), 300);
    assert!(none.is_empty() && count == 2, "one call looks at so many only: {count}");
    let nothing = master.get_replica_list_by_regex(at(0), &pattern(""), ListCursor::default(), 0);
    assert!(nothing.objects.is_empty() && nothing.next == Some(ListCursor::default()));
    let end = ListCursor::from_u64(u64::MAX);
    let past = master.get_replica_list_by_regex(at(0), &pattern(""), end, 9);
    assert!(past.objects.is_empty() && past.next.is_none());
}

#[test]
fn a_pattern_removes_what_it_matches_and_may_go() {
    let removals = Recorder::default();
    let master = master(&[1000]).with_sink(removals.clone());
    for name in ["m/plain", "m/leased", "m/copied", "other"] {
        put(&master, at(0), name, 10).unwrap();
    }
    start(&master, at(0), "m/unfinished", 10).unwrap();
    master.mount_segment(at(0), NODE, segment(1, 100)).unwrap();
    master.copy_start(at(0), NODE, key("m/copied"), "segment-0", &["segment-1"]).unwrap();
    master.get_replica_list(at(0), key("m/leased")).unwrap();
    assert_eq!(master.remove_by_regex(at(1), &pattern("^m/"), false), 1);
    assert_eq!(removals.removals(Removal::Requested), ["m/plain"]);
    assert_eq!(master.remove_by_regex(at(1), &pattern("^x/"), true), 0);
    assert_eq!(master.remove_by_regex(at(1), &pattern("^m/"), true), 1);
    assert_eq!(removals.removals(Removal::Requested), ["m/leased"]);
    assert!(has(&master, "other") && has(&master, "m/copied"));
    let report = master.report();
    assert_eq!((report.totals.objects, report.totals.removed_objects), (3, 2));
}
