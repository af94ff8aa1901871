//! Frames to the replay socket of the event publisher: each a byte for its length, then its bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mc_events::replay::{INFO, MAX_CURSOR, ParsedRequest, ReplayRequest, SNAPSHOT};

fuzz_target!(|data: &[u8]| {
    let (mut frames, mut rest) = (Vec::new(), data);
    while let Some((&len, tail)) = rest.split_first() {
        let (frame, tail) = tail.split_at(tail.len().min(len.into()));
        frames.push(frame);
        rest = tail;
    }
    let Some(ParsedRequest { request, delimiter }) = ParsedRequest::parse(&frames) else { return };
    let body = match request {
        ReplayRequest::From(number) => number.to_be_bytes().to_vec(),
        ReplayRequest::Info => INFO.to_vec(),
        ReplayRequest::Snapshot { cursor } => {
            assert!(cursor.len() <= MAX_CURSOR);
            [SNAPSHOT, cursor].concat()
        }
        _ => unreachable!("no other request is known"),
    };
    let expected: &[&[u8]] = if delimiter { &[b"", &body] } else { &[&body] };
    assert_eq!(frames, expected);
});
