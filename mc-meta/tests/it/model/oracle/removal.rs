//! Removal on request.

use std::collections::BTreeSet;

use mc_meta::{DamageReport, Removal, RemoveError, ReplicaPlace, ReportOutcome, Verdict};
use mc_types::{ClientId, Generation, KeyRef};

use super::journal::Event;
use super::{Object, Oracle};

impl Oracle {
    pub(crate) fn remove(&mut self, key: KeyRef<'_>, force: bool) {
        let result = self.master.remove(self.now, key, force);
        let expected = match self.objects.get(key.as_str()) {
            None => Err(RemoveError::NotFound),
            Some(object) if !object.complete => Err(RemoveError::NotReady),
            Some(object) if object.transfer.is_some() => Err(RemoveError::InTransfer),
            Some(object) if self.is_leased(object) && !force => {
                Err(RemoveError::Leased { remaining: self.lease_of(object) })
            }
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_err() {
            self.expect_no_events_about(key.as_str());
            return;
        }
        let events = self.take_events();
        let object = self.forget(key.as_str());
        self.keep_for_readers(&object);
        self.totals.removed_objects += 1;
        let removed = Event::Removed {
            key: key.as_str().to_owned(),
            generation: object.generation,
            cause: Removal::Requested,
        };
        assert_eq!(events, [removed]);
    }

    pub(crate) fn remove_all(&mut self, force: bool) {
        let goes = |object: &Object| {
            object.complete && object.transfer.is_none() && (force || !self.is_leased(object))
        };
        let mut expected: BTreeSet<(String, Generation)> = self
            .objects
            .iter()
            .filter(|(_, object)| goes(object))
            .map(|(key, object)| (key.clone(), object.generation))
            .collect();
        let removed = self.master.remove_all(self.now, force);
        assert_eq!(removed, expected.len() as u64);
        for event in self.take_events() {
            let Event::Removed { key, generation, cause: Removal::Requested } = event else {
                panic!("{event:?} while everything is removed");
            };
            let object = self.forget(&key);
            self.keep_for_readers(&object);
            assert!(expected.remove(&(key, generation)), "removed once");
        }
        assert!(expected.is_empty(), "told of every removal");
        self.totals.removed_objects += removed;
    }

    /// Keeps the space for the time that readers were given, even if the object was removed by force.
    fn keep_for_readers(&mut self, object: &Object) {
        if let Some(until) = self.read_until(object) {
            self.keep_until(until, object.replicas.clone(), None);
        }
    }

    /// A reader says that a replica is damaged, and its owner whether it is.
    pub(crate) fn damaged(&mut self, key: KeyRef<'_>, replica: usize, intact: bool) {
        let Some(object) = self.objects.get(key.as_str()).cloned() else { return };
        // What is being copied goes when that is over; there is a rule about it.
        if object.transfer.is_some() || object.replicas.is_empty() {
            return;
        }
        let (at, extent) = object.replicas[replica % object.replicas.len()];
        let Some(segment) = self.segment(at).cloned() else { return };
        let place = ReplicaPlace::Memory { segment: segment.spec.id, extent };
        self.sources += 1;
        let report = DamageReport { key, generation: object.generation, place };
        let outcome = self.master.report_damage(self.now, self.sources, &report);
        let is_verified = object.slices.iter().any(|slice| slice.checksum.is_some());
        if !object.complete || !segment.status.is_readable() || !is_verified {
            assert_eq!(outcome, ReportOutcome::Stale);
            self.expect_no_events_about(key.as_str());
            return;
        }
        assert_eq!(outcome, ReportOutcome::Noted);
        let checks = self.master.checks_for(self.now, segment.client);
        let [check] = &checks[..] else { panic!("{checks:?}") };
        assert_eq!((check.segment, check.extent), (Some(segment.spec.id), extent));
        assert_eq!(check.slices.as_slice(), object.slices);
        let verdict = if intact { Verdict::Intact } else { Verdict::Damaged };
        self.master.checked(self.now, segment.client, check.id, verdict);
        if intact {
            self.expect_no_events_about(key.as_str());
            return;
        }
        let events = self.take_events();
        let kept: Vec<_> = object.replicas.iter().copied().filter(|r| *r != (at, extent)).collect();
        if kept.is_empty() {
            let object = self.forget(key.as_str());
            self.keep_for_readers(&object);
            let (key, generation) = (key.as_str().to_owned(), object.generation);
            assert_eq!(events, [Event::Removed { key, generation, cause: Removal::Damaged }]);
            return;
        }
        if let Some(until) = self.read_until(&object) {
            self.keep_until(until, vec![(at, extent)], None);
        }
        self.objects.get_mut(key.as_str()).unwrap().replicas = kept;
        assert_eq!(events, [Event::Altered(self.seen(key.as_str()))]);
    }

    pub(crate) fn clear(&mut self, client: ClientId, keys: &[String], segment: Option<&str>) {
        let refs: Vec<KeyRef<'_>> = keys.iter().map(|key| KeyRef::new(key).unwrap()).collect();
        let cleared = self.master.batch_replica_clear(self.now, client, &refs, segment);
        let told = self.take_events();
        let (mut expected, mut events) = (Vec::new(), Vec::new());
        for key in keys {
            if let Some(event) = self.cleared(client, key, segment) {
                expected.push(key.as_str());
                events.push(event);
            }
        }
        assert_eq!(cleared.iter().map(|key| key.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!(told, events);
    }

    fn cleared(&mut self, client: ClientId, key: &str, name: Option<&str>) -> Option<Event> {
        let object = self.objects.get(key)?;
        let may_go = object.complete && object.transfer.is_none() && !self.is_leased(object);
        if object.owner != client || !may_go {
            return None;
        }
        let goes = |at| name.is_none_or(|name| *self.segment(at).unwrap().spec.name == *name);
        let (gone, kept): (Vec<_>, Vec<_>) =
            object.replicas.iter().copied().partition(|(at, _)| goes(*at));
        if gone.is_empty() {
            return None;
        }
        if kept.is_empty() {
            let (key, generation) = (key.to_owned(), self.forget(key).generation);
            self.totals.removed_objects += 1;
            return Some(Event::Removed { key, generation, cause: Removal::Requested });
        }
        self.objects.get_mut(key).unwrap().replicas = kept;
        Some(Event::Altered(self.seen(key)))
    }
}
