//! Puts, the space they are granted and the reasons they are refused.

use std::collections::BTreeSet;

use mc_meta::{PutEnd, PutFinishError, PutGrant, PutStart, PutStartError, SegmentSpec, Slice};
use mc_types::{ClientId, Extent, Generation, KeyRef};

use super::{Discarded, Event, Mounting, Object, Oracle, Segment};

impl Oracle {
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
            assert!(placement.segment.status().is_readable());
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
        // Hosts are shared only when every other host is full.
        let host =
            |spec: &SegmentSpec| spec.endpoint.as_str().rsplit_once(':').unwrap().0.to_owned();
        let placements = grant.placements.iter();
        let hosts: BTreeSet<String> = placements.map(|at| host(at.segment.spec())).collect();
        if hosts.len() < extents.len() {
            let mut others = self.segments.values().filter(|s| !hosts.contains(&host(&s.spec)));
            assert!(!others.any(|segment| self.has_room(segment, len)), "replicas on one host");
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
        let largest_object = self.segments.values().map(|s| s.spec.size).max();
        let Some(largest_object) = largest_object else {
            assert_eq!(*error, PutStartError::TooFewSegments { mounted: 0 });
            return;
        };
        if len > largest_object {
            assert_eq!(*error, PutStartError::TooLarge { len, largest_object });
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
}
