//! Locks that are taken in one order, so that no two commands wait for each other.
//!
//! Each lock has a rank, which is part of its type. A thread takes a lock only while every lock
//! that it holds has a lower rank; a build with debug assertions panics where that is not so, in
//! whatever order the threads of a test run. Other builds have the locks of [`parking_lot`] and
//! nothing else.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// The order of the locks. A command holds one shard at most, and none while it holds the clients.
pub(crate) mod rank {
    pub(crate) const DRAIN_JOBS: u8 = 0;
    /// Held while a tenant's quota is changed and its effect is emitted.
    pub(crate) const POLICIES: u8 = 1;
    pub(crate) const CLIENTS: u8 = 2;
    pub(crate) const SHARD: u8 = 3;
    pub(crate) const SEGMENTS: u8 = 4;
    pub(crate) const DAMAGE: u8 = 5;
    pub(crate) const SUSPICION: u8 = 6;
    /// The allocator of one segment.
    pub(crate) const ALLOCATOR: u8 = 7;
    pub(crate) const GROUPS: u8 = 8;
    pub(crate) const GROUP: u8 = 9;
    pub(crate) const HOPELESS: u8 = 10;
    pub(crate) const TASKS: u8 = 11;
    /// The clients' local disks.
    pub(crate) const DISKS: u8 = 12;
    /// The work for the shared tier.
    pub(crate) const FILES: u8 = 13;
    /// The tenants' accounts.
    pub(crate) const ACCOUNTS: u8 = 14;
    /// The orders of eviction.
    pub(crate) const ORDER: u8 = 15;
    /// The order of effects; locked for as long as an effect is handed to the sinks.
    pub(crate) const EFFECTS: u8 = 16;
    /// The reads that may still be under way.
    pub(crate) const READERS: u8 = 17;
    /// The puts that share files.
    pub(crate) const RUNS: u8 = 18;
    /// How one client's local disk can be reached.
    pub(crate) const MOUNT: u8 = 19;
    /// A piece of a rebuild, while a thread takes it or puts its result back.
    pub(crate) const PIECE: u8 = 20;
}

/// A [`parking_lot::Mutex`] with a rank.
#[derive(Default)]
pub(crate) struct Mutex<T, const RANK: u8>(parking_lot::Mutex<T>);

/// A [`parking_lot::RwLock`] with a rank.
#[derive(Default)]
pub(crate) struct RwLock<T, const RANK: u8>(parking_lot::RwLock<T>);

/// Access to what a lock protects, until it is dropped.
pub(crate) struct Guard<G> {
    // Unlocked before the rank may be taken again.
    guard: G,
    held: Held,
}

pub(crate) type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
pub(crate) type ReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
pub(crate) type WriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

impl<T, const RANK: u8> Mutex<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::take(RANK);
        Guard { guard: self.0.lock(), held }
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// The only holder.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Locks, unless that would take waiting.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = Held::take(RANK);
        Some(Guard { guard: self.0.try_lock()?, held })
    }
}

impl<T> MutexGuard<'_, T> {
    /// Unlocks, and lets a thread that waits have its turn before this one may lock again.
    pub(crate) fn unlock_fair(this: Self) {
        let Self { guard, held } = this;
        parking_lot::MutexGuard::unlock_fair(guard);
        drop(held);
    }
}

impl<T, const RANK: u8> RwLock<T, RANK> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::take(RANK);
        Guard { guard: self.0.read(), held }
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::take(RANK);
        Guard { guard: self.0.write(), held }
    }
}

impl<T: fmt::Debug, const RANK: u8> fmt::Debug for Mutex<T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: fmt::Debug, const RANK: u8> fmt::Debug for RwLock<T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
mod held {
    use core::cell::Cell;

    std::thread_local! {
        /// A bit for each rank of which this thread holds a lock.
        static RANKS: Cell<u32> = const { Cell::new(0) };
    }

    /// A lock of this rank is held, by the thread that made this.
    pub(crate) struct Held(u8);

    impl Held {
        pub(crate) fn take(rank: u8) -> Self {
            RANKS.with(|ranks| {
                let held = ranks.get();
                let highest = held.checked_ilog2();
                assert!(
                    highest.is_none_or(|highest| highest < u32::from(rank)),
                    "a lock of rank {rank} is taken while one of rank {highest:?} is held"
                );
                ranks.set(held | 1 << rank);
            });
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // Guards may be dropped while the thread ends.
            let _ = RANKS.try_with(|ranks| ranks.set(ranks.get() & !(1 << self.0)));
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// Nothing is kept of what is held.
    pub(crate) struct Held;

    impl Held {
        #[inline]
        pub(crate) const fn take(_rank: u8) -> Self {
            Self
        }
    }
}

use held::Held;

#[cfg(test)]
mod tests {
    use super::*;

    type Low = Mutex<u8, { rank::CLIENTS }>;
    type High = RwLock<u8, { rank::SEGMENTS }>;

    #[test]
    fn locks_are_taken_in_their_order_and_given_back_in_any() {
        let (low, high) = (Low::new(1), High::new(2));
        for _ in 0..2 {
            let first = low.lock();
            let second = high.read();
            drop(first);
            drop(second);
            assert_eq!(*high.write(), 2);
            MutexGuard::unlock_fair(low.lock());
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a lock of rank 2 is taken while one of rank Some(4) is held")]
    fn a_lower_rank_is_not_taken_second() {
        let (low, high) = (Low::new(1), High::new(2));
        let _second = high.read();
        let _first = low.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "is held")]
    fn no_rank_is_taken_twice() {
        let high = High::new(2);
        let _one = high.read();
        let _other = high.read();
    }
}
