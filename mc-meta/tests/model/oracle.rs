//! The model, and the master beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mc_meta::{
    ClientStatus, Effect, EffectSink, GetError, ListCursor, Master, MasterConfig, MountError,
    PutEnd, PutFinishError, PutGrant, PutStart, PutStartError, Removal, RemoveError, ReplicaStatus,
    SegmentSpec, Slice, UnmountError,
};
use mc_types::{ClientId, Extent, Generation, KeyRef, SegmentId, Time};

/// An effect, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Stored { key: String, generation: Generation, len: u64 },
    Removed { key: String, generation: Generation, cause: Removal },
    Mounted(SegmentId),
    Gone(SegmentId),
    Expired(ClientId),
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl EffectSink for Recorder {
    fn emit(&self, _: Time, effect: &Effect<'_>) {
        let text = |key: KeyRef<'_>| key.as_str().to_owned();
        self.0.lock().unwrap().push(match *effect {
            Effect::Stored { key, generation, len } => {
                Event::Stored { key: text(key), generation, len }
            }
            Effect::Removed { key, generation, cause } => {
                Event::Removed { key: text(key), generation, cause }
            }
            Effect::SegmentMounted { segment } => Event::Mounted(segment.spec().id),
            Effect::SegmentGone { segment } => Event::Gone(segment.spec().id),
            Effect::ClientExpired { client } => Event::Expired(client),
            _ => panic!("an effect that the model does not know: {effect:?}"),
        });
    }
}

/// Which put of a key a command names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Current,
    Previous,
    Unnamed,
}

/// One mounting of a segment: a segment that comes back is another one.
type Mounting = u64;

#[derive(Clone, Debug)]
struct Segment {
    mounting: Mounting,
    spec: SegmentSpec,
    client: ClientId,
}

#[derive(Clone, Debug)]
struct Object {
    complete: bool,
    owner: ClientId,
    generation: Generation,
    slices: Vec<Slice>,
    replicas: Vec<(Mounting, Extent)>,
    begun: Time,
    touched: Time,
    leased: bool,
    soft_pin: bool,
    /// The first tick after its lease ended. If it was set aside for the lease, it
    /// is back in the order of eviction since then at the latest, and ranks as if
    /// used when it came back.
    settled: Option<Time>,
}

impl Object {
    fn len(&self) -> u64 {
        self.slices.iter().map(|slice| slice.len).sum()
    }
}

/// Space of a put that was preempted.
#[derive(Clone, Debug)]
struct Discarded {
    release_at: Time,
    replicas: Vec<(Mounting, Extent)>,
}

#[derive(Debug, Default)]
struct Totals {
    evicted_objects: u64,
    evicted_bytes: u64,
    put_starts: u64,
    put_ends: u64,
    put_revokes: u64,
    put_start_no_room: u64,
    puts_discarded: u64,
    get_hits: u64,
    get_misses: u64,
    removed_objects: u64,
    expired_clients: u64,
}

pub(crate) struct Oracle {
    master: Master,
    events: Recorder,
    config: MasterConfig,
    now: Time,
    mountings: Mounting,
    segments: BTreeMap<SegmentId, Segment>,
    clients: BTreeMap<ClientId, Time>,
    objects: BTreeMap<String, Object>,
    discarded: Vec<Discarded>,
    /// Objects that lost their last segment and that the master has not told of yet.
    lost: BTreeSet<(String, Generation)>,
    /// The same of unfinished puts, of which the master never tells.
    lost_unfinished: u64,
    previous: BTreeMap<String, Generation>,
    generations: BTreeSet<Generation>,
    totals: Totals,
}

impl Oracle {
    pub(crate) fn new(config: MasterConfig, seed: u64) -> Self {
        let events = Recorder::default();
        let master = Master::new(config.clone(), seed).unwrap().with_sink(events.clone());
        Self {
            master,
            events,
            config,
            now: Time::from_millis(1),
            mountings: 0,
            segments: BTreeMap::new(),
            clients: BTreeMap::new(),
            objects: BTreeMap::new(),
            discarded: Vec::new(),
            lost: BTreeSet::new(),
            lost_unfinished: 0,
            previous: BTreeMap::new(),
            generations: BTreeSet::new(),
            totals: Totals::default(),
        }
    }

