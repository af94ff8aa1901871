//! The information for subscribers of events in the end of a put.

use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use mc_meta::{Effect, EffectSink, Master, MasterConfig, PutEnd};
use mc_types::{
    ErrorCode, MAX_BLOCK_HASH, MAX_MODEL_NAME, MAX_TOKEN_IDS, Sequence, StoreEventInfo, Time,
};
use proptest::prelude::*;
use prost::Message;

use super::{ME, Still, call, end_of, key, me, named, segment, written};
use crate::request::{BatchPutFinishRequest, PutFinishRequest};
use crate::service::{Clock, MasterService};
use crate::wire::put_u64;
use crate::{Method, Refusal, proto};

fn message(info: &StoreEventInfo) -> proto::StoreEventInfo {
    proto::StoreEventInfo {
        model_name: info.model_name.clone(),
        block_size: info.block_size,
        block_hash: info.block_hash.clone(),
        parent_block_hash: info.parent_block_hash.clone(),
        token_ids: info.token_ids.clone(),
    }
}

fn end(info: Option<&StoreEventInfo>) -> PutEnd<'_> {
    PutEnd { event_info: info, ..PutEnd::new(key("k"), named(7, 9)) }
}

/// The end of a put as an old client writes it, and of a part of the new field.
fn end_with(part: &[u8]) -> BytesMut {
    let mut bytes = written(|out| PutFinishRequest::write(out, ME, &end(None)));
    crate::wire::put_item_bytes(&mut bytes, 8, part);
    bytes
}

fn longest() -> StoreEventInfo {
    StoreEventInfo {
        model_name: "ü".repeat(MAX_MODEL_NAME / 2),
        block_size: u32::MAX,
        block_hash: "h".repeat(MAX_BLOCK_HASH),
        parent_block_hash: "p".repeat(MAX_BLOCK_HASH),
        token_ids: vec![u32::MAX; MAX_TOKEN_IDS],
    }
}

fn infos() -> impl Strategy<Value = Option<StoreEventInfo>> {
    let tokens = prop::collection::vec(any::<u32>(), 0..50);
    let info = ("\\PC{0,40}", any::<u32>(), "\\PC{0,40}", "[0-9a-f]{0,64}", tokens);
    let info =
        info.prop_map(|(model_name, block_size, block_hash, parent_block_hash, token_ids)| {
            StoreEventInfo { model_name, block_size, block_hash, parent_block_hash, token_ids }
        });
    prop::option::weighted(0.8, info)
}

/// Writes `info` with the end of one put and of a batch, and compares what prost and the master
/// read.
fn travels(infos: &[Option<StoreEventInfo>]) {
    for info in infos {
        let bytes = written(|out| PutFinishRequest::write(out, ME, &end(info.as_ref())));
        let put = proto::PutEndRequest::decode(&bytes[..]).unwrap();
        let upsert = proto::UpsertEndRequest::decode(&bytes[..]).unwrap();
        assert_eq!(put.event_info, info.as_ref().map(message));
        assert_eq!(upsert.event_info, put.event_info);
        for bytes in [bytes.to_vec(), put.encode_to_vec()] {
            let parsed = PutFinishRequest::parse(&bytes).unwrap();
            assert_eq!(parsed.end().event_info, info.as_ref());
        }
    }
    let ends = infos.iter().map(|info| end(info.as_ref()));
    let bytes = written(|out| BatchPutFinishRequest::write(out, ME, ends));
    let batch = proto::BatchPutEndRequest::decode(&bytes[..]).unwrap();
    assert_eq!(batch.encode_to_vec(), &bytes[..]);
    let mut read = Vec::new();
    BatchPutFinishRequest::parse(&bytes).unwrap().for_each(|end| {
        read.push(end.unwrap().0.event_info.cloned());
    });
    assert_eq!(read, infos);
}

proptest! {
    #[test]
    fn every_field_arrives_as_it_was_given(infos in prop::collection::vec(infos(), 0..8)) {
        travels(&infos);
    }
}

#[test]
fn the_longest_and_the_empty_arrive_as_well() {
    travels(&[Some(longest()), None, Some(StoreEventInfo::default())]);
}

#[test]
fn golden_put_end() {
    let info = StoreEventInfo {
        model_name: "m".into(),
        block_size: 16,
        block_hash: "h".into(),
        parent_block_hash: "p".into(),
        token_ids: vec![1, 300],
    };
    let without = written(|out| PutFinishRequest::write(out, ME, &end(None)));
    let with = written(|out| PutFinishRequest::write(out, ME, &end(Some(&info))));
    let field = b"\x42\x10\x0a\x01m\x10\x10\x1a\x01h\x22\x01p\x2a\x03\x01\xac\x02";
    assert_eq!(with[..], [&without[..], field].concat());
}

