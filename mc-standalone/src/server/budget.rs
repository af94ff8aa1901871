//! The memory that requests and answers of thin clients may take.
//!
//! Every thin client has a small reserve of its own, so that its small calls wait for no other. What
//! does not fit there comes from a pool, of which no client gets the last part: a user has at most as
//! much as it leaves for other users, and a thin client at most as much as it leaves for the others
//! of its user.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The memory of all thin clients.
#[derive(Debug)]
pub(super) struct Budget {
    pool: u64,
    reserve: u64,
    max_of_one: u64,
    taken: Mutex<Taken>,
    /// Wakes those that wait for room.
    freed: Notify,
}

/// The used part of the pool.
#[derive(Debug, Default)]
struct Taken {
    of_all: u64,
    of_user: HashMap<u32, u64>,
}

/// The part of one thin client.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    user: u32,
    /// Locked behind [`Budget::taken`].
    held: Mutex<BytesHeld>,
}

#[derive(Debug, Default)]
struct BytesHeld {
    of_reserve: u64,
    of_pool: u64,
}

/// Memory for a request and its answer, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    share: Arc<Share>,
    bytes: u64,
    is_reserve: bool,
}

impl Budget {
    /// Returns a budget with `pool` bytes for all thin clients and `reserve` bytes for each, of
    /// which one takes at most `max_of_one`.
    pub(super) fn new(pool: u64, reserve: u64, max_of_one: u64) -> Arc<Self> {
        Arc::new(Self { pool, reserve, max_of_one, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Returns the part of a thin client of `user`.
    pub(super) fn share(self: &Arc<Self>, user: u32) -> Arc<Share> {
        Arc::new(Share { budget: Arc::clone(self), user, held: Mutex::default() })
    }
}

impl Share {
    /// Waits until there is room for `bytes`, or for as much as one thin client may have.
    ///
    /// # Cancellation
    /// Dropping the future takes nothing.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Room {
        let bytes = bytes.min(self.budget.max_of_one);
        loop {
            let mut freed = pin!(self.budget.freed.notified());
            freed.as_mut().enable();
            if let Some(room) = self.try_take(bytes) {
                return room;
            }
            freed.await;
        }
    }

    fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Room> {
        let Budget { pool, reserve, max_of_one, .. } = *self.budget;
        let mut taken = self.budget.taken.lock();
        let mut held = self.held.lock();
        if held.of_reserve + held.of_pool + bytes > max_of_one {
            return None;
        }
        let is_reserve = held.of_reserve + bytes <= reserve;
        if is_reserve {
            held.of_reserve += bytes;
        } else {
            let of_user = taken.of_user.get(&self.user).copied().unwrap_or(0);
            let for_user = (pool - (taken.of_all - of_user)) / 2;
            let left = for_user.checked_sub(of_user + bytes)?;
            // A thin client that has nothing of the pool gets what there is.
            if held.of_pool > 0 && held.of_pool + bytes > left {
                return None;
            }
            held.of_pool += bytes;
            taken.of_all += bytes;
            *taken.of_user.entry(self.user).or_default() += bytes;
        }
        Some(Room { share: Arc::clone(self), bytes, is_reserve })
    }
}

impl Room {
    /// Gives back what is above `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        let Some(freed) = self.bytes.checked_sub(bytes).filter(|freed| *freed > 0) else { return };
        self.bytes = bytes;
        let budget = &self.share.budget;
        {
            let mut taken = budget.taken.lock();
            let mut held = self.share.held.lock();
            if self.is_reserve {
                held.of_reserve -= freed;
            } else {
                held.of_pool -= freed;
                taken.of_all -= freed;
                if let Some(of_user) = taken.of_user.get_mut(&self.share.user) {
                    *of_user -= freed;
                    if *of_user == 0 {
                        taken.of_user.remove(&self.share.user);
                    }
                }
            }
        }
        budget.freed.notify_waiters();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: u64 = 96_000;
    const RESERVE: u64 = 10;

    fn budget() -> Arc<Budget> {
        Budget::new(POOL, RESERVE, POOL)
    }

    /// Takes rooms of `bytes` until there is none.
    fn fill(share: &Arc<Share>, bytes: u64) -> Vec<Room> {
        std::iter::from_fn(|| share.try_take(bytes)).collect()
    }

    fn sum(rooms: &[Room]) -> u64 {
        rooms.iter().map(|room| room.bytes).sum()
    }

    #[test]
    fn those_of_a_user_that_take_all_they_get_leave_some_for_the_others() {
        let budget = Budget::new(POOL, RESERVE, POOL / 24);
        let mut kept = Vec::new();
        for _ in 0..8 {
            kept.extend(fill(&budget.share(1), 11));
        }
        assert!(sum(&kept) <= POOL / 2, "{}", sum(&kept));
        assert!(budget.share(1).try_take(POOL / 48).is_some(), "another one of the user has room");
        for _ in 0..1000 {
            kept.extend(fill(&budget.share(1), 11));
        }
        assert!(sum(&kept) <= POOL / 2 + 8 * RESERVE, "{}", sum(&kept));
        assert!(budget.share(2).try_take(POOL / 24).is_some(), "another user has more");
    }

    #[test]
    fn a_small_call_waits_for_nobody() {
        let budget = budget();
        let kept: Vec<_> = (0..1000).flat_map(|user| fill(&budget.share(user), 20)).collect();
        assert!(sum(&kept) <= POOL);
        assert!(budget.share(1).try_take(20).is_none());
        let share = budget.share(1);
        assert_eq!(sum(&fill(&share, 1)), RESERVE);
    }

    #[test]
    fn what_an_answer_does_not_need_is_given_back() {
        let budget = budget();
        let share = budget.share(1);
        let mut rooms = fill(&share, 20);
        assert!(share.try_take(20).is_none());
        for room in &mut rooms {
            room.shrink_to(1);
        }
        assert!(share.try_take(20).is_some());
        drop(rooms);
        assert_eq!(budget.taken.lock().of_all, 0);
        assert!(budget.taken.lock().of_user.is_empty());
    }

    #[test]
    fn one_has_at_most_what_one_may_have() {
        let budget = Budget::new(POOL, RESERVE, 100);
        let share = budget.share(1);
        let first = share.try_take(70).expect("room");
        assert!(share.try_take(40).is_none());
        drop(first);
        assert!(share.try_take(40).is_some());
    }

    #[tokio::test]
    async fn one_that_waits_is_served_when_room_is_freed() {
        let budget = budget();
        let (share, other) = (budget.share(1), budget.share(1));
        let kept: Vec<_> = (0..100).flat_map(|_| fill(&budget.share(1), 20)).collect();
        let mut waiting = pin!(share.take(300));
        assert!(is_pending(waiting.as_mut()).await, "it waits");
        drop((kept, other));
        assert_eq!(waiting.await.bytes, 300);
    }

    /// Polls once; returns whether the future is pending.
    async fn is_pending(mut future: std::pin::Pin<&mut impl Future<Output = Room>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
