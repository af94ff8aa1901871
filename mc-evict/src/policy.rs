//! The contract between a cache and the order in which it gives things up.

use core::fmt::Debug;

/// A compact name for one cached thing, chosen by the cache: an index into its
/// slab. Policies keep tables by handle, in pages of 256, so handles should be dense
/// and reused.
pub type Handle = u32;

/// The largest handle that a policy takes. Policies ignore larger ones: they hold
/// no such thing and never offer it.
pub const MAX_HANDLE: Handle = Handle::MAX - 2;

/// The identity of a thing beyond its handle, which will name another thing later.
///
/// Policies that learn from what comes back after its eviction know it by its
/// hash. Policies that know of chains (a block of a prompt continues the block
/// before it) find the thing before this one by that thing's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Item {
    /// A hash of the thing's key, the same each time the thing is inserted, with
    /// all bits well mixed; 0 when it has none, and then nothing is remembered of
    /// it.
    pub hash: u64,
    /// The hash of the thing that this one is of no use without; 0 when there is
    /// none or it is not known.
    pub parent: u64,
}

impl Item {
    /// A thing of which nothing is known.
    pub const UNKNOWN: Self = Self { hash: 0, parent: 0 };

    /// A thing whose key has this hash.
    #[must_use]
    pub const fn new(hash: u64) -> Self {
        Self { hash, parent: 0 }
    }

    /// The same thing, of no use without the one whose key has the hash `parent`.
    #[must_use]
    pub const fn with_parent(self, parent: u64) -> Self {
        Self { parent, ..self }
    }
}

/// The cache's decision on a victim that the policy offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken. The policy forgets the handle; it may remember what the thing was.
    Evict,
    /// Protected for now. The policy forgets it, and the cache
    /// [`readmit`](EvictionPolicy::readmit)s it when its protection ends. So a
    /// protected thing is looked at once for each time it was protected, not
    /// once for each eviction, and the cost of eviction does not grow with the
    /// number of things that are being read.
    SetAside,
    /// The thing is not taken, and no more are wanted. The policy keeps it where it was.
    Stop,
}

/// An order of eviction.
///
/// All methods cost amortised O(1), [`evict`](Self::evict) O(1) for each offer, unless
/// a policy says otherwise.
/// A handle that the policy holds is inserted again, or one that it does not
/// hold is accessed or removed, without effect beyond what each method says.
/// Handles above [`MAX_HANDLE`] are ignored.
///
/// Policies are not told how much the cache can hold: they see how much it holds
/// when it evicts.
pub trait EvictionPolicy: Debug + Send {
    /// A new thing: the cache did not have it. A handle that is held is treated
    /// as accessed.
    fn insert(&mut self, handle: Handle, item: Item);

    /// A new thing that is of no use without another one, which was inserted a moment ago: in an
    /// order of last use it goes just before that one, and not after it. So the blocks of a chain that
    /// are inserted one after the other are evicted from the last to the first. The same as
    /// [`insert`](Self::insert) when the other is not held, or in a policy with another order.
    fn insert_below(&mut self, handle: Handle, item: Item, other: Handle) {
        let _ = other;
        self.insert(handle, item);
    }

    /// The thing was used. Without effect when the policy does not hold it.
    fn access(&mut self, handle: Handle);

    /// Things were used, the last one last: the same as [`access`](Self::access) for each of them. A
    /// policy may look at the records of all of them first, so that the processor waits for memory
    /// once and not for each.
    fn access_all(&mut self, handles: &[Handle]) {
        handles.iter().for_each(|handle| self.access(*handle));
    }

    /// The thing is gone for another reason than eviction, so nothing is to be
    /// learned from its coming back. Without effect when the policy does not hold
    /// it.
    fn remove(&mut self, handle: Handle);

    /// The cache gave the thing up although the policy did not offer it: because of where
    /// it lies, for instance. Something may be learned from its coming back, as after
    /// [`Verdict::Evict`]. Without effect when the policy does not hold it.
    fn give_up(&mut self, handle: Handle) {
        self.remove(handle);
    }

    /// An evicted thing was used where it is now, as on a slower medium below, and is not
    /// back: there is no [`insert`](Self::insert). A policy that learns from what comes back may learn from
    /// this, too. By default nothing is noted.
    fn used_below(&mut self, item: Item) {
        let _ = item;
    }

    /// A thing set aside is back, as if it was just used: things that come back
    /// one after the other keep that order. It counts neither as new nor as
    /// something that comes back after its eviction. Without effect when the
    /// policy holds the handle.
    fn readmit(&mut self, handle: Handle, item: Item);

    /// Offers victims, the least worth keeping first, until `verdict` says
    /// [`Verdict::Stop`] or nothing is left. Each thing is offered at most once.
    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict);

    /// Takes one thing out with this verdict, as if [`evict`](Self::evict) had offered it if it goes first now.
    /// Otherwise [`give_up`](Self::give_up) takes it out where the verdict is [`Verdict::Evict`], and
    /// [`remove`](Self::remove) where it is [`Verdict::SetAside`]. Without effect with [`Verdict::Stop`], and when
    /// the policy does not hold it.
    fn take(&mut self, handle: Handle, verdict: Verdict) {
        let mut is_taken = false;
        self.evict(&mut |offered| {
            let is_it = !is_taken && offered == handle;
            is_taken |= is_it;
            if is_it { verdict } else { Verdict::Stop }
        });
        if !is_taken {
            match verdict {
                Verdict::Evict => self.give_up(handle),
                Verdict::SetAside => self.remove(handle),
                Verdict::Stop => {}
            }
        }
    }

    /// The thing that would be offered first, or a good guess at it; `None` only
    /// when nothing is held. Costs O(1).
    fn coldest(&self) -> Option<Handle>;

    /// Fills `likely` from the front with things that may be offered next, and returns how many they are. It is a
    /// guess, for a cache that fetches what it needs of them all at once; by default there is none.
    fn upcoming(&self, likely: &mut [Handle]) -> usize {
        let _ = likely;
        0
    }

    /// Returns whether the policy looks at the [`Item`]s that it is given. One that does not is
    /// given [`Item::UNKNOWN`] where a cache would have to look a thing's key up.
    fn uses_items(&self) -> bool {
        true
    }

    /// Things held.
    fn len(&self) -> usize;

    /// Returns whether none is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// 32 bits for a hash, 0 only for that of nothing.
pub(crate) const fn mark(hash: u64) -> u32 {
    let mark = (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    if mark == 0 && hash != 0 { 1 } else { mark }
}
