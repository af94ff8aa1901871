//! Pages that are populated before they are written.
//!
//! The first write to a page costs several times what copying its bytes does: the system has to
//! find a page, to zero it and to map it, and to do the latter once more for each process that
//! shares it. Unused space is given out from its beginning to its end, so a write
//! at one place announces writes behind it. A thread populates that in the
//! meantime: no more of it than has been written so far, and never more than a window. Memory that
//! will be written soon for certain ([`Memory::populate_ahead`](super::Memory::populate_ahead)) is
//! populated by a window from the start.
//!
//! Memory of another process has pages already, as a rule, and only lacks them in this process's
//! page table. Populated as if for reading, the system enters sixteen neighbours at a time,
//! writable ones too: 60 µs for a MiB, where writes that fault, or populating for writing, take 300.
//! That is little enough for a writer to do itself where it has overtaken the thread.
//!
//! The thread rests after each step for a quarter of the time that the step took: with
//! longer rests a writer that begins right after mounting overtakes the thread. It must not have a low priority:
//! the system locks the process's mappings while it populates, so every thread that maps memory, or
//! touches a page for the first time, would wait for one that gets no processor.
//!
//! The thread stops for good where the system, or the process's group, is short of memory: pages
//! that may never be written must not push out those that are in use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, Builder};
use std::time::Instant;

use parking_lot::Mutex;

use super::mapping::page_size;
use super::{Backing, Block, available};

/// Bytes populated in one go, less than a millisecond of work: for so long a block that is
/// dropped may stay, and threads that map memory may wait.
const STEP: usize = 2 << 20;

/// Fewest bytes whose pages a writer enters at a time: what the system does at once.
const ENTER: usize = 64 << 10;

/// Most bytes populated behind a write.
const WINDOW: usize = 64 << 20;

/// The same in memory of another process: the work there is soon done, and on a single processor
/// the writer waits for all of it.
const COMMON_WINDOW: usize = 16 << 20;

/// After so many bytes the system is asked again whether it has memory to spare.
const ASK_AGAIN: usize = 32 << 20;

/// How far a block is populated.
#[derive(Default)]
pub(super) struct Prefault {
    /// The end of what was asked for until now; beyond everything when the system refused.
    asked: AtomicUsize,
    /// Fewest bytes to populate behind a write.
    ahead: AtomicUsize,
    /// Where the thread continues; beyond everything when the system refused.
    next: AtomicUsize,
    /// Whether there is a thread.
    running: Mutex<bool>,
}

impl Prefault {
    /// One for a block of `len` bytes, if that is worth it.
    pub(super) fn of(len: usize) -> Option<Self> {
        (cfg!(target_os = "linux") && len > STEP).then(Self::default)
    }
}

impl Block {
    /// Begins to populate the first `window` bytes, and from then on at least as many behind
    /// each write.
    pub(super) fn populate_ahead(self: &Arc<Self>, window: usize) {
        let (Some(prefault), Some(mapping)) = (&self.prefault, self.mapping()) else { return };
        #[cfg(target_os = "linux")]
        mapping.prefer_huge();
        #[cfg(not(target_os = "linux"))]
        let _ = mapping;
        prefault.ahead.fetch_max(window, Ordering::Relaxed);
        let end = window.checked_next_multiple_of(STEP).unwrap_or(self.len).min(self.len);
        self.populate_until(prefault, 0, end);
    }

    /// Begins to populate what is behind the bytes from `start` to `end`, which are about to be
    /// written.
    pub(super) fn populate_behind(self: &Arc<Self>, start: usize, end: usize) {
        let Some(prefault) = &self.prefault else { return };
        if end > prefault.next.load(Ordering::Relaxed) && self.is_common() {
            self.enter_pages(prefault, start, end);
        }
        let most = if self.is_common() { COMMON_WINDOW } else { WINDOW };
        let window = end.clamp(STEP, most).max(prefault.ahead.load(Ordering::Relaxed));
        if end.saturating_add(window / 2).min(self.len) > prefault.asked.load(Ordering::Relaxed) {
            self.populate_until(
                prefault,
                start,
                end.saturating_add(window).min(self.len).next_multiple_of(STEP).min(self.len),
            );
        }
    }

