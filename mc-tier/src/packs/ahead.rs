//! Reading ahead in packs.
//!
//! The objects of a pack were put one after the other: a reader of some of them that lie together, as the
//! blocks of one prompt do, is likely to read the next ones. Then whole chunks are read, each once.

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::{PackMedium, Read, Tag};
use crate::error::TierError;

/// Bytes that are read at a time.
const CHUNK: u64 = 1 << 20;

/// Bytes between two reads that lie together: many threads read the objects of a batch.
const NEAR: u64 = 4 * CHUNK;

/// Reads that lie together before more is read than is asked for.
const FEW: u32 = 4;

/// Chunks behind the wanted one that are read meanwhile by those who wait for it.
const AHEAD: u64 = 8;

/// Chunks that are kept.
const KEPT: usize = 32;

/// Where a pack was read last.
#[derive(Debug, Default)]
pub(super) struct Trail {
    end: AtomicU64,
    /// Reads that lay together, up to the last one.
    together: AtomicU32,
}

impl Trail {
    /// Notes a read. Returns whether it is likely that others follow.
    fn goes_on(&self, range: &Range<u64>) -> bool {
        let end = self.end.swap(range.end, Ordering::Relaxed);
        if end.abs_diff(range.start) > NEAR {
            self.together.store(0, Ordering::Relaxed);
            return false;
        }
        self.together.fetch_add(1, Ordering::Relaxed) >= FEW
    }
}

/// The chunks that were read last.
#[derive(Debug, Default)]
pub(super) struct Chunks(Mutex<VecDeque<Chunk>>);

#[derive(Debug)]
struct Chunk {
    run: u64,
    tag: Tag,
    number: u64,
    /// Locked by the one that reads it; `None` until it has been read.
    bytes: Arc<Mutex<Option<Bytes>>>,
}

/// A pack that is read.
pub(super) struct Pack<'a> {
    pub(super) run: u64,
    pub(super) place: &'a str,
    pub(super) len: u64,
    pub(super) tag: &'a Tag,
    pub(super) trail: &'a Trail,
}

impl Chunks {
    /// Reads a range of a pack.
    pub(super) fn read(
        &self,
        medium: &impl PackMedium,
        pack: &Pack<'_>,
        range: Range<u64>,
    ) -> Result<Read, TierError> {
        let Pack { place, tag, trail, .. } = *pack;
        if range.end - range.start > CHUNK || !trail.goes_on(&range) {
            return medium.read(place, range, Some(tag));
        }
        let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
        for number in range.start / CHUNK..range.end.div_ceil(CHUNK) {
            let begin = number * CHUNK;
            let (chunk, _) = self.entry(pack, number);
            let mut chunk = match chunk.try_lock() {
                Some(chunk) => chunk,
                None => {
                    self.read_next(medium, pack, number);
                    chunk.lock()
                }
            };
            if chunk.is_none() {
                match medium.read(place, begin..begin + CHUNK, Some(tag)) {
                    Ok(Read::Part { bytes, .. }) => *chunk = Some(bytes),
                    Ok(gone) => return Ok(gone),
                    // What cannot be read may be a neighbour.
                    Err(_) => return medium.read(place, range, Some(tag)),
                }
            }
            let Some(chunk) = &*chunk else { continue };
            let within = |at: u64| (at.saturating_sub(begin) as usize).min(chunk.len());
            // A copy: who keeps an object is not to keep its neighbours.
            bytes.extend_from_slice(&chunk[within(range.start)..within(range.end)]);
        }
        Ok(Read::Part { bytes: bytes.freeze(), pack_len: 0, tag: tag.clone() })
    }

    /// Reads the next chunk that no thread reads yet, while another thread reads this one.
    fn read_next(&self, medium: &impl PackMedium, pack: &Pack<'_>, number: u64) {
        let end = pack.len.div_ceil(CHUNK).min(number + 1 + AHEAD);
        for next in number + 1..end {
            let (chunk, is_new) = self.entry(pack, next);
            if !is_new {
                continue;
            }
            let mut chunk = chunk.lock();
            let range = next * CHUNK..(next + 1) * CHUNK;
            // The reader that wants it finds out what is wrong.
            if chunk.is_none()
                && let Ok(Read::Part { bytes, .. }) = medium.read(pack.place, range, Some(pack.tag))
            {
                *chunk = Some(bytes);
            }
            return;
        }
    }

