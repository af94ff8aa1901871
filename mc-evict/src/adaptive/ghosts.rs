//! Records of evicted things, in two bytes each.

use super::classes::{CLASSES, Node, above};
use crate::pages::Buckets;

/// Ghosts of a bucket, which is a cache line.
const WAYS: usize = 32;
/// Room for ghosts, for each thing held.
const ROOM: usize = 8;

/// Spans of time that are told apart.
const SPANS: u32 = 8;
/// Spans after the last use of a thing for which its ghost lasts. What is older is
/// swept away before its span's number is used again.
const LIFE: u32 = 6;

type Bucket = [u16; WAYS];

/// The number of uses of things before they were evicted, and in which span of time the
/// last use was. A span lasts for as many new things as three quarters of what is held.
///
/// A ghost lives by the clock, not until there is no room: blocks that were used
/// together are forgotten together, so that what comes back of a chain is its whole.
/// For the same reason a ghost that is found stays: it may have been a stranger's.
///
/// A ghost is ten bits of the thing's mark, three of time and three of its class. A
/// full bucket takes a stranger for one of its own in one of 32 cases, and then takes
/// it to have been used more often than it was.
#[derive(Clone, Debug)]
pub(super) struct Ghosts {
    buckets: Buckets<Bucket>,
    /// When each of the latest spans began.
    begun: [u32; SPANS as usize],
    span: u32,
    /// Things that are new in the span.
    new: usize,
    /// The bucket that is swept next.
    swept: usize,
    /// Ghosts that there is room for beside those for what is held.
    spare: usize,
}

impl Ghosts {
    pub(super) const fn new(spare: usize) -> Self {
        let begun = [0; SPANS as usize];
        Self { buckets: Buckets::new([0; WAYS]), begun, span: 0, new: 0, swept: 0, spare }
    }

    pub(super) const fn set_spare(&mut self, spare: usize) {
        self.spare = spare;
    }

    /// The class of a thing that is new to a cache that holds `held`: it may have been there
    /// before.
    pub(super) fn class_of_new(&mut self, mark: u32, held: usize, now: u32) -> usize {
        let span = (held / 4 * 3).max(1);
        self.new += 1;
        if self.new > span {
            self.new = 0;
            self.span = (self.span + 1) % SPANS;
            self.begun[self.span as usize] = now;
        }
        if self.buckets.len() == 0 {
            return 0;
        }
        // All are swept in each span.
        for _ in 0..self.buckets.len().div_ceil(span) {
            self.sweep();
        }
        self.find(mark).map_or(0, above)
    }

    fn sweep(&mut self) {
        self.swept = if self.swept < self.buckets.len() { self.swept } else { 0 };
        let span = self.span;
        if let Some(bucket) = self.buckets.nth_mut(self.swept) {
            for ghost in bucket {
                *ghost = if age(*ghost, span) > LIFE { 0 } else { *ghost };
            }
        }
        self.swept += 1;
    }

    /// Remembers an evicted thing, when the cache held `held`.
    pub(super) fn put(&mut self, node: &Node, now: u32, held: usize) {
        let mark = index(node.mark());
        let span = self.span_of(node.used, now);
        let current = self.span;
        if mark == 0 || current.wrapping_sub(span) % SPANS > LIFE {
            return;
        }
        let room = held.saturating_mul(ROOM).saturating_add(self.spare);
        self.buckets.step_towards(room.div_ceil(WAYS));
        let Some(bucket) = self.buckets.get_mut(mark) else { return };
        let mut class = node.class() as u16;
        let (place, is_own) = place_of(bucket, tag(mark), current);
        if is_own {
            class = class.max(bucket[place] & CLASS);
        }
        bucket[place] = tag(mark) | (span as u16) << CLASS_BITS | class;
    }

    /// Reads where [`put`](Self::put) will write for this mark; the number means nothing.
    pub(super) fn touch(&self, mark: u32) -> u32 {
        self.buckets.get(index(mark)).map_or(0, |bucket| bucket[0].into())
    }

    /// Returns the class of the evicted entry with this mark.
    pub(super) fn find(&self, mark: u32) -> Option<usize> {
        let mark = index(mark);
        if mark == 0 {
            return None;
        }
        let bucket = self.buckets.get(mark)?;
        let (place, is_own) = place_of(bucket, tag(mark), self.span);
        let ghost = bucket[place];
        (is_own && age(ghost, self.span) <= LIFE).then_some(usize::from(ghost & CLASS))
    }

    /// Forgets something.
    pub(super) fn forget(&mut self, mark: u32) {
        let mark = index(mark);
        let span = self.span;
        if let Some(bucket) = self.buckets.get_mut(mark)
            && let (place, true) = place_of(bucket, tag(mark), span)
        {
            bucket[place] = 0;
        }
    }

    fn span_of(&self, used: u32, now: u32) -> u32 {
        let age = now.wrapping_sub(used);
        let back = (0..SPANS - 1).find(|back| {
            let span = self.span.wrapping_sub(*back) % SPANS;
            now.wrapping_sub(self.begun[span as usize]) >= age
        });
        self.span.wrapping_sub(back.unwrap_or(SPANS - 1)) % SPANS
    }
}

/// The bits of a ghost that are its class and those that are from the mark.
const CLASS: u16 = CLASSES as u16 - 1;
const CLASS_BITS: u32 = CLASSES.trailing_zeros();
const TAG: u16 = !(SPANS as u16 * CLASSES as u16 - 1);

/// The place of the ghost with this tag, and true; otherwise a vacant place or that of the oldest ghost, and false.
#[inline]
fn place_of(bucket: &Bucket, tag: u16, span: u32) -> (usize, bool) {
    const OWN: i16 = SPANS as i16 + 1;
    // One number for each place, without a branch: the compiler does many at once. Of equal ones the last is taken.
    let mut best = 0;
    for (way, ghost) in bucket.iter().enumerate() {
        let age = if *ghost == 0 { SPANS as i16 } else { age(*ghost, span) as i16 };
        let worth = if *ghost & TAG == tag { OWN } else { age };
        best = best.max(worth * WAYS as i16 + way as i16);
    }
    (best as usize % WAYS, best >= OWN * WAYS as i16)
}

/// Spans since the thing was last used.
const fn age(ghost: u16, span: u32) -> u32 {
    span.wrapping_sub(ghost as u32 >> CLASS_BITS) % SPANS
}

/// A mark with the bits in front that differ between marks.
const fn index(mark: u32) -> u32 {
    mark.rotate_right(CLASS_BITS)
}

/// Ten bits, never all zero.
const fn tag(mark: u32) -> u16 {
    let tag = (mark.wrapping_mul(0x9e37_79b1) >> 16) as u16 & TAG;
    if tag == 0 { !TAG + 1 } else { tag }
}
