//! Pages that are populated shortly before they are written.
//!
//! The first write to a page costs several times what copying its bytes does: the system has to
//! find a page, to zero it and to map it, and to do the latter once more for each process that
//! shares it. Space that nobody has used yet is given out from its beginning to its end, so that
//! whoever writes it at one place will soon write what is behind. A thread populates that in
//! the meantime: no more of it than has been written so far, and never more than a window.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::Builder;

use parking_lot::Mutex;

use super::Block;

/// Bytes populated in one go, less than a millisecond of work: for so long a block that is
/// dropped may stay, and threads that map memory may wait.
const STEP: usize = 2 << 20;

/// Most bytes populated behind a write.
const WINDOW: usize = 64 << 20;

/// How far a block is populated.
#[derive(Default)]
pub(super) struct Prefault {
    /// The end of what was asked for until now; beyond everything when the system refused.
    asked: AtomicUsize,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    /// Where the thread goes on.
    next: usize,
    /// Whether there is a thread.
    running: bool,
}

impl Prefault {
    /// One for a block of `len` bytes, if that is worth it.
    pub(super) fn of(len: usize) -> Option<Self> {
        (cfg!(target_os = "linux") && len > STEP).then(Self::default)
    }
}

impl Block {
    /// Begins to populate what is behind the bytes from `start` to `end`, which are about to be
    /// written.
    pub(super) fn populate_behind(self: &Arc<Self>, start: usize, end: usize) {
        let Some(prefault) = &self.prefault else { return };
        let window = end.clamp(STEP, WINDOW);
        if (end + window / 2).min(self.len) > prefault.asked.load(Ordering::Relaxed) {
            self.populate_until(
                prefault,
                start,
                (end + window).next_multiple_of(STEP).min(self.len),
            );
        }
    }

    #[cold]
    fn populate_until(self: &Arc<Self>, prefault: &Prefault, start: usize, end: usize) {
        let mut work = prefault.work.lock();
        let asked = prefault.asked.load(Ordering::Relaxed);
        if end <= asked {
            return;
        }
        if start > asked {
            // What is in between may never be written.
            work.next = start - start % STEP;
        }
        prefault.asked.store(end, Ordering::Relaxed);
        if !work.running {
            let block = Arc::downgrade(self);
            let thread = Builder::new().name("mc-populate".to_owned());
            // Without a thread pages are populated by those who write them.
            work.running = thread.spawn(move || populate(&block)).is_ok();
        }
    }

    /// Populates the next step; says whether there may be another.
    fn populate_step(&self) -> bool {
        let (Some(prefault), Some(mapping)) = (&self.prefault, self.mapping()) else {
            return false;
        };
        let (start, len) = {
            let mut work = prefault.work.lock();
            let left = prefault.asked.load(Ordering::Relaxed).saturating_sub(work.next);
            if left == 0 {
                work.running = false;
                return false;
            }
            let (start, len) = (work.next, left.min(STEP));
            work.next += len;
            (start, len)
        };
        if let Err(error) = mapping.populate_now(start, len) {
            tracing::debug!(%error, "pages are not populated before they are written");
            prefault.asked.store(usize::MAX, Ordering::Relaxed);
            return false;
        }
        true
    }
}

/// Works until everything that was asked for is done, or the block is gone.
fn populate(block: &Weak<Block>) {
    while block.upgrade().is_some_and(|block| block.populate_step()) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::Memory;
    use super::super::mapping::{page_size, resident_pages};
    use super::*;
    use crate::access::Access;

    fn resident(memory: &Memory) -> usize {
        resident_pages(memory.block.mapping().expect("mapped")) * page_size()
    }

    fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline, "not in time: {what}");
            std::thread::yield_now();
        }
    }

    fn is_idle(memory: &Memory) -> bool {
        !memory.block.prefault.as_ref().expect("populated when it is touched").work.lock().running
    }

    #[test]
    fn as_much_as_was_written_is_populated_behind() {
        let memory = Memory::options().shared().allocate(256 << 20).unwrap();
        let mut expected = 0;
        for written in [1, 4 << 20, 16 << 20, 80 << 20] {
            memory.slice(0, written).unwrap().populate_behind();
            wait_until("populated", || is_idle(&memory));
            let end = written + written.clamp(STEP, WINDOW);
            expected = expected.max(end.next_multiple_of(STEP));
            assert_eq!(resident(&memory), expected, "{written}");
        }
        // Nothing new for a while.
        memory.slice(81 << 20, 8 << 20).unwrap().populate_behind();
        assert!(is_idle(&memory));
        memory.slice(255 << 20, 1 << 20).unwrap().populate_behind();
        wait_until("populated to the end", || is_idle(&memory));
        // What lies between is nobody's.
        assert_eq!(resident(&memory), expected + (2 << 20));
    }

    #[test]
    fn bytes_are_not_touched_and_the_block_is_let_go() {
        let owner = Memory::options().shared().allocate(64 << 20).unwrap();
        let fd = owner.share(Access::ReadWrite).unwrap();
        let peer = Memory::map_shared(fd, owner.len(), Access::ReadWrite).unwrap();
        let byte = (20 << 20) - 1;
        peer.whole().copy_from(byte, b"kept").unwrap();
        peer.slice(0, 32 << 20).unwrap().populate_behind();
        wait_until("populated", || is_idle(&peer));
        assert_eq!(resident(&peer), owner.len());
        let mut found = [0; 4];
        owner.whole().copy_to(byte, &mut found).unwrap();
        assert_eq!(&found, b"kept");
        let block = Arc::downgrade(&owner.block);
        owner.slice(0, 32 << 20).unwrap().populate_behind();
        drop(owner);
        wait_until("the block is gone", || block.upgrade().is_none());
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
