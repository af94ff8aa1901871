//! Masters whose effects are told to a ledger.

use std::sync::Arc;

use mc_ha::Position;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, Record, ReplicateConfig, SegmentSpec};
use mc_types::{ClientId, Epoch, KeyRef, MediaType, RemoteKey, SegmentId, Time};

use super::{Beginning, Ledger};
use crate::simulation::clock::begin_time;

const NODE: ClientId = ClientId::from_u128(1);
const SEGMENT: SegmentId = SegmentId::from_u128(2);

fn beginning(term: u64, from: Position) -> Beginning {
    Beginning::Journal { term: Epoch::new(term), from, may_lack: None }
}

/// A master that has lost an object with the segment that it was in: where its journal may have ended.
struct Loss {
    ledger: Arc<Ledger>,
    /// With the segment.
    stored: Position,
    /// Without it; there was no effect on the object yet.
    segment_gone: Position,
}

/// A ledger that follows a master, which has a segment.
fn follow() -> (Arc<Ledger>, Master) {
    let ledger = Arc::new(Ledger::new());
    let sink = ledger.sink();
    let none = ledger.leads(sink.life(), beginning(1, Position::EMPTY), &[] as &[Record]);
    assert_eq!(none, []);
    let master = Master::new(MasterConfig::default(), 1).unwrap().with_sink(sink);
    let spec = SegmentSpec {
        id: SEGMENT,
        name: "segment".into(),
        base: 0,
        size: 1 << 20,
        endpoint: "mem://node:1".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    };
    master.mount_segment(Time::ORIGIN, NODE, spec).unwrap();
    (ledger, master)
}

fn lose_object(is_told: bool) -> Loss {
    begin_time();
    let ((ledger, master), now) = (follow(), Time::ORIGIN);
    let (key, config) = (KeyRef::new("k").unwrap(), ReplicateConfig::default());
    let put = PutStart { key, slice_lengths: &[100], config: &config };
    let grant = master.put_start(now, NODE, &put).unwrap();
    master.put_end(now, NODE, &PutEnd::new(key, grant.handle)).unwrap();
    let stored = ledger.state().at;
    ledger.leaves("segment");
    master.unmount_segment(now, NODE, SEGMENT).unwrap();
    let segment_gone = ledger.state().at;
    if is_told {
        master.tick(now);
        assert!(ledger.state().at > segment_gone, "the object is gone, too");
    }
    Loss { ledger, stored, segment_gone }
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_segment_went_is_not_looked_for_whether_its_loss_was_told_or_not() {
    for is_told in [false, true] {
        let Loss { ledger, segment_gone, .. } = lose_object(is_told);
        let next = ledger.sink();
        let records: &[Record] = &[];
        let undone = ledger.leads(next.life(), beginning(2, segment_gone), records);
        assert_eq!(undone, []);
        assert_eq!(ledger.take_violations(), Vec::<String>::new(), "told: {is_told}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_is_looked_for_whose_segment_is_back() {
    for is_told in [false, true] {
        let Loss { ledger, stored, .. } = lose_object(is_told);
        let next = ledger.sink();
        ledger.leads(next.life(), beginning(2, stored), &[] as &[Record]);
        let violations = ledger.take_violations();
        assert!(violations.len() == 1 && violations[0].contains("has k"), "{violations:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_may_go_until_its_client_knows_that_it_is_mounted() {
    begin_time();
    for is_known in [false, true] {
        let (ledger, master) = follow();
        ledger.leaves("segment");
        if is_known {
            ledger.keeps("segment");
        }
        master.unmount_segment(Time::ORIGIN, NODE, SEGMENT).unwrap();
        assert_eq!(ledger.take_violations().len(), usize::from(is_known));
    }
}
