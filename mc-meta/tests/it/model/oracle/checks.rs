//! Invariants that are checked after every command.

use mc_meta::{BufferStatus, LateWrites, PutStart, ReplicaStatus, ReplicateConfig, SegmentStatus};
use mc_types::{ClientId, Extent, KeyRef, SegmentId, Time};

use super::journal::{Seen, SegmentSeen, TransferSeen};
use super::{Discarded, Mounting, Object, Oracle, Segment};

impl Oracle {
    /// The extents in use in a segment, whether by objects or by puts of the past.
    pub(super) fn taken(&self, mounting: Mounting) -> Vec<Extent> {
        let live = self.all().flat_map(|(_, object)| &object.replicas);
        let transfers = self.objects.values().filter_map(|object| object.transfer.as_ref());
        let lost = self.lost.values().filter_map(|lost| lost.transfer.as_ref());
        let live = live.chain(transfers.chain(lost).flat_map(|transfer| &transfer.targets));
        let discarded = self.discarded.iter().flat_map(|discarded| &discarded.replicas);
        live.chain(discarded).filter(|(at, _)| *at == mounting).map(|(_, extent)| *extent).collect()
    }

    pub(super) fn used_in(&self, mounting: Mounting) -> u64 {
        self.taken(mounting).iter().map(|extent| extent.len()).sum()
    }

    fn in_status(&self, is: fn(SegmentStatus) -> bool) -> impl Iterator<Item = &Segment> {
        self.segments.values().filter(move |segment| is(segment.status))
    }

    pub(super) fn used_allocatable(&self) -> u64 {
        let segments = self.in_status(SegmentStatus::is_allocatable);
        segments.map(|segment| self.used_in(segment.mounting)).sum()
    }

    pub(super) fn capacity_allocatable(&self) -> u64 {
        self.in_status(SegmentStatus::is_allocatable).map(|segment| segment.spec.size).sum()
    }

    /// Bytes that new objects could have instead of this one.
    pub(super) fn bytes_allocatable(&self, object: &Object) -> u64 {
        let replicas = object.replicas.iter();
        let there = replicas.filter(|(mounting, _)| self.status(*mounting).is_allocatable());
        there.map(|(_, extent)| extent.len()).sum()
    }

    pub(super) fn has_room(&self, segment: &Segment, len: u64) -> bool {
        has_room(segment, len, self.taken(segment.mounting))
    }

    /// An object as the effects show it.
    pub(super) fn seen(&self, key: &str) -> Seen {
        self.seen_as(key, &self.objects[key])
    }

    pub(super) fn seen_as(&self, key: &str, object: &Object) -> Seen {
        let id = |mounting| self.segment(mounting).unwrap().spec.id;
        Seen {
            key: key.to_owned(),
            generation: object.generation,
            owner: object.owner,
            slices: object.slices.clone(),
            replicas: object.replicas.iter().map(|(at, extent)| (id(*at), *extent)).collect(),
            transfer: object.transfer.as_ref().map(|transfer| TransferSeen {
                id: transfer.id,
                kind: transfer.kind,
                client: transfer.client,
                targets: transfer.targets.iter().map(|(at, e)| (id(*at), *e)).collect(),
                due: transfer.due,
            }),
        }
    }

    pub(crate) fn check(&self) {
        self.check_report();
        self.check_journal();
        self.check_records();
        for (key, object) in &self.objects {
            self.check_object(key, object);
        }
        for segment in self.segments.values() {
            let extents = self.taken(segment.mounting);
            for (n, extent) in extents.iter().enumerate() {
                let clear = extents[..n].iter().all(|other| !other.overlaps(*extent));
                assert!(clear, "overlap in {:?}", segment.spec.id);
            }
        }
    }