    pub(crate) fn pass(&mut self, millis: u64) {
        self.now = Time::from_millis(self.now.as_millis().saturating_add(millis));
    }

    pub(crate) fn generation(&self, key: &str, which: Which) -> Option<Generation> {
        let current = self.objects.get(key).map(|object| object.generation);
        match which {
            Which::Unnamed => None,
            Which::Current => current.or(Some(Generation::new(0))),
            Which::Previous => self.previous.get(key).copied().or(Some(Generation::new(0))),
        }
    }

    // Segments and clients.

    pub(crate) fn mount(&mut self, client: ClientId, spec: SegmentSpec) -> Result<(), MountError> {
        let result = self.master.mount_segment(self.now, client, spec.clone());
        let by_id = self.segments.get(&spec.id);
        let by_name = self.segments.values().find(|segment| segment.spec.name == spec.name);
        let mut expected = Vec::new();
        let ok = match (by_id, by_name) {
            (Some(same), _) => same.client == client && same.spec == spec,
            (None, Some(old)) if old.spec.endpoint != spec.endpoint => false,
            (None, old) => {
                if let Some(old) = old.map(|old| old.spec.id) {
                    expected.push(Event::Gone(old));
                    self.retire(old);
                }
                expected.push(Event::Mounted(spec.id));
                self.mountings += 1;
                let mounting = self.mountings;
                self.segments.insert(spec.id, Segment { mounting, spec, client });
                true
            }
        };
        assert_eq!(result.is_ok(), ok, "{result:?}");
        if ok {
            self.clients.insert(client, self.now);
        }
        assert_eq!(self.take_events(), expected);
        result
    }

