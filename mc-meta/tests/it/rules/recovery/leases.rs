//! Leases over a hand-over: the successor trusts the former master's list, if it is whole and the last.

use super::*;

/// The direct successor of a master that told `journal` everything.
fn successor(former: &Master, journal: &Journal, now: Time) -> Master {
    let mut rebuild = Rebuild::in_parts(former.config().clone(), 1, 2).unwrap().with_secret(SECRET);
    rebuild.trust_leases();
    journal.records().iter().for_each(|record| rebuild.apply(record));
    let master = rebuild.finish(now).unwrap().master;
    remount_all(&master, now);
    master
}

/// A master with a segment of this size, which tells the journal everything.
fn former(size: u64) -> (Master, Journal) {
    let journal = Journal::default();
    let mut config = settings();
    config.shards = 2;
    let former = Master::new(config, 1).unwrap().with_secret(SECRET).with_sink(journal.clone());
    former.mount_segment(at(0), NODE, segment(0, size)).unwrap();
    (former, journal)
}

/// A full master with two objects, of which `read` was read a moment ago.
fn half_leased() -> (Master, Journal) {
    let (former, journal) = former(1000);
    put(&former, at(0), "read", 500).unwrap();
    put(&former, at(0), "idle", 500).unwrap();
    former.get_replica_list(at(1), key("read")).unwrap();
    (former, journal)
}

#[test]
fn a_successor_evicts_at_once_what_was_not_leased_at_the_hand_over() {
    let (former, journal) = half_leased();
    former.list_leases(at(2));
    // Granted after the list, and therefore not acknowledged.
    let listed = former.receipt(|master| master.get_replica_list(at(3), key("idle")).unwrap());
    assert!(listed.sequence.is_some(), "it waits for the list");
    let master = successor(&former, &journal, LATER);
    put(&master, LATER, "new", 500).unwrap();
    assert!(has(&master, "read") && !has(&master, "idle"));
    let lease = master.config().lease_ttl;
    put(&master, before(LATER + lease), "newer", 500).unwrap();
    assert!(has(&master, "read") && !has(&master, "new"), "its lease lasts");
    master.remove(before(LATER + lease), key("read"), false).unwrap_err();
    master.remove(LATER + lease, key("read"), false).unwrap();
}

#[test]
fn a_list_of_leases_that_is_not_whole_or_of_the_last_life_is_not_trusted() {
    let is_trusted = |former: &Master, journal: &Journal| {
        start(&successor(former, journal, LATER), LATER, "new", 500).is_ok()
    };
    let (former, journal) = half_leased();
    assert!(!is_trusted(&former, &journal), "there is none");
    former.list_leases(at(2));
    assert!(is_trusted(&former, &journal));
    // This master is not known to be the direct successor.
    let (other, _) = rebuild_with(former.config().clone(), &journal.records(), LATER);
    remount_all(&other, LATER);
    assert_eq!(
        start(&other, LATER, "new", 500).unwrap_err(),
        PutStartError::AllLeased { len: 500 }
    );
    former.withdraw_leases(at(3));
    assert!(!is_trusted(&former, &journal), "it is withdrawn");
    former.list_leases(at(4));
    assert!(is_trusted(&former, &journal), "another one");
    // The first part is lost.
    let lost = Journal::default();
    let is_part =
        |record: &Record| matches!(record, Record::Leased { objects, .. } if !objects.is_empty());
    let records = journal.records().into_iter().filter(|record| !is_part(record));
    lost.0.lock().unwrap().extend(records);
    lost.0.lock().unwrap().push(Record::Leased { before: 1, objects: vec![], is_last: true });
    assert!(!is_trusted(&former, &lost), "it is not whole");
    // The next life has begun.
    let mut rebuild = Rebuild::new(former.config().clone(), 1).unwrap().with_secret(SECRET);
    journal.records().iter().for_each(|record| rebuild.apply(record));
    journal.correct(&rebuild.finish(LATER).unwrap().corrections);
    assert!(!is_trusted(&former, &journal), "it is of a life before the last");
}

#[test]
fn what_a_read_is_told_during_a_hand_over_waits_for_the_list_of_leases() {
    let (former, _journal) = half_leased();
    former.list_leases(at(2));
    let end = former.last_sequence();
    let read = || former.receipt(|master| master.exist(at(3), key("idle"))).sequence;
    let begun = read().expect("it may grant a lease that the list lacks");
    assert!(begun <= end);
    former.withdraw_leases(at(4));
    assert_eq!(read(), Some(former.last_sequence()), "it waits for the withdrawal");
}

#[test]
fn a_list_in_many_parts_is_whole() {
    let names: Vec<String> = (0..10_000).map(|number| format!("{number}")).collect();
    let (former, journal) = former(1 + names.len() as u64);
    for name in &names {
        put(&former, at(0), name, 1).unwrap();
        former.get_replica_list(at(1), key(name)).unwrap();
    }
    put(&former, at(1), "idle", 1).unwrap();
    former.list_leases(at(2));
    let has_some =
        |record: &&Record| matches!(record, Record::Leased { objects, .. } if !objects.is_empty());
    let parts = journal.records().iter().filter(has_some).count();
    assert!(parts > 2, "{parts} parts");
    let master = successor(&former, &journal, LATER);
    put(&master, LATER, "new", 1).unwrap();
    put(&master, LATER, "newer", 1).unwrap();
    assert!(!has(&master, "idle") && !has(&master, "new"));
    assert!(names.iter().all(|name| has(&master, name)));
}
