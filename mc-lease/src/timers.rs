//! Timers under stable numbers, and the lists they are linked into.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use mc_types::Time;

/// Names one timer. A key whose timer has come, or was cancelled, names nothing
/// ever after.
///
/// Eight bytes, and an `Option` of it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    index: u32,
    generation: NonZeroU32,
}

/// No timer.
const NONE: u32 = u32::MAX;

/// Timers in one chunk. Growth allocates a chunk and moves nothing, so no call
/// pays for the timers that are already there.
const CHUNK: usize = 256;

/// A list of timers in order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE };

    pub(crate) const fn is_empty(self) -> bool {
        self.first == NONE
    }

    /// The first timer of a list that has one.
    pub(crate) const fn first(self) -> Option<u32> {
        some(self.first)
    }
}

const fn some(index: u32) -> Option<u32> {
    if index == NONE { None } else { Some(index) }
}

#[derive(Debug)]
struct Timer<T> {
    due: Time,
    /// The next in the list; of a vacant slot, the next vacant one.
    next: u32,
    /// The previous in the list.
    prev: u32,
    generation: NonZeroU32,
    /// `None` in a vacant slot.
    token: Option<T>,
}

const _: () = assert!(size_of::<Timer<u64>>() <= 32 + size_of::<u64>(), "kept once per timer");

/// The timers of a wheel, in slots that are reused.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    chunks: Vec<Vec<Timer<T>>>,
    end: u32,
    vacant: u32,
    len: usize,
}

impl<T> Timers<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), end: 0, vacant: NONE, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a timer that is in no list yet.
    pub(crate) fn insert(&mut self, due: Time, token: T) -> (u32, TimerKey) {
        self.len += 1;
        let index = self.vacant;
        if index != NONE {
            let timer = self.timer(index);
            timer.due = due;
            timer.token = Some(token);
            let (next, generation) = (timer.next, timer.generation);
            self.vacant = next;
            return (index, TimerKey { index, generation });
        }
        let index = self.end;
        assert!(index != NONE, "a wheel holds fewer than 2^32 - 1 timers");
        let generation = NonZeroU32::MIN;
        let timer = Timer { due, next: NONE, prev: NONE, generation, token: Some(token) };
        if index as usize / CHUNK == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[index as usize / CHUNK].push(timer);
        self.end += 1;
        (index, TimerKey { index, generation })
    }

    /// Returns the timer of a key, and when it is due.
    pub(crate) fn find(&self, key: TimerKey) -> Option<(u32, Time)> {
        let chunk = self.chunks.get(key.index as usize / CHUNK)?;
        let timer = chunk.get(key.index as usize % CHUNK)?;
        let live = timer.generation == key.generation && timer.token.is_some();
        live.then_some((key.index, timer.due))
    }

    pub(crate) fn due(&self, index: u32) -> Time {
        self.chunks[index as usize / CHUNK][index as usize % CHUNK].due
    }

    /// The timer after this one in its list.
    pub(crate) fn next(&self, index: u32) -> Option<u32> {
        some(self.chunks[index as usize / CHUNK][index as usize % CHUNK].next)
    }

    pub(crate) fn push_back(&mut self, list: &mut List, index: u32) {
        let last = core::mem::replace(&mut list.last, index);
        let timer = self.timer(index);
        (timer.next, timer.prev) = (NONE, last);
        match some(last) {
            Some(last) => self.timer(last).next = index,
            None => list.first = index,
        }
    }

    /// Takes a timer out of the list it is in and forgets it.
    pub(crate) fn remove(&mut self, list: &mut List, index: u32) -> Option<(Time, T)> {
        let timer = self.timer(index);
        let (next, prev) = (timer.next, timer.prev);
        let taken = timer.token.take().map(|token| (timer.due, token));
        match some(prev) {
            Some(prev) => self.timer(prev).next = next,
            None => list.first = next,
        }
        match some(next) {
            Some(next) => self.timer(next).prev = prev,
            None => list.last = prev,
        }
        self.vacate(index);
        taken
    }

    fn vacate(&mut self, index: u32) {
        self.len -= 1;
        let vacant = self.vacant;
        let timer = self.timer(index);
        // A slot that has used up its generations stays vacant for good: a key
        // from long ago must not name a timer of today.
        if let Some(generation) = timer.generation.checked_add(1) {
            timer.generation = generation;
            timer.next = vacant;
            self.vacant = index;
        }
    }

    fn timer(&mut self, index: u32) -> &mut Timer<T> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Time = Time::from_millis(1);

    #[test]
    fn a_slot_without_generations_left_is_not_reused() {
        let mut timers = Timers::new();
        let mut list = List::EMPTY;
        let (index, _) = timers.insert(DUE, 'a');
        timers.timer(index).generation = NonZeroU32::MAX;
        let key = TimerKey { index, generation: NonZeroU32::MAX };
        timers.push_back(&mut list, index);
        assert_eq!(timers.find(key), Some((index, DUE)));
        assert_eq!(timers.remove(&mut list, index), Some((DUE, 'a')));
        assert_eq!(timers.find(key), None);
        let (other, _) = timers.insert(DUE, 'b');
        assert_ne!(other, index);
        assert_eq!((timers.find(key), timers.len()), (None, 1));
    }

    #[test]
    fn lists_keep_the_order_of_arrival() {
        let mut timers = Timers::new();
        let mut list = List::EMPTY;
        for token in 0..1_000 {
            let (index, _) = timers.insert(DUE, token);
            timers.push_back(&mut list, index);
        }
        // The last, the first, and one between them.
        for index in [999, 0, 500] {
            assert_eq!(timers.remove(&mut list, index), Some((DUE, index)));
        }
        let mut taken = Vec::new();
        while let Some(first) = list.first() {
            taken.extend(timers.remove(&mut list, first).map(|(_, token)| token));
        }
        let expected: Vec<u32> = (1..999).filter(|&token| token != 500).collect();
        assert_eq!(taken, expected);
        assert_eq!(timers.len(), 0);
    }

    #[test]
    fn keys_are_small() {
        assert_eq!(size_of::<Option<TimerKey>>(), 8);
    }
}