    pub(crate) fn unmount(&mut self, client: ClientId, id: SegmentId) {
        let result = self.master.unmount_segment(self.now, client, id);
        let expected = match self.segments.get(&id) {
            None => Err(UnmountError::NotFound),
            Some(segment) if segment.client != client => Err(UnmountError::IllegalClient),
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        let mut events = Vec::new();
        if result.is_ok() {
            self.retire(id);
            events.push(Event::Gone(id));
        }
        assert_eq!(self.take_events(), events);
    }

    pub(crate) fn ping(&mut self, client: ClientId) {
        let pong = self.master.ping(self.now, client);
        let known = self.clients.get_mut(&client);
        let status = if known.is_some() { ClientStatus::Ok } else { ClientStatus::NeedRemount };
        assert_eq!(pong.status, status);
        if let Some(heard) = known {
            *heard = self.now;
        }
    }

    /// A segment goes, and everything in it.
    fn retire(&mut self, id: SegmentId) {
        let segment = self.segments.remove(&id).unwrap();
        if !self.segments.values().any(|other| other.client == segment.client) {
            self.clients.remove(&segment.client);
        }
        let gone = segment.mounting;
        for discarded in &mut self.discarded {
            discarded.replicas.retain(|(mounting, _)| *mounting != gone);
        }
        let (lost, lost_unfinished) = (&mut self.lost, &mut self.lost_unfinished);
        self.objects.retain(|key, object| {
            object.replicas.retain(|(mounting, _)| *mounting != gone);
            if object.replicas.is_empty() {
                if object.complete {
                    lost.insert((key.clone(), object.generation));
                } else {
                    *lost_unfinished += 1;
                }
            }
            !object.replicas.is_empty()
        });
    }

    // Puts.

    pub(crate) fn put_start(&mut self, client: ClientId, put: &PutStart<'_>) -> Option<Generation> {
        let len: u64 = put.slice_lengths.iter().sum();
        let result = self.master.put_start(self.now, client, put);
        let key = put.key.as_str();
        match self.objects.get(key) {
            Some(object) if object.complete => {
                assert_eq!(result.unwrap_err(), PutStartError::AlreadyExists);
                self.expect_nothing_but_losses();
                return None;
            }
            Some(object) if self.now - object.begun < self.config.put_start_discard_timeout => {
                let age = self.now - object.begun;
                assert_eq!(result.unwrap_err(), PutStartError::InProgress { age });
                self.expect_nothing_but_losses();
                return None;
            }
            Some(object) => {
                // Preempted, whether or not there is room for its successor.
                let (release_at, replicas) =
                    (object.begun + self.config.put_start_release_timeout, object.replicas.clone());
                self.discarded.push(Discarded { release_at, replicas });
                self.forget(key);
                self.totals.puts_discarded += 1;
            }
            None => {}
        }
        let victims = self.follow_evictions();
        let reclaimed = self.follow_reclaim();
        match result {
            Ok(grant) => {
                assert!(victims == 0 || reclaimed, "space that is due goes before objects");
                self.check_grant(key, len, put, &grant);
                let slice = |len: &u64| Slice { len: *len, checksum: None };
                let object = Object {
                    complete: false,
                    owner: client,
                    generation: grant.generation,
                    slices: put.slice_lengths.iter().map(slice).collect(),
                    replicas: self.extents(&grant),
                    begun: self.now,
                    touched: self.now,
                    leased: false,
                    soft_pin: put.config.with_soft_pin,
                    settled: None,
                };
                self.objects.insert(key.to_owned(), object);
                self.totals.put_starts += 1;
                Some(grant.generation)
            }
            Err(error) => {
                self.totals.put_start_no_room += 1;
                self.check_refusal(len, &error, reclaimed);
                None
            }
        }
    }

    fn extents(&self, grant: &PutGrant) -> Vec<(Mounting, Extent)> {
        let mounting = |id| self.segments[id].mounting;
        let placements = grant.placements.iter();
        placements.map(|at| (mounting(&at.segment.spec().id), at.extent)).collect()
    }

    fn check_grant(&mut self, key: &str, len: u64, put: &PutStart<'_>, grant: &PutGrant) {
        assert!(self.generations.insert(grant.generation), "generations never repeat");
        assert!(!self.lost.iter().any(|(lost, _)| lost == key), "told of the loss before the put");
        let wanted = put.config.replica_num as usize;
        assert!((1..=wanted).contains(&grant.placements.len()));
        let extents = self.extents(grant);
        let distinct: BTreeSet<Mounting> = extents.iter().map(|(mounting, _)| *mounting).collect();
        assert_eq!(distinct.len(), extents.len(), "replicas on distinct segments");
        for (placement, (mounting, extent)) in grant.placements.iter().zip(&extents) {
            assert!(placement.segment.is_live());
            assert_eq!(extent.len(), len);
            assert!(extent.end() <= placement.segment.spec().size);
            for taken in self.taken(*mounting) {
                assert!(!taken.overlaps(*extent), "{taken} overlaps {extent}");
            }
        }
        if extents.len() < wanted {
            let others = self.segments.values().filter(|s| !distinct.contains(&s.mounting));
            let room = others.filter(|segment| self.has_room(segment, len)).count();
            assert_eq!(room, 0, "as many replicas as there are segments with room");
        }
        // A preferred segment with room before the put is used; room made by
        // evictions of this very put may have come later than the choice.
        for name in &put.config.preferred_segments {
            let Some(segment) = self.segments.values().find(|s| s.spec.name == *name) else {
                continue;
            };
            assert!(
                distinct.contains(&segment.mounting) || !self.has_room(segment, len),
                "a preferred segment with room is used"
            );
        }
    }

    /// The error names the true cause, and there was really nothing to be done.
    fn check_refusal(&self, len: u64, error: &PutStartError, reclaimed: bool) {
        let largest_segment = self.segments.values().map(|s| s.spec.size).max();
        let Some(largest_segment) = largest_segment else {
            assert_eq!(*error, PutStartError::TooFewSegments);
            return;
        };
        if len > largest_segment {
            assert_eq!(*error, PutStartError::TooLarge { len, largest_segment });
            return;
        }
        assert!(reclaimed, "refused while space is due");
        for segment in self.segments.values() {
            assert!(!self.has_room(segment, len), "refused although {segment:?} has room");
        }
        let complete = || self.objects.values().filter(|object| object.complete);
        let evictable = |object: &&Object| {
            self.config.allow_evict_soft_pinned_objects || !self.is_soft_pinned(object)
        };
        for object in complete().filter(evictable) {
            // A lapsed pin may be noticed as late as a lease lasts.
            let settled = self.ranks_soft_pinned(object);
            assert!(self.is_leased(object) || settled, "could have been evicted: {object:?}");
        }
        let leased = complete().filter(evictable).any(|object| self.is_leased(object));
        let free = |segment: &Segment| segment.spec.size - self.used_in(segment.mounting);
        let best = self.segments.values().map(free).max().unwrap();
        let expected = if leased {
            PutStartError::AllLeased { len }
        } else if best >= len {
            PutStartError::Fragmented { len, free: best }
        } else {
            PutStartError::Full { len }
        };
        // An object that was set aside for its lease and then lost its segment is
        // taken for leased until the next tick has swept it up.
        let unswept = !self.lost.is_empty() && *error == PutStartError::AllLeased { len };
        assert!(*error == expected || unswept, "{error:?}, but it was {expected:?}");
    }

    pub(crate) fn put_end(&mut self, client: ClientId, put: &PutEnd<'_>) {
        let result = self.master.put_end(self.now, client, put);
        let key = put.key.as_str();
        let expected = match self.objects.get_mut(key) {
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
            Some(object) => {
                object.complete = true;
                object.touched = self.now;
                for (slice, checksum) in object.slices.iter_mut().zip(put.checksums) {
                    slice.checksum = Some(*checksum);
                }
                self.totals.put_ends += 1;
                let stored = Event::Stored {
                    key: key.to_owned(),
                    generation: object.generation,
                    len: object.len(),
                };
                assert_eq!(result, Ok(()));
                assert_eq!(self.take_events(), [stored]);
                return;
            }
        };
        assert_eq!(result, expected);
        self.expect_nothing_but_losses();
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
        if result.is_ok() {
            self.forget(key.as_str());
            self.totals.put_revokes += 1;
        }
        self.expect_nothing_but_losses();
    }

    // Reads.

    pub(crate) fn get(&mut self, key: KeyRef<'_>) {
        let result = self.master.get_replica_list(self.now, key);
        match self.objects.get(key.as_str()) {
            None => assert_eq!(result.unwrap_err(), GetError::NotFound),
            Some(object) if !object.complete => {
                assert_eq!(result.unwrap_err(), GetError::NotReady);
            }
            Some(object) => {
                let list = result.unwrap();
                assert_eq!(list.generation, object.generation);
                assert_eq!(list.slices.as_slice(), object.slices);
                assert_eq!(list.lease, self.config.lease_ttl);
                let placed: Vec<(Mounting, Extent)> = list
                    .placements
                    .iter()
                    .inspect(|at| assert!(at.segment.is_live()))
                    .map(|at| (self.segments[&at.segment.spec().id].mounting, at.extent))
                    .collect();
                assert_eq!(placed, object.replicas);
                self.totals.get_hits += 1;
                self.access(key.as_str());
                self.expect_nothing_but_losses();
                return;
            }
        }
        self.totals.get_misses += 1;
        self.expect_nothing_but_losses();
    }

    pub(crate) fn exist(&mut self, key: KeyRef<'_>) {
        let readable = self.objects.get(key.as_str()).is_some_and(|object| object.complete);
        assert_eq!(self.master.exist(self.now, key), readable);
        if readable {
            self.access(key.as_str());
        }
        self.expect_nothing_but_losses();
    }

    pub(crate) fn longest_prefix(&mut self, keys: &[String]) {
        let readable = |key: &&String| self.objects.get(*key).is_some_and(|object| object.complete);
        let expected = keys.iter().take_while(readable).count();
        let refs = keys.iter().map(|key| KeyRef::new(key).unwrap());
        assert_eq!(self.master.longest_prefix(self.now, refs), expected);
        self.expect_nothing_but_losses();
    }

    fn access(&mut self, key: &str) {
        let object = self.objects.get_mut(key).unwrap();
        object.touched = self.now;
        object.leased = true;
        object.settled = None;
    }

    pub(crate) fn list(&self, from: ListCursor, limit: usize) {
        let mut listed = BTreeMap::new();
        let mut cursor = Some(from);
        while let Some(at) = cursor {
            let page = self.master.list_keys("key-", at, limit);
            assert!(page.keys.len() <= limit);
            for info in page.keys {
                let known = listed.insert(info.key.as_str().to_owned(), info);
                assert!(known.is_none(), "listed twice");
            }
            cursor = page.next.map(|next| ListCursor::from_u64(next.to_u64()));
        }
        for (key, object) in &self.objects {
            let info = &listed[key];
            assert_eq!(info.len, object.len());
            let readable = if object.complete { object.replicas.len() } else { 0 };
            assert_eq!(info.replicas as usize, readable);
        }
        for (key, info) in listed {
            // What has just lost its last segment may still be listed.
            assert!(self.objects.contains_key(&key) || info.replicas == 0);
        }
    }

    // Removal and time.

    pub(crate) fn remove(&mut self, key: KeyRef<'_>, force: bool) {
        let result = self.master.remove(self.now, key, force);
        let expected = match self.objects.get(key.as_str()) {
            None => Err(RemoveError::NotFound),
            Some(object) if !object.complete => Err(RemoveError::NotReady),
            Some(object) if self.is_leased(object) && !force => {
                let remaining = (object.touched + self.config.lease_ttl) - self.now;
                Err(RemoveError::Leased { remaining })
            }
            Some(_) => Ok(()),
        };
        assert_eq!(result, expected);
        if result.is_err() {
            self.expect_nothing_but_losses();
            return;
        }
        let object = self.forget(key.as_str());
        self.totals.removed_objects += 1;
        let removed = Event::Removed {
            key: key.as_str().to_owned(),
            generation: object.generation,
            cause: Removal::Requested,
        };
        assert_eq!(self.take_events(), [removed]);
    }

    pub(crate) fn remove_all(&mut self, force: bool) {
        let goes = |object: &Object| object.complete && (force || !self.is_leased(object));
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
            self.forget(&key);
            assert!(expected.remove(&(key, generation)), "removed once");
        }
        assert!(expected.is_empty(), "told of every removal");
        self.totals.removed_objects += removed;
    }