    fn check_object(&self, key: &str, object: &Object) {
        let info = self.master.describe(self.now, KeyRef::new(key).unwrap()).unwrap();
        if self.lost.contains_key(&(key.to_owned(), info.generation)) {
            // No look-up came since, and the put that replaces it waits.
            return;
        }
        assert_eq!(info.generation, object.generation);
        assert_eq!(info.owner, object.owner);
        assert_eq!(info.slices.as_slice(), object.slices);
        assert_eq!(info.soft_pinned, self.is_soft_pinned(object));
        assert_eq!(info.idle, self.now - object.touched);
        assert_eq!(info.lease, self.lease_of(object));
        let written =
            if object.complete { ReplicaStatus::Complete } else { ReplicaStatus::Processing };
        let mut live = Vec::new();
        for replica in &info.replicas {
            let at = &replica.placement;
            let status = at.segment.status();
            if status == SegmentStatus::Unmounted {
                assert_eq!(replica.status, ReplicaStatus::Removed);
                continue;
            }
            let segment = &self.segments[&at.segment.spec().id];
            assert_eq!(segment.status, status);
            let place = (segment.mounting, at.extent);
            let targets = object.transfer.iter().flat_map(|transfer| &transfer.targets);
            let is_target = targets.into_iter().any(|target| *target == place);
            let written = if is_target { ReplicaStatus::Processing } else { written };
            assert_eq!(replica.status, written);
            assert_eq!(replica.buffer, BufferStatus::of(written, status));
            live.push(place);
        }
        let targets = object.transfer.iter().flat_map(|transfer| &transfer.targets);
        let expected: Vec<_> = object.replicas.iter().chain(targets).copied().collect();
        assert_eq!(live, expected);
    }

    /// Checks that the effects alone lead to the same state.
    fn check_journal(&self) {
        let journal = self.recorder.journal();
        for (id, segment) in &self.segments {
            let Segment { spec, client, status, .. } = segment.clone();
            assert_eq!(journal.segments.get(id), Some(&SegmentSeen { spec, client, status }));
        }
        assert_eq!(journal.segments.len(), self.segments.len());
        for (key, object) in self.all() {
            let told = journal.objects.get(&(key.clone(), object.generation));
            assert_eq!(told, Some(&(object.complete, self.seen_as(key, object))));
        }
        for (name, (complete, seen)) in &journal.objects {
            let is_lost = self.lost.get(name).is_some_and(|lost| lost.complete == *complete);
            let is_there = self.put_of(&name.0, name.1).is_some();
            assert!(is_lost || is_there, "never told of the end of {name:?}");
            assert_eq!(is_lost, seen.replicas.is_empty());
        }
        assert_eq!(journal.objects.len(), self.all().count() + self.lost.len());
        let mut kept = Vec::new();
        for Discarded { told, replicas, .. } in &self.discarded {
            let id = |mounting| self.segment(mounting).unwrap().spec.id;
            kept.extend(replicas.iter().map(|(at, extent)| (id(*at), *extent, *told)));
        }
        let mut told = journal.kept;
        let key = |(id, extent, until): &(SegmentId, Extent, Time)| (*id, extent.offset(), *until);
        kept.sort_unstable_by_key(key);
        told.sort_unstable_by_key(key);
        assert_eq!(told, kept, "space without an owner");
    }

