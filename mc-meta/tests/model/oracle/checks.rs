//! What the model knows of protection and space, and what must be true after
//! every command.

use mc_meta::{PutStart, ReplicaStatus, ReplicateConfig};
use mc_types::{Extent, KeyRef};

use super::{Mounting, Object, Oracle, Segment};

impl Oracle {
    pub(super) fn is_leased(&self, object: &Object) -> bool {
        object.leased && self.now < object.touched + self.config.lease_ttl
    }

    pub(super) fn is_soft_pinned(&self, object: &Object) -> bool {
        object.soft_pin && self.now < object.touched + self.config.soft_pin_ttl
    }

    /// Whether it may still be behind soft-pinned objects in the order of eviction.
    pub(super) fn ranks_soft_pinned(&self, object: &Object) -> bool {
        let used = if object.leased { object.settled.unwrap_or(self.now) } else { object.touched };
        object.soft_pin && self.now < used + self.config.soft_pin_ttl
    }

    pub(super) fn taken(&self, mounting: Mounting) -> Vec<Extent> {
        let live = self.objects.values().flat_map(|object| &object.replicas);
        let discarded = self.discarded.iter().flat_map(|discarded| &discarded.replicas);
        live.chain(discarded).filter(|(at, _)| *at == mounting).map(|(_, extent)| *extent).collect()
    }

    pub(super) fn used_in(&self, mounting: Mounting) -> u64 {
        self.taken(mounting).iter().map(|extent| extent.len()).sum()
    }

    pub(super) fn used(&self) -> u64 {
        self.segments.values().map(|segment| self.used_in(segment.mounting)).sum()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.segments.values().map(|segment| segment.spec.size).sum()
    }

    pub(super) fn has_room(&self, segment: &Segment, len: u64) -> bool {
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
            let config = ReplicateConfig::default().prefer(segment.spec.name.clone());
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
