//! The orders that all shards share.
//!
//! One order over all objects knows what one for each shard can only guess: which object is the
//! coldest of all, and how a policy that learns should rate it. Its lock is held for the moves of a
//! few list nodes, and never while another is taken. Accesses are noted in their shard and told many
//! at a time.
//!
//! What is in these orders is a hint. An object may enter one, by a command on many keys, after its
//! shard was unlocked, and may have gone since; the caller that takes the first of an order looks
//! in its shard whether it belongs there.

use core::sync::atomic::{AtomicBool, Ordering};

use mc_evict::{EvictionPolicy, Handle, Item, Lru, MAX_HANDLE, Verdict};
use smallvec::SmallVec;

use crate::object::Queue;
use crate::vocabulary::lock::{Mutex, MutexGuard, rank};
use crate::vocabulary::slot::ObjectSlot;

/// One of the orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Ordinary objects, in the order of the eviction policy.
    Main,
    /// Objects under a soft pin of the master's duration, by last use.
    Pinned,
    /// Objects under a soft pin of a duration of their own, by last use. They compete with `Pinned` by
    /// that.
    Timed,
    /// Objects whose soft pin has lapsed, by last use. They compete with `Main` by that.
    Lapsed,
}

impl List {
    /// The order of the objects in this queue, if they are in one.
    pub(crate) const fn of(queue: Queue) -> Option<Self> {
        match queue {
            Queue::Main => Some(Self::Main),
            Queue::Pinned => Some(Self::Pinned),
            Queue::Timed => Some(Self::Timed),
            Queue::Lapsed => Some(Self::Lapsed),
            Queue::None | Queue::Aside | Queue::Held | Queue::OnLocalDisk | Queue::Offloading => {
                None
            }
        }
    }
}

/// An object in the orders: the number of its shard and its slot there, in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(Handle);

/// An object that was put into a queue of its shard, and is to enter the order of that queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) entry: Entry,
    pub(crate) list: List,
    pub(crate) item: Item,
}

/// The names by which the objects of a chain, such as the blocks of a prompt, find each other: hashes,
/// 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    pub(crate) own: [u64; 2],
    /// The hash of the object without which this one is useless.
    pub(crate) parent: u64,
}

/// A noted access, until the orders are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) entry: Entry,
    pub(crate) list: List,
}

/// The orders.
#[derive(Debug)]
pub(crate) struct Lists {
    main: Box<dyn EvictionPolicy>,
    pinned: Lru,
    timed: Lru,
    lapsed: Lru,
    recent: Recent,
}

/// The objects that entered last, by the hash of their names in chains. Another one with a hash like
/// its own may take an object's place, and it be looked for in vain.
#[derive(Debug)]
struct Recent(Box<[(u64, Handle)]>);

/// Accesses of which the policy learns at once.
const TOGETHER: usize = 64;

/// Objects whose next ones find them.
const RECENT: usize = 4096;

impl Recent {
    fn new() -> Self {
        Self(vec![(0, Handle::MAX); RECENT].into())
    }

    fn note(&mut self, name: u64, entry: Entry) {
        if name != 0 {
            self.0[name as usize % RECENT] = (name, entry.0);
        }
    }

    fn find(&self, name: u64) -> Option<Handle> {
        let (known, handle) = self.0[name as usize % RECENT];
        (name != 0 && known == name).then_some(handle)
    }
}

impl Lists {
    fn list(&mut self, list: List) -> &mut dyn EvictionPolicy {
        match list {
            List::Main => &mut *self.main,
            List::Pinned => &mut self.pinned,
            List::Timed => &mut self.timed,
            List::Lapsed => &mut self.lapsed,
        }
    }

    /// Objects that the policy could offer.
    pub(crate) fn ordinary(&self) -> usize {
        self.main.len()
    }

    /// A new object.
    pub(crate) fn insert(&mut self, Fresh { entry, list, item }: Fresh) {
        self.list(list).insert(entry.0, item);
    }

    /// A new object. If it continues another that came a moment ago, it goes before that one.
    fn insert_in(&mut self, chain: Chain, fresh: Fresh) {
        let Fresh { entry, list, item } = fresh;
        match self.recent.find(chain.parent) {
            Some(parent) => self.list(list).insert_below(entry.0, item, parent),
            None => self.insert(fresh),
        }
        chain.own.into_iter().for_each(|name| self.recent.note(name, entry));
    }

