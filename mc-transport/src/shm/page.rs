//! The page on which an owner says which of its regions are open, shared with every
//! peer for reading.
//!
//! It is a row of words, one per cache line. A region that peers map has a *slot*:
//! while its word holds the generation that they were told, the region is open.
//! Withdrawing adds one, so that a slot may be used again and no peer is misled. The
//! first word is one while the transport runs.
//!
//! Peers look before and after each copy. They can, because looking costs no more
//! than reading memory that is in their cache until it changes.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use tokio::sync::watch;

use mc_memory::{Access, Memory, MemoryError, MemorySlice};

/// Slots of a page, the transport's own included. Regions that find none free are
/// reached by streams.
pub(super) const SLOTS: u32 = 16_384;

/// Distance of two words: a cache line, so that withdrawing a region disturbs no
/// reader of another.
const STRIDE: usize = 64;

/// The word that says whether the transport runs.
const TRANSPORT: u32 = 0;

/// The value while the transport runs.
const RUNNING: u64 = 1;

/// Bytes of a page with `slots` slots.
pub(super) const fn page_len(slots: u32) -> usize {
    slots as usize * STRIDE
}

/// The words of a page, mapped.
struct Words(MemorySlice);

impl Words {
    fn word(&self, slot: u32) -> &AtomicU64 {
        let at = slot as usize * STRIDE;
        assert!(at + size_of::<u64>() <= self.0.len(), "slots are checked where they come from");
        let word = self.0.address().wrapping_add(at).cast();
        // SAFETY: the assertion keeps the word inside the mapping, which lives as
        // long as `self`; it is aligned because the mapping begins at a page and
        // STRIDE is a multiple of eight. Every process of ours touches it only as an
        // atomic word, and an atomic promises nothing about who else changes it.
        // Peers, whose mapping cannot be written, only load it, relaxed.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

/// The owner's side.
pub(super) struct Page {
    words: Words,
    /// The descriptor for peers; it cannot be mapped for writing.
    for_peers: OwnedFd,
    free: Mutex<Free>,
    withdrawals: watch::Sender<u64>,
}

/// Slots that no region has.
struct Free {
    /// The first slot that was never used, before others of that kind.
    fresh: u32,
    used_before: Vec<u32>,
}

impl Page {
    /// A page on which the transport runs and no region is open.
    pub(super) fn new() -> Result<Arc<Self>, MemoryError> {
        let memory = Memory::options().shared().allocate(page_len(SLOTS))?;
        let for_peers = memory.share(Access::Read)?;
        let words = Words(memory.whole());
        words.word(TRANSPORT).store(RUNNING, Ordering::Release);
        let free = Mutex::new(Free { fresh: TRANSPORT + 1, used_before: Vec::new() });
        Ok(Arc::new(Self { words, for_peers, free, withdrawals: watch::Sender::new(0) }))
    }

    /// The descriptor that peers map.
    pub(super) fn for_peers(&self) -> BorrowedFd<'_> {
        self.for_peers.as_fd()
    }

    /// Counts withdrawn regions.
    pub(super) fn withdrawals(&self) -> watch::Receiver<u64> {
        self.withdrawals.subscribe()
    }

    /// The slot of a region, among what is `attached` to it. A region that has none
    /// is given one; `None` when none is free.
    pub(super) fn slot_of(
        self: &Arc<Self>,
        attached: &mut Vec<Box<dyn Any + Send + Sync>>,
    ) -> Option<(u32, u64)> {
        let mut slots = attached.iter().filter_map(|any| any.downcast_ref::<Slot>());
        if let Some(slot) = slots.find(|slot| Arc::ptr_eq(&slot.page, self)) {
            return Some((slot.index, slot.generation));
        }
        let slot = self.occupy()?;
        let place = (slot.index, slot.generation);
        attached.push(Box::new(slot));
        Some(place)
    }

    /// Marks the transport as ended, which withdraws every region.
    pub(super) fn close(&self) {
        self.words.word(TRANSPORT).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn occupy(self: &Arc<Self>) -> Option<Slot> {
        let index = {
            let mut free = self.free.lock();
            match free.used_before.pop() {
                Some(index) => index,
                None if free.fresh == SLOTS => return None,
                None => {
                    free.fresh += 1;
                    free.fresh - 1
                }
            }
        };
        // No other thread changes the word of a slot that was free.
        let generation = self.words.word(index).load(Ordering::Relaxed) + 1;
        self.words.word(index).store(generation, Ordering::Release);
        Some(Slot { page: Arc::clone(self), index, generation })
    }
}

/// A region's slot. It is attached to the region, so that it is dropped, and peers
/// see it, before the withdrawal of the key ends.
struct Slot {
    page: Arc<Page>,
    index: u32,
    generation: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.page.words.word(self.index).store(self.generation + 1, Ordering::SeqCst);
        // A peer that sees bytes that the owner writes from here on also sees
        // the word.
        fence(Ordering::SeqCst);
        self.page.free.lock().used_before.push(self.index);
        self.page.withdrawals.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// A peer's side.
pub(super) struct PeerPage {
    words: Words,
    slots: u32,
}

impl PeerPage {
    /// Maps the page that an owner offers.
    ///
    /// # Errors
    /// [`MemoryError`] when it is not safe to touch, or cannot be mapped.
    pub(super) fn map(descriptor: OwnedFd, slots: u32) -> Result<Self, MemoryError> {
        // More than any version has, and the system would have to map it.
        if slots > SLOTS {
            return Err(MemoryError::TooLarge { len: page_len(SLOTS) + STRIDE });
        }
        let memory = Memory::map_shared(descriptor, page_len(slots), Access::Read)?;
        Ok(Self { words: Words(memory.whole()), slots })
    }

    /// Returns whether a region can have this slot and this generation.
    pub(super) fn has(&self, slot: u32, generation: u64) -> bool {
        slot > TRANSPORT && slot < self.slots && generation % 2 == 1
    }

    /// Returns whether the owner's transport runs.
    pub(super) fn is_running(&self) -> bool {
        self.words.word(TRANSPORT).load(Ordering::Relaxed) == RUNNING
    }

    /// Returns whether the region is open. What is read from it from here on is its own,
    /// as far as [`is_still_open`](Self::is_still_open) says so afterwards.
    pub(super) fn is_open(&self, slot: u32, generation: u64) -> bool {
        let open = self.words.word(slot).load(Ordering::Relaxed) == generation;
        fence(Ordering::Acquire);
        open
    }

    /// Returns whether the region was open until now, so that what was read from it is its
    /// own.
    pub(super) fn is_still_open(&self, slot: u32, generation: u64) -> bool {
        fence(Ordering::Acquire);
        self.words.word(slot).load(Ordering::Relaxed) == generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_peer(page: &Page) -> OwnedFd {
        page.for_peers().try_clone_to_owned().unwrap()
    }

    #[test]
    fn slots_are_open_until_dropped_and_used_again() {
        let page = Page::new().unwrap();
        let peer = PeerPage::map(for_peer(&page), SLOTS).unwrap();
        assert!(peer.is_running());
        let mut attached = Vec::new();
        let (slot, generation) = page.slot_of(&mut attached).unwrap();
        assert_eq!(page.slot_of(&mut attached), Some((slot, generation)), "one per region");
        assert!(peer.has(slot, generation) && peer.is_open(slot, generation));
        let seen = page.withdrawals();
        attached.clear();
        assert!(!peer.is_open(slot, generation) && seen.has_changed().unwrap());
        let (again, next) = page.slot_of(&mut attached).unwrap();
        assert_eq!((again, next), (slot, generation + 2));
        assert!(peer.is_still_open(slot, next) && !peer.is_still_open(slot, generation));
        page.close();
        assert!(!peer.is_running());
    }

    #[test]
    fn two_transports_have_slots_of_their_own_in_one_region() {
        let (one, two) = (Page::new().unwrap(), Page::new().unwrap());
        let mut attached = Vec::new();
        one.slot_of(&mut attached).unwrap();
        two.slot_of(&mut attached).unwrap();
        one.slot_of(&mut attached).unwrap();
        assert_eq!(attached.len(), 2);
    }

    #[test]
    fn a_page_can_be_full() {
        let page = Page::new().unwrap();
        let mut regions: Vec<Vec<_>> = (1..SLOTS).map(|_| Vec::new()).collect();
        for attached in &mut regions {
            assert!(page.slot_of(attached).is_some());
        }
        assert_eq!(page.slot_of(&mut Vec::new()), None);
        regions.pop();
        assert!(page.slot_of(&mut Vec::new()).is_some());
    }

    #[test]
    fn a_peer_neither_writes_the_page_nor_takes_a_wrong_one() {
        let page = Page::new().unwrap();
        let writable = Memory::map_shared(for_peer(&page), 64, Access::ReadWrite).map(|_| ());
        assert!(matches!(writable, Err(MemoryError::Refused { .. })), "{writable:?}");
        let small = Memory::options().shared().allocate(64).unwrap();
        let refused = PeerPage::map(small.share(Access::Read).unwrap(), SLOTS).map(|_| ());
        assert!(matches!(refused, Err(MemoryError::TooShort { .. })), "{refused:?}");
        for slots in [0, SLOTS + 1, u32::MAX] {
            assert!(PeerPage::map(for_peer(&page), slots).is_err(), "{slots}");
        }
        let peer = PeerPage::map(for_peer(&page), 10).unwrap();
        assert!(peer.has(9, 1) && !peer.has(10, 1) && !peer.has(0, 1) && !peer.has(9, 2));
    }
}
