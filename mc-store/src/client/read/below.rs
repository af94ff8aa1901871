//! Reading what memory does not have: from clients' own disks, and from files on the shared tier.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use mc_meta::{ReplicaPlace, Slices};
use mc_rpc::ReplicaList;
use mc_tier::{ObjectId, Tier, TierError};
use mc_transport::{Cancel, RemoteSpan};
use mc_types::KeyRef;
use tokio::time::Instant;

use super::{CHUNK, Object, Read};
use crate::client::checksums::{Pieces, prefix, scatter};
use crate::client::core::Core;
use crate::client::data::{CancelOnDrop, Patience};
use crate::client::tiers::TierCounters;
use crate::error::GetError;

/// A part of an object and the memory that it is read into.
struct Wanted {
    part: usize,
    range: Range<u64>,
    target: Pieces,
}

/// A tier of the client's own, or one that it shares.
struct TierSource<'a> {
    tier: Arc<dyn Tier>,
    counters: &'a TierCounters,
    place: ReplicaPlace,
    id: ObjectId,
}

/// Why nothing was read from a tier.
enum Failure {
    /// The object is missing or damaged there.
    Useless(Option<TierError>),
    Tier(TierError),
    Target,
}

impl Core {
    /// Returns whether the client can read the object from a file.
    pub(super) fn has_file(&self, list: &ReplicaList) -> bool {
        let shared = self.shared_tier.as_ref();
        list.disk.is_some() && shared.is_some_and(|shared| shared.tier().is_some())
    }

