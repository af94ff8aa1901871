//! The model, and the master beside it.

mod checks;
mod follow;
mod puts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mc_meta::{
    ClientStatus, Effect, EffectSink, GetError, ListCursor, Master, MasterConfig, MountError,
    Removal, RemoveError, SegmentSpec, Slice, UnmountError,
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
        // What a journal needs is checked where journals are.
        if matches!(
            effect,
            Effect::Began { .. }
                | Effect::Abandoned { .. }
                | Effect::Changed { .. }
                | Effect::SpaceKept { .. }
                | Effect::SpaceFreed { .. }
        ) {
            return;
        }
        self.0.lock().unwrap().push(match *effect {
            Effect::Stored { object } => Event::Stored {
                key: text(object.key()),
                generation: object.generation(),
                len: object.len(),
            },
            Effect::Removed { key, generation, cause, .. } => {
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
        result.map(|_| ())
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
                    .inspect(|at| assert!(at.segment.status().is_readable()))
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
}
