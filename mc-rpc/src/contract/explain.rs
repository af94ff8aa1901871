//! Why a key is as it is.

use core::time::Duration;

use mc_meta::{
    EvictionBlocker, Explanation, KeyEvent, KeyEventKind, PutStart, Removal, ReplicateConfig,
    TransferKind,
};
use mc_types::{ErrorCode, Generation};

use super::{Clock, Direct, ME, MasterService, Still, call, key, put, service};
use crate::calls::explanation_to_proto;
use crate::proto::happening::Event;
use crate::proto::kept_by::Reason;
use crate::{Method, proto};

fn explain(service: &MasterService<Still>, text: &str) -> proto::ExplainObjectResponse {
    let request = proto::ExplainObjectRequest { key: text.into() };
    call(service, Method::ExplainObject, &request).unwrap()
}

#[test]
fn what_keeps_an_object_and_what_became_of_one_is_told() {
    let service = service();
    let (master, now) = (service.master(), Still.now());
    let nothing = explain(&service, "k");
    assert_eq!(nothing, proto::ExplainObjectResponse::default());
    assert!(Direct(&()).explain(key("k")).unwrap().object.is_none());

    let first = put(&service, "k");
    master.remove(now, key("k"), false).unwrap();
    let config = ReplicateConfig::default().hard_pin().soft_pin();
    let start = PutStart { key: key("k"), slice_lengths: &[64], config: &config };
    let second = master.put_start(now, ME, &start).unwrap().handle.generation;
    let told = explain(&service, "k");
    let reasons: Vec<Reason> = told.kept_by.iter().map(proto::KeptBy::reason).collect();
    assert_eq!(reasons[..2], [Reason::Unfinished, Reason::HardPin]);
    let object = told.object.as_ref().unwrap();
    assert_eq!((object.generation, object.replica_list.len()), (second.as_u64(), 1));
    assert!(object.replica_list[0].handles[0].remote_key.is_empty());
    let gone = proto::Happening {
        ago_ms: 0,
        event: Event::Removed.into(),
        generation: first,
        refusal_code: 0,
    };
    assert_eq!(told.history, [gone]);

    let read = Direct(&told).explain(key("k")).unwrap();
    assert_eq!(read.object.unwrap().generation, second);
    assert_eq!(
        read.kept_by[..2],
        [EvictionBlocker::Unfinished { age: Duration::ZERO }, EvictionBlocker::HardPin]
    );
    let removed =
        KeyEventKind::Removed { generation: Generation::new(first), cause: Removal::Requested };
    assert_eq!(read.history, [KeyEvent { ago: Duration::ZERO, kind: removed }]);
}

#[test]
fn every_reason_and_happening_goes_over_the_wire() {
    let (age, remaining) = (Duration::from_millis(7), Duration::from_secs(8));
    let kept_by = vec![
        EvictionBlocker::Unfinished { age },
        EvictionBlocker::Lease { remaining },
        EvictionBlocker::SoftPin { remaining },
        EvictionBlocker::HardPin,
        EvictionBlocker::Transfer { kind: TransferKind::Copy, remaining },
        EvictionBlocker::Transfer { kind: TransferKind::Move, remaining },
        EvictionBlocker::Group { remaining },
        EvictionBlocker::Offload,
        EvictionBlocker::NoRoomToGain,
    ];
    let causes = [
        Removal::Requested,
        Removal::Evicted,
        Removal::SegmentLost,
        Removal::Replaced,
        Removal::DiskLost,
        Removal::Expired,
        Removal::Damaged,
    ];
    let removed = |cause| KeyEventKind::Removed { generation: Generation::new(3), cause };
    let refused = KeyEventKind::Refused { code: ErrorCode::Fragmented };
    let history = causes.map(removed).into_iter().chain([refused]);
    let history: Vec<KeyEvent> = history.map(|what| KeyEvent { ago: age, kind: what }).collect();
    let told = Explanation { object: None, kept_by: kept_by.clone(), history: history.clone() };
    let message = explanation_to_proto(&told);
    assert_eq!((message.kept_by.len(), message.history.len()), (9, 8));
    assert_eq!(message.history[7].refusal_code, ErrorCode::Fragmented.code());
    let read = Direct(&message).explain(key("k")).unwrap();
    assert_eq!((read.object, read.kept_by, read.history), (None, kept_by, history));
}

#[test]
fn what_a_later_version_says_is_left_out_and_too_much_is_malformed() {
    let kept_by = proto::KeptBy { reason: 99, duration_ms: 1 };
    let happening = proto::Happening { event: 99, ..Default::default() };
    let later = proto::ExplainObjectResponse {
        kept_by: vec![kept_by],
        history: vec![happening],
        ..Default::default()
    };
    let read = Direct(&later).explain(key("k")).unwrap();
    assert_eq!((read.kept_by.len(), read.history.len()), (0, 0));

    let lease = proto::KeptBy { reason: Reason::Lease.into(), duration_ms: 1 };
    let evicted = proto::Happening { event: Event::Evicted.into(), ..Default::default() };
    let refused = proto::DescribeObjectResponse { status_code: -704, ..Default::default() };
    for bad in [
        proto::ExplainObjectResponse { kept_by: vec![lease; 65], ..Default::default() },
        proto::ExplainObjectResponse { history: vec![evicted; 4097], ..Default::default() },
        proto::ExplainObjectResponse { object: Some(refused), ..Default::default() },
        proto::ExplainObjectResponse { object: Some(Default::default()), ..Default::default() },
    ] {
        assert!(Direct(&bad).explain(key("k")).is_err(), "{bad:?}");
    }
    let service = service();
    let request = proto::ExplainObjectRequest::default();
    let nobody = call::<proto::ExplainObjectResponse>(&service, Method::ExplainObject, &request);
    assert_eq!(nobody.unwrap_err().code, ErrorCode::InvalidKey);
}
