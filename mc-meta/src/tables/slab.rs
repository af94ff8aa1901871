//! Slots with small, reusable numbers.

/// Slots in one chunk. Growth allocates a chunk and moves nothing, so no command
/// pays for the objects that are already there.
const CHUNK: usize = 1024;

/// No chunk.
const NO_CHUNK: u32 = u32::MAX;

/// No slot of a chunk.
const NO_SLOT: u32 = u32::MAX;

/// A table of values under `u32` slots that are reused after removal.
///
/// A chunk whose last value is removed goes back to the heap, but for one that is kept
/// for the next values: the heap is not asked at every turn when values come and go at
/// the edge of a chunk.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Head of the list of chunks that have room; the ones that were full last come first.
    room: u32,
    /// Head of the chain of entries in `chunks` that hold no chunk.
    vacant: u32,
    /// The chunk that is kept although it holds no value.
    spare: u32,
}

#[derive(Debug)]
struct Chunk<T> {
    /// The slots that were used so far; no allocation when the entry is vacant.
    slots: Vec<Slot<T>>,
    /// Head of the chain of slots that are free again.
    free: u32,
    /// Slots that hold values.
    used: u32,
    /// Neighbours in the list of chunks with room; `next` is also the chain of vacant
    /// entries.
    next: u32,
    prev: u32,
}

#[derive(Debug)]
pub(crate) enum Slot<T> {
    Used(T),
    /// The next slot that is free again.
    Free(u32),
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        let (room, vacant, spare) = (NO_CHUNK, NO_CHUNK, NO_CHUNK);
        Self { chunks: Vec::new(), room, vacant, spare }
    }

    /// The slot that the next value gets.
    #[inline]
    pub(crate) fn next_slot(&self) -> u32 {
        let number = match (self.room, self.vacant) {
            (NO_CHUNK, NO_CHUNK) => self.chunks.len() as u32,
            (NO_CHUNK, number) | (number, _) => number,
        };
        let at = self.chunks.get(number as usize).map_or(0, Chunk::next_slot);
        number * CHUNK as u32 + at
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let number = if self.room == NO_CHUNK { self.new_chunk() } else { self.room };
        if self.spare == number {
            self.spare = NO_CHUNK;
        }
        let chunk = &mut self.chunks[number as usize];
        let at = chunk.take(value);
        if chunk.is_full() {
            self.unlink(number);
        }
        number * CHUNK as u32 + at
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let (number, at) = (slot / CHUNK as u32, slot % CHUNK as u32);
        let chunk = self.chunks.get_mut(number as usize)?;
        let was_full = chunk.is_full();
        let value = chunk.give_back(at)?;
        let is_empty = chunk.used == 0;
        if was_full {
            self.link(number);
        }
        if is_empty {
            self.retire(number);
        }
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        match self.chunks.get(slot as usize / CHUNK)?.slots.get(slot as usize % CHUNK)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK)?;
        match chunk.slots.get_mut(slot as usize % CHUNK)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// A bound that all slots in use are below.
    pub(crate) fn end(&self) -> u32 {
        let Some(last) = self.chunks.last() else { return 0 };
        let before = (self.chunks.len() - 1) * CHUNK;
        (before + last.slots.len()) as u32 // as checked when the chunk was added
    }

    /// Chunks that are allocated.
    #[cfg(test)]
    fn chunks(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.slots.capacity() > 0).count()
    }

    /// Adds a chunk without values, which has room.
    #[cold]
    fn new_chunk(&mut self) -> u32 {
        let slots = Vec::with_capacity(CHUNK);
        let chunk = Chunk { slots, free: NO_SLOT, used: 0, next: NO_CHUNK, prev: NO_CHUNK };
        let number = if self.vacant == NO_CHUNK {
            let number = self.chunks.len();
            assert!(number < u32::MAX as usize / CHUNK, "a shard holds fewer than 2^32 objects");
            self.chunks.push(chunk);
            number as u32 // as checked
        } else {
            let number = self.vacant;
            let entry = &mut self.chunks[number as usize];
            self.vacant = entry.next;
            *entry = chunk;
            number
        };
        self.link(number);
        number
    }

    /// Keeps a chunk that has no value left as the spare one, or drops it.
    #[cold]
    fn retire(&mut self, number: u32) {
        if self.spare == NO_CHUNK {
            self.spare = number;
            return;
        }
        self.unlink(number);
        let chunk = &mut self.chunks[number as usize];
        chunk.slots = Vec::new();
        chunk.free = NO_SLOT;
        chunk.next = self.vacant;
        self.vacant = number;
    }

    /// Puts a chunk in front of those that have room.
    fn link(&mut self, number: u32) {
        let first = core::mem::replace(&mut self.room, number);
        if first != NO_CHUNK {
            self.chunks[first as usize].prev = number;
        }
        let chunk = &mut self.chunks[number as usize];
        (chunk.prev, chunk.next) = (NO_CHUNK, first);
    }

    fn unlink(&mut self, number: u32) {
        let Chunk { prev, next, .. } = self.chunks[number as usize];
        match prev {
            NO_CHUNK => self.room = next,
            prev => self.chunks[prev as usize].next = next,
        }
        if next != NO_CHUNK {
            self.chunks[next as usize].prev = prev;
        }
    }
}