#[test]
fn fields_that_are_too_long_are_refused_by_name() {
    let bytes = |longer: fn(&mut StoreEventInfo)| {
        let mut info = longest();
        longer(&mut info);
        written(|out| PutFinishRequest::write(out, ME, &end(Some(&info))))
    };
    let unpacked = |part: &[u8]| {
        let mut tokens = BytesMut::from(part);
        (0..MAX_TOKEN_IDS).for_each(|_| put_u64(&mut tokens, 5, 1));
        end_with(&tokens)
    };
    let cases = [
        (bytes(|info| info.model_name.push('x')), "model_name", 257, 256),
        (bytes(|info| info.block_hash.push('x')), "block_hash", 257, 256),
        (bytes(|info| info.parent_block_hash.push('x')), "parent_block_hash", 257, 256),
        (bytes(|info| info.token_ids.push(0)), "token_ids", 32_769, 32_768),
        (unpacked(b"\x28\x07"), "token_ids", 32_769, 32_768),
        (unpacked(b"\x2a\x02\x07\x08"), "token_ids", 32_769, 32_768),
    ];
    for (bytes, field, length, max) in cases {
        let refusal = PutFinishRequest::parse(&bytes).unwrap_err();
        let told = format!(
            "event_info: {field} has length {length}, and at most {max} are allowed; shorten it"
        );
        assert_eq!((refusal.code, &*refusal.message), (ErrorCode::InvalidParams, &*told));
    }
    assert!(PutFinishRequest::parse(&unpacked(b"")).is_ok());
    // A field of a later version is skipped, and what is no message refused.
    assert!(PutFinishRequest::parse(&end_with(b"\x7a\x01x")).is_ok());
    for bad in [&b"\x0a\x05m"[..], b"\x0a\x01\xff", b"\x2a\x01\x80", b"\x2d\0\0\0\0", b"\x0b"] {
        let refusal = PutFinishRequest::parse(&end_with(bad)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidParams, "{bad:?}");
    }
}

/// The parts of a message that comes twice are merged, as prost merges them.
#[test]
fn a_message_in_parts_is_one() {
    let mut bytes = end_with(b"\x0a\x01a\x2a\x01\x01");
    bytes.extend_from_slice(&end_with(b"\x0a\x01b\x28\x02\x10\x03"));
    let told = proto::PutEndRequest::decode(&bytes[..]).unwrap().event_info.unwrap();
    let parsed = PutFinishRequest::parse(&bytes).unwrap().event_info.unwrap();
    assert_eq!(message(&parsed), told);
    assert_eq!((&*parsed.model_name, &parsed.token_ids[..]), ("b", &[1, 2][..]));
}

type Told = Arc<Mutex<Vec<(String, Option<StoreEventInfo>)>>>;

struct Stored(Told);

impl EffectSink for Stored {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Stored { object, event_info } = effect {
            let told = (object.key().as_str().to_owned(), event_info.cloned());
            self.0.lock().unwrap().push(told);
        }
    }
}

#[test]
fn the_sinks_hear_of_it_and_an_object_that_is_refused_stays_unfinished() {
    let told = Told::default();
    let master = Master::new(MasterConfig::default(), 5).unwrap();
    let master = master.with_sink(Stored(Arc::clone(&told)));
    master.mount_segment(Still.now(), ME, segment(1)).unwrap();
    let service = MasterService::new(Arc::new(master), Still);
    let start = |text: &str| {
        let start = proto::PutStartRequest {
            key: text.into(),
            value_length: 64,
            client_id: me(),
            ..Default::default()
        };
        let grant: proto::PutStartResponse = call(&service, Method::PutStart, &start).unwrap();
        end_of(text, &grant)
    };
    let info = StoreEventInfo { model_name: "m".into(), ..StoreEventInfo::default() };
    let long = StoreEventInfo { model_name: "m".repeat(257), ..StoreEventInfo::default() };
    let end = |end, info: &StoreEventInfo| {
        let end = proto::PutEndRequest { event_info: Some(message(info)), ..end };
        call::<proto::PutEndResponse>(&service, Method::PutEnd, &end).map(drop)
    };
    assert_eq!(end(start("a"), &info), Ok(()));
    let open = start("b");
    let refused: Refusal = end(open.clone(), &long).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidParams);
    assert_eq!(end(open, &info), Ok(()));

    let item = |end: proto::PutEndRequest, info: Option<&StoreEventInfo>| proto::PutEndItem {
        key: end.key,
        generation: end.generation,
        put_token: end.put_token,
        event_info: info.map(message),
        ..Default::default()
    };
    let puts =
        vec![item(start("c"), Some(&info)), item(start("d"), Some(&long)), item(start("e"), None)];
    let batch = proto::BatchPutEndRequest { client_id: me(), puts };
    let ended: proto::BatchPutEndResponse = call(&service, Method::BatchPutEnd, &batch).unwrap();
    let codes: Vec<i32> = ended.items.iter().map(|item| item.status_code).collect();
    assert_eq!(codes, [0, ErrorCode::InvalidParams.code(), 0]);
    let expected = [("a", Some(&info)), ("b", Some(&info)), ("c", Some(&info)), ("e", None)];
    let expected = expected.map(|(key, info)| (key.to_owned(), info.cloned()));
    assert_eq!(*told.lock().unwrap(), expected);
}
