//! Groups: objects that are evicted together or not at all.
//!
//! The members of a group lie in many shards, and no command locks two. So a group
//! has a lease of its own, which each access to a member extends, and is evicted by
//! condemning it: from that moment every member counts as gone, in whatever shard,
//! and is taken out when it is next looked at or when its shard's turn comes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use mc_types::{Generation, Time};

use crate::vocabulary::lock::{Mutex, rank};
use crate::vocabulary::slot::ObjectSlot;

/// Where a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) shard: u32,
    /// Known once the member has one; a group is not condemned before.
    pub(crate) slot: ObjectSlot,
}

/// One group. Its lock is taken after a shard's and never before one.
#[derive(Debug, Default)]
pub(crate) struct Group {
    name: Box<str>,
    /// Written under the lock; read without it.
    condemned: AtomicBool,
    inner: Mutex<Inner, { rank::GROUP }>,
}

#[derive(Debug, Default)]
struct Inner {
    lease_end: Time,
    members: BTreeMap<Generation, Member>,
    /// [`Hold`]s there are.
    holds: usize,
}

/// Why a group stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protected {
    /// A member is under lease until then.
    Leased(Time),
    /// A member is unfinished, hard-pinned or being copied.
    Held,
}

impl Group {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether its members are gone.
    pub(crate) fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Acquire)
    }

    /// Adds a member, which holds the group; `None` when the group is gone already.
    pub(crate) fn join(self: &Arc<Self>, generation: Generation, shard: u32) -> Option<Membership> {
        let mut inner = self.inner.lock();
        let hold = self.hold_in(&mut inner)?;
        inner.members.insert(generation, Member { shard, slot: ObjectSlot::NONE });
        drop(inner);
        Some(Membership { group: Arc::clone(self), generation, shard, hold: Some(hold) })
    }

    /// Keeps the group from being condemned; `None` when it is gone already.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Hold> {
        self.hold_in(&mut self.inner.lock())
    }

    fn hold_in(self: &Arc<Self>, inner: &mut Inner) -> Option<Hold> {
        if self.is_condemned() {
            return None;
        }
        inner.holds += 1;
        Some(Hold(Arc::clone(self)))
    }

    /// A member was accessed and may not go before `lease_end`; false when the group
    /// is gone already.
    pub(crate) fn access(&self, lease_end: Time) -> bool {
        let mut inner = self.inner.lock();
        inner.lease_end = inner.lease_end.max(lease_end);
        !self.is_condemned()
    }

    /// The number of members to evict if the group is condemned now; `None` when one may not go.
    pub(crate) fn at_stake(&self, now: Time) -> Option<usize> {
        let inner = self.inner.lock();
        let may_go = inner.holds == 0 && now >= inner.lease_end;
        may_go.then_some(inner.members.len())
    }

    /// When the lease of the member last accessed ends.
    pub(crate) fn lease_end(&self) -> Time {
        self.inner.lock().lease_end
    }

    /// Gives the group up. Its members are left to the caller to take out; there are
    /// none when another eviction has condemned it before.
    ///
    /// # Errors
    /// [`Protected`] when a member may not go.
    pub(crate) fn condemn(&self, now: Time) -> Result<Vec<(Generation, Member)>, Protected> {
        let mut inner = self.inner.lock();
        if self.is_condemned() {
            return Ok(Vec::new());
        }
        if inner.holds > 0 {
            return Err(Protected::Held);
        }
        if now < inner.lease_end {
            return Err(Protected::Leased(inner.lease_end));
        }
        self.condemned.store(true, Ordering::Release);
        Ok(core::mem::take(&mut inner.members).into_iter().collect())
    }
}

/// Keeps a group from being condemned until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold(Arc<Group>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.inner.lock().holds -= 1;
    }
}

/// The place of an object in its group, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    group: Arc<Group>,
    generation: Generation,
    shard: u32,
    /// While its put is not finished, and for as long as it is there when it is hard-pinned.
    hold: Option<Hold>,
}