    /// A chunk, and whether it is one that was not known.
    fn entry(&self, pack: &Pack<'_>, number: u64) -> (Arc<Mutex<Option<Bytes>>>, bool) {
        let mut chunks = self.0.lock();
        let is_it = |it: &Chunk| it.run == pack.run && it.number == number && it.tag == *pack.tag;
        if let Some(found) = chunks.iter().rev().find(|it| is_it(it)) {
            return (Arc::clone(&found.bytes), false);
        }
        if chunks.len() == KEPT {
            chunks.pop_front();
        }
        let bytes = Arc::default();
        let (run, tag) = (pack.run, pack.tag.clone());
        chunks.push_back(Chunk { run, tag, number, bytes: Arc::clone(&bytes) });
        (bytes, true)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Bytes that tell their place, and how often they were read.
    struct Counted {
        bytes: Bytes,
        reads: AtomicUsize,
    }

    impl PackMedium for Counted {
        fn read(&self, _: &str, range: Range<u64>, seen: Option<&Tag>) -> Result<Read, TierError> {
            if seen != Some(&Some("tag".into())) {
                return Ok(Read::Changed);
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
            let len = self.bytes.len() as u64;
            let (start, end) = (range.start.min(len) as usize, range.end.min(len) as usize);
            let tag = seen.cloned().flatten();
            Ok(Read::Part { bytes: self.bytes.slice(start..end), pack_len: len, tag })
        }

        fn write(&self, _: &str, _: Vec<Bytes>, _: bool) -> Result<Option<Tag>, TierError> {
            unreachable!("nothing is written")
        }

        fn remove(&self, _: &str) -> Result<bool, TierError> {
            unreachable!("nothing is removed")
        }

        fn mark(&self, _: &str, _: &[u64], _: &Tag) -> Result<bool, TierError> {
            unreachable!("nothing is removed")
        }

        fn shown(&self, place: &str) -> PathBuf {
            place.into()
        }
    }

    fn medium() -> Counted {
        let bytes = mc_testkit::content("pack", 12 << 20).into();
        Counted { bytes, reads: AtomicUsize::new(0) }
    }

    /// Reads a range, and compares it.
    fn read(medium: &Counted, chunks: &Chunks, trail: &Trail, range: Range<u64>) {
        let tag = Some("tag".into());
        let len = medium.bytes.len() as u64;
        let pack = Pack { run: 1, place: "pack", len, tag: &tag, trail };
        let Read::Part { bytes, .. } = chunks.read(medium, &pack, range.clone()).unwrap() else {
            panic!("it is there");
        };
        assert_eq!(bytes, medium.bytes[range.start as usize..range.end as usize]);
    }

    #[test]
    fn what_lies_together_is_read_in_few_reads() {
        let (medium, chunks, trail) = (medium(), Chunks::default(), Trail::default());
        let len = 70_000;
        let count = medium.bytes.len() as u64 / len;
        for number in 0..count {
            read(&medium, &chunks, &trail, number * len..(number + 1) * len);
        }
        let reads = medium.reads.load(Ordering::Relaxed);
        assert!(reads <= 4 + 12, "{count} objects took {reads} reads");
        // By many threads, which take one after the other.
        let (medium, chunks, next) = (self::medium(), Chunks::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while let number = next.fetch_add(1, Ordering::Relaxed)
                        && number < count
                    {
                        read(&medium, &chunks, &trail, number * len..(number + 1) * len);
                    }
                });
            }
        });
        let reads = medium.reads.load(Ordering::Relaxed);
        assert!(reads < count as usize / 2, "{count} objects took {reads} reads");
    }

    #[test]
    fn what_lies_apart_is_read_as_it_is_asked_for() {
        let (medium, chunks, trail) = (medium(), Chunks::default(), Trail::default());
        for number in 0..20 {
            let start = number % 2 * (6 << 20) + number * 4096;
            read(&medium, &chunks, &trail, start..start + 4096);
        }
        assert!(chunks.0.lock().is_empty());
        assert_eq!(medium.reads.load(Ordering::Relaxed), 20);
    }

    /// A sector that cannot be read.
    struct Bad(Counted, u64);

    impl PackMedium for Bad {
        fn read(
            &self,
            place: &str,
            range: Range<u64>,
            seen: Option<&Tag>,
        ) -> Result<Read, TierError> {
            if range.contains(&self.1) {
                let error = std::io::Error::other("a bad sector");
                return Err(TierError::from_io("read", &self.shown(place), error));
            }
            self.0.read(place, range, seen)
        }

        fn write(&self, _: &str, _: Vec<Bytes>, _: bool) -> Result<Option<Tag>, TierError> {
            unreachable!("nothing is written")
        }

        fn remove(&self, _: &str) -> Result<bool, TierError> {
            unreachable!("nothing is removed")
        }

        fn mark(&self, _: &str, _: &[u64], _: &Tag) -> Result<bool, TierError> {
            unreachable!("nothing is removed")
        }

        fn shown(&self, place: &str) -> PathBuf {
            place.into()
        }
    }

    #[test]
    fn a_bad_sector_costs_the_object_that_has_it() {
        let (bad, chunks, trail) = (Bad(medium(), 1_500_000), Chunks::default(), Trail::default());
        let (len, tag) = (50_000, Some("tag".into()));
        let pack = Pack { run: 1, place: "pack", len: 12 << 20, tag: &tag, trail: &trail };
        for number in 0..100 {
            let range = number * len..(number + 1) * len;
            let found = chunks.read(&bad, &pack, range.clone());
            assert_eq!(found.is_err(), range.contains(&bad.1), "{range:?}");
        }
    }

    #[test]
    fn a_pack_that_was_replaced_is_not_read() {
        let (medium, chunks, trail) = (medium(), Chunks::default(), Trail::default());
        let tag = Some("another".into());
        let pack = Pack { run: 1, place: "pack", len: 12 << 20, tag: &tag, trail: &trail };
        for number in 0..20_u64 {
            let range = number * 1000..(number + 1) * 1000;
            let found = chunks.read(&medium, &pack, range).unwrap();
            assert!(matches!(found, Read::Changed));
        }
    }
}