    /// The client's own disk, if the object is there.
    fn own_disk_of(&self, key: KeyRef<'_>, list: &ReplicaList) -> Option<TierSource<'_>> {
        let disk = self.own_disk.get()?;
        let is_there = list.local_disks.iter().any(|there| there.client == self.id);
        let tier = disk.tier().filter(|_| is_there)?;
        let place = ReplicaPlace::LocalDisk(self.id);
        let id = self.object_id(key, list.generation).ok()?;
        Some(TierSource { tier, counters: &disk.counters, place, id })
    }

    /// The shared tier, if the object has a file.
    fn file_of(&self, key: KeyRef<'_>, list: &ReplicaList) -> Option<TierSource<'_>> {
        let shared = self.shared_tier.as_ref().filter(|_| list.disk.is_some())?;
        let (tier, counters) = (Arc::clone(shared.tier()?), &shared.counters);
        let id = self.file_id(shared, key, list.generation).ok()?;
        Some(TierSource { tier, counters, place: ReplicaPlace::File, id })
    }

    /// Reads the parts that no replica in memory gave from the client's own disk, and then from the
    /// disks of others.
    pub(super) async fn read_disks(&self, reads: &mut [Read], objects: &[Object<'_>]) {
        let own = reads.iter_mut().filter(|read| read.is_open()).filter_map(|read| {
            let key = objects[read.object].key;
            Some(self.read_tier(self.own_disk_of(key, &read.list)?, key, read))
        });
        join_all(own).await;
        let mut turn = 0;
        loop {
            let mut open = Vec::new();
            let mut is_last = true;
            for (n, read) in reads.iter().enumerate().filter(|(_, read)| read.is_open()) {
                let Some(disk) = read.list.local_disks.get(turn) else { continue };
                is_last = false;
                if disk.client != self.id {
                    let parts = read.parts.iter().enumerate();
                    open.extend(parts.filter(|(_, part)| !part.verified).map(|(nth, _)| (n, nth)));
                }
            }
            if is_last {
                return;
            }
            for open in open.chunks(CHUNK) {
                self.read_from_peers(open, turn, reads, objects).await;
            }
            turn += 1;
        }
    }

    /// Reads parts from the disks that have this turn.
    async fn read_from_peers(
        &self,
        open: &[(usize, usize)],
        turn: usize,
        reads: &mut [Read],
        objects: &[Object<'_>],
    ) {
        let mut is_ready = |&(n, nth): &(usize, usize)| reads[n].prepare(nth, &self.pool);
        let open: Vec<(usize, usize)> = open.iter().copied().filter(&mut is_ready).collect();
        let jobs = open.iter().map(|&(n, nth)| {
            let disk = &reads[n].list.local_disks[turn];
            let from = RemoteSpan::new(disk.remote_key, disk.extent).with_ticket(disk.ticket);
            reads[n].job_from(nth, disk.endpoint.clone(), from, Patience::Whole)
        });
        let jobs = jobs.collect();
        let results = self.transfer_under_lease(jobs, reads, objects).await;
        for ((n, nth), result) in open.into_iter().zip(results) {
            let read = &mut reads[n];
            let disk = &read.list.local_disks[turn];
            let part = &mut read.parts[nth];
            match result {
                Ok(done) if part.is_intact(&done) => part.verified = true,
                Ok(_) => {
                    let place = ReplicaPlace::LocalDisk(disk.client);
                    let key = objects[read.object].key;
                    self.reports.damaged_on_disk(key, read.list.generation, place);
                    let endpoint = disk.endpoint.clone();
                    part.failure = Some(GetError::ChecksumMismatch { endpoint });
                }
                Err(failed) => {
                    if failed.error.is_of_device() {
                        // It is missing, or the disk cannot read it, which its node finds out.
                        let place = ReplicaPlace::LocalDisk(disk.client);
                        let key = objects[read.object].key;
                        self.reports.damaged_on_disk(key, read.list.generation, place);
                    }
                    part.failure.get_or_insert(GetError::Peer(failed.error));
                }
            }
            part.release();
        }
    }

    /// Reads from files the parts that nothing else gave.
    pub(super) async fn read_tiers(&self, reads: &mut [Read], objects: &[Object<'_>]) {
        let reads = reads.iter_mut().filter(|read| read.is_open()).filter_map(|read| {
            let key = objects[read.object].key;
            Some(self.read_tier(self.file_of(key, &read.list)?, key, read))
        });
        join_all(reads).await;
    }

    async fn read_tier(&self, source: TierSource<'_>, key: KeyRef<'_>, read: &mut Read) {
        let open = read.parts.iter().enumerate().filter(|(_, part)| !part.verified);
        let wanted: Vec<Wanted> = open
            .map(|(at, part)| Wanted {
                part: at,
                range: part.wanted(),
                target: part.target().iter().cloned().collect(),
            })
            .collect();
        let (tier, id, slices) = (source.tier, source.id, read.list.slices.clone());
        let _place = self.tier_readers.acquire().await.expect("the semaphore is never closed");
        let begun = Instant::now();
        // The thread goes on when this is dropped, and then leaves the memory alone.
        let cancel = CancelOnDrop::default();
        let cancelled = cancel.handle().clone();
        let reading = self.settings.environment.blocking(move || {
            let outcome = read_from(&*tier, &id, &slices, &wanted, &cancelled);
            (wanted, outcome)
        });
        let Some(Ok((wanted, outcome))) = reading.await else { return };
        drop(cancel);
        let bytes = wanted.iter().map(|wanted| wanted.range.end - wanted.range.start).sum();
        source.counters.read(
            begun.elapsed(),
            match &outcome {
                Ok(()) => Ok(Some(bytes)),
                Err(Failure::Useless(None)) => Ok(None),
                Err(_) => Err(()),
            },
        );
        let failure = match outcome {
            Ok(()) => {
                wanted.iter().for_each(|wanted| read.parts[wanted.part].verified = true);
                return;
            }
            Err(Failure::Useless(error)) => {
                self.reports.damaged_on_disk(key, read.list.generation, source.place);
                match error {
                    Some(error) => GetError::Tier(Arc::new(error)),
                    None => GetError::NotFound,
                }
            }
            Err(Failure::Tier(error)) => GetError::Tier(Arc::new(error)),
            Err(Failure::Target) => GetError::TargetReadOnly,
        };
        for wanted in wanted {
            let part = &mut read.parts[wanted.part];
            // A failure in memory says more.
            part.failure.get_or_insert_with(|| failure.clone());
        }
    }
}

impl Read {
    /// Returns whether parts are left to be read.
    fn is_open(&self) -> bool {
        !self.lost && self.parts.iter().any(|part| !part.verified)
    }
}

/// Reads the wanted ranges of an object of these slices.
fn read_from(
    tier: &dyn Tier,
    id: &ObjectId,
    slices: &Slices,
    wanted: &[Wanted],
    cancel: &Cancel,
) -> Result<(), Failure> {
    let len = slices.total_len();
    if let [only] = wanted
        && only.range != (0..len)
        && !only.range.is_empty()
    {
        let bytes = tier.get_range(id, only.range.clone()).map_err(of_tier)?;
        let bytes = bytes.ok_or(Failure::Useless(None))?;
        return scatter(&bytes, &only.target, cancel).map_err(|_| Failure::Target);
    }
    let object = tier.get(id).map_err(of_tier)?.ok_or(Failure::Useless(None))?;
    let expected = slices.as_slice();
    let found = object.slices();
    let is_same = expected.len() == found.len()
        && expected.iter().zip(found).all(|(expected, found)| {
            let info = found.info();
            expected.len == info.len && expected.checksum.is_none_or(|sum| sum == info.checksum)
        });
    if !is_same {
        return Err(Failure::Useless(None));
    }
    for Wanted { range, target, .. } in wanted {
        let mut at = 0;
        let mut filled = 0;
        for slice in found {
            let here = at..at + slice.bytes().len() as u64;
            at = here.end;
            let (start, end) = (here.start.max(range.start), here.end.min(range.end));
            if start >= end {
                continue;
            }
            // Within bytes that are in memory.
            let part = (start - here.start) as usize..(end - here.start) as usize;
            let rest = behind(target, filled);
            let pieces = prefix(&rest, end - start).ok_or(Failure::Target)?;
            let copied = scatter(&slice.bytes()[part], &pieces, cancel);
            copied.map_err(|_| Failure::Target)?;
            filled += end - start;
        }
    }
    Ok(())
}

fn of_tier(error: TierError) -> Failure {
    match error {
        TierError::Damaged { .. } => Failure::Useless(Some(error)),
        error => Failure::Tier(error),
    }
}

/// The pieces without their first `len` bytes.
fn behind(pieces: &Pieces, mut len: u64) -> Pieces {
    let mut rest = Pieces::new();
    for piece in pieces {
        let skipped = len.min(piece.len() as u64);
        len -= skipped;
        rest.extend(piece.part(skipped as usize, piece.len() - skipped as usize));
    }
    rest
}