    pub(crate) fn tick(&mut self) {
        let mut more = true;
        while more {
            more = self.master.tick(self.now);
            self.settle();
            self.follow_expiry();
            // Space comes back before eviction is considered.
            self.reclaim();
            let (used, capacity) = (self.used(), self.capacity());
            let high = self.config.eviction_high_watermark_ratio;
            let low = (high - self.config.eviction_ratio).max(0.0);
            let part = |ratio: f64| (capacity as f64 * ratio + 0.5) as u64;
            let before = self.totals.evicted_bytes;
            let victims = self.follow_evictions();
            if victims > 0 {
                assert!(used > part(high), "evicted below the watermark");
                assert!(used - (self.totals.evicted_bytes - before) + 60 * 2 * 4 > part(low));
            }
            if !more && used > part(high) && self.used() > part(low) {
                let evictable = |object: &&Object| {
                    let pinned = self.ranks_soft_pinned(object);
                    object.complete
                        && !self.is_leased(object)
                        && (self.config.allow_evict_soft_pinned_objects || !pinned)
                };
                assert_eq!(self.objects.values().filter(evictable).count(), 0);
            }
        }
        assert!(self.lost.is_empty(), "told of every lost object: {:?}", self.lost);
        self.lost_unfinished = 0;
        self.follow_reclaim();
    }

