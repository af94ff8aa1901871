//! Frames to the replay socket of the event publisher: each a byte for its length, then its bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mc_events::replay::{MAX_CURSOR, ParsedRequest, ReplayRequest};

fuzz_target!(|data: &[u8]| {
    let (mut frames, mut rest) = (Vec::new(), data);
    while let Some((&len, tail)) = rest.split_first() {
        let (frame, tail) = tail.split_at(tail.len().min(len.into()));
        frames.push(frame);
        rest = tail;
    }
    let Some(ParsedRequest { request, delimiter }) = ParsedRequest::parse(&frames) else { return };
    if let ReplayRequest::Snapshot { cursor } = request {
        assert!(cursor.len() <= MAX_CURSOR);
    }
    let body = request.to_bytes();
    let expected: &[&[u8]] = if delimiter { &[b"", &body] } else { &[&body] };
    assert_eq!(frames, expected);
});
