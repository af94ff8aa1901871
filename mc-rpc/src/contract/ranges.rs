//! Ranges of objects, and what verifies them.

#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use core::ops::Range;
use core::slice;

use mc_meta::{PutEnd, PutStart, RangeRead, ReplicateConfig, VerifiedSpan};
use mc_types::{Checksum, ErrorCode};
use proptest::prelude::*;
use prost::Message;

use super::{Clock, ME, MasterService, Still, call, key, service, written};
use crate::request::{BatchReadRequest, parse_read, write_reads};
use crate::{Method, Refusal, answer, proto};

const KIB: u64 = 1024;

fn crc(number: u32) -> Checksum {
    Checksum::from_crc32c(number)
}

/// Puts an object of two slices, 200 KiB and 100 KiB, with the checksums 1 and 2 and those
/// of its prefixes from 10 on.
fn put(service: &MasterService<Still>, text: &str) {
    let (master, now, config) = (service.master(), Still.now(), ReplicateConfig::default());
    let slice_lengths = &[200 * KIB, 100 * KIB];
    let start = PutStart { key: key(text), slice_lengths, config: &config };
    let handle = master.put_start(now, ME, &start).unwrap().handle;
    let (checksums, prefixes) = ([1, 2].map(crc), [10, 11, 12, 13].map(crc));
    let end =
        PutEnd { checksums: &checksums, prefixes: &prefixes, ..PutEnd::new(key(text), handle) };
    master.put_end(now, ME, &end).unwrap();
}

fn read(text: &str, ranges: &[Range<u64>]) -> proto::GetReplicaListRequest {
    let ranges = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
    proto::GetReplicaListRequest { key: text.into(), ranges }
}

fn batch(
    service: &MasterService<Still>,
    reads: Vec<proto::GetReplicaListRequest>,
) -> Result<proto::BatchGetReplicaListResponse, Refusal> {
    let request = proto::BatchGetReplicaListRequest { keys: vec![], reads };
    call(service, Method::BatchGetReplicaList, &request)
}

#[test]
fn golden_batch_get_ranges() {
    let ranges = [0..300, 65_536..65_537];
    let reads =
        [RangeRead { key: key("k"), ranges: &ranges }, RangeRead { key: key("l"), ranges: &[] }];
    let bytes = written(|out| write_reads(out, &reads));
    assert_eq!(
        &bytes[..],
        b"\x12\x0e\x0a\x01k\x12\x09\x00\xac\x02\x80\x80\x04\x81\x80\x04\x12\x03\x0a\x01l"
    );
    let message = proto::BatchGetReplicaListRequest {
        keys: vec![],
        reads: vec![read("k", &ranges), read("l", &[])],
    };
    assert_eq!(proto::BatchGetReplicaListRequest::decode(&bytes[..]).unwrap(), message);
}

#[test]
fn golden_verified_span() {
    let span = proto::VerifiedSpan { start: 65_536, end: 131_072, head: 10, tail: 0x0102_0304 };
    let golden = b"\x08\x80\x80\x04\x10\x80\x80\x08\x1d\x0a\0\0\0\x25\x04\x03\x02\x01";
    assert_eq!(span.encode_to_vec(), golden);
    let service = service();
    put(&service, "k");
    let list: proto::GetReplicaListResponse =
        call(&service, Method::GetReplicaList, &read("k", &[66_000..67_000])).unwrap();
    assert_eq!(list.spans, [proto::VerifiedSpan { tail: 11, ..span }]);
}

