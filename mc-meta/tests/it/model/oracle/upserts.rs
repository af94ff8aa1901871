//! Upserts.

use mc_meta::{PutGrant, PutHandle, PutStart, PutStartError, Removal, SoftPin};
use mc_types::ClientId;

use super::Oracle;
use super::journal::Event;
use super::puts::pin_of;

impl Oracle {
    pub(crate) fn upsert_start(
        &mut self,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Option<PutHandle> {
        let key = put.key.as_str();
        // A replacement that was lost with its segment is preempted all the same.
        if self.objects.get(key).is_some_and(|object| object.complete) && self.joins(put) {
            let lost = self.lost.iter().filter(|((lost, _), _)| lost == key);
            self.totals.puts_discarded += lost.filter(|(_, lost)| lost.replaces).count() as u64;
        }
        let result = self.master.upsert_start(self.now, client, put);
        let mut events = self.take_events();
        let (gone, old) = self.old_value(put);
        assert_eq!(events[..gone.len()], gone);
        events.drain(..gone.len());
        let old = match old {
            Ok(old) => old,
            Err(error) => {
                assert_eq!(result.unwrap_err(), error);
                assert_eq!(events, []);
                return None;
            }
        };
        self.expect_losses_told(key);
        let began = result.is_ok().then(|| events.pop().expect("told of the put"));
        let can_be_rewritten = old && self.can_be_rewritten(put);
        let rewritten = result.as_ref().is_ok_and(|grant| self.is_rewritten(key, grant));
        if rewritten {
            assert!(can_be_rewritten, "no lease may be running there");
            let generation = self.objects[key].generation;
            let key = key.to_owned();
            let replaced = Event::Removed { key, generation, cause: Removal::Replaced };
            assert_eq!(events.pop(), Some(replaced));
            let len = put.slice_lengths.iter().sum();
            let room = self.allowed(put).iter().any(|segment| self.has_room(segment, len));
            assert!(!room, "the old value stays readable when there is room");
        }
        if can_be_rewritten {
            assert_eq!(events, [], "room is made when it cannot be had for nothing");
        }
        self.note_held();
        self.make_room(&events, put);
        self.note_held();
        match result {
            Ok(grant) => {
                self.begin_upsert(client, put, &grant, rewritten, began.as_ref());
                Some(grant.handle)
            }
            Err(error) => {
                self.totals.put_start_no_room += 1;
                self.check_refusal(put, &error);
                None
            }
        }
    }

    fn begin_upsert(
        &mut self,
        client: ClientId,
        put: &PutStart<'_>,
        grant: &PutGrant,
        rewritten: bool,
        began: Option<&Event>,
    ) {
        let key = put.key.as_str();
        let mut object = self.object_begun(client, put, grant);
        // Whose group it is in must outlive it.
        let old = self.objects.get(key).cloned();
        if let Some(old) = &old {
            let kept = if self.is_soft_pinned(old) { old.soft_pin } else { SoftPin::NONE };
            object.soft_pin = pin_of(put.config.soft_pin, kept);
            object.hard_pin |= old.hard_pin;
            object.group = object.group.or(old.group);
        }
        let seen = self.seen_as(key, &object);
        assert_eq!(began, Some(&Event::Began(seen)));
        if rewritten {
            assert!(self.generations.insert(grant.handle.generation), "generations never repeat");
            let replacement = self.replacements.insert(key.to_owned(), object);
            assert!(replacement.is_none());
            self.forget(key);
            return;
        }
        self.check_grant(put, grant);
        self.enter(key, object);
    }

    /// Whether there is an old value for an upsert, and the events that precede the upsert.
    fn old_value(&mut self, put: &PutStart<'_>) -> (Vec<Event>, Result<bool, PutStartError>) {
        let key = put.key.as_str();
        let mut gone = Vec::new();
        if let Some(object) = self.objects.get(key) {
            if !object.complete {
                gone.push(self.preempt(key, object.generation));
                return (gone, Ok(false));
            }
            if !self.joins(put) {
                return (gone, Err(PutStartError::OtherGroup));
            }
            if let Some(open) = self.replacements.get(key) {
                gone.push(self.preempt(key, open.generation));
            }
            return (gone, Ok(true));
        }
        (gone, Ok(false))
    }

    /// Whether the value that is there is in the group that the upsert names, if any.
    fn joins(&self, put: &PutStart<'_>) -> bool {
        let object = &self.objects[put.key.as_str()];
        let group = object.group.map(|group| self.groups[&group].name.as_str());
        put.config.group.is_none() || put.config.group.as_deref() == group
    }

    fn is_rewritten(&self, key: &str, grant: &PutGrant) -> bool {
        let space = self.extents(grant);
        self.objects.get(key).is_some_and(|old| old.replicas == space)
    }

    fn can_be_rewritten(&self, put: &PutStart<'_>) -> bool {
        let old = &self.objects[put.key.as_str()];
        let allowed = self.allowed(put);
        let may_be = |mounting| allowed.iter().any(|segment| segment.mounting == mounting);
        old.len() == put.slice_lengths.iter().sum::<u64>()
            && old.replicas.len() <= put.config.replica_num as usize
            && !self.is_leased(old)
            && old.transfer.is_none()
            && old.replicas.iter().all(|(mounting, _)| may_be(*mounting))
    }
}