    #[cold]
    fn populate_until(self: &Arc<Self>, prefault: &Prefault, start: usize, end: usize) {
        let mut running = prefault.running.lock();
        let asked = prefault.asked.load(Ordering::Relaxed);
        if end <= asked {
            return;
        }
        if start > asked {
            // What is in between may never be written.
            prefault.next.fetch_max(start - start % STEP, Ordering::Relaxed);
        }
        prefault.asked.store(end, Ordering::Relaxed);
        if !*running {
            let block = Arc::downgrade(self);
            let thread = Builder::new().name("mc-populate".to_owned());
            // Without a thread pages are populated by those who write them.
            *running = thread.spawn(move || populate(&block)).is_ok();
        }
    }

    /// Returns whether the memory is that of another process.
    fn is_common(&self) -> bool {
        matches!(self.backing, Backing::Common { .. })
    }

    /// Enters the pages of the bytes from `start` to `end` in the page table, in place of the
    /// thread. A page that cannot be entered now is left to the write.
    #[cold]
    fn enter_pages(&self, prefault: &Prefault, start: usize, end: usize) {
        let Some(mapping) = self.mapping() else { return };
        let next = prefault.next.load(Ordering::Relaxed);
        let (start, end) = if start <= next {
            let end = end.max(next.saturating_add(ENTER)).next_multiple_of(page_size());
            let end = end.min(self.len);
            prefault.next.fetch_max(end, Ordering::Relaxed);
            (next, end)
        } else {
            (start - start % page_size(), end)
        };
        if start < end {
            let _ = mapping.populate_to_read(start, end - start);
        }
    }

    /// Populates the next step; returns its length, or `None` when nothing is left.
    fn populate_step(&self, is_short: bool) -> Option<usize> {
        let (prefault, mapping) = (self.prefault.as_ref()?, self.mapping()?);
        let mut running = prefault.running.lock();
        let start = prefault.next.load(Ordering::Relaxed);
        let left = prefault.asked.load(Ordering::Relaxed).saturating_sub(start);
        if left == 0 {
            *running = false;
            return None;
        }
        let len = left.min(STEP);
        prefault.next.fetch_max(start + len, Ordering::Relaxed);
        drop(running);
        if is_short {
            tracing::debug!("memory is short: pages are not populated before they are written");
        } else {
            let populated = if self.is_common() {
                mapping.populate_to_read(start, len)
            } else {
                mapping.populate_now(start, len)
            };
            match populated {
                Ok(()) => return Some(len),
                Err(error) => {
                    tracing::debug!(%error, "pages are not populated before they are written");
                }
            }
        }
        prefault.asked.store(usize::MAX, Ordering::Relaxed);
        prefault.next.store(usize::MAX, Ordering::Relaxed);
        None
    }
}

