//! Puts, the space they are granted and the reasons they are refused.

use std::collections::BTreeSet;

use mc_meta::{PutGrant, PutHandle, PutStart, PutStartError, Removal, Slice};
use mc_types::{ClientId, Extent, Time};

use super::journal::Event;
use super::{Group, Mounting, Object, Oracle, Segment, is_genuine};

impl Oracle {
    pub(crate) fn put_start(&mut self, client: ClientId, put: &PutStart<'_>) -> Option<PutHandle> {
        let result = self.master.put_start(self.now, client, put);
        let key = put.key.as_str();
        let mut events = self.take_events();
        self.expect_losses_told(key);
        let (gone, stays) = self.clear_way(key);
        assert_eq!(events[..gone.len()], gone);
        events.drain(..gone.len());
        if let Some(error) = stays {
            assert_eq!(result.unwrap_err(), error);
            assert_eq!(events, []);
            return None;
        }
        let began = result.is_ok().then(|| events.pop().expect("told of the put"));
        self.note_held();
        self.make_room(&events, put);
        let no_victims = events.iter().all(|event| !matches!(event, Event::Removed { .. }));
        assert!(no_victims || self.is_reclaimed(), "space that is due goes before objects");
        self.note_held();
        match result {
            Ok(grant) => {
                self.check_grant(put, &grant);
                let object = self.object_begun(client, put, &grant);
                let seen = self.seen_as(key, &object);
                assert_eq!(began, Some(Event::Began(seen)));
                self.objects.insert(key.to_owned(), object);
                Some(grant.handle)
            }
            Err(error) => {
                self.totals.put_start_no_room += 1;
                self.check_refusal(put, &error);
                None
            }
        }
    }

    /// Makes way for a put. What goes is gone, whether or not there is room for its
    /// successor; or something stays, and why.
    fn clear_way(&mut self, key: &str) -> (Vec<Event>, Option<PutStartError>) {
        let mut gone = Vec::new();
        while let Some(object) = self.objects.get(key) {
            if self.is_readable(object) {
                return (gone, Some(PutStartError::AlreadyExists));
            }
            let age = self.now - object.begun;
            if !object.complete && age < self.config.put_start_discard_timeout {
                return (gone, Some(PutStartError::InProgress { age }));
            }
            gone.push(self.push_aside(key));
        }
        (gone, None)
    }

    /// What nobody can read goes: a put that is preempted, or an object whose holders
    /// are away.
    pub(super) fn push_aside(&mut self, key: &str) -> Event {
        let generation = self.objects[key].generation;
        let object = self.forget(key);
        let key = key.to_owned();
        if object.complete {
            // Whoever reads it may go on, should its holders come back.
            if self.is_leased(&object) {
                self.keep_until(object.touched + self.config.lease_ttl, object.replicas, None);
            }
            return Event::Removed { key, generation, cause: Removal::SegmentLost };
        }
        self.preempted(object);
        Event::Abandoned { key, generation }
    }

    /// Its writer may still be writing.
    pub(super) fn preempted(&mut self, put: Object) {
        let until = put.begun + self.config.put_start_release_timeout;
        self.keep_until(until, put.replicas, Some((put.owner, put.generation)));
        self.totals.puts_discarded += 1;
    }

    /// Old puts are given up, then objects are evicted, until there is room.
    pub(super) fn make_room(&mut self, events: &[Event], put: &PutStart<'_>) {
        let len: u64 = put.slice_lengths.iter().sum();
        let is_victim = |event: &Event| matches!(event, Event::Removed { .. });
        let first = events.iter().position(is_victim).unwrap_or(events.len());
        let (reclaimed, evicted) = events.split_at(first);
        let in_vain = self.allowed(put).is_empty() && !evicted.is_empty();
        assert!(!in_vain, "evicted in vain");
        self.follow_reclaimed(reclaimed);
        // Each round evicts for at least twice what the one before did, and the first
        // one for as much as the put needs. So when there is room, no more is evicted
        // than was by then, and once that.
        let before = self.totals.evicted_bytes;
        let mut enough = None;
        let mut chosen = 0;
        self.follow_evicted(evicted, &mut |oracle| {
            let freed = oracle.totals.evicted_bytes - before;
            chosen += 1;
            let room = oracle.allowed(put).iter().any(|at| oracle.has_room(at, len));
            if room && enough.is_none() {
                assert!(chosen > 1, "evicted although there was room");
                enough = Some(freed + freed + len);
            }
            let groups = oracle.groups.is_empty();
            assert!(!groups || enough.is_none_or(|enough| freed <= enough), "evicted too much");
        });
    }

    /// The object that a put begins, which is nowhere yet.
    pub(super) fn object_begun(
        &mut self,
        client: ClientId,
        put: &PutStart<'_>,
        grant: &PutGrant,
    ) -> Object {
        let slice = |len: &u64| Slice { len: *len, checksum: None };
        let group = put.config.group.as_deref().map(|name| self.group_named(name));
        self.totals.put_starts += 1;
        Object {
            complete: false,
            owner: client,
            generation: grant.handle.generation,
            slices: put.slice_lengths.iter().map(slice).collect(),
            replicas: self.extents(grant),
            begun: self.now,
            touched: self.now,
            turn: 0,
            leased: false,
            promised: Time::ORIGIN,
            soft_pin: put.config.with_soft_pin,
            hard_pin: put.config.with_hard_pin,
            group,
            held: None,
            transfer: None,
            settled: None,
        }
    }