#[test]
fn a_range_comes_with_what_verifies_it() {
    let service = service();
    put(&service, "k");
    let ranges = [
        0..1,
        70 * KIB..80 * KIB,
        199 * KIB..201 * KIB,
        0..300 * KIB,
        299 * KIB..u64::MAX,
        5..5,
        300 * KIB..400 * KIB,
    ];
    let list: proto::GetReplicaListResponse =
        call(&service, Method::GetReplicaList, &read("k", &ranges)).unwrap();
    let span = |start, end, head, tail| {
        let (head, tail) = (crc(head), crc(tail));
        Some(VerifiedSpan { start: start * KIB, end: end * KIB, head, tail })
    };
    let expected = [
        span(0, 64, 0, 10),
        span(64, 128, 10, 11),
        span(192, 264, 12, 13),
        span(0, 300, 0, 2),
        span(264, 300, 13, 2),
        None,
        None,
    ];
    assert_eq!(list.spans.len(), 7);
    assert_eq!(list.spans[5], proto::VerifiedSpan::default());
    let told = |span: &Option<VerifiedSpan>| {
        span.map_or_else(proto::VerifiedSpan::default, |span| proto::VerifiedSpan {
            start: span.start,
            end: span.end,
            head: span.head.as_u32(),
            tail: span.tail.as_u32(),
        })
    };
    assert_eq!(list.spans, expected.iter().map(told).collect::<Vec<_>>());

    // The batch says the same, and the client reads it.
    let reads = vec![read("k", &ranges), read("absent", &[0..1]), read("k", &[]), read("", &[])];
    let lists = batch(&service, reads).unwrap();
    assert_eq!(lists.items[0].spans, list.spans);
    let asked = [
        RangeRead { key: key("k"), ranges: &ranges },
        RangeRead { key: key("absent"), ranges: &[0..1] },
        RangeRead { key: key("k"), ranges: &[] },
        RangeRead { key: key("x"), ranges: &[] },
    ];
    let lists = answer::read_ranged_lists(&lists.encode_to_vec(), &asked).unwrap().unwrap();
    assert_eq!(lists[0].as_ref().unwrap().spans, expected);
    assert_eq!(lists[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    assert!(lists[2].as_ref().unwrap().spans.is_empty());
    assert_eq!(lists[3].as_ref().unwrap_err().code, ErrorCode::InvalidKey);
}

#[test]
fn more_reads_than_are_asked_at_a_time_keep_their_order() {
    let service = service();
    put(&service, "k");
    let ranges: Vec<Range<u64>> = (0..3000).map(|n| n % 300 * KIB..n % 300 * KIB + 1).collect();
    let names = |n: usize| if n.is_multiple_of(7) { "absent" } else { "k" };
    let reads = ranges.iter().enumerate().map(|(n, range)| read(names(n), slice::from_ref(range)));
    let lists = batch(&service, reads.collect()).unwrap();
    let asked: Vec<RangeRead<'_>> = ranges
        .iter()
        .enumerate()
        .map(|(n, range)| RangeRead { key: key(names(n)), ranges: slice::from_ref(range) })
        .collect();
    // The reader holds each span to its own range.
    let lists = answer::read_ranged_lists(&lists.encode_to_vec(), &asked).unwrap().unwrap();
    for (n, list) in lists.iter().enumerate() {
        assert_eq!(list.is_ok(), !n.is_multiple_of(7), "{n}");
    }
}

#[test]
fn too_many_ranges_and_halves_are_refused() {
    let service = service();
    put(&service, "k");
    let refused = |request: &proto::GetReplicaListRequest| {
        let refusal =
            call::<proto::GetReplicaListResponse>(&service, Method::GetReplicaList, request);
        let refusal = refusal.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidParams);
        refusal.message.into_string()
    };
    let most = read("k", &vec![0..1; 1024]);
    let _: proto::GetReplicaListResponse = call(&service, Method::GetReplicaList, &most).unwrap();
    assert_eq!(refused(&read("k", &vec![0..1; 1025])), "ranges has more than 1024 ranges");
    let half = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![1, 2, 3] };
    assert!(refused(&half).contains("half a range"));

    // In a batch it is the item's affair, unless there are too many altogether.
    let reads = vec![half, read("k", &[0..1]), read("k", &vec![0..1; 1025])];
    let lists = batch(&service, reads).unwrap();
    let codes: Vec<i32> = lists.items.iter().map(|item| item.status_code).collect();
    let invalid = ErrorCode::InvalidParams.code();
    assert_eq!(codes, [invalid, 0, invalid]);
    let many = vec![most.clone(); 64];
    assert_eq!(many.len() * 1024, crate::MAX_BATCH);
    let bytes = proto::BatchGetReplicaListRequest { keys: vec![], reads: many.clone() };
    assert!(BatchReadRequest::parse(&bytes.encode_to_vec()).is_ok());
    let more = [&many[..], &[read("k", &[0..1])]].concat();
    let refusal = batch(&service, more).unwrap_err();
    assert!(refusal.message.contains("more than 65536 ranges"), "{refusal}");
    let refusal = batch(&service, vec![read("k", &[]); 65_537]).unwrap_err();
    assert!(refusal.message.contains("more than 65536 items"), "{refusal}");
    let both = proto::BatchGetReplicaListRequest {
        keys: vec!["k".into()],
        reads: vec![read("k", &[0..1])],
    };
    let refusal =
        call::<proto::BatchGetReplicaListResponse>(&service, Method::BatchGetReplicaList, &both);
    assert_eq!(refusal.unwrap_err().code, ErrorCode::InvalidParams);
}

