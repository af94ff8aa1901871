//! Records of the state, and the state from records.

use mc_meta::{ExportCursor, Master, Record};
use mc_types::Time;

use super::{NODE, key, master, put, start};

/// All of an export.
fn export(master: &Master, now: Time) -> Vec<Record> {
    let mut records = Vec::new();
    let mut next = Some(ExportCursor::default());
    while let Some(cursor) = next {
        let page = master.export(now, cursor);
        records.extend(page.records);
        next = page.next;
    }
    records
}

#[test]
fn an_export_says_segments_before_what_lies_in_them() {
    let master = master(&[1 << 20, 1 << 20]);
    let now = super::secs(1);
    let grant = put(&master, now, "done", 100).unwrap();
    start(&master, now, "open", 50).unwrap();
    put(&master, now, "gone", 10).unwrap();
    master.remove(now, key("gone"), true).unwrap();
    let records = export(&master, super::secs(3));
    let Record::Generations { next } = &records[0] else { panic!("{:?}", records[0]) };
    assert_eq!(next.as_u64(), grant.generation.as_u64() + 3);
    let segments = &records[1..3];
    assert!(segments.iter().all(|r| matches!(r, Record::Segment { client: NODE, .. })));
    let objects: Vec<_> = records[3..]
        .iter()
        .map(|record| match record {
            Record::Object(object) => (object.key.as_str(), object.complete, object.idle),
            other => panic!("{other:?}"),
        })
        .collect();
    let idle = core::time::Duration::from_secs(2);
    assert_eq!(objects, [("done", true, idle), ("open", false, idle)]);
}