    fn group_named(&mut self, name: &str) -> u64 {
        let known = self.groups.iter().find(|(_, group)| group.name == name);
        if let Some((number, _)) = known {
            return *number;
        }
        let number = self.number();
        self.groups.insert(number, Group { name: name.to_owned(), leased: Time::ORIGIN });
        number
    }

    pub(super) fn extents(&self, grant: &PutGrant) -> Vec<(Mounting, Extent)> {
        let mounting = |id| self.segments[id].mounting;
        let placements = grant.placements.iter();
        placements.map(|at| (mounting(&at.segment.spec().id), at.extent)).collect()
    }

    /// The segments that a put may go to.
    pub(super) fn allowed(&self, put: &PutStart<'_>) -> Vec<&Segment> {
        let open = self.segments.values().filter(|segment| segment.status.is_allocatable());
        let excluded = &put.config.excluded_segments;
        open.filter(|segment| !excluded.contains(&segment.spec.name)).collect()
    }

    pub(super) fn check_grant(&mut self, put: &PutStart<'_>, grant: &PutGrant) {
        let len: u64 = put.slice_lengths.iter().sum();
        assert!(self.generations.insert(grant.handle.generation), "generations never repeat");
        assert!(is_genuine(grant.handle.generation, grant.handle.token));
        assert_eq!(grant.time_left, self.config.put_start_release_timeout);
        let wanted = put.config.replica_num as usize;
        assert!((1..=wanted).contains(&grant.placements.len()));
        let extents = self.extents(grant);
        let distinct: BTreeSet<Mounting> = extents.iter().map(|(mounting, _)| *mounting).collect();
        assert_eq!(distinct.len(), extents.len(), "replicas on distinct segments");
        let allowed = self.allowed(put);
        for (mounting, extent) in &extents {
            let segment = allowed.iter().find(|segment| segment.mounting == *mounting);
            assert_eq!(extent.len(), len);
            assert!(extent.end() <= segment.expect("placed where it may be").spec.size);
            for taken in self.taken(*mounting) {
                assert!(!taken.overlaps(*extent), "{taken} overlaps {extent}");
            }
        }
        if extents.len() < wanted {
            let others = allowed.iter().filter(|s| !distinct.contains(&s.mounting));
            let room = others.filter(|segment| self.has_room(segment, len)).count();
            assert_eq!(room, 0, "as many replicas as there are segments with room");
        }
        // Hosts are shared only when every other host is full.
        let host = |segment: &Segment| {
            let address = segment.spec.endpoint.address();
            address.rsplit_once(':').unwrap().0.to_owned()
        };
        let used = allowed.iter().filter(|segment| distinct.contains(&segment.mounting));
        let hosts: BTreeSet<String> = used.map(|segment| host(segment)).collect();
        if hosts.len() < extents.len() {
            let mut others = allowed.iter().filter(|segment| !hosts.contains(&host(segment)));
            assert!(!others.any(|segment| self.has_room(segment, len)), "replicas on one host");
        }
        for name in &put.config.preferred_segments {
            let Some(segment) = allowed.iter().find(|s| s.spec.name == *name) else { continue };
            assert!(
                distinct.contains(&segment.mounting) || !self.has_room(segment, len),
                "a preferred segment with room is used"
            );
        }
    }

    /// The error names the true cause, and there was really nothing to be done.
    pub(super) fn check_refusal(&self, put: &PutStart<'_>, error: &PutStartError) {
        let len: u64 = put.slice_lengths.iter().sum();
        let allowed = self.allowed(put);
        let mounted = self.segments.values().filter(|s| s.status.is_allocatable()).count();
        let Some(largest_object) = allowed.iter().map(|segment| segment.spec.size).max() else {
            assert_eq!(*error, PutStartError::TooFewSegments { mounted });
            return;
        };
        if len > largest_object {
            assert_eq!(*error, PutStartError::TooLarge { len, largest_object });
            return;
        }
        assert!(self.is_reclaimed(), "refused while space is due");
        for segment in &allowed {
            assert!(!self.has_room(segment, len), "refused although {segment:?} has room");
        }
        if !self.is_on_time() {
            return;
        }
        for (key, object) in &self.objects {
            assert!(!self.would_go(object), "{key} could have been evicted");
        }
        let free = |segment: &&Segment| segment.spec.size - self.used_in(segment.mounting);
        let free = allowed.iter().map(free).max().unwrap();
        let otherwise = if free >= len {
            PutStartError::Fragmented { len, free }
        } else {
            PutStartError::Full { len }
        };
        let leased = PutStartError::AllLeased { len };
        let reachable = |object: &Object| {
            self.config.allow_evict_soft_pinned_objects || !self.ranks_soft_pinned(object)
        };
        let must = self.objects.values().any(|object| {
            object.complete && !object.hard_pin && self.is_leased(object) && reachable(object)
        });
        // What was set aside and then lost its segment is taken for leased until the
        // next tick has swept it up; what was set aside for another reason is, too.
        let may = !self.lost.is_empty() || self.objects.values().any(|o| self.may_be_aside(o));
        let must = must || self.discarded.iter().any(|kept| kept.writer.is_none());
        let may = may || self.lost_kept;
        match must {
            true => assert_eq!(*error, leased),
            false => assert!(*error == otherwise || (may && *error == leased), "{error:?}"),
        }
    }
}