/// Works until everything that was asked for is done, or the block is gone.
fn populate(block: &Weak<Block>) {
    let mut until_asked = 0;
    while let Some(block) = block.upgrade() {
        let begun = Instant::now();
        let is_short = until_asked == 0 && available::is_short();
        let Some(len) = block.populate_step(is_short) else { return };
        until_asked = if until_asked == 0 { ASK_AGAIN } else { until_asked };
        until_asked = until_asked.saturating_sub(len);
        drop(block);
        thread::sleep(begun.elapsed() / 4);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use mc_testkit::eventually_blocking;

    use super::super::Memory;
    use super::super::mapping::{entered_pages, resident_pages};
    use super::*;
    use crate::access::Access;

    const LIMIT: Duration = Duration::from_secs(30);

    fn resident(memory: &Memory) -> usize {
        resident_pages(memory.block.mapping().expect("mapped")) * page_size()
    }

    fn is_idle(memory: &Memory) -> bool {
        !*memory.block.prefault.as_ref().expect("populated when it is touched").running.lock()
    }

    #[test]
    fn as_much_as_was_written_is_populated_behind() {
        let memory = Memory::options().shared().allocate(256 << 20).unwrap();
        let mut expected = 0;
        for written in [1, 4 << 20, 16 << 20, 80 << 20] {
            memory.slice(0, written).unwrap().populate_behind();
            eventually_blocking(LIMIT, "populated", || is_idle(&memory));
            let end = written + written.clamp(STEP, WINDOW);
            expected = expected.max(end.next_multiple_of(STEP));
            assert_eq!(resident(&memory), expected, "{written}");
        }
        // Nothing new for a while.
        memory.slice(81 << 20, 8 << 20).unwrap().populate_behind();
        assert!(is_idle(&memory));
        memory.slice(255 << 20, 1 << 20).unwrap().populate_behind();
        eventually_blocking(LIMIT, "populated to the end", || is_idle(&memory));
        // The pages between are not populated.
        assert_eq!(resident(&memory), expected + (2 << 20));
    }

    #[test]
    fn a_window_is_populated_from_the_start_and_stays_ahead() {
        const AHEAD: usize = 16 << 20;
        let memory = Memory::options().shared().allocate(64 << 20).unwrap();
        memory.populate_ahead(AHEAD);
        eventually_blocking(LIMIT, "populated from the start", || is_idle(&memory));
        assert_eq!(resident(&memory), AHEAD);
        for (written, expected) in [(4 << 20, 16 << 20), (10 << 20, 26 << 20), (60 << 20, 64 << 20)]
        {
            memory.slice(0, written).unwrap().populate_behind();
            eventually_blocking(LIMIT, "populated behind", || is_idle(&memory));
            assert_eq!(resident(&memory), expected, "{written}");
        }
        // More than there is, and memory that is never populated ahead.
        let small = Memory::allocate(4 << 20).unwrap();
        small.populate_ahead(usize::MAX);
        eventually_blocking(LIMIT, "populated to the end", || is_idle(&small));
        assert_eq!(resident(&small), small.len());
        Memory::allocate(100).unwrap().populate_ahead(100);
    }

    #[test]
    fn pages_of_a_peer_are_entered_for_the_writer_at_once() {
        let owner = Memory::options().shared().allocate(64 << 20).unwrap();
        let len = 3 << 20;
        owner.slice(0, len).unwrap().populate().unwrap();
        let fd = owner.share(Access::ReadWrite).unwrap();
        let peer = Memory::map_shared(fd, owner.len(), Access::ReadWrite).unwrap();
        let entered = || entered_pages(peer.block.mapping().expect("mapped")) * page_size();
        assert_eq!(entered(), 0);
        peer.slice(5000, len - 5000).unwrap().populate_behind();
        assert!(entered() >= len, "{}", entered());
        eventually_blocking(LIMIT, "entered behind", || is_idle(&peer));
        assert_eq!(entered(), (2 * len).next_multiple_of(STEP));
    }

    #[test]
    fn bytes_are_not_touched_and_the_block_is_let_go() {
        let owner = Memory::options().shared().allocate(64 << 20).unwrap();
        let fd = owner.share(Access::ReadWrite).unwrap();
        let peer = Memory::map_shared(fd, owner.len(), Access::ReadWrite).unwrap();
        let byte = (20 << 20) - 1;
        peer.whole().copy_from(byte, b"kept").unwrap();
        peer.slice(0, 48 << 20).unwrap().populate_behind();
        eventually_blocking(LIMIT, "populated", || is_idle(&peer));
        assert_eq!(resident(&peer), owner.len());
        let mut found = [0; 4];
        owner.whole().copy_to(byte, &mut found).unwrap();
        assert_eq!(&found, b"kept");
        let block = Arc::downgrade(&owner.block);
        owner.slice(0, 32 << 20).unwrap().populate_behind();
        drop(owner);
        eventually_blocking(LIMIT, "the block is gone", || block.upgrade().is_none());
    }

    #[test]
    fn memory_that_is_there_or_not_written_is_left_alone() {
        let small = Memory::options().shared().allocate(STEP).unwrap();
        let owner = Memory::options().shared().allocate(8 << 20).unwrap();
        let fd = owner.share(Access::Read).unwrap();
        let read_only = Memory::map_shared(fd, owner.len(), Access::Read).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let of_a_file = Memory::options().file(file.path()).allocate(8 << 20).unwrap();
        let heap = Memory::allocate(100).unwrap();
        for memory in [&small, &read_only, &of_a_file, &heap] {
            assert!(memory.block.prefault.is_none());
            memory.whole().populate_behind();
        }
    }
}
