//! Clients that take back what they put.

use super::*;

fn clear(master: &Master, now: Time, names: &[&str], segment: Option<&str>) -> Vec<String> {
    let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
    let cleared = master.batch_replica_clear(now, WRITER, &keys, segment);
    cleared.iter().map(|key| key.as_str().to_owned()).collect()
}

#[test]
fn all_replicas_of_an_object_are_cleared_with_it() {
    let removals = Recorder::default();
    let master = master(&[100, 100]).with_sink(removals.clone());
    let two = ReplicateConfig::default().replicas(2);
    put_as(&master, at(0), "a", 10, &two).unwrap();
    put(&master, at(0), "b", 10).unwrap();
    assert_eq!(clear(&master, at(0), &["b", "absent", "a", "b"], None), ["b", "a"]);
    assert_eq!(removals.removals(Removal::Requested), ["b", "a"]);
    let report = master.report();
    assert_eq!(
        (report.totals.objects, report.totals.used, report.totals.removed_objects),
        (0, 0, 2)
    );
    assert!(clear(&master, at(0), &[], None).is_empty());
}

#[test]
fn with_a_segment_named_only_the_replica_there_goes() {
    let removals = Recorder::default();
    let master = master(&[100, 100]).with_sink(removals.clone());
    let two = ReplicateConfig::default().replicas(2);
    put_as(&master, at(0), "a", 10, &two).unwrap();
    put_as(&master, at(0), "b", 10, &ReplicateConfig::default().prefer("segment-1")).unwrap();
    assert_eq!(clear(&master, at(0), &["a", "b"], Some("segment-0")), ["a"]);
    let list = master.get_replica_list(at(0), key("a")).unwrap();
    assert_eq!((list.placements.len(), master.report().totals.used), (1, 20));
    assert_eq!(&*list.placements[0].segment.spec().name, "segment-1");
    assert!(clear(&master, secs(9), &["a"], Some("segment-0")).is_empty());
    assert!(clear(&master, secs(9), &["a"], Some("unknown")).is_empty());
    assert!(clear(&master, secs(9), &["a"], Some("")).is_empty());
    assert!(removals.removals(Removal::Requested).is_empty());
    // The last one takes the object with it.
    assert_eq!(clear(&master, secs(9), &["a", "b"], Some("segment-1")), ["a", "b"]);
    assert_eq!(removals.removals(Removal::Requested), ["a", "b"]);
    assert_eq!((master.report().totals.objects, master.report().totals.used), (0, 0));
}

#[test]
fn only_what_the_client_put_and_nobody_uses_is_cleared() {
    let master = master(&[1000, 100]);
    let config = ReplicateConfig::default().prefer("segment-0");
    let theirs = PutStart { key: key("theirs"), slice_lengths: &[10], config: &config };
    let grant = master.put_start(at(0), STRANGER, &theirs).unwrap();
    let end = PutEnd::new(key("theirs"), grant.handle);
    master.put_end(at(0), STRANGER, &end).unwrap();
    for name in ["leased", "copied", "free"] {
        put_as(&master, at(0), name, 10, &config).unwrap();
    }
    start_as(&master, at(0), "unfinished", 10, &config).unwrap();
    master.get_replica_list(at(0), key("leased")).unwrap();
    let copy = master.copy_start(at(0), NODE, key("copied"), "segment-0", &["segment-1"]).unwrap();
    let all = ["theirs", "leased", "copied", "free", "unfinished"];
    assert_eq!(clear(&master, at(1), &all, Some("segment-0")), ["free"]);
    put_as(&master, at(1), "free", 10, &config).unwrap();
    assert_eq!(clear(&master, at(1), &all, None), ["free"]);
    master.copy_end(at(2), NODE, key("copied"), copy.handle).unwrap();
    assert_eq!(clear(&master, secs(5), &all, None), ["leased", "copied"]);
    assert!(has(&master, "theirs"));
}