impl Membership {
    pub(crate) const fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Notes the slot of the member.
    pub(crate) fn settle(&self, slot: ObjectSlot) {
        let member = Member { shard: self.shard, slot };
        self.group.inner.lock().members.insert(self.generation, member);
    }

    /// Lets the member go with its group from now on.
    pub(crate) fn release(&mut self) {
        self.hold = None;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.group.inner.lock().members.remove(&self.generation);
    }
}

/// The groups of a master by name.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_name: HashMap<Box<str>, Weak<Group>>,
    /// Names at which those without members are swept out.
    sweep_at: usize,
}

impl Groups {
    /// The group of this name; a new one when there is none with members left.
    pub(crate) fn named(&mut self, name: &str) -> Arc<Group> {
        if let Some(group) = self.by_name.get(name).and_then(Weak::upgrade)
            && !group.is_condemned()
        {
            return group;
        }
        if self.by_name.len() >= self.sweep_at {
            self.by_name.retain(|_, group| group.strong_count() > 0);
            self.sweep_at = (self.by_name.len() * 2).max(64);
        }
        let group = Arc::new(Group { name: name.into(), ..Group::default() });
        self.by_name.insert(name.into(), Arc::downgrade(&group));
        group
    }
}

/// Has the put of this generation join the group of this name.
pub(crate) fn join(
    groups: &Mutex<Groups, { rank::GROUPS }>,
    name: &str,
    generation: Generation,
    shard: u32,
) -> Membership {
    loop {
        let group = groups.lock().named(name);
        // `None` if it was condemned meanwhile; the next one of the name is another.
        if let Some(membership) = group.join(generation, shard) {
            return membership;
        }
    }
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn join(group: &Arc<Group>, number: u64) -> Option<Membership> {
        group.join(Generation::new(number), 0)
    }

    #[test]
    fn any_member_protects_all() {
        let group = Arc::<Group>::default();
        let (mut first, mut second) = (join(&group, 1).unwrap(), join(&group, 2).unwrap());
        assert_eq!(group.condemn(at(0)), Err(Protected::Held));
        first.release();
        assert_eq!(group.condemn(at(0)), Err(Protected::Held));
        second.release();
        assert!(group.access(at(10)) && group.access(at(5)));
        assert_eq!(group.condemn(at(9)), Err(Protected::Leased(at(10))));
        second.settle(ObjectSlot::new(7));
        let members = group.condemn(at(10)).unwrap();
        assert_eq!(members.len(), 2);
        assert_eq!(members[1], (Generation::new(2), Member { shard: 0, slot: ObjectSlot::new(7) }));
        assert!(group.is_condemned() && !group.access(at(99)));
        assert!(join(&group, 3).is_none() && group.hold().is_none());
        assert_eq!(group.condemn(at(10)), Ok(Vec::new()));
    }

    #[test]
    fn a_member_that_leaves_unfinished_holds_no_other_back() {
        let group = Arc::<Group>::default();
        let (mut first, second) = (join(&group, 1).unwrap(), join(&group, 2).unwrap());
        first.release();
        drop(second);
        let copy = group.hold().unwrap();
        assert_eq!(group.condemn(at(0)), Err(Protected::Held));
        drop(copy);
        assert_eq!(group.condemn(at(0)).unwrap().len(), 1);
    }

    #[test]
    fn names_outlive_their_groups_by_little() {
        let mut groups = Groups::default();
        for n in 0..10_000 {
            groups.named(&n.to_string());
        }
        assert!(groups.by_name.len() <= 64);
        let kept = groups.named("kept");
        assert!(Arc::ptr_eq(&kept, &groups.named("kept")));
        kept.condemn(at(0)).unwrap();
        assert!(!Arc::ptr_eq(&kept, &groups.named("kept")));
    }
}