    /// Brings an object back that was aside, as if it was just used.
    pub(crate) fn readmit(&mut self, list: List, entry: Entry, item: Item) {
        self.list(list).readmit(entry.0, item);
    }

    /// Objects were used, in this order. Without effect for those that are not in their order.
    pub(crate) fn access(&mut self, notes: &[Note]) {
        if notes.is_empty() {
            return;
        }
        let mut main = [0; TOGETHER];
        for some in notes.chunks(TOGETHER) {
            let mut len = 0;
            for Note { entry, list } in some {
                match list {
                    List::Main => {
                        main[len] = entry.0;
                        len += 1;
                    }
                    List::Pinned | List::Timed | List::Lapsed => self.list(*list).access(entry.0),
                }
            }
            self.main.access_all(&main[..len]);
        }
    }

    /// Notes the use, on a disk, of an object that memory has evicted.
    pub(crate) fn used_below(&mut self, item: Item) {
        self.main.used_below(item);
    }

    /// One is gone for another reason than eviction.
    pub(crate) fn remove(&mut self, list: List, entry: Entry) {
        self.list(list).remove(entry.0);
    }

    /// The entry that is evicted first.
    pub(crate) fn first(&mut self, list: List) -> Option<Entry> {
        let mut first = None;
        self.list(list).evict(&mut |handle| {
            first = Some(Entry(handle));
            Verdict::Stop
        });
        first
    }

    /// Ordinary entries that may go next, as a guess; none where they are so few that they are in the caches.
    pub(crate) fn upcoming(&self) -> SmallVec<[Entry; UPCOMING]> {
        if self.main.len() < FETCHED {
            return SmallVec::new();
        }
        let mut likely = [0; UPCOMING];
        let found = self.main.upcoming(&mut likely);
        likely.into_iter().take(found).map(Entry).collect()
    }

    /// Takes one out with this verdict, as offered if it goes first now.
    pub(crate) fn take(&mut self, list: List, entry: Entry, verdict: Verdict) {
        self.list(list).take(entry.0, verdict);
    }
}

/// Victims that are fetched at a time: as many as the processor waits for at once.
pub(crate) const UPCOMING: usize = 16;

/// Ordinary objects from which on victims are fetched.
const FETCHED: usize = 1 << 16;

/// The orders with their lock.
#[derive(Debug)]
pub(crate) struct CommonOrder {
    lists: Mutex<Lists, { rank::ORDER }>,
    shards: u32,
    uses_items: AtomicBool,
}

/// Objects that enter under one hold of the lock.
const HELD: usize = 256;

impl CommonOrder {
    pub(crate) fn new(policy: Box<dyn EvictionPolicy>, shards: usize) -> Self {
        let uses_items = AtomicBool::new(policy.uses_items());
        let [pinned, timed, lapsed] = std::array::from_fn(|_| Lru::new());
        let lists = Lists { main: policy, pinned, timed, lapsed, recent: Recent::new() };
        // At most 65,536, as the settings allow.
        Self { lists: Mutex::new(lists), shards: shards as u32, uses_items }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    pub(crate) const fn shards(&self) -> usize {
        self.shards as usize
    }

    /// Returns whether the policy looks at the items that it is given.
    pub(crate) fn uses_items(&self) -> bool {
        self.uses_items.load(Ordering::Relaxed)
    }

    /// An object of a shard in the orders. Those beyond four billion in all are one that is never
    /// offered.
    pub(crate) fn entry(&self, shard: u32, slot: ObjectSlot) -> Entry {
        let number = u64::from(slot.as_u32()) * u64::from(self.shards) + u64::from(shard);
        let handle = Handle::try_from(number).ok().filter(|handle| *handle <= MAX_HANDLE);
        Entry(handle.unwrap_or(Handle::MAX))
    }

    /// Where an object of the orders is: its shard's number and its slot there.
    pub(crate) const fn place(&self, entry: Entry) -> (usize, ObjectSlot) {
        ((entry.0 % self.shards) as usize, ObjectSlot::new(entry.0 / self.shards))
    }

    /// Objects under a soft pin that can be victims.
    pub(crate) fn soft_pinned(&self) -> usize {
        let lists = self.lock();
        lists.pinned.len() + lists.timed.len()
    }

    /// Enters objects, the last one as the one that was used last.
    pub(crate) fn enter(&self, objects: &[Fresh]) {
        for some in objects.chunks(HELD) {
            let mut lists = self.lock();
            some.iter().for_each(|object| lists.insert(*object));
        }
    }

    /// Enters objects that were put, the last one as the one that was used last.
    pub(crate) fn enter_put(&self, objects: &[(Fresh, Chain)]) {
        for some in objects.chunks(HELD) {
            let mut lists = self.lock();
            some.iter().for_each(|(object, chain)| lists.insert_in(*chain, *object));
        }
    }

    /// Notes that objects were used, in this order.
    pub(crate) fn access(&self, notes: &[Note]) {
        for some in notes.chunks(HELD) {
            let mut lists = self.lock();
            lists.access(some);
        }
    }

    /// Has ordinary objects evicted by another policy, which is given those that are there, the
    /// coldest first, as what `item` says.
    pub(crate) fn use_policy(
        &self,
        policy: Box<dyn EvictionPolicy>,
        item: impl Fn(usize, ObjectSlot) -> Item,
    ) {
        self.uses_items.store(policy.uses_items(), Ordering::Relaxed);
        let mut lists = self.lock();
        let mut before = core::mem::replace(&mut lists.main, policy);
        before.evict(&mut |handle| {
            let (shard, slot) = self.place(Entry(handle));
            lists.main.insert(handle, item(shard, slot));
            Verdict::SetAside
        });
    }
}

#[cfg(test)]
mod tests {
    use mc_evict::PolicyKind;

