//! S3-FIFO.

use crate::list::{Links, List};
use crate::pages::{Buckets, Pages};
use crate::policy::{EvictionPolicy, Handle, Item, Verdict, mark};

/// The part of what is held that new things have for themselves: one in ten.
const SMALL: usize = 10;
/// Uses of a thing that are counted.
const MOST_USES: u8 = 3;

/// S3-FIFO (Yang et al., SOSP 2023): a small queue for new things, a main queue for
/// those that were used again while in it, and a memory of what left the small queue
/// unused, which goes to the main queue when it comes back. Queues are in the order of
/// insertion. About 30 bytes for each handle.
///
/// [`coldest`](EvictionPolicy::coldest) is the oldest of the queue that is to give
/// something up, which may be something that moves on instead.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    things: Pages<Thing>,
    ghosts: Ghosts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thing {
    mark: u32,
    uses: u8,
    in_main: bool,
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl S3Fifo {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            links: Links::new(),
            small: List::new(),
            main: List::new(),
            things: Pages::new(),
            ghosts: Ghosts::new(),
        }
    }

    fn thing(&mut self, handle: Handle) -> &mut Thing {
        self.things.entry(handle as usize, Thing::default())
    }

    fn link(&mut self, handle: Handle, thing: Thing) {
        *self.thing(handle) = thing;
        let queue = if thing.in_main { &mut self.main } else { &mut self.small };
        queue.link_hottest(&mut self.links, handle);
    }

    fn unlink(&mut self, handle: Handle) {
        let queue = if self.thing(handle).in_main { &mut self.main } else { &mut self.small };
        queue.unlink(&mut self.links, handle);
    }

    fn next(&self) -> Option<Handle> {
        let (small, main) = (self.small.coldest(), self.main.coldest());
        if self.small.len() > self.len() / SMALL { small.or(main) } else { main.or(small) }
    }
}

impl EvictionPolicy for S3Fifo {
    fn insert(&mut self, handle: Handle, item: Item) {
        if self.links.admits(handle) {
            let mark = mark(item.hash);
            let in_main = self.ghosts.take(mark);
            self.link(handle, Thing { mark, uses: 0, in_main });
        } else {
            self.access(handle);
        }
    }

    fn access(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            let thing = self.thing(handle);
            thing.uses = (thing.uses + 1).min(MOST_USES);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.unlink(handle);
        }
    }

    /// A thing that comes back goes to the main queue.
    fn readmit(&mut self, handle: Handle, item: Item) {
        if self.links.admits(handle) {
            let mark = mark(item.hash);
            self.ghosts.take(mark);
            self.link(handle, Thing { mark, uses: 0, in_main: true });
        }
    }

    /// Things are passed over for their uses, so that is O(1) for each use.
    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(handle) = self.next() {
            let thing = *self.thing(handle);
            if thing.uses > u8::from(!thing.in_main) {
                self.unlink(handle);
                let uses = if thing.in_main { thing.uses - 1 } else { 0 };
                self.link(handle, Thing { uses, in_main: true, ..thing });
                continue;
            }
            match verdict(handle) {
                Verdict::Evict if !thing.in_main => {
                    // As long as the main queue may be.
                    self.ghosts.put(thing.mark, self.len() - self.len() / SMALL);
                }
                Verdict::Evict | Verdict::SetAside => {}
                Verdict::Stop => return,
            }
            self.unlink(handle);
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.next()
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

/// Ghosts of a bucket, the latest first.
const WAYS: usize = 16;

/// Marks of evicted things, and when they were evicted, counted in evictions. What is older
/// than the queue is long is gone; buckets have room for half as many more, so that few
/// go before their time. Blocks that went together are forgotten together.
#[derive(Clone, Debug)]
struct Ghosts {
    buckets: Buckets<[(u32, u32); WAYS]>,
    now: u32,
    len: u32,
}

impl Ghosts {
    const fn new() -> Self {
        Self { buckets: Buckets::new([(0, 0); WAYS]), now: 0, len: 0 }
    }

    /// Adds one to the latest `len`.
    fn put(&mut self, mark: u32, len: usize) {
        self.now = self.now.wrapping_add(1);
        self.len = u32::try_from(len).unwrap_or(u32::MAX);
        self.buckets.step_towards((len + len / 2).div_ceil(WAYS));
        if mark != 0
            && let Some(bucket) = self.buckets.get_mut(mark)
        {
            bucket.copy_within(..WAYS - 1, 1);
            bucket[0] = (mark, self.now);
        }
    }

    /// Takes one out, if it is there.
    fn take(&mut self, mark: u32) -> bool {
        if mark == 0 {
            return false;
        }
        let (now, len) = (self.now, self.len);
        let Some(bucket) = self.buckets.get_mut(mark) else { return false };
        let Some(at) = bucket.iter().position(|(ghost, _)| *ghost == mark) else {
            return false;
        };
        let is_young = now.wrapping_sub(bucket[at].1) <= len;
        bucket.copy_within(at + 1.., at);
        bucket[WAYS - 1] = (0, 0);
        is_young
    }
}
