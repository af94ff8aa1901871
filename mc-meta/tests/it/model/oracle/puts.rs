//! Puts, the space they are granted and the reasons they are refused.

use core::time::Duration;
use std::collections::BTreeSet;

use mc_meta::{
    PutGrant, PutHandle, PutStart, PutStartError, ReplicateConfig, Slice, SoftPin, SoftPinAction,
};
use mc_types::{ClientId, Extent, Generation, MediaType, Time};

use super::checks::has_room;
use super::journal::Event;
use super::{Group, Mounting, Object, Oracle, Segment, is_genuine};

/// The pin of an object that is put so in place of one with the pin `before` in force.
pub(super) fn pin_of(action: SoftPinAction, before: SoftPin) -> SoftPin {
    match action {
        SoftPinAction::Preserve => before,
        SoftPinAction::Enable { ttl: None } => SoftPin::STANDARD,
        SoftPinAction::Enable { ttl: Some(ttl) } => SoftPin::lasting(ttl),
        SoftPinAction::Disable => SoftPin::NONE,
    }
}

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
                self.enter(key, object);
                Some(grant.handle)
            }
            Err(error) => {
                self.totals.put_start_no_room += 1;
                self.check_refusal(put, &error);
                None
            }
        }
    }

    /// A put has begun. A value of the key stays until it ends.
    pub(super) fn enter(&mut self, key: &str, put: Object) {
        let is_new = !self.objects.contains_key(key);
        let objects = if is_new { &mut self.objects } else { &mut self.replacements };
        assert!(objects.insert(key.to_owned(), put).is_none(), "a key has one open put");
    }

    /// Makes way for a put: gives up what is unfinished and too old. A value whose holders are away
    /// may stay. What else stays stands in its way, and why.
    fn clear_way(&mut self, key: &str) -> (Vec<Event>, Option<PutStartError>) {
        let mut gone = Vec::new();
        while let Some(object) = self.objects.get(key) {
            if self.is_readable(object) {
                let now = self.now;
                self.objects.get_mut(key).unwrap().wanted = Some(now);
                return (gone, Some(PutStartError::AlreadyExists));
            }
            let open = if object.complete { self.replacements.get(key) } else { Some(object) };
            let Some(open) = open else { break };
            let age = self.now - open.begun;
            if age < self.config.put_start_discard_timeout {
                return (gone, Some(PutStartError::InProgress { age }));
            }
            gone.push(self.preempt(key, open.generation));
        }
        (gone, None)
    }

    /// Gives up an unfinished put. Its writer may still be writing.
    pub(super) fn preempt(&mut self, key: &str, generation: Generation) -> Event {
        let put = self.forget_put(key, generation);
        let until = put.begun + self.config.put_start_release_timeout;
        self.keep_until(until, put.replicas, Some((put.owner, put.generation)));
        self.totals.puts_discarded += 1;
        Event::Abandoned { key: key.to_owned(), generation }
    }

    /// Old puts are discarded, then objects are evicted, until there is room: the coldest one if
    /// that alone makes the room, and else neighbours that together make it.
    pub(super) fn make_room(&mut self, events: &[Event], put: &PutStart<'_>) {
        let len: u64 = put.slice_lengths.iter().sum();
        let is_victim = |event: &Event| matches!(event, Event::Removed { .. });
        let first = events.iter().position(is_victim).unwrap_or(events.len());
        let (reclaimed, evicted) = events.split_at(first);
        let in_vain = self.allowed(put).is_empty() && !evicted.is_empty();
        assert!(!in_vain, "evicted in vain");
        self.follow_reclaimed(reclaimed);
        if evicted.is_empty() {
            return;
        }
        assert!(!self.has_room_for(put, |_| false), "evicted although there was room");
        let ordinary = self.has_room_for(put, |object| self.is_ordinary_victim(object));
        let most = len * u64::from(put.config.replica_num) * 2;
        let is_coldest = self.coldest_makes_room(put, most);
        // The length of a group is estimated.
        let is_cheap = self.groups.is_empty() && self.is_on_time() && self.costs_at_most(put, most);
        let before = self.totals.evicted_bytes;
        self.follow_evicted(evicted, &mut |oracle, key, victims| {
            let is_pinned = victims.iter().all(|victim| oracle.is_soft_pinned(victim));
            let went_first = oracle.is_on_time() && is_pinned && ordinary;
            assert!(!went_first, "{key} is soft-pinned, and ordinary objects would have made room");
            if is_coldest {
                oracle.check_order(key, victims);
            }
        });
        let lost = self.totals.evicted_bytes - before;
        assert!(!is_cheap || lost <= most, "{lost} bytes evicted for {len}");
        assert!(self.has_room_for(put, |_| false), "evicted in vain");
    }

    /// Whether there is room for a put, or would be without the objects that `goes` says.
    fn has_room_for(&self, put: &PutStart<'_>, goes: impl Fn(&Object) -> bool) -> bool {
        let len: u64 = put.slice_lengths.iter().sum();
        let allowed = self.allowed(put);
        allowed.into_iter().any(|segment| {
            let mut taken = self.taken(segment.mounting);
            for object in self.objects.values().filter(|object| goes(object)) {
                let here = object.replicas.iter().filter(|(at, _)| *at == segment.mounting);
                here.for_each(|(_, extent)| taken.retain(|other| other != extent));
            }
            has_room(segment, len, taken)
        })
    }

    /// Whether the order of eviction is known, and its first object alone makes the room, for no
    /// more than `most` bytes.
    fn coldest_makes_room(&self, put: &PutStart<'_>, most: u64) -> bool {
        let victims = || self.objects.values().filter(|object| self.is_ordinary_victim(object));
        let coldest = victims().min_by_key(|object| self.last_rank(object));
        // One that may have been set aside ranks anywhere between its last use and the end of its
        // protection. Of two that were last used in the same millisecond, the one whose soft pin
        // has lapsed may go before the other or after it.
        let is_first = |coldest: &Object| {
            !victims().filter(|other| other.generation != coldest.generation).any(|other| {
                (other.touched, other.turn) < self.last_rank(coldest)
                    || other.touched == coldest.touched && other.soft_pin != coldest.soft_pin
            })
        };
        let alone = |coldest: &Object| {
            let cost: u64 = coldest.replicas.iter().map(|(_, extent)| extent.len()).sum();
            cost <= most && self.has_room_for(put, |object| object.generation == coldest.generation)
        };
        self.groups.is_empty() && coldest.is_some_and(|it| is_first(it) && alone(it))
    }

    /// Whether neighbours of no more than so many bytes, in all their replicas, make the room.
    fn costs_at_most(&self, put: &PutStart<'_>, most: u64) -> bool {
        let len: u64 = put.slice_lengths.iter().sum();
        let ordinary = |object: &&Object| self.is_ordinary_victim(object);
        let cost =
            |object: &Object| object.replicas.iter().map(|(_, extent)| extent.len()).sum::<u64>();
        self.allowed(put).into_iter().any(|segment| {
            let victims = self.objects.values().filter(ordinary);
            let here = victims.filter_map(|object| {
                let there = object.replicas.iter().find(|(at, _)| *at == segment.mounting);
                there.map(|(_, extent)| (*extent, cost(object)))
            });
            let here: Vec<(Extent, u64)> = here.collect();
            let blocked: Vec<Extent> = self.taken(segment.mounting);
            let blocked = blocked.into_iter().filter(|it| !here.iter().any(|(own, _)| own == it));
            let blocked: Vec<Extent> = blocked.collect();
            // A cheapest run begins or ends where something blocked, a victim or the segment
            // does; that it begins there is no restriction where it may be longer than needed.
            let begins = here.iter().flat_map(|(it, _)| [it.offset(), it.end()]);
            let begins = begins.chain(blocked.iter().map(|it| it.end())).chain([0]);
            begins.into_iter().any(|from| {
                let to = from + len;
                let overlaps = |it: &Extent| it.offset() < to && from < it.end();
                to <= segment.spec.size
                    && !blocked.iter().any(overlaps)
                    && here.iter().filter(|(it, _)| overlaps(it)).map(|(_, c)| c).sum::<u64>()
                        <= most
            })
        })
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
            read: None,
            promised: Time::ORIGIN,
            soft_pin: pin_of(put.config.soft_pin, SoftPin::NONE),
            hard_pin: put.config.with_hard_pin,
            group,
            held: None,
            transfer: None,
            settled: None,
            wanted: None,
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
        let open = self.open_of(self.medium_for(put.config));
        let excluded = &put.config.excluded_segments;
        open.filter(|segment| !excluded.contains(&segment.spec.name)).collect()
    }

    /// The segments of a medium that take new objects.
    fn open_of(&self, medium: MediaType) -> impl Iterator<Item = &Segment> {
        let open = self.segments.values().filter(|segment| segment.status.is_allocatable());
        open.filter(move |segment| segment.spec.medium == medium)
    }

    /// The medium that a put goes to.
    fn medium_for(&self, config: &ReplicateConfig) -> MediaType {
        let named = |name: &str| {
            let mut open = self.segments.values().filter(|it| it.status.is_allocatable());
            open.find(|segment| *segment.spec.name == *name).map(|segment| segment.spec.medium)
        };
        let preferred = config.preferred_segments.iter();
        let mut preferred = preferred.filter(|name| !config.excluded_segments.contains(name));
        let or_first = || {
            let mut media = MediaType::ALL.into_iter();
            media.find(|medium| self.open_of(*medium).next().is_some()).unwrap_or_default()
        };
        config.medium.or_else(|| preferred.find_map(|name| named(name))).unwrap_or_else(or_first)
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
    pub(super) fn check_refusal(&mut self, put: &PutStart<'_>, error: &PutStartError) {
        let len: u64 = put.slice_lengths.iter().sum();
        let allowed = self.allowed(put);
        let medium = self.medium_for(put.config);
        let mounted = self.open_of(medium).count();
        let Some(largest_object) = allowed.iter().map(|segment| segment.spec.size).max() else {
            let expected = match put.config.medium {
                Some(medium) => PutStartError::NoMedium { medium, mounted },
                None => PutStartError::TooFewSegments { mounted },
            };
            assert_eq!(*error, expected);
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
        if !self.is_remembered(medium, len) {
            let room = self.has_room_for(put, |object| self.would_go(object));
            assert!(!room, "refused although enough could have been evicted");
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
        let waits = |object: &Object| {
            object.complete && !object.hard_pin && self.is_leased(object) && reachable(object)
        };
        let must = !self.is_remembered(medium, len)
            && self.has_room_for(put, |object| {
                self.would_go(object) || object.group.is_none() && waits(object)
            });
        let must = must || self.discarded.iter().any(|kept| kept.writer.is_none());
        // What was set aside and then lost its segment is taken for leased until the
        // next tick has swept it up; what was set aside for another reason is, too.
        let may = self.objects.values().any(|object| {
            waits(object) || self.may_be_aside(object) || object.complete && self.is_held(object)
        });
        let may = may || !self.lost.is_empty() || self.lost_kept || self.is_remembered(medium, len);
        match must {
            true => assert_eq!(*error, leased),
            false => assert!(*error == otherwise || (may && *error == leased), "{error:?}"),
        }
        if put.config.excluded_segments.is_empty() {
            self.in_vain.push((medium, len, self.now));
        }
    }

    /// Whether no more was looked for in vain so short a time ago that the master need not
    /// look again.
    fn is_remembered(&self, medium: MediaType, len: u64) -> bool {
        let memory = Duration::from_millis(100);
        self.in_vain
            .iter()
            .any(|&(of, other, when)| medium == of && len >= other && self.now < when + memory)
    }
}