    use super::*;

    fn fresh(entry: Entry, list: List) -> Fresh {
        Fresh { entry, list, item: Item::UNKNOWN }
    }

    #[test]
    fn an_entry_names_one_slot_of_one_shard() {
        for shards in [1, 3, 64, 65_536] {
            let order = CommonOrder::new(PolicyKind::Lru.build(), shards);
            for shard in [0, shards / 2, shards - 1] {
                for slot in [0, 1, 4095].map(ObjectSlot::new) {
                    let entry = order.entry(shard as u32, slot);
                    assert_eq!(order.place(entry), (shard, slot));
                }
            }
        }
        let order = CommonOrder::new(PolicyKind::Lru.build(), 2);
        let beyond = order.entry(0, ObjectSlot::new(u32::MAX - 1));
        order.enter(&[fresh(beyond, List::Main)]);
        assert_eq!(order.lock().first(List::Main), None, "never offered");
    }

    #[test]
    fn what_continues_another_goes_before_it() {
        for kind in [PolicyKind::Lru, PolicyKind::Adaptive] {
            let order = CommonOrder::new(kind.build(), 4);
            let entry = |n: u32| order.entry(n % 4, ObjectSlot::new(n / 4));
            // Two chains that are put block by block, in turns, and something that continues what is
            // not there.
            let put = |n: u32, parent: u32| {
                let chain = Chain { own: [u64::from(n), 0], parent: parent.into() };
                order.enter_put(&[(fresh(entry(n), List::Main), chain)]);
            };
            for (n, parent) in [(1, 0), (11, 0), (2, 1), (12, 11), (3, 2), (13, 12), (30, 29)] {
                put(n, parent);
            }
            let mut lists = order.lock();
            let mut gone = Vec::new();
            while let Some(first) = lists.first(List::Main) {
                lists.take(List::Main, first, Verdict::Evict);
                gone.push(first);
            }
            assert_eq!(gone, [3, 2, 1, 13, 12, 11, 30].map(entry), "{kind}");
        }
    }

    #[test]
    fn what_is_taken_is_what_was_named() {
        for kind in PolicyKind::ALL {
            let order = CommonOrder::new(kind.build(), 4);
            let entries: Vec<Entry> =
                (0..100).map(|n| order.entry(n % 4, ObjectSlot::new(n / 4))).collect();
            order.enter(&entries.iter().map(|it| fresh(*it, List::Main)).collect::<Vec<_>>());
            let mut lists = order.lock();
            for (n, verdict) in [Verdict::Evict, Verdict::SetAside].into_iter().cycle().enumerate()
            {
                let Some(first) = lists.first(List::Main) else { break };
                assert_eq!(lists.first(List::Main), Some(first), "{kind}: looking changes nothing");
                // Each third one that goes is not the first.
                let other = entries.iter().copied().find(|it| *it != first);
                let taken = if n % 3 == 0 { other.unwrap_or(first) } else { first };
                let before = lists.ordinary();
                lists.take(List::Main, taken, verdict);
                let gone = before - lists.ordinary();
                assert!(gone == 1 || taken != first, "{kind}");
            }
            assert_eq!(lists.ordinary(), 0, "{kind}");
        }
    }
}
