//! Following what the master chose to do: victims, and when due space came back.

use std::collections::BTreeSet;

use mc_meta::{ListCursor, Removal, ReplicaStatus};
use mc_types::KeyRef;

use super::{Event, Object, Oracle};

impl Oracle {
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        let events = std::mem::take(&mut *self.events.0.lock().unwrap());
        let is_other = |event: &Event| {
            let Event::Removed { key, generation, cause: Removal::SegmentLost } = event else {
                return true;
            };
            assert!(self.lost.remove(&(key.clone(), *generation)), "lost once: {event:?}");
            false
        };
        events.into_iter().filter(is_other).collect()
    }

    pub(super) fn expect_nothing_but_losses(&mut self) {
        assert_eq!(self.take_events(), []);
    }

    /// Checks that each victim was allowed, in order; says how many there were.
    pub(super) fn follow_evictions(&mut self) -> usize {
        let events = self.take_events();
        for event in &events {
            let Event::Removed { key, generation, cause: Removal::Evicted } = event else {
                panic!("{event:?} while making room");
            };
            let victim = self.objects.get(key).expect("victims are live").clone();
            assert_eq!(victim.generation, *generation);
            assert!(victim.complete, "unfinished objects are never evicted");
            assert!(!self.is_leased(&victim), "leased objects are never evicted");
            if self.is_soft_pinned(&victim) {
                assert!(self.config.allow_evict_soft_pinned_objects);
                for (other, object) in &self.objects {
                    let ordinary = object.complete && !self.ranks_soft_pinned(object);
                    assert!(
                        !ordinary || self.is_leased(object),
                        "{key} is soft-pinned and went before {other}"
                    );
                }
            }
            let object = self.forget(key);
            self.totals.evicted_objects += 1;
            self.totals.evicted_bytes += object.len() * object.replicas.len() as u64;
        }
        events.len()
    }

    pub(super) fn is_due(&self, object: &Object) -> bool {
        !object.complete && self.now - object.begun >= self.config.put_start_release_timeout
    }

    pub(super) fn any_due(&self) -> bool {
        self.objects.values().any(|object| self.is_due(object))
            || self.discarded.iter().any(|discarded| discarded.release_at <= self.now)
    }

    /// Whether the space of old unfinished puts has come back, as far as due.
    pub(super) fn follow_reclaim(&mut self) -> bool {
        if !self.any_due() {
            return true;
        }
        let gone = |key: &String| {
            let described = self.master.describe(self.now, KeyRef::new(key).unwrap());
            described.is_err()
        };
        let zombies: Vec<&String> =
            self.objects.iter().filter(|(_, o)| self.is_due(o)).map(|(key, _)| key).collect();
        // All or none: tell by what is due of either kind.
        let reclaimed = match zombies.first() {
            Some(key) => gone(key),
            None => {
                let released: u64 = self
                    .discarded
                    .iter()
                    .filter(|discarded| discarded.release_at <= self.now)
                    .flat_map(|discarded| &discarded.replicas)
                    .map(|(_, extent)| extent.len())
                    .sum();
                self.master_used_before_grant() + released <= self.used()
            }
        };
        if reclaimed {
            self.reclaim();
        }
        reclaimed
    }

    /// Bytes used, by the master's count, without puts that the model has not
    /// heard of yet.
    pub(super) fn master_used_before_grant(&self) -> u64 {
        let known: BTreeSet<&str> = self.objects.keys().map(String::as_str).collect();
        let page = self.master.list_keys("", ListCursor::default(), usize::MAX);
        let unknown: u64 = page
            .keys
            .iter()
            .filter(|info| !known.contains(info.key.as_str()))
            .map(|info| {
                let described = self.master.describe(self.now, info.key.as_ref()).unwrap();
                let live = described.replicas.iter();
                let live = live.filter(|r| r.status != ReplicaStatus::Removed).count() as u64;
                live * info.len
            })
            .sum();
        self.master.report().used - unknown
    }

    pub(super) fn reclaim(&mut self) {
        let now = self.now;
        self.discarded.retain(|discarded| discarded.release_at > now);
        let due: Vec<String> = self
            .objects
            .iter()
            .filter(|(_, object)| self.is_due(object))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.forget(&key);
            self.totals.puts_discarded += 1;
        }
    }

    pub(super) fn forget(&mut self, key: &str) -> Object {
        let object = self.objects.remove(key).unwrap();
        self.previous.insert(key.to_owned(), object.generation);
        object
    }
}
