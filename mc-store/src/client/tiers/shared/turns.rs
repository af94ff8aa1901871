//! The order of writes and deletions of files that the master does not know of.
//!
//! Writes wait in a long queue. A deletion waits for none of them: it is carried out at once, the writes of the
//! same objects that were asked for before are void, and those that are asked for after it wait for its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_tier::ObjectId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::queue::Which;

/// The place of a write or a deletion among all that were asked for.
pub(in crate::client) type Turn = u64;

/// Objects that are remembered as deleted while writes from before wait. Beyond it all of these are void.
const MAX_DELETED: usize = 1 << 18;

/// The requests so far, as far as they matter to the work that is left.
#[derive(Debug, Default)]
pub(in crate::client) struct Turns {
    state: Mutex<State>,
    /// A write or a deletion has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: Turn,
    /// When objects were last asked to be deleted, and how many deletions of each go on.
    deleted: HashMap<ObjectId, Deleted>,
    /// The same, by the turn.
    by_turn: BTreeMap<Turn, Arc<Which>>,
    /// Those of `by_turn` that name no objects but a pattern, and whether they go on.
    patterns: BTreeMap<Turn, (Arc<Which>, bool)>,
    /// Writes from before this turn are void.
    void_before: Turn,
    /// The object that is being written, if any.
    writing: Option<(Turn, ObjectId)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Deleted {
    last: Turn,
    going_on: usize,
}

impl State {
    /// Returns whether the write of an object is void, because it is deleted since.
    fn is_void(&self, turn: Turn, id: &ObjectId) -> bool {
        turn < self.void_before
            || self.deleted.get(id).is_some_and(|deleted| turn < deleted.last)
            || self.patterns.range(turn..).any(|(_, (which, _))| which.has(id))
    }

    /// Returns whether a deletion of an object from before this turn goes on.
    fn is_deleted_before(&self, turn: Turn, id: &ObjectId) -> bool {
        self.deleted.get(id).is_some_and(|deleted| deleted.going_on > 0)
            || self.patterns.range(..turn).any(|(_, (which, goes_on))| *goes_on && which.has(id))
    }

    /// Forgets what matters to no write that is still to come: those from `turn` on are.
    fn forget_before(&mut self, turn: Turn) {
        let later = self.by_turn.split_off(&turn);
        for (turn, which) in std::mem::replace(&mut self.by_turn, later) {
            which.objects().iter().for_each(|id| self.forget(turn, id));
        }
        self.patterns.retain(|asked, (_, goes_on)| *goes_on || *asked >= turn);
    }

    /// Forgets an object, unless it is deleted again or still.
    fn forget(&mut self, turn: Turn, id: &ObjectId) {
        if self.deleted.get(id).is_some_and(|it| it.last == turn && it.going_on == 0) {
            self.deleted.remove(id);
        }
    }
}

impl Turns {
    /// The turn of a write that `enter` puts into the queue: its place there is that among all turns. Returns what
    /// `enter` does.
    pub(in crate::client) fn enter<T>(&self, enter: impl FnOnce(Turn) -> T) -> T {
        let mut state = self.state.lock();
        state.next += 1;
        enter(state.next)
    }

    /// Begins a write. Waits for deletions of the object that were asked for before it. Returns whether it is to
    /// be done: it is void when the object was deleted after it was asked for.
    pub(in crate::client) async fn begin_write(&self, turn: Turn, id: &ObjectId) -> bool {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            {
                let mut state = self.state.lock();
                state.forget_before(turn);
                if state.is_void(turn, id) {
                    return false;
                }
                if !state.is_deleted_before(turn, id) {
                    state.writing = Some((turn, id.clone()));
                    return true;
                }
            }
            ended.await;
        }
    }

    /// Returns whether the object was deleted after its write was asked for.
    pub(in crate::client) fn is_void(&self, turn: Turn, id: &ObjectId) -> bool {
        self.state.lock().is_void(turn, id)
    }

    /// Ends a write that was begun.
    pub(in crate::client) fn end_write(&self) {
        self.state.lock().writing = None;
        self.ended.notify_waiters();
    }

    /// Begins a deletion: writes that were asked for before are void from now on.
    pub(super) fn begin_deletion(&self, which: &Arc<Which>) -> Turn {
        let mut state = self.state.lock();
        state.next += 1;
        let turn = state.next;
        match &**which {
            Which::Objects(ids) => {
                for id in ids {
                    let deleted = state.deleted.entry(id.clone()).or_default();
                    deleted.last = turn;
                    deleted.going_on += 1;
                }
                state.by_turn.insert(turn, Arc::clone(which));
            }
            Which::Matching(..) => _ = state.patterns.insert(turn, (Arc::clone(which), true)),
        }
        if state.deleted.len() > MAX_DELETED {
            state.void_before = turn;
            state.forget_before(turn);
        }
        turn
    }

