//! Parts of long objects.

use std::fs;

use bytes::Bytes;
use mc_testkit::content;
use mc_tier::{ObjectBytes, SliceBytes, Tier};

use super::common::{id, open};

/// Bytes that this thread has read from files; `None` where the system does not count them.
fn read_so_far() -> Option<u64> {
    let counts = fs::read_to_string("/proc/thread-self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

#[test]
fn an_unverified_range_reads_no_more_than_its_bytes() {
    let root = tempfile::tempdir().unwrap();
    let (tier, id) = (open(root.path()), id("long"));
    let value = Bytes::from(content("long", 16 << 20));
    let object = ObjectBytes::new(vec![SliceBytes::new(value.clone())]).unwrap();
    tier.put(&id, &object).unwrap();
    let range = 5_000_000..6_000_000;
    let before = read_so_far();
    let found = tier.get_unverified(&id, range.clone()).unwrap().unwrap();
    let after = read_so_far();
    assert_eq!(found, value.slice(range.start as usize..range.end as usize));
    if let (Some(before), Some(after)) = (before, after) {
        let read = after - before;
        assert!((1_000_000..1_100_000).contains(&read), "{read}");
    }
}