    fn settle(&mut self) {
        let (now, lease) = (self.now, self.config.lease_ttl);
        for object in self.objects.values_mut() {
            if object.leased && object.touched + lease <= now && object.settled.is_none() {
                object.settled = Some(now);
            }
        }
    }

    /// Takes the events at the front that tell of clients given up.
    fn follow_expiry(&mut self) {
        let silent: BTreeSet<ClientId> = self
            .clients
            .iter()
            .filter(|(_, heard)| self.now - **heard > self.config.client_ttl)
            .map(|(client, _)| *client)
            .collect();
        let events = std::mem::take(&mut *self.events.0.lock().unwrap());
        let mut expired = BTreeSet::new();
        let mut rest = Vec::new();
        for event in events {
            match event {
                Event::Expired(client) => {
                    assert!(rest.is_empty(), "clients are given up first");
                    assert!(expired.insert(client));
                    self.totals.expired_clients += 1;
                }
                Event::Gone(id) => {
                    assert!(expired.contains(&self.segments[&id].client));
                    self.retire(id);
                }
                other => rest.push(other),
            }
        }
        assert_eq!(expired, silent);
        for client in silent {
            assert!(!self.clients.contains_key(&client), "all of its segments are gone");
        }
        *self.events.0.lock().unwrap() = rest;
    }