    fn check_report(&self) {
        let report = self.master.report();
        let readable = || self.in_status(SegmentStatus::is_readable);
        assert_eq!(report.totals.used, readable().map(|s| self.used_in(s.mounting)).sum::<u64>());
        assert_eq!(report.totals.capacity, readable().map(|s| s.spec.size).sum::<u64>());
        let present = self.clients.values().filter(|client| !client.away).count();
        assert_eq!(report.totals.clients, present as u64);
        assert_eq!(report.segments.len(), self.segments.len());
        for info in &report.segments {
            let segment = &self.segments[&info.spec.id];
            assert_eq!((&info.spec, info.client), (&segment.spec, segment.client));
            assert_eq!(info.status, segment.status);
            assert_eq!(info.used, self.used_in(segment.mounting));
            assert_eq!(info.allocations, self.taken(segment.mounting).len() as u64);
        }
        let count = |is: &dyn Fn(&Object) -> bool| self.objects.values().filter(|o| is(o)).count();
        let between = |seen: u64, least: usize, most: usize| {
            let unseen = self.lost.len();
            let range = least as u64..=(most + unseen) as u64;
            assert!(range.contains(&seen), "{seen} is not in {range:?}");
        };
        let (all, open) = (self.objects.len(), count(&|object| !object.complete));
        let open = open + self.replacements.len();
        let transfers = count(&|object| object.transfer.is_some());
        between(report.totals.transfers, transfers, transfers);
        between(report.totals.objects, all, all);
        between(report.totals.processing, open, open);
        // A lapsed pin is noticed at the next look, and an object set aside has no rank.
        let evictable = |o: &Object| o.complete && !o.hard_pin && o.soft_pin.is_wanted();
        let pinned = |o: &Object| evictable(o) && self.is_soft_pinned(o) && !self.may_be_aside(o);
        let least = if self.is_on_time() { count(&pinned) } else { 0 };
        between(report.totals.soft_pinned, least, count(&evictable));
        let totals = &self.totals;
        assert_eq!(report.totals.evicted_objects, totals.evicted_objects);
        assert_eq!(report.totals.evicted_bytes, totals.evicted_bytes);
        assert_eq!(report.totals.put_starts, totals.put_starts);
        assert_eq!(report.totals.put_ends, totals.put_ends);
        assert_eq!(report.totals.put_revokes, totals.put_revokes);
        assert_eq!(report.totals.put_start_no_room, totals.put_start_no_room);
        assert_eq!(report.totals.puts_discarded, totals.puts_discarded);
        assert_eq!(report.totals.get_hits, totals.get_hits);
        assert_eq!(report.totals.get_misses, totals.get_misses);
        assert_eq!(report.totals.exist_hits, totals.exist_hits);
        assert_eq!(report.totals.exist_misses, totals.exist_misses);
        assert_eq!(report.totals.removed_objects, totals.removed_objects);
        assert_eq!(report.totals.expired_clients, totals.expired_clients);
    }

    fn ping_all(&mut self) {
        for client in self.clients.keys().copied().collect::<Vec<ClientId>>() {
            self.ping(client);
        }
    }

    /// Brings back what is away, and lets more time pass than clients have to come back,
    /// while all of them are heard of: no segment goes that is there, unless it is being
    /// unmounted.
    fn outlive_deadlines(&mut self) {
        let away = self.in_status(|status| status == SegmentStatus::Suspended);
        for segment in away.cloned().collect::<Vec<_>>() {
            self.reattach(segment.client, &segment.spec);
        }
        let end = self.now + self.config.client_return_timeout;
        while self.now < end {
            self.now = self.now + self.config.client_ttl;
            self.latest = self.latest.max(self.now);
            self.ping_all();
            self.tick();
        }
        self.check();
    }

    /// Nothing leaks: when everything is removed, all space can be had again.
    pub(crate) fn finish(mut self) {
        self.tick();
        self.remove_all(true);
        // Far enough for every unfinished put and lease; the clients are kept alive.
        let longest = self.config.put_start_release_timeout.max(self.config.lease_ttl);
        self.now = self.latest + longest;
        self.ping_all();
        self.tick();
        self.outlive_deadlines();
        // What was being copied.
        self.remove_all(true);
        self.tick();
        self.check();
        assert!(self.objects.is_empty() && self.discarded.is_empty());
        assert!(self.groups.is_empty());
        let report = self.master.report();
        assert_eq!(
            (report.totals.objects, report.totals.processing, report.totals.soft_pinned),
            (0, 0, 0)
        );
        let used: u64 = report.segments.iter().map(|segment| segment.used).sum();
        assert_eq!(used, 0);
        let open = self.in_status(SegmentStatus::is_allocatable).cloned();
        for segment in open.collect::<Vec<_>>() {
            let config = ReplicateConfig::default().prefer(segment.spec.name.clone());
            let key = KeyRef::new("whole").unwrap();
            let lens = [segment.spec.size];
            let put = PutStart { key, slice_lengths: &lens, config: &config };
            let handle = self.put_start(segment.client, &put).expect("the whole segment");
            assert_eq!(self.objects["whole"].replicas[0].0, segment.mounting);
            self.put_revoke(segment.client, key, handle, LateWrites::Impossible);
        }
        assert!(self.master.report().segments.iter().all(|segment| segment.allocations == 0));
    }
}

/// Whether there are so many bytes next to each other.
pub(super) fn has_room(segment: &Segment, len: u64, mut taken: Vec<Extent>) -> bool {
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