#[test]
fn spans_that_make_no_sense_are_malformed() {
    let service = service();
    put(&service, "k");
    let range = 70 * KIB..80 * KIB;
    let lists = batch(&service, vec![read("k", slice::from_ref(&range))]).unwrap();
    let parse = |spans: &[(u64, u64)]| {
        let mut lists = lists.clone();
        let span = |&(start, end): &(u64, u64)| {
            let sums = u32::from(start != end);
            proto::VerifiedSpan { start: start * KIB, end: end * KIB, head: sums, tail: sums }
        };
        lists.items[0].spans = spans.iter().map(span).collect();
        let asked = [RangeRead { key: key("k"), ranges: slice::from_ref(&range) }];
        answer::read_ranged_lists(&lists.encode_to_vec(), &asked)
    };
    for good in [&[(64, 128)][..], &[(0, 300)], &[(0, 0)]] {
        let _ = parse(good).unwrap().unwrap().remove(0).unwrap();
    }
    for bad in [
        &[][..],
        &[(64, 128), (64, 128)],
        &[(64, 301)],
        &[(128, 192)],
        &[(64, 79)],
        &[(71, 128)],
        &[(128, 64)],
        &[(5, 5)],
        &[(64, u64::MAX / KIB)],
    ] {
        let error = parse(bad).unwrap_err().to_string();
        assert!(error.contains("spans"), "{bad:?}: {error}");
    }
    // A reader that asked for no ranges takes none.
    let mut list = lists.items[0].clone();
    list.replica_list.clear();
    list.disk = Some(proto::DiskReplica { length: 300 * KIB, status: 3 });
    assert!(answer::read_replica_list(&list.encode_to_vec()).is_err());
    list.spans.clear();
    assert!(answer::read_replica_list(&list.encode_to_vec()).is_ok());
}

proptest! {
    #[test]
    fn reads_are_the_message(
        reads in prop::collection::vec(
            ("[a-z/é]{1,40}", prop::collection::vec((any::<u64>(), any::<u64>()), 0..20)), 0..20),
    ) {
        let reads: Vec<(String, Vec<Range<u64>>)> = reads.into_iter()
            .map(|(name, ranges)| (name, ranges.into_iter().map(|(from, to)| from..to).collect()))
            .collect();
        let asked: Vec<RangeRead<'_>> =
            reads.iter().map(|(name, ranges)| RangeRead { key: key(name), ranges }).collect();
        let bytes = written(|out| write_reads(out, &asked));
        let message = proto::BatchGetReplicaListRequest::decode(&bytes[..]).unwrap();
        prop_assert_eq!(message.encode_to_vec(), &bytes[..]);
        let told: Vec<_> = reads.iter().map(|(name, ranges)| read(name, ranges)).collect();
        prop_assert_eq!(&message.reads, &told);
        if let BatchReadRequest::Reads(parsed) = BatchReadRequest::parse(&bytes).unwrap() {
            prop_assert_eq!(parsed.len(), reads.len());
            for (message, (name, ranges)) in parsed.messages().zip(&reads) {
                // They are appended to those of the reads before.
                let mut found = vec![1..2];
                prop_assert_eq!(parse_read(message, &mut found).unwrap(), key(name));
                prop_assert_eq!(&found[1..], &ranges[..]);
            }
        } else {
            prop_assert!(reads.is_empty());
        }
    }
}
