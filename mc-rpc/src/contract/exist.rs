//! Whether many objects exist: the answer with one byte for each.

use bytes::BytesMut;
use mc_types::ErrorCode;
use proptest::prelude::*;
use prost::Message;

use super::{MasterService, Still, call, put, service};
use crate::service::{Call, Service};
use crate::{Caller, Method, Refusal, answer, proto};

/// The answer about `keys`, of at most `max_reply` bytes.
fn ask(
    service: &MasterService<Still>,
    keys: &[&str],
    max_reply: usize,
) -> Result<BytesMut, Refusal> {
    let keys = keys.iter().map(ToString::to_string).collect();
    let payload = proto::BatchExistKeyRequest { keys, ..Default::default() }.encode_to_vec();
    let mut out = BytesMut::new();
    let caller = &Caller::ANYBODY;
    let call = Call::new(Method::BatchExistKey, &payload, max_reply, caller);
    service.call(call, &mut out).map(|_| out)
}

#[test]
fn golden_batch_exist() {
    let service = service();
    put(&service, "k");
    let answer = ask(&service, &["k", "x", "k"], 1 << 16).unwrap();
    assert_eq!(&answer[..], b"\x12\x03\x01\x00\x01");
    assert!(ask(&service, &[], 1 << 16).unwrap().is_empty());
}

#[test]
fn a_probe_is_answered_like_an_existence_check_and_grants_no_lease() {
    let service = service();
    put(&service, "k");
    let remove = |force| {
        let request = proto::RemoveRequest { key: "k".into(), force };
        call::<proto::RemoveResponse>(&service, Method::Remove, &request)
    };
    for probe in [true, false] {
        let one = proto::ExistKeyRequest { key: "k".into(), probe };
        let found: proto::ExistKeyResponse = call(&service, Method::ExistKey, &one).unwrap();
        let keys = ["k", "x", ""].map(String::from).to_vec();
        let many = proto::BatchExistKeyRequest { keys, probe };
        let all: proto::BatchExistKeyResponse =
            call(&service, Method::BatchExistKey, &many).unwrap();
        assert!(found.exists);
        assert_eq!((all.exists, all.refusals.len()), (vec![true, false, false], 1));
        match probe {
            true => {
                remove(false).unwrap();
                put(&service, "k");
            }
            false => assert_eq!(remove(false).unwrap_err().code, ErrorCode::ObjectHasLease),
        }
    }
    let bytes =
        super::written(|out| crate::request::write_flagged_keys(out, &[super::key("k")], true));
    let message = proto::BatchExistKeyRequest { keys: vec!["k".into()], probe: true };
    assert_eq!(message.encode_to_vec(), &bytes[..]);
}

#[test]
fn one_of_several_removals_that_name_a_put_is_answered_with_yes() {
    let service = service();
    let (old, other) = (put(&service, "k"), put(&service, "l"));
    let items = [("k", old), ("k", old), ("l", other + 1), ("", 1), ("x", 1)];
    let items =
        items.map(|(key, generation)| proto::RemoveGenerationItem { key: key.into(), generation });
    let request = proto::BatchRemoveGenerationRequest { items: items.to_vec() };
    let done: proto::BatchRemoveGenerationResponse =
        call(&service, Method::BatchRemoveGeneration, &request).unwrap();
    let codes: Vec<i32> = done.items.iter().map(|item| item.status_code).collect();
    assert_eq!(codes, [0, -704, -707, ErrorCode::InvalidKey.code(), -704]);
    let items = vec![request.items[0].clone(); crate::request::MAX_BATCH + 1];
    let many = proto::BatchRemoveGenerationRequest { items };
    let refused = call::<proto::BatchRemoveGenerationResponse>(
        &service,
        Method::BatchRemoveGeneration,
        &many,
    );
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
}

