//! Following what the master chose to do: victims, and when due space came back.

use std::collections::BTreeSet;

use mc_evict::PolicyKind;
use mc_meta::Removal;
use mc_types::{Extent, SegmentId};

use super::journal::Event;
use super::{Discarded, Object, Oracle, Transfer};

impl Oracle {
    /// The events since the last command, without those about losses that the model
    /// knows.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let events = self.recorder.take(self.now);
        events.into_iter().filter(|event| !self.is_loss(event) && !self.is_known(event)).collect()
    }

    /// Whether an event is about an object that lost its last segment; each is reported once.
    pub(super) fn is_loss(&mut self, event: &Event) -> bool {
        let (key, generation, complete) = match event {
            Event::Removed { key, generation, cause: Removal::SegmentLost } => {
                (key, generation, true)
            }
            Event::Abandoned { key, generation } => (key, generation, false),
            _ => return false,
        };
        let lost = (key.clone(), *generation);
        if self.lost.contains_key(&lost) {
            // The same command may have offered others of its group before it came to this one.
            self.note_held();
        }
        let Some(lost) = self.lost.remove(&lost) else { return false };
        assert_eq!(lost.complete, complete, "{event:?}");
        if let Some(transfer) = lost.transfer {
            let writer = (transfer.client, transfer.id);
            self.keep_until(transfer.due, transfer.targets, Some(writer));
        }
        self.drop_empty_groups();
        true
    }

    /// Whether an event is about replicas that went with their segment, as the model
    /// knows.
    pub(super) fn is_known(&mut self, event: &Event) -> bool {
        let Event::Altered(seen) = event else { return false };
        let name = (seen.key.clone(), seen.generation);
        if let Some(lost) = self.lost.get_mut(&name) {
            // A transfer of what is lost may have had its time.
            assert!(seen.replicas.is_empty());
            let due = |transfer: &mut Transfer| seen.transfer.is_none().then_some(transfer.due);
            if let Some(due) = lost.transfer.as_mut().and_then(due) {
                assert!(due <= self.now, "given up too early");
                lost.transfer = None;
            }
            return true;
        }
        self.objects.get(&seen.key).is_some_and(|object| object.generation == seen.generation)
            && self.seen(&seen.key) == *seen
    }

    /// A command looked at a key and changed nothing: at most it noticed a loss.
    pub(super) fn expect_no_events_about(&mut self, key: &str) {
        assert_eq!(self.take_events(), []);
        self.expect_losses_told(key);
    }

    pub(super) fn expect_losses_told(&self, key: &str) {
        // But not of what is being written to take the place of something.
        let mut lost = self.lost.iter().filter(|((lost, _), _)| lost == key);
        assert!(lost.all(|(_, lost)| lost.replaces), "a look-up shows the loss");
    }

    /// Space came back because it was time: that of puts of the past, and of puts that
    /// are unfinished and old.
    pub(super) fn follow_reclaimed(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Freed(space) => self.follow_freed(space),
                Event::Abandoned { key, generation } => {
                    let object = self.put_of(key, *generation);
                    let object = object.expect("what is given up was there");
                    assert!(self.is_due(object), "{key} was given up too early");
                    self.forget_put(key, *generation);
                    self.totals.puts_discarded += 1;
                }
                Event::Altered(seen) => {
                    let object = self.objects.get_mut(&seen.key).expect("it is there");
                    if let Some(transfer) = object.transfer.take() {
                        assert!(transfer.due <= self.now, "{transfer:?} was given up too early");
                    }
                    assert_eq!(self.seen(&seen.key), *seen);
                }
                _ => panic!("{event:?} while space comes back"),
            }
        }
    }

    fn follow_freed(&mut self, space: &[(SegmentId, Extent)]) {
        let mounting = |(id, extent): &(SegmentId, Extent)| (self.segments[id].mounting, *extent);
        let space: Vec<_> = space.iter().map(mounting).collect();
        let known = |discarded: &Discarded| discarded.replicas == space;
        let at = self.discarded.iter().position(known).expect("what is freed was kept");
        let discarded = self.discarded.swap_remove(at);
        assert!(discarded.release_at <= self.now, "{discarded:?} was freed too early");
    }

    /// Objects were evicted; `wanted` sees the model before each victim that was
    /// chosen for itself, with the members of its group.
    pub(super) fn follow_evicted(
        &mut self,
        events: &[Event],
        wanted: &mut dyn FnMut(&Self, &str, &[&Object]),
    ) {
        let mut condemned = BTreeSet::new();
        for event in events {
            let Event::Removed { key, generation, cause: Removal::Evicted } = event else {
                panic!("{event:?} while room is made");
            };
            let victim = self.objects.get(key).expect("victims are live").clone();
            assert_eq!(victim.generation, *generation);
            let chosen = victim.group.is_none_or(|group| condemned.insert(group));
            if chosen {
                let all = self.going_with(key);
                self.check_victim(&all);
                wanted(self, key, &all);
            }
            let freed = self.bytes_allocatable(&victim);
            self.forget(key);
            self.totals.evicted_objects += 1;
            self.totals.evicted_bytes += freed;
        }
        let left = self
            .all()
            .map(|(_, object)| object)
            .filter(|object| object.group.is_some_and(|group| condemned.contains(&group)));
        assert_eq!(left.count(), 0, "a group goes as a whole");
    }

    /// An object and the members of its group.
    fn going_with(&self, key: &str) -> Vec<&Object> {
        let object = &self.objects[key];
        match object.group {
            None => vec![object],
            Some(group) => self.members(group).collect(),
        }
    }

    /// Checks that these could be evicted.
    fn check_victim(&self, all: &[&Object]) {
        assert!(all.iter().all(|object| object.transfer.is_none()), "what is being copied stays");
        for member in all {
            assert!(member.complete, "unfinished objects are never evicted");
            assert!(!member.hard_pin, "hard-pinned objects are never evicted");
            assert!(self.now >= member.promised, "what was promised to readers is kept");
        }
        assert!(all.iter().any(|object| self.bytes_allocatable(object) > 0), "it makes room");
        if self.is_on_time() && all.iter().all(|object| self.is_soft_pinned(object)) {
            assert!(self.config.allow_evict_soft_pinned_objects, "soft-pinned objects stay");
        }
    }

    fn others<'a>(&'a self, all: &'a [&Object]) -> impl Iterator<Item = &'a Object> {
        self.objects
            .values()
            .filter(|object| !all.iter().any(|member| member.generation == object.generation))
    }

    /// Checks that no ordinary object is left when soft-pinned ones are evicted.
    pub(super) fn check_pins(&self, key: &str, all: &[&Object]) {
        // A pin that has lapsed is in force again when the clock has gone back.
        if self.is_on_time() && all.iter().all(|object| self.is_soft_pinned(object)) {
            let mut ordinary = self.others(all).filter(|other| self.is_ordinary_victim(other));
            assert!(
                ordinary.next().is_none(),
                "{key} is soft-pinned and went before ordinary objects"
            );
        }
    }

    /// Checks that no other object had to go before, where the order is known.
    pub(super) fn check_order(&self, key: &str, all: &[&Object]) {
        let in_order = self.config.shards == 1
            && self.config.eviction_policy == PolicyKind::Lru
            && self.is_on_time()
            && all.iter().all(|object| !object.soft_pin.is_wanted());
        if in_order {
            let used = all.iter().map(|object| (object.touched, object.turn)).min().unwrap();
            let colder = |other: &&Object| {
                !other.soft_pin.is_wanted()
                    && self.is_ordinary_victim(other)
                    && self.last_rank(other) < used
            };
            assert_eq!(
                self.others(all).filter(colder).count(),
                0,
                "{key} was used last before others"
            );
        }
    }

    /// Whether an unfinished put is discarded for its age.
    pub(super) fn is_due(&self, object: &Object) -> bool {
        !object.complete && object.begun + self.config.put_start_release_timeout <= self.now
    }

    pub(super) fn any_due(&self) -> bool {
        let transfers = self.objects.values().filter_map(|object| object.transfer.as_ref());
        let lost = self.lost.values().filter_map(|lost| lost.transfer.as_ref());
        self.all().any(|(_, object)| self.is_due(object))
            || transfers.chain(lost).any(|transfer| transfer.due <= self.now)
            || self.discarded.iter().any(|discarded| discarded.release_at <= self.now)
    }

    /// Whether all space that is due is back, as far as it must be.
    pub(super) fn is_reclaimed(&self) -> bool {
        !self.is_on_time() || !self.any_due()
    }
}
