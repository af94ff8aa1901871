//! Slots with small, reusable numbers.

/// Slots in one chunk. Growth allocates a chunk and moves nothing, so no command
/// pays for the objects that are already there.
const CHUNK: usize = 1024;

/// A table of values under `u32` slots that are reused after removal.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<u32>,
    next: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), next: 0 }
    }

    /// The slot that the next value gets.
    pub(crate) fn next_slot(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.next)
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            *self.entry(slot) = Some(value);
            return slot;
        }
        let slot = self.next;
        if slot as usize / CHUNK == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[slot as usize / CHUNK].push(Some(value));
        self.next = slot.checked_add(1).expect("a shard holds fewer than 2^32 objects");
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.get_slot(slot)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.get_slot(slot)?.as_mut()
    }

    /// One past the largest slot ever used.
    pub(crate) const fn end(&self) -> u32 {
        self.next
    }

    fn get_slot(&mut self, slot: u32) -> Option<&mut Option<T>> {
        self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)
    }

    fn entry(&mut self, slot: u32) -> &mut Option<T> {
        self.get_slot(slot).expect("a free slot lies below the end")
    }
}

#[cfg(test)]
mod tests {
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
}