impl<T> Chunk<T> {
    fn is_full(&self) -> bool {
        self.used as usize == CHUNK
    }

    /// The slot that the next value gets; 0 when the entry is vacant.
    fn next_slot(&self) -> u32 {
        if self.free == NO_SLOT { self.slots.len() as u32 } else { self.free } // at most CHUNK
    }

    /// Puts a value into a slot of a chunk that is not full.
    fn take(&mut self, value: T) -> u32 {
        self.used += 1;
        if self.free == NO_SLOT {
            self.slots.push(Slot::Used(value));
            return self.slots.len() as u32 - 1; // at most CHUNK
        }
        let at = self.free;
        let slot = core::mem::replace(&mut self.slots[at as usize], Slot::Used(value));
        let Slot::Free(next) = slot else { unreachable!("the chain holds free slots alone") };
        self.free = next;
        at
    }

    /// Takes the value out of a slot.
    fn give_back(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        if matches!(slot, Slot::Free(_)) {
            return None;
        }
        let Slot::Used(value) = core::mem::replace(slot, Slot::Free(self.free)) else {
            unreachable!("found to be used")
        };
        self.free = at;
        self.used -= 1;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_are_reused() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..3000).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.next_slot(), 3000);
        assert_eq!(slots, (0..3000).collect::<Vec<u32>>());
        assert_eq!(slab.remove(1500), Some(1500));
        assert_eq!(slab.remove(1500), None);
        assert_eq!(slab.get(1500), None);
        assert_eq!(slab.next_slot(), 1500);
        assert_eq!(slab.insert(7), 1500);
        assert_eq!(slab.get(1500), Some(&7));
        assert_eq!(slab.get(99_999), None);
        assert_eq!(slab.end(), 3000);
    }

    #[test]
    fn chunks_without_values_go_back_but_one() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..100 * CHUNK as u32).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.chunks(), 100);
        // One value keeps its chunk.
        for &slot in slots.iter().filter(|&&slot| slot != 50 * CHUNK as u32) {
            assert_eq!(slab.remove(slot), Some(slot));
        }
        assert_eq!(slab.chunks(), 2, "the one with a value and the spare one");
        assert_eq!(slab.remove(50 * CHUNK as u32), Some(50 * CHUNK as u32));
        assert_eq!(slab.chunks(), 1);
        // At the edge of a chunk the heap is left alone.
        let first = slab.insert(1);
        for _ in 0..3 {
            assert_eq!(slab.chunks(), 1);
            assert_eq!(slab.remove(first), Some(1));
            assert_eq!(slab.insert(1), first);
        }
        // All numbers are used again before there are new ones.
        let again: Vec<u32> = (1..100 * CHUNK as u32).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.end(), 100 * CHUNK as u32);
        assert_eq!((slab.chunks(), again.len()), (100, 100 * CHUNK - 1));
    }

    #[derive(Clone, Debug)]
    enum Op {
        /// This many values.
        Insert(usize),
        /// This many of the values that are there, from this one on in this direction.
        Remove { count: usize, from: prop::sample::Index, backwards: bool },
        /// A slot that may never have been used.
        Look(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let remove = |(count, from, backwards)| Op::Remove { count, from, backwards };
        prop_oneof![
            (1..3 * CHUNK).prop_map(Op::Insert),
            (1..3 * CHUNK, any::<prop::sample::Index>(), any::<bool>()).prop_map(remove),
            (0..20 * CHUNK as u32).prop_map(Op::Look),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_slab_agrees_with_a_map(ops in prop::collection::vec(op(), 1..40)) {
            let mut slab = Slab::new();
            let mut model = BTreeMap::new();
            let (mut next, mut most) = (0u64, 0);
            for op in ops {
                match op {
                    Op::Insert(count) => {
                        for _ in 0..count {
                            let expected = slab.next_slot();
                            let slot = slab.insert(next);
                            prop_assert_eq!(slot, expected);
                            prop_assert_eq!(model.insert(slot, next), None);
                            next += 1;
                        }
                        most = most.max(model.len());
                    }
                    Op::Remove { count, from, backwards } => {
                        let mut slots: Vec<u32> = model.keys().copied().collect();
                        if backwards {
                            slots.reverse();
                        }
                        let from = if slots.is_empty() { 0 } else { from.index(slots.len()) };
                        for slot in slots.into_iter().skip(from).take(count) {
                            prop_assert_eq!(slab.remove(slot), model.remove(&slot));
                            prop_assert_eq!(slab.remove(slot), None);
                        }
                    }
                    Op::Look(slot) => {
                        prop_assert_eq!(slab.get(slot), model.get(&slot));
                        prop_assert_eq!(slab.get_mut(slot).copied(), model.get(&slot).copied());
                    }
                }
                for (&slot, value) in &model {
                    prop_assert_eq!(slab.get(slot), Some(value));
                }
                // Only chunks with values are kept, and one more.
                let mut chunks: Vec<u32> = model.keys().map(|slot| slot / CHUNK as u32).collect();
                chunks.dedup();
                prop_assert!(slab.chunks() <= chunks.len() + 1);
                prop_assert!(slab.end() as usize <= most.next_multiple_of(CHUNK) * 4);
            }
        }
    }
}