    // Following what the master chose to do.

    fn take_events(&mut self) -> Vec<Event> {
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

    fn expect_nothing_but_losses(&mut self) {
        assert_eq!(self.take_events(), []);
    }

    /// Checks that each victim was allowed, in order; says how many there were.
    fn follow_evictions(&mut self) -> usize {
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

    fn is_due(&self, object: &Object) -> bool {
        !object.complete && self.now - object.begun >= self.config.put_start_release_timeout
    }

    fn any_due(&self) -> bool {
        self.objects.values().any(|object| self.is_due(object))
            || self.discarded.iter().any(|discarded| discarded.release_at <= self.now)
    }

    /// Whether the space of old unfinished puts has come back, as far as due.
    fn follow_reclaim(&mut self) -> bool {
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
    fn master_used_before_grant(&self) -> u64 {
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

    fn reclaim(&mut self) {
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

    fn forget(&mut self, key: &str) -> Object {
        let object = self.objects.remove(key).unwrap();
        self.previous.insert(key.to_owned(), object.generation);
        object
    }

    // What the model knows of protection and space.

    fn is_leased(&self, object: &Object) -> bool {
        object.leased && self.now < object.touched + self.config.lease_ttl
    }

    fn is_soft_pinned(&self, object: &Object) -> bool {
        object.soft_pin && self.now < object.touched + self.config.soft_pin_ttl
    }

    /// Whether it may still be behind soft-pinned objects in the order of eviction.
    fn ranks_soft_pinned(&self, object: &Object) -> bool {
        let used = if object.leased { object.settled.unwrap_or(self.now) } else { object.touched };
        object.soft_pin && self.now < used + self.config.soft_pin_ttl
    }

    fn taken(&self, mounting: Mounting) -> Vec<Extent> {
        let live = self.objects.values().flat_map(|object| &object.replicas);
        let discarded = self.discarded.iter().flat_map(|discarded| &discarded.replicas);
        live.chain(discarded).filter(|(at, _)| *at == mounting).map(|(_, extent)| *extent).collect()
    }

    fn used_in(&self, mounting: Mounting) -> u64 {
        self.taken(mounting).iter().map(|extent| extent.len()).sum()
    }

    fn used(&self) -> u64 {
        self.segments.values().map(|segment| self.used_in(segment.mounting)).sum()
    }

    fn capacity(&self) -> u64 {
        self.segments.values().map(|segment| segment.spec.size).sum()
    }

    fn has_room(&self, segment: &Segment, len: u64) -> bool {
        let mut taken = self.taken(segment.mounting);
        taken.sort_by_key(|extent| extent.offset());
        let mut free_from = 0;
        for extent in taken {
            if extent.offset() - free_from >= len {
                return true;
            }
            free_from = extent.end();
        }
        segment.spec.size - free_from >= len
    }

    // Checks after every command.

    pub(crate) fn check(&self) {
        self.check_report();
        for (key, object) in &self.objects {
            let info = self.master.describe(self.now, KeyRef::new(key).unwrap()).unwrap();
            assert_eq!(info.generation, object.generation);
            assert_eq!(info.owner, object.owner);
            assert_eq!(info.slices.as_slice(), object.slices);
            assert_eq!(info.soft_pinned, self.is_soft_pinned(object));
            assert_eq!(info.idle, self.now - object.touched);
            assert_eq!(!info.lease.is_zero(), self.is_leased(object));
            let status =
                if object.complete { ReplicaStatus::Complete } else { ReplicaStatus::Processing };
            let live = info.replicas.iter().filter(|r| r.status != ReplicaStatus::Removed);
            let live: Vec<(Mounting, Extent)> = live
                .inspect(|replica| assert_eq!(replica.status, status))
                .map(|replica| &replica.placement)
                .map(|at| (self.segments[&at.segment.spec().id].mounting, at.extent))
                .collect();
            assert_eq!(live, object.replicas);
        }
        for (mounting, extents) in
            self.segments.values().map(|s| (s.mounting, self.taken(s.mounting)))
        {
            for (n, extent) in extents.iter().enumerate() {
                let clear = extents[..n].iter().all(|other| !other.overlaps(*extent));
                assert!(clear, "overlap in mounting {mounting}");
            }
        }
    }

    fn check_report(&self) {
        let report = self.master.report();
        assert_eq!(report.used, self.used());
        assert_eq!(report.capacity, self.capacity());
        assert_eq!(report.clients, self.clients.len() as u64);
        assert_eq!(report.segments.len(), self.segments.len());
        for info in &report.segments {
            let segment = &self.segments[&info.spec.id];
            assert_eq!((&info.spec, info.client), (&segment.spec, segment.client));
            assert_eq!(info.used, self.used_in(segment.mounting));
            assert_eq!(info.allocations, self.taken(segment.mounting).len() as u64);
        }
        let known = self.objects.len() as u64;
        let unseen = self.lost.len() as u64 + self.lost_unfinished;
        assert!((known..=known + unseen).contains(&report.objects));
        let open = self.objects.values().filter(|object| !object.complete).count() as u64;
        assert!((open..=open + self.lost_unfinished).contains(&report.processing));
        let totals = &self.totals;
        assert_eq!(report.evicted_objects, totals.evicted_objects);
        assert_eq!(report.evicted_bytes, totals.evicted_bytes);
        assert_eq!(report.put_starts, totals.put_starts);
        assert_eq!(report.put_ends, totals.put_ends);
        assert_eq!(report.put_revokes, totals.put_revokes);
        assert_eq!(report.put_start_no_room, totals.put_start_no_room);
        assert_eq!(report.puts_discarded, totals.puts_discarded);
        assert_eq!(report.get_hits, totals.get_hits);
        assert_eq!(report.get_misses, totals.get_misses);
        assert_eq!(report.removed_objects, totals.removed_objects);
        assert_eq!(report.expired_clients, totals.expired_clients);
    }

    /// Nothing leaks: when everything is removed, all space can be had again.
    pub(crate) fn finish(mut self) {
        self.tick();
        self.remove_all(true);
        // Far enough for every zombie; the clients are kept alive.
        self.pass(self.config.put_start_release_timeout.as_millis() as u64);
        for client in self.clients.keys().copied().collect::<Vec<_>>() {
            self.ping(client);
        }
        self.tick();
        self.check();
        assert!(self.objects.is_empty());
        assert_eq!(self.master.report().objects, 0);
        assert_eq!(self.master.report().used, 0);
        for segment in self.segments.values().cloned().collect::<Vec<_>>() {
            let config = mc_meta::ReplicateConfig::default().prefer(segment.spec.name.clone());
            let key = KeyRef::new("whole").unwrap();
            let lens = [segment.spec.size];
            let put = PutStart { key, slice_lengths: &lens, config: &config };
            let generation = self.put_start(segment.client, &put).expect("the whole segment");
            assert_eq!(self.objects["whole"].replicas[0].0, segment.mounting);
            self.put_revoke(segment.client, key, Some(generation));
        }
        assert_eq!(self.master.report().used, 0);
    }
}
