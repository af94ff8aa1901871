#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use mc_types::{MAX_MODEL_NAME, StoreEventInfo};
use proptest::prelude::*;

use crate::Encoding;
use crate::event::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Event, MAX_EVENT_BYTES, Medium,
    RemovalReason, RemoveAllEvent, Replica,
};
use crate::queue::{Pushed, Queue};
use crate::replay::{ParsedRequest, ReplayRequest};
use crate::stream::{Ring, Stream};

/// 2026-01-01 00:00:00.5 UTC.
const TIME: u64 = 1_767_225_600_500_000;
const HASH: &str = "0x1122334455667788";

fn stream(encoding: Encoding) -> Stream {
    Stream::new(encoding, "".into(), None, Ring::new(10, 1 << 20))
}

fn mooncake() -> Encoding {
    Encoding::Mooncake { backend_id: "mooncake-0".into() }
}

fn payload(stream: &mut Stream, micros: u64, events: &[Event]) -> String {
    let message = stream.batch(micros, events).message.unwrap();
    message.payload().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

fn replica(medium: Medium) -> Vec<Replica> {
    vec![Replica { medium, location: "127.0.0.1:13527".into() }]
}

fn stored() -> Event {
    let info = StoreEventInfo {
        block_size: 4,
        block_hash: HASH.into(),
        token_ids: vec![1, 2, 3, 4],
        ..StoreEventInfo::default()
    };
    let replicas = replica(Medium::Memory);
    BlockStoreEvent { key: HASH.into(), replicas, store_event_info: info, ..Default::default() }
        .into()
}

fn removed() -> Event {
    let medium = Some(Medium::Memory);
    BlockRemovedEvent { key: HASH.into(), medium, block_hash: HASH.into(), ..Default::default() }
        .into()
}

#[test]
fn payloads_equal_the_samples() {
    let mut vllm = stream(Encoding::Vllm);
    assert_eq!(
        payload(&mut vllm, TIME, &[stored()]),
        "93cb41da556e402000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf\
         1122334455667788b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa62\
         6c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c000"
    );
    assert_eq!(
        payload(&mut vllm, TIME + 500_000, &[removed(), RemoveAllEvent.into()]),
        "93cb41da556e404000009283a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391\
         cf1122334455667788a66d656469756da343505581a474797065b0416c6c426c6f636b73436c656172656400"
    );
    assert_eq!(
        payload(&mut stream(Encoding::VllmPositional), TIME, &[stored()]),
        "93cb41da556e402000009198ab426c6f636b53746f72656491cf1122334455667788c0940102030404c0a343\
         5055c000"
    );
    assert_eq!(
        payload(&mut stream(mooncake()), TIME, &[stored()]),
        "93cf0000019b76daa9f491de0012a86576656e745f696401a974696d657374616d70cf0000019b76daa9f4aa\
         6576656e745f74797065a673746f726564a474797065ab426c6f636b53746f726564aa6d6f64656c5f6e616d\
         65c0aa626c6f636b5f73697a65c0af6164646974696f6e616c5f73616c74c0a96c6f72615f6e616d65c0a974\
         656e616e745f6964a764656661756c74aa6261636b656e645f6964aa6d6f6f6e63616b652d30a867726f7570\
         5f6964c0a66d656469756da3637075a764705f72616e6b00aa6f626a6563745f6b6579b23078313132323333\
         34343535363637373838aa7365715f68617368657391cf1122334455667788ae626173655f626c6f636b5f69\
         647800ab706172656e745f68617368c0a9746f6b656e5f696473c000"
    );
    let store_event_info = StoreEventInfo {
        model_name: "m".into(),
        block_size: 16,
        block_hash: "h1".into(),
        parent_block_hash: "h0".into(),
        token_ids: vec![1, 2],
    };
    let key = "k1".to_owned();
    let replicas = replica(Medium::Memory);
    let store =
        BlockStoreEvent { key: key.clone(), replicas, store_event_info, ..Default::default() };
    let update =
        BlockUpdateEvent { key, replicas: replica(Medium::LocalDisk), ..Default::default() };
    let events = [store.into(), update.into(), RemoveAllEvent.into()];
    assert_eq!(
        payload(&mut stream(Encoding::S4), TIME, &events),
        "92cb41da556e402000009398af426c6f636b53746f72654576656e74a26b319192a66d656d6f7279af313237\
         2e302e302e313a3133353237a16d10a26831a2683092010293b0426c6f636b5570646174654576656e74a26b\
         319192aa6c6f63616c5f6469736baf3132372e302e302e313a313335323791ae52656d6f7665416c6c457665\
         6e74"
    );
}

#[test]
fn removals_tell_their_reasons_only_where_they_are_asked_for_and_there_is_a_place() {
    let Event::Removed(event) = removed() else { panic!("not a removal") };
    let reason = Some(RemovalReason::SegmentLost);
    let told = Event::from(BlockRemovedEvent { reason, ..event.clone() });
    let medium = Event::MediumRemoved(BlockRemovedEvent { reason, ..event });
    for encoding in [Encoding::S4, mooncake(), Encoding::Vllm, Encoding::VllmPositional] {
        let known = payload(&mut stream(encoding.clone()), TIME, &[removed()]);
        let unasked = payload(&mut stream(encoding.clone()), TIME, std::slice::from_ref(&told));
        assert_eq!(unasked, known, "subscribers of the formats get what they know");
        let unknown =
            payload(&mut stream(encoding.clone()).removal_reasons(true), TIME, &[removed()]);
        assert_eq!(unknown, known, "nothing is made up");
        let asked =
            stream(encoding.clone()).removal_reasons(true).batch(TIME, std::slice::from_ref(&told));
        let asked = rmpv::decode::read_value(&mut &asked.message.unwrap().payload()[..]).unwrap();
        let event = &asked[1][0];
        match &encoding {
            Encoding::S4 => assert_eq!(event[3].as_str(), Some("segment_lost")),
            Encoding::VllmPositional => assert_eq!(event.as_array().map(Vec::len), Some(3)),
            _ => assert_eq!(event["removal_reason"].as_str(), Some("segment_lost")),
        }
        if encoding != Encoding::S4 {
            let from_one = payload(
                &mut stream(encoding.clone()).removal_reasons(true),
                TIME,
                std::slice::from_ref(&medium),
            );
            let from_all = payload(
                &mut stream(encoding).removal_reasons(true),
                TIME,
                std::slice::from_ref(&told),
            );
            assert_eq!(from_one, from_all);
        }
    }
}

#[test]
fn a_change_of_medium_is_an_update_or_a_store_and_a_removal() {
    let update = BlockUpdateEvent { replicas: replica(Medium::SharedFile), ..Default::default() };
    let Event::Store(mut on_disk) = stored() else { panic!("not a store") };
    on_disk.replicas = replica(Medium::SharedFile);
    let Event::Removed(from_memory) = removed() else { panic!("not a removal") };
    let events = [
        Event::Update(update.clone()),
        Event::MediumStored(on_disk.clone()),
        Event::MediumRemoved(from_memory.clone()),
    ];
    for (encoding, as_if) in [
        (Encoding::S4, vec![update.into()]),
        (mooncake(), vec![on_disk.clone().into(), from_memory.clone().into()]),
        (Encoding::Vllm, vec![on_disk.into(), from_memory.into()]),
    ] {
        let packed = payload(&mut stream(encoding.clone()), TIME, &events);
        assert_eq!(packed, payload(&mut stream(encoding), TIME, &as_if));
    }
}

#[test]
fn an_object_of_a_snapshot_is_on_each_of_its_media() {
    let Event::Store(mut object) = stored() else { panic!("not a store") };
    object.replicas.extend(replica(Medium::SharedFile));
    object.replicas.extend(replica(Medium::SharedFile));
    let on_disk = BlockStoreEvent { replicas: replica(Medium::SharedFile), ..object.clone() };
    for (encoding, events) in [
        (Encoding::S4, vec![object.clone().into()]),
        (Encoding::Vllm, vec![object.clone().into(), on_disk.clone().into()]),
    ] {
        let page = stream(encoding.clone()).snapshot(TIME, vec![object.clone()]);
        let expected = stream(encoding).batch(TIME, &events).message.unwrap();
        assert_eq!(page, *expected.payload());
    }
}

#[test]
fn vllm_publishes_only_what_its_subscribers_can_use() {
    let with = |block_hash: &str, parent: &str, block_size| {
        let info = StoreEventInfo {
            block_hash: block_hash.into(),
            parent_block_hash: parent.into(),
            block_size,
            token_ids: vec![1],
            ..StoreEventInfo::default()
        };
        Event::from(BlockStoreEvent { store_event_info: info, ..Default::default() })
    };
    let mut stream = stream(Encoding::Vllm);
    let digest = "ab".repeat(32);
    for (event, published) in [
        (with(&digest, "7", 16), true),
        (with("text", "", 16), false),
        (with("7", "text", 16), false),
        (with("+7", "", 16), false),
        (with("7", "", 0), false),
        (BlockStoreEvent::default().into(), false),
        (BlockRemovedEvent::default().into(), false),
        (BlockUpdateEvent::default().into(), false),
    ] {
        assert_eq!(stream.batch(TIME, [&event]).message.is_some(), published, "{event:?}");
    }
    assert_eq!(stream.next(), 1, "what is not published uses no number");
}

#[test]
fn mooncakes_events_have_the_fields_that_its_conductor_wants() {
    let mut stream = stream(mooncake());
    let events = [removed(), RemoveAllEvent.into()];
    let message = stream.batch(TIME, &events).message.unwrap();
    let batch = rmpv::decode::read_value(&mut &message.payload()[..]).unwrap();
    let fields = |at: usize| -> Vec<String> {
        batch[1][at].as_map().unwrap().iter().map(|pair| pair.0.as_str().unwrap().into()).collect()
    };
    let common = [
        "event_id",
        "timestamp",
        "event_type",
        "type",
        "model_name",
        "block_size",
        "additional_salt",
        "lora_name",
        "tenant_id",
        "backend_id",
    ];
    let object = ["group_id", "medium", "dp_rank", "object_key", "seq_hashes", "base_block_idx"];
    assert_eq!(fields(0), [&common[..], &object[..]].concat());
    assert_eq!(fields(1), [&common[..], &["medium", "dp_rank"]].concat());
    assert_eq!(batch[1][1]["event_id"].as_u64(), Some(2));
}

#[test]
fn requests_are_parsed_in_both_forms() {
    let parse = |frames: &[&[u8]]| {
        let parsed = ParsedRequest::parse(frames)?;
        Some((format!("{:?}", parsed.request), parsed.delimiter))
    };
    let number = 7_u64.to_be_bytes();
    let from = format!("{:?}", ReplayRequest::From(7));
    assert_eq!(parse(&[&number]), Some((from.clone(), false)));
    assert_eq!(parse(&[b"", &number]), Some((from, true)));
    assert_eq!(parse(&[b"", b"INFO"]), Some(("Info".into(), true)));
    let between = ReplayRequest::Between(7, 9);
    assert_eq!(parse(&[&between.to_bytes()]), Some((format!("{between:?}"), false)));
    let cursor_of_seven = ReplayRequest::Snapshot { cursor: b"1234567" };
    let sixteen = cursor_of_seven.to_bytes();
    assert_eq!(sixteen.len(), 16);
    assert_eq!(parse(&[&sixteen]), Some((format!("{cursor_of_seven:?}"), false)));
    let page = format!("{:?}", ReplayRequest::Snapshot { cursor: b"c" });
    assert_eq!(parse(&[b"SNAPSHOT:c"]), Some((page, false)));
    assert_eq!(parse(&[b"x", &number]), None);
    assert_eq!(parse(&[]), None);
    assert_eq!(parse(&[&[b"SNAPSHOT:", &[0; 256][..]].concat()]), None);
}

#[test]
fn the_queue_is_bounded_and_marks_gaps() {
    let mut queue = Queue::new(3, 1 << 20);
    let push = |queue: &mut Queue<()>, event: Event| queue.push(event, ());
    assert_eq!(push(&mut queue, stored()), Pushed::Queued { sleeps: false });
    let model_name = "m".repeat(MAX_MODEL_NAME + 1);
    let info = StoreEventInfo { model_name, ..StoreEventInfo::default() };
    let long = BlockStoreEvent { store_event_info: info, ..Default::default() };
    assert_eq!(push(&mut queue, long.into()), Pushed::Dropped);
    assert_eq!(push(&mut queue, stored()), Pushed::Queued { sleeps: false });
    assert_eq!(push(&mut queue, RemoveAllEvent.into()), Pushed::Queued { sleeps: false });
    assert_eq!(push(&mut queue, stored()), Pushed::Dropped);
    let sizes: Vec<_> = std::iter::from_fn(|| {
        let mut entries = Vec::new();
        let taken = queue.take(50, 1 << 20, &mut entries);
        (taken.gap || !entries.is_empty()).then_some((taken.gap, entries.len()))
    })
    .collect();
    assert_eq!(sizes, [(false, 1), (true, 1), (false, 1), (true, 0)]);
    queue.sleep();
    for sleeps in [true, false] {
        assert_eq!(push(&mut queue, stored()), Pushed::Queued { sleeps });
    }
    let big = || BlockUpdateEvent { key: "k".repeat(MAX_EVENT_BYTES / 2), ..Default::default() };
    let mut queue = Queue::new(100, MAX_EVENT_BYTES);
    assert_eq!(push(&mut queue, big().into()), Pushed::Queued { sleeps: false });
    assert_eq!(push(&mut queue, big().into()), Pushed::Dropped);
}

fn any_event() -> impl Strategy<Value = Event> {
    let number =
        prop_oneof![Just(String::new()), any::<u64>().prop_map(|hash| format!("{hash:#x}"))];
    let info = (".{0,9}", any::<u32>(), number.clone(), number, any::<Vec<u32>>());
    let info =
        info.prop_map(|(model_name, block_size, block_hash, parent_block_hash, token_ids)| {
            StoreEventInfo { model_name, block_size, block_hash, parent_block_hash, token_ids }
        });
    let medium =
        prop_oneof![Just(Medium::Memory), Just(Medium::SharedFile), Just(Medium::LocalDisk)];
    let replica =
        (medium.clone(), ".{0,40}").prop_map(|(medium, location)| Replica { medium, location });
    let replicas = prop::collection::vec(replica, 0..4);
    prop_oneof![
        (".{0,40}", replicas.clone(), info, ".{0,3}", ".{0,3}").prop_map(
            |(key, replicas, store_event_info, tenant, group)| {
                BlockStoreEvent { key, replicas, store_event_info, tenant, group }.into()
            }
        ),
        (".{0,40}", replicas, ".{0,3}").prop_map(|(key, replicas, tenant)| {
            BlockUpdateEvent { key, replicas, tenant }.into()
        }),
        (".{0,40}", prop::option::of(medium), ".{0,9}", any::<bool>()).prop_map(
            |(key, medium, block_hash, is_known)| {
                let reason = is_known.then_some(RemovalReason::SegmentLost);
                BlockRemovedEvent { key, medium, block_hash, reason, ..Default::default() }.into()
            }
        ),
        Just(RemoveAllEvent.into()),
    ]
}

fn any_encoding() -> impl Strategy<Value = Encoding> {
    prop_oneof![
        Just(Encoding::S4),
        Just(mooncake()),
        Just(Encoding::Vllm),
        Just(Encoding::VllmPositional),
    ]
}

proptest! {
    #[test]
    fn every_batch_decodes(
        encoding in any_encoding(),
        events in prop::collection::vec(any_event(), 0..6),
        reasons in any::<bool>(),
    ) {
        let mut stream = stream(encoding.clone()).removal_reasons(reasons);
        let Some(message) = stream.batch(TIME, &events).message else { return Ok(()) };
        let mut rest = &message.payload()[..];
        let batch = rmpv::decode::read_value(&mut rest).unwrap();
        prop_assert!(rest.is_empty());
        let listed = batch[1].as_array().unwrap();
        if encoding == Encoding::S4 {
            prop_assert_eq!(listed.len(), events.len());
            for (packed, event) in listed.iter().zip(&events) {
                let Event::Store(event) = event else { continue };
                let info = &event.store_event_info;
                prop_assert_eq!(packed[1].as_str(), Some(&*event.key));
                prop_assert_eq!(packed[2].as_array().unwrap().len(), event.replicas.len());
                prop_assert_eq!(packed[4].as_u64(), Some(info.block_size.into()));
                let tokens = packed[7].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
                prop_assert!(tokens.eq(info.token_ids.iter().map(|&id| u64::from(id))));
            }
        }
        let bound: usize = events.iter().map(Event::size).sum();
        if encoding == Encoding::S4 {
            prop_assert!(message.payload().len() <= bound + 32, "the size is an upper bound");
        }
    }

    /// Numbers rise, gaps are where events are missing, and the ring holds the latest messages.
    #[test]
    fn the_stream_agrees_with_a_model(
        encoding in any_encoding(),
        steps in prop::collection::vec(prop::option::of(any_event()), 0..60),
        max_messages in 0_usize..12,
        max_bytes in 0_usize..2_000,
        start in 0_u64..70,
    ) {
        let ring = Ring::new(max_messages, max_bytes);
        let mut stream = Stream::new(encoding.clone(), "t".into(), None, ring);
        let (mut next, mut sent) = (encoding.first_number(), Vec::new());
        for step in steps {
            let Some(event) = step else {
                stream.skip_number();
                next += 1;
                continue;
            };
            let clears = matches!(event, Event::RemoveAll(_));
            if let Some(message) = stream.batch(TIME, [&event]).message {
                next += u64::from(clears && encoding == mooncake());
                prop_assert_eq!(message.number(), next);
                next += 1;
                sent.push(message);
            }
        }
        prop_assert_eq!(stream.next(), next);
        let kept = (0..=sent.len().min(max_messages)).rev().find(|&count| {
            let bytes = sent[sent.len() - count..].iter().map(|message| message.payload().len());
            bytes.sum::<usize>() <= max_bytes
        });
        let kept = &sent[sent.len() - kept.unwrap()..];
        prop_assert_eq!(stream.oldest(), kept.first().map_or(next, |message| message.number()));
        let (mut at, mut replayed) = (start, Vec::new());
        while let Some(message) = stream.first_in(at..next) {
            at = message.number() + 1;
            replayed.push(message);
        }
        let expected = kept.iter().filter(|message| message.number() >= start);
        prop_assert!(replayed.iter().eq(expected));
    }

    #[test]
    fn no_request_panics(frames in prop::collection::vec(any::<Vec<u8>>(), 0..4)) {
        let _ = ParsedRequest::parse(&frames);
    }
}
