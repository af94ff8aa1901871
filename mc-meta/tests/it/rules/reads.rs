//! Reads, prefixes, listings.

use std::collections::BTreeSet;

use mc_meta::{GetError, ListCursor, Master, ReplicaStatus, ReplicateConfig};

use super::*;

#[test]
fn nobody_reads_what_is_not_finished() {
    let master = master(&[100]);
    let read = |now| master.get_replica_list(now, key("a")).map(|list| list.generation);
    assert_eq!(read(at(0)), Err(GetError::NotFound));
    let grant = start(&master, at(0), "a", 10).unwrap();
    assert_eq!(read(at(0)), Err(GetError::NotReady));
    assert!(GetError::NotReady.is_retryable() && !GetError::NotFound.is_retryable());
    assert!(!master.exist(at(0), key("a")));
    assert!(!has(&master, "a"));
    let info = master.describe(at(0), key("a")).unwrap();
    assert_eq!(info.replicas[0].status, ReplicaStatus::Processing);
    end(&master, at(0), "a", grant.handle.generation).unwrap();
    assert_eq!(read(at(0)), Ok(grant.handle.generation));
    let info = master.describe(at(0), key("a")).unwrap();
    assert_eq!(info.replicas[0].status, ReplicaStatus::Complete);
    let report = master.report();
    assert_eq!((report.totals.get_hits, report.totals.get_misses), (1, 2));
}

#[test]
fn a_longest_prefix_ends_at_the_first_key_that_cannot_be_read() {
    let master = master(&[100]);
    for name in ["a", "b", "d"] {
        put(&master, at(0), name, 10).unwrap();
    }
    start(&master, at(0), "open", 10).unwrap();
    let prefix = |names: &[&str]| master.longest_prefix(at(1), names.iter().map(|n| key(n)));
    assert_eq!(prefix(&[]), 0);
    assert_eq!(prefix(&["a", "b", "c", "d"]), 2);
    assert_eq!(prefix(&["c", "a"]), 0);
    assert_eq!(prefix(&["a", "open", "b"]), 1);
    assert_eq!(prefix(&["a", "a", "b"]), 3);
    // No lease.
    assert_eq!(master.remove_all(at(1), false), 3);
}

#[test]
fn questions_are_counted_whatever_their_answer() {
    let master = master(&[100]);
    put(&master, at(0), "a", 10).unwrap();
    start(&master, at(0), "open", 10).unwrap();
    let counted = || {
        let report = master.report();
        (report.totals.exist_hits, report.totals.exist_misses)
    };
    assert!(master.exist(at(0), key("a")) && !master.exist(at(0), key("b")));
    assert_eq!(counted(), (1, 1));
    assert_eq!(master.batch_exist(at(0), &["a", "b", "open"].map(key)), [true, false, false]);
    assert_eq!(counted(), (2, 3));
    // The first missing key ends the prefix: the third is not looked up.
    assert_eq!(master.longest_prefix(at(0), ["a", "b", "a"].map(key)), 1);
    assert_eq!(counted(), (3, 4));
    assert_eq!((master.report().totals.get_hits, master.report().totals.get_misses), (0, 0));
}

#[test]
fn describing_is_no_access() {
    let master = master(&[100]);
    put_as(&master, at(0), "a", 10, &ReplicateConfig::default().soft_pin()).unwrap();
    let info = master.describe(secs(7), key("a")).unwrap();
    assert_eq!((info.owner, info.soft_pinned), (WRITER, true));
    assert_eq!(info.idle, Duration::from_secs(7));
    assert!(info.lease.is_zero());
    assert_eq!(master.describe(secs(7), key("b")).unwrap_err(), GetError::NotFound);
    assert_eq!(master.report().totals.get_hits, 0);
}

/// Every key below `prefix`, page by page; panics when one comes twice.
fn list(master: &Master, prefix: &str, limit: usize) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut cursor = Some(ListCursor::default());
    while let Some(at) = cursor {
        let page = master.list_keys(prefix, at, limit);
        assert!(page.keys.len() <= limit);
        for info in page.keys {
            assert!(all.insert(info.key.as_str().to_owned()), "{} twice", info.key);
        }
        cursor = page.next.map(|next| ListCursor::from_u64(next.to_u64()));
    }
    all
}

#[test]
fn a_listing_has_each_key_once_whatever_the_page_size() {
    let mut config = settings();
    config.shards = 7;
    let master = master_with(config, &[100_000]);
    let names: BTreeSet<String> = (0..3000).map(|n| format!("{}/{n}", n % 3)).collect();
    for name in &names {
        put(&master, at(0), name, 1).unwrap();
    }
    for limit in [1, 2, 100, 2999, 3000, 3001, usize::MAX] {
        assert_eq!(list(&master, "", limit), names, "limit {limit}");
    }
    assert_eq!(list(&master, "1/", 10).len(), 1000);
    assert!(list(&master, "nothing", 10).is_empty());
}

#[test]
fn a_listing_looks_at_no_more_than_a_bounded_part_at_a_time() {
    let master = master(&[100_000]);
    for n in 0..20_000 {
        put(&master, at(0), &format!("{n}"), 1).unwrap();
    }
    let page = master.list_keys("nothing", ListCursor::default(), 10);
    assert!(page.keys.is_empty() && page.next.is_some());
    assert!(list(&master, "nothing", 10).is_empty());
}

#[test]
fn any_number_is_a_cursor() {
    let mut config = settings();
    config.shards = 3;
    let master = master_with(config, &[100]);
    put(&master, at(0), "a", 1).unwrap();
    for number in [u64::MAX, u64::MAX - 1, 1 << 63, u64::from(u32::MAX), 3 << 32, 2 << 32 | 7] {
        let page = master.list_keys("", ListCursor::from_u64(number), 10);
        assert!(page.next.is_none());
        assert_eq!(ListCursor::from_u64(number).to_u64(), number);
    }
    let page = master.list_keys("", ListCursor::default(), 0);
    assert!(page.keys.is_empty());
}
