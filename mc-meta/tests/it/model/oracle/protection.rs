//! The protection of objects from eviction, and their places in the eviction queue.

use core::time::Duration;

use mc_lease::{LONGEST_READ, SoftPinFrom};
use mc_types::Time;

use super::{Object, Oracle};

impl Oracle {
    pub(super) fn lease_of(&self, object: &Object) -> Duration {
        let end = object.touched + self.config.lease_ttl;
        if object.leased { end - self.now } else { Duration::ZERO }
    }

    pub(super) fn is_leased(&self, object: &Object) -> bool {
        !self.lease_of(object).is_zero()
    }

    /// Until when readers may use its memory, if they may.
    pub(super) fn read_until(&self, object: &Object) -> Option<Time> {
        let time = self.config.lease_ttl.min(LONGEST_READ);
        object.read.map(|read| read + time).filter(|until| *until > self.now)
    }

    pub(super) fn is_soft_pinned(&self, object: &Object) -> bool {
        self.pin_ttl(object).is_some_and(|ttl| self.now < self.pinned_from(object) + ttl)
    }

    /// The duration of its soft pin, if it was put with one.
    fn pin_ttl(&self, object: &Object) -> Option<Duration> {
        let pin = object.soft_pin;
        pin.is_wanted().then(|| pin.own_duration().unwrap_or(self.config.soft_pin_ttl))
    }

    /// The time from which its soft pin counts. The master remembers the commit for 2^32 ms.
    fn pinned_from(&self, object: &Object) -> Time {
        match self.config.soft_pin_from {
            SoftPinFrom::LastAccess => object.touched,
            SoftPinFrom::Commit => {
                let since = (object.touched - object.begun).as_millis() as u64;
                let since = since.min(u64::from(u32::MAX));
                Time::from_millis(object.touched.as_millis() - since)
            }
        }
    }

    /// Until when it may be aside, if it may be: the master looks again when a lease
    /// ends, and for other reasons after as long as a lease.
    fn aside_until(&self, object: &Object) -> Option<Time> {
        let lease = self.config.lease_ttl;
        let leased = object.leased.then_some(object.touched + lease);
        let held = object.held.map(|held| held + lease);
        leased.max(held)
    }

    /// Whether the master may have it set aside.
    pub(super) fn may_be_aside(&self, object: &Object) -> bool {
        object.complete
            && !object.hard_pin
            && self.aside_until(object).is_some()
            && object.settled.is_none()
    }

    /// The latest that it may rank as used at.
    fn latest_rank(&self, object: &Object) -> Time {
        match self.aside_until(object) {
            None => object.touched,
            Some(_) => object.settled.unwrap_or(self.now).max(object.touched),
        }
    }

    /// The latest that it may rank at among uses.
    pub(super) fn last_rank(&self, object: &Object) -> (Time, u64) {
        let latest = self.latest_rank(object).max(object.wanted.unwrap_or(Time::ORIGIN));
        let is_use = latest == object.touched && object.wanted.is_none();
        (latest, if is_use { object.turn } else { u64::MAX })
    }

    /// Whether it may still be behind soft-pinned objects in the order of eviction.
    pub(super) fn ranks_soft_pinned(&self, object: &Object) -> bool {
        let latest = self.latest_rank(object).max(self.pinned_from(object));
        self.pin_ttl(object).is_some_and(|ttl| self.now < latest + ttl)
    }

    /// Whether anything but its own lease and its soft pin prevents its eviction.
    pub(super) fn is_held(&self, object: &Object) -> bool {
        let makes_room =
            object.replicas.iter().any(|(mounting, _)| self.status(*mounting).is_allocatable());
        let held_with_others = object.group.is_some_and(|group| self.group_is_held(group));
        !makes_room || object.transfer.is_some() || held_with_others
    }

    fn group_is_held(&self, group: u64) -> bool {
        let mut members = self.members(group);
        let mut lost = self.lost.values().filter(|lost| lost.group == Some(group));
        self.now < self.groups[&group].leased
            || members.any(|it| !it.complete || it.hard_pin || it.transfer.is_some())
            || lost.any(|lost| !lost.complete || lost.hard_pin || lost.transfer.is_some())
    }

    pub(super) fn members(&self, group: u64) -> impl Iterator<Item = &Object> {
        let all = self.all().map(|(_, object)| object);
        all.filter(move |object| object.group == Some(group))
    }

    /// Notes what is protected while the master may look for victims.
    pub(super) fn note_held(&mut self) {
        let keys = self.objects.iter().filter(|(_, object)| self.is_held(object));
        let keys: Vec<String> = keys.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let object = self.objects.get_mut(&key).unwrap();
            object.held = object.held.max(Some(self.now));
            object.settled = None;
        }
    }

    /// Notes what is back in the order of eviction after a tick.
    pub(super) fn settle(&mut self) {
        let settled = self.objects.iter().filter(|(_, object)| {
            object.settled.is_none()
                && self.aside_until(object).is_some_and(|until| until <= self.now)
        });
        let settled: Vec<String> = settled.map(|(key, _)| key.clone()).collect();
        for key in settled {
            self.objects.get_mut(&key).unwrap().settled = Some(self.now);
        }
    }

    /// Whether nothing is in the way of its eviction, but perhaps a soft pin.
    fn is_evictable(&self, object: &Object) -> bool {
        object.complete
            && !object.hard_pin
            && !self.is_held(object)
            && self.aside_until(object).is_none_or(|until| until <= self.now)
    }

    /// Whether it would go while there is no room.
    pub(super) fn would_go(&self, object: &Object) -> bool {
        self.is_evictable(object)
            && (self.config.allow_evict_soft_pinned_objects || !self.ranks_soft_pinned(object))
    }

    /// Whether it goes before every soft-pinned object.
    pub(super) fn is_ordinary_victim(&self, object: &Object) -> bool {
        self.is_evictable(object) && !self.ranks_soft_pinned(object)
    }
}