    /// Ends a deletion, when no write of its objects from before is under way any more: what such a write has
    /// left is deleted by then. With `is_idle`, no write waits.
    pub(super) async fn end_deletion(&self, turn: Turn, which: &Which, is_idle: impl Fn() -> bool) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let is_over = match &self.state.lock().writing {
                Some((writing, id)) => *writing > turn || !which.has(id),
                None => true,
            };
            if is_over {
                break;
            }
            ended.await;
        }
        let mut state = self.state.lock();
        for id in which.objects() {
            if let Some(deleted) = state.deleted.get_mut(id) {
                deleted.going_on -= 1;
            }
            // It was kept for that, when it was to be forgotten.
            if !state.by_turn.contains_key(&turn) {
                let last = state.deleted.get(id).map_or(turn, |deleted| deleted.last);
                if !state.by_turn.contains_key(&last) {
                    state.forget(last, id);
                }
            }
        }
        if let Some((_, goes_on)) = state.patterns.get_mut(&turn) {
            *goes_on = false;
        }
        if is_idle() {
            let next = state.next + 1;
            state.forget_before(next);
        }
        drop(state);
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_meta::TenantId;
    use mc_types::{Generation, ObjectKey};

    use super::*;

    fn id(key: &str) -> ObjectId {
        ObjectId::new(TenantId::DEFAULT.as_str(), ObjectKey::new(key).unwrap(), Generation::new(0))
            .unwrap()
    }

    fn objects(keys: &[&str]) -> Arc<Which> {
        Arc::new(Which::Objects(keys.iter().map(|key| id(key)).collect()))
    }

    fn is_empty(turns: &Turns) -> bool {
        let state = turns.state.lock();
        state.deleted.is_empty() && state.by_turn.is_empty() && state.patterns.is_empty()
    }

    /// Whether this has to wait for something.
    async fn waits<T>(what: impl Future<Output = T>) -> bool {
        tokio::time::timeout(Duration::from_millis(1), what).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_makes_earlier_writes_void_and_later_ones_wait() {
        let turns = Turns::default();
        let [first, other] = [0; 2].map(|_| turns.enter(|turn| turn));
        let which = objects(&["a", "b"]);
        let deletion = turns.begin_deletion(&which);
        let later = turns.enter(|turn| turn);
        assert!(!turns.begin_write(first, &id("a")).await);
        assert!(turns.begin_write(other, &id("c")).await, "it is another object");
        assert!(!waits(turns.end_deletion(deletion, &which, || false)).await);
        turns.end_write();
        assert!(turns.begin_write(later, &id("a")).await);
        turns.end_write();
        assert!(is_empty(&turns), "{turns:?}");

        let again = turns.begin_deletion(&which);
        let last = turns.enter(|turn| turn);
        assert!(waits(turns.begin_write(last, &id("b"))).await, "the deletion goes on");
        assert!(!waits(turns.begin_write(last, &id("c"))).await);
        turns.end_write();
        turns.end_deletion(again, &which, || true).await;
        assert!(turns.begin_write(last, &id("b")).await);
        turns.end_write();
        assert!(is_empty(&turns), "{turns:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_ends_after_the_write_that_is_under_way() {
        for which in [objects(&["a"]), Arc::new(Which::Matching(TenantId::DEFAULT, None))] {
            let turns = Turns::default();
            let write = turns.enter(|turn| turn);
            assert!(turns.begin_write(write, &id("a")).await);
            assert!(!turns.is_void(write, &id("a")));
            let deletion = turns.begin_deletion(&which);
            assert!(turns.is_void(write, &id("a")), "its writer deletes what it wrote");
            assert!(waits(turns.end_deletion(deletion, &which, || true)).await);
            turns.end_write();
            assert!(!waits(turns.end_deletion(deletion, &which, || true)).await);
            assert!(is_empty(&turns), "{turns:?}");
            let later = turns.enter(|turn| turn);
            assert!(turns.begin_write(later, &id("a")).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pattern_makes_writes_of_its_tenant_void() {
        let turns = Turns::default();
        let write = turns.enter(|turn| turn);
        let which = Arc::new(Which::Matching(TenantId::DEFAULT, None));
        let deletion = turns.begin_deletion(&which);
        let foreign =
            ObjectId::new("other", ObjectKey::new("a").unwrap(), Generation::new(0)).unwrap();
        assert!(!turns.is_void(write, &foreign) && turns.is_void(write, &id("a")));
        let later = turns.enter(|turn| turn);
        assert!(waits(turns.begin_write(later, &id("b"))).await);
        turns.end_deletion(deletion, &which, || false).await;
        assert!(turns.is_void(write, &id("a")), "it may still wait");
        assert!(turns.begin_write(later, &id("b")).await);
        assert!(is_empty(&turns), "{turns:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_deleted_again_and_again_is_remembered_once() {
        let turns = Turns::default();
        let write = turns.enter(|turn| turn);
        let which = objects(&["a"]);
        let first = turns.begin_deletion(&which);
        let second = turns.begin_deletion(&which);
        turns.end_deletion(first, &which, || false).await;
        let last = turns.enter(|turn| turn);
        assert!(waits(turns.begin_write(last, &id("a"))).await, "one goes on");
        turns.end_deletion(second, &which, || false).await;
        assert!(turns.is_void(write, &id("a")) || is_empty(&turns));
        assert!(turns.begin_write(last, &id("a")).await);
        assert!(is_empty(&turns), "{turns:?}");
    }
}