#[test]
fn what_is_no_key_is_refused_alone() {
    let service = service();
    put(&service, "k");
    let long = "x".repeat(1025);
    let answer = ask(&service, &["k", "", "x", &long, "k"], 1 << 16).unwrap();
    let message = proto::BatchExistKeyResponse::decode(&answer[..]).unwrap();
    assert_eq!(message.exists, [true, false, false, false, true]);
    let refused: Vec<_> =
        message.refusals.iter().map(|refusal| (refusal.index, refusal.status_code)).collect();
    let code = ErrorCode::InvalidKey.code();
    assert_eq!(refused, [(1, code), (3, code)]);
    assert!(message.refusals[1].message.contains("1025"), "{message:?}");
    let read = answer::read_all_exist(&answer, 5).unwrap().unwrap();
    assert_eq!(read[0], Ok(true));
    assert_eq!(read[2], Ok(false));
    assert_eq!(read[3].as_ref().unwrap_err().message, message.refusals[1].message.as_str().into());
}

#[test]
fn an_answer_without_room_for_every_refusal_is_refused() {
    let service = service();
    let bad = vec![""; 1000];
    let full = ask(&service, &bad, 1000 + 33 * 1000).unwrap();
    let read = answer::read_all_exist(&full, 1000).unwrap().unwrap();
    assert!(read.iter().all(|exists| exists.as_ref().unwrap_err().code == ErrorCode::InvalidKey));
    // The words go before the causes do.
    let some = proto::BatchExistKeyResponse::decode(&full[..]).unwrap();
    assert!(some.refusals.iter().any(|refusal| refusal.message.is_empty()));
    for (keys, max_reply) in [(&bad[..], 16_000), (&bad, 1031), (&["k"; 1000], 1031)] {
        let refused = ask(&service, keys, max_reply).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidParams, "{refused}");
    }
    assert!(ask(&service, &["k"; 1000], 1032).is_ok());
}

#[test]
fn answers_that_do_not_fit_the_question_are_malformed() {
    let exists = |exists: &[bool]| proto::BatchExistKeyResponse {
        exists: exists.to_vec(),
        ..Default::default()
    };
    let refusing = |index, status_code| {
        let refusal = proto::ItemRefusal { index, status_code, message: "no".into() };
        proto::BatchExistKeyResponse { refusals: vec![refusal], ..exists(&[true, false]) }
    };
    let read = |message: &proto::BatchExistKeyResponse| {
        answer::read_all_exist(&message.encode_to_vec(), 2)
    };
    assert_eq!(read(&refusing(1, -400)).unwrap().unwrap()[0], Ok(true));
    for bad in [exists(&[true]), exists(&[true; 3]), refusing(2, -400), refusing(1, 0)] {
        assert!(read(&bad).is_err(), "{bad:?}");
    }
    let many = vec![proto::ItemRefusal { index: 0, status_code: -1, message: String::new() }; 3];
    assert!(read(&proto::BatchExistKeyResponse { refusals: many, ..exists(&[true; 2]) }).is_err());
    let refused = proto::BatchExistKeyResponse { status_code: -902, ..Default::default() };
    assert_eq!(read(&refused).unwrap().unwrap_err().code, ErrorCode::Overloaded);
    // Not packed, and not in one byte, as other writers may do it.
    for other in [&b"\x10\x01\x10\x00"[..], b"\x12\x04\x81\x80\x00\x00"] {
        assert_eq!(answer::read_all_exist(other, 2).unwrap().unwrap(), [Ok(true), Ok(false)]);
    }
    assert!(answer::read_all_exist(b"\x12\x02\x81\x80", 2).is_err());
}

proptest! {
    #[test]
    fn what_is_there_is_told_as_the_message_says(there in prop::collection::vec(any::<bool>(), 0..300)) {
        let service = service();
        put(&service, "k");
        let keys: Vec<&str> = there.iter().map(|there| if *there { "k" } else { "x" }).collect();
        let request = proto::BatchExistKeyRequest {
            keys: keys.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let message: proto::BatchExistKeyResponse =
            call(&service, Method::BatchExistKey, &request).unwrap();
        prop_assert_eq!(&message.exists, &there);
        let bytes = ask(&service, &keys, 1 << 16).unwrap();
        prop_assert_eq!(message.encode_to_vec(), &bytes[..]);
        let read = answer::read_all_exist(&bytes, there.len()).unwrap().unwrap();
        prop_assert_eq!(read, there.into_iter().map(Ok).collect::<Vec<_>>());
    }
}
