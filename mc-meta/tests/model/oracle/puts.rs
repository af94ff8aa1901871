//! Puts, the space they are granted and the reasons they are refused.

use std::collections::BTreeSet;

use mc_meta::{PutEnd, PutFinishError, PutGrant, PutStart, PutStartError, Removal, Slice};
use mc_types::{ClientId, Extent, Generation, KeyRef, Time};

use super::journal::{Event, Seen};
use super::{Group, Mounting, Object, Oracle, Segment};

impl Oracle {
    pub(crate) fn put_start(&mut self, client: ClientId, put: &PutStart<'_>) -> Option<Generation> {
        let result = self.master.put_start(self.now, client, put);
        let key = put.key.as_str();
        let mut events = self.take_events();
        self.expect_losses_told(key);
        let in_the_way = match self.standing(key) {
            Standing::Nothing => None,
            Standing::Stays(error) => {
                assert_eq!(result.unwrap_err(), error);
                assert_eq!(events, []);
                return None;
            }
            Standing::Goes(event) => Some(event),
        };
        if let Some(event) = in_the_way {
            assert_eq!(events.remove(0), event);
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
                self.begin(client, put, &grant, began.as_ref());
                Some(grant.generation)
            }
            Err(error) => {
                self.totals.put_start_no_room += 1;
                self.check_refusal(put, &error);
                None
            }
        }
    }

    /// What a put of this key meets. What goes is gone, whether or not there is room
    /// for its successor.
    fn standing(&mut self, key: &str) -> Standing {
        let Some(object) = self.objects.get(key) else { return Standing::Nothing };
        if self.is_readable(object) {
            return Standing::Stays(PutStartError::AlreadyExists);
        }
        let age = self.now - object.begun;
        if !object.complete && age < self.config.put_start_discard_timeout {
            return Standing::Stays(PutStartError::InProgress { age });
        }
        let (key, generation) = (key.to_owned(), object.generation);
        let object = self.forget(&key);
        if object.complete {
            return Standing::Goes(Event::Removed { key, generation, cause: Removal::SegmentLost });
        }
        let release_at = object.begun + self.config.put_start_release_timeout;
        self.keep_until(release_at, object.replicas);
        self.totals.puts_discarded += 1;
        Standing::Goes(Event::Abandoned { key, generation })
    }

    /// Old puts are given up, then objects are evicted, until there is room.
    fn make_room(&mut self, events: &[Event], put: &PutStart<'_>) {
        let len: u64 = put.slice_lengths.iter().sum();
        let is_victim = |event: &Event| matches!(event, Event::Removed { .. });
        let first = events.iter().position(is_victim).unwrap_or(events.len());
        let (reclaimed, evicted) = events.split_at(first);
        let in_vain = self.allowed(put).is_empty() && !evicted.is_empty();
        assert!(!in_vain, "evicted in vain");
        self.follow_reclaimed(reclaimed);
        // A round that took space back counts as one that evicted.
        let factor = if reclaimed.is_empty() { 1 } else { 2 };
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
                enough = Some(freed + (freed + len) * factor);
            }
            let groups = oracle.groups.is_empty();
            assert!(!groups || enough.is_none_or(|enough| freed <= enough), "evicted too much");
        });
    }

    fn begin(
        &mut self,
        client: ClientId,
        put: &PutStart<'_>,
        grant: &PutGrant,
        began: Option<&Event>,
    ) {
        let slice = |len: &u64| Slice { len: *len, checksum: None };
        let slices: Vec<Slice> = put.slice_lengths.iter().map(slice).collect();
        let key = put.key.as_str().to_owned();
        let placed = grant.placements.iter().map(|at| (at.segment.spec().id, at.extent));
        let seen = Seen {
            key: key.clone(),
            generation: grant.generation,
            owner: client,
            slices: slices.clone(),
            replicas: placed.collect(),
        };
        assert_eq!(began, Some(&Event::Began(seen)));
        let group = put.config.group.as_deref().map(|name| self.group_named(name));
        let object = Object {
            complete: false,
            owner: client,
            generation: grant.generation,
            slices,
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
            settled: None,
        };
        self.objects.insert(key, object);
        self.totals.put_starts += 1;
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

    fn extents(&self, grant: &PutGrant) -> Vec<(Mounting, Extent)> {
        let mounting = |id| self.segments[id].mounting;
        let placements = grant.placements.iter();
        placements.map(|at| (mounting(&at.segment.spec().id), at.extent)).collect()
    }

    /// The segments that a put may go to.
    fn allowed(&self, put: &PutStart<'_>) -> Vec<&Segment> {
        let open = self.segments.values().filter(|segment| segment.status.is_allocatable());
        let excluded = &put.config.excluded_segments;
        open.filter(|segment| !excluded.contains(&segment.spec.name)).collect()
    }

    fn check_grant(&mut self, put: &PutStart<'_>, grant: &PutGrant) {
        let len: u64 = put.slice_lengths.iter().sum();
        assert!(self.generations.insert(grant.generation), "generations never repeat");
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
    fn check_refusal(&self, put: &PutStart<'_>, error: &PutStartError) {
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
        match must {
            true => assert_eq!(*error, leased),
            false => assert!(*error == otherwise || (may && *error == leased), "{error:?}"),
        }
    }

    pub(crate) fn put_end(&mut self, client: ClientId, put: &PutEnd<'_>) {
        let result = self.master.put_end(self.now, client, put);
        let key = put.key.as_str();
        let expected = match self.objects.get(key) {
            None => Err(PutFinishError::NotFound),
            Some(object) if object.owner != client => Err(PutFinishError::IllegalClient),
            Some(object) if put.generation.is_some_and(|g| g != object.generation) => {
                Err(PutFinishError::NotOpen)
            }
            Some(object) if object.complete => {
                put.generation.map(|_| ()).ok_or(PutFinishError::NotOpen)
            }
            Some(object)
                if !put.checksums.is_empty() && put.checksums.len() != object.slices.len() =>
            {
                let (given, slices) = (put.checksums.len(), object.slices.len());
                Err(PutFinishError::ChecksumCount { given, slices })
            }
            Some(_) => {
                assert_eq!(result, Ok(()));
                let stored = self.complete(put);
                assert_eq!(self.take_events(), [Event::Stored(stored)]);
                return;
            }
        };
        assert_eq!(result, expected);
        self.expect_no_events_about(key);
    }

    fn complete(&mut self, put: &PutEnd<'_>) -> Seen {
        self.turns += 1;
        let (turn, now, key) = (self.turns, self.now, put.key.as_str());
        let object = self.objects.get_mut(key).unwrap();
        object.complete = true;
        object.turn = turn;
        (object.begun, object.touched) = (now, now);
        (object.held, object.settled) = (None, None);
        for (slice, checksum) in object.slices.iter_mut().zip(put.checksums) {
            slice.checksum = Some(*checksum);
        }
        self.totals.put_ends += 1;
        self.seen(key)
    }

    pub(crate) fn put_revoke(
        &mut self,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Option<Generation>,
    ) {
        let result = self.master.put_revoke(self.now, client, key, generation);
        let expected = match self.objects.get(key.as_str()) {
            None => Err(PutFinishError::NotFound),
            Some(object) if object.owner != client => Err(PutFinishError::IllegalClient),
            Some(object) if generation.is_some_and(|g| g != object.generation) => {
                Err(PutFinishError::NotOpen)
            }
            Some(object) if object.complete => Err(PutFinishError::NotOpen),
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_err() {
            self.expect_no_events_about(key.as_str());
            return;
        }
        let generation = self.forget(key.as_str()).generation;
        self.totals.put_revokes += 1;
        let key = key.as_str().to_owned();
        assert_eq!(self.take_events(), [Event::Abandoned { key, generation }]);
    }
}

/// What stands where a put wants to begin.
enum Standing {
    Nothing,
    Stays(PutStartError),
    Goes(Event),
}
