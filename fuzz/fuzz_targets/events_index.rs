//! Messages of a publisher of events, as a subscriber receives them. Each step is a byte for the
//! input, a byte for the number of frames, and the frames, each two bytes (little-endian) for its
//! length and its bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mc_events::Event;
use mc_events::subscribe::{Follower, Index, Info, Page, Update, decode_batch};

/// No input makes more of its bytes.
const MOST_FOR_A_BYTE: usize = 16;
const INDEX_BYTES: usize = 4 << 10;

fn size(events: &[Event]) -> usize {
    events.iter().map(Event::size).sum()
}

fn frame<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, tail) = rest.split_first_chunk()?;
    let (frame, tail) = tail.split_at(tail.len().min(u16::from_le_bytes(*len).into()));
    *rest = tail;
    Some(frame)
}

fuzz_target!(|data: &[u8]| {
    if let Ok(events) = decode_batch(data) {
        assert!(size(&events) <= MOST_FOR_A_BYTE * data.len());
    }
    let mut follower = Follower::new(1 << 10);
    let mut index = Index::new(INDEX_BYTES);
    let _ = follower.connected();
    let (mut rest, mut made) = (data, 0);
    while let [step, count, tail @ ..] = rest {
        rest = tail;
        let frames: Vec<&[u8]> = (0..*count % 8).map_while(|_| frame(&mut rest)).collect();
        // Decoded apart, too: the follower takes each kind only when it has asked for it.
        let _ = Info::decode(&frames);
        if let Ok(page) = Page::decode(&frames) {
            assert!(size(&page.objects) <= MOST_FOR_A_BYTE * data.len());
        }
        let followed = match step % 4 {
            0 => follower.message(&frames),
            1 => follower.answer(&frames),
            2 => Ok(follower.silence()),
            _ => Ok(follower.connected()),
        };
        for update in follower.updates() {
            if let Update::Events(events) = &update {
                made += size(events);
            }
            // A full index keeps what it has.
            let _ = index.apply(update);
        }
        assert!(made <= MOST_FOR_A_BYTE * data.len(), "{made} bytes of {}", data.len());
        let held = index.iter().map(|(key, replicas)| key.len() + replicas.len());
        assert!(held.sum::<usize>() <= INDEX_BYTES);
        if followed.is_err() {
            return;
        }
    }
});
