//! Reading what memory does not have: from clients' local disks, and from files on the shared tier.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use mc_meta::ReplicaPlace;
use mc_rpc::ReplicaList;
use mc_tier::{Damage, ObjectId, Tier, TierError};
use mc_transport::{BufferPool, RemoteSpan};
use mc_types::{Checksum, Endpoint, KeyRef};
use tokio::time::Instant;

use super::{CHUNK, Object, Read, Reader};
use crate::client::checksums::{Mismatch, Pieces, first_mismatch, prefix, scatter};
use crate::client::data::{CancelOnDrop, Holder, Patience};
use crate::client::metrics::TierCounters;
use crate::client::tiers::{DiskTurn, MAX_READ, NotRead, TierReads};
use crate::error::GetError;

/// A part of an object and the memory that it is read into.
struct Wanted {
    part: usize,
    range: Range<u64>,
    /// In the order of the bytes; no piece has bytes of two slices.
    pieces: Pieces,
    /// The checksums of the put, slice by slice.
    expected: Vec<(u64, Option<Checksum>)>,
    /// The place of the first slice in the object.
    first_slice: usize,
}

/// A tier of the client's own, or one that it shares.
struct TierSource<'a> {
    tier: Arc<dyn Tier>,
    reads: &'a TierReads,
    counters: &'a TierCounters,
    place: ReplicaPlace,
    id: ObjectId,
}

/// Why nothing was read from a tier.
#[derive(Debug)]
enum TierFailure {
    /// The object is missing or damaged there.
    Useless(Option<TierError>),
    Tier(TierError),
    Target,
    /// No answer came in time.
    Unanswered,
    /// The runtime ends.
    Ending,
}

impl Reader<'_> {
    /// The client's local disk, if the object is there.
    fn local_disk_of(&self, key: KeyRef<'_>, list: &ReplicaList) -> Option<TierSource<'_>> {
        let disk = self.tiers.local_disk.get()?;
        let is_there = list.local_disks.iter().any(|there| there.client == self.link.id);
        let tier = disk.tier().filter(|_| is_there)?;
        let place = ReplicaPlace::LocalDisk(self.link.id);
        let id = self.tiers.object_id(key, list.generation).ok()?;
        let (reads, counters) = (&self.tiers.local_disk_reads, &*disk.counters);
        Some(TierSource { tier, reads, counters, place, id })
    }

    /// The shared tier, if the object has a file.
    fn file_of(&self, key: KeyRef<'_>, list: &ReplicaList) -> Option<TierSource<'_>> {
        let shared = self.tiers.shared.as_ref().filter(|_| list.file.is_some())?;
        let (tier, counters) = (shared.tier()?, &shared.counters);
        let id = self.tiers.file_id(shared, key, list.generation).ok()?;
        let reads = &self.tiers.shared_reads;
        Some(TierSource { tier, reads, counters, place: ReplicaPlace::File, id })
    }

    /// Reads the parts that no replica in memory gave from the client's local disk, and then from the
    /// disks of others.
    pub(super) async fn read_disks(&self, reads: &mut [Read], objects: &[Object<'_>]) {
        let own = reads.iter_mut().filter(|read| read.is_open()).filter_map(|read| {
            let key = objects[read.object].key;
            Some(self.read_tier(self.local_disk_of(key, &read.list)?, key, read))
        });
        join_all(own).await;
        let mut turn = 0;
        loop {
            let mut open = Vec::new();
            let mut is_last = true;
            for (n, read) in reads.iter().enumerate().filter(|(_, read)| read.is_open()) {
                let Some(disk) = read.list.local_disks.get(turn) else { continue };
                is_last = false;
                if disk.client != self.link.id {
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
        let limit = self.tiers.peer_disk_reads.limit();
        let mut by_disk: BTreeMap<Endpoint, Vec<(usize, usize)>> = BTreeMap::new();
        for &(n, nth) in open {
            let endpoint = &reads[n].list.local_disks[turn].endpoint;
            match by_disk.get_mut(endpoint) {
                Some(parts) => parts.push((n, nth)),
                None => _ = by_disk.insert(endpoint.clone(), vec![(n, nth)]),
            }
        }
        let (mut turns, mut open) = (Vec::new(), Vec::with_capacity(open.len()));
        for (endpoint, parts) in by_disk {
            if let Some(turn) = self.tiers.peer_disk_reads.turn(&endpoint, parts.len()) {
                turns.push((turn, 0));
                open.extend(parts);
                continue;
            }
            for (n, nth) in parts {
                let failure = &mut reads[n].parts[nth].failure;
                failure.get_or_insert(GetError::TierTimedOut { limit });
            }
        }
        open.retain(|&(n, nth)| reads[n].prepare(nth, self.pool));
        let jobs = open.iter().map(|&(n, nth)| {
            let disk = &reads[n].list.local_disks[turn];
            let from = RemoteSpan::new(disk.remote_key, disk.extent).with_ticket(disk.ticket);
            let holder = Holder::Disk(disk.endpoint.clone());
            reads[n].job_from(nth, holder, from, Patience::Disk(limit))
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
                Err(failed) if failed.moved_on || failed.error.is_whole_time_limit() => {
                    let of_disk =
                        |(turn, _): &&mut (DiskTurn<'_>, _)| *turn.endpoint() == disk.endpoint;
                    if let Some((_, timed_out)) = turns.iter_mut().find(of_disk) {
                        *timed_out += 1;
                    }
                    part.failure.get_or_insert(GetError::TierTimedOut { limit });
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
        turns.into_iter().for_each(|(turn, timed_out)| turn.outcome(timed_out));
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
        let open = (0..read.parts.len()).filter(|&nth| !read.parts[nth].verified);
        let open: Vec<usize> = open.collect();
        let wanted: Vec<Wanted> =
            open.into_iter().filter_map(|nth| read.wanted(nth, self.pool)).collect();
        if wanted.is_empty() {
            return;
        }
        let begun = Instant::now();
        let all = wanted.iter().map(|wanted| self.read_part(&source, wanted));
        let outcomes = join_all(all).await;
        source.counters.read(
            begun.elapsed(),
            match outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
                None => Ok(Some(wanted.iter().map(Wanted::len).sum())),
                Some(TierFailure::Useless(None)) => Ok(None),
                Some(_) => Err(()),
            },
        );
        let mut is_useless = false;
        for (Wanted { part, .. }, outcome) in wanted.into_iter().zip(outcomes) {
            let part = &mut read.parts[part];
            part.release();
            let failure = match outcome {
                Ok(()) => {
                    part.verified = true;
                    continue;
                }
                Err(TierFailure::Useless(error)) => {
                    is_useless = true;
                    match error {
                        Some(error) => GetError::Tier(Arc::new(error)),
                        None => GetError::NotFound,
                    }
                }
                Err(TierFailure::Tier(error)) => GetError::Tier(Arc::new(error)),
                Err(TierFailure::Target) => GetError::TargetReadOnly,
                Err(TierFailure::Unanswered) => {
                    GetError::TierTimedOut { limit: source.reads.limit() }
                }
                Err(TierFailure::Ending) => GetError::Closed,
            };
            // A failure in memory says more.
            part.failure.get_or_insert(failure);
        }
        if is_useless {
            self.reports.damaged_on_disk(key, read.list.generation, source.place);
        }
    }

    /// Reads a part and compares it with the put's checksums. What has none is compared by the tier.
    async fn read_part(&self, source: &TierSource<'_>, wanted: &Wanted) -> Result<(), TierFailure> {
        if wanted.range.is_empty() {
            return Ok(());
        }
        // The threads go on when this is dropped, and then leave the memory alone.
        let cancel = CancelOnDrop::default();
        let by_tier = wanted.expected.iter().any(|(_, expected)| expected.is_none());
        if by_tier || wanted.len() <= MAX_READ {
            let check = Check { by_tier, expected: wanted.expected.clone() };
            let range = wanted.range.clone();
            let outcome = self.read_span(source, range, &wanted.pieces, check, &cancel).await;
            return outcome.map_err(|failure| failure.of_slices_from(wanted.first_slice));
        }
        let spans = (wanted.range.clone()).step_by(MAX_READ as usize).map(|start| {
            let span = start..wanted.range.end.min(start + MAX_READ);
            let rest = behind(&wanted.pieces, start - wanted.range.start);
            let cancel = &cancel;
            async move {
                let pieces = prefix(&rest, span.end - span.start).ok_or(TierFailure::Target)?;
                self.read_span(source, span, &pieces, Check::default(), cancel).await
            }
        });
        try_join_all(spans).await?;
        let (pieces, expected) = (wanted.pieces.clone(), wanted.expected.clone());
        let (name, first) = (source.reads.name, wanted.first_slice);
        let compared = self.tiers.environment.blocking(move || compare(name, &pieces, expected));
        let compared = compared.await.and_then(Result::ok).ok_or(TierFailure::Ending)?;
        compared.map_err(|failure| failure.of_slices_from(first))
    }

    /// Reads a range of an object into pieces of as many bytes.
    async fn read_span(
        &self,
        source: &TierSource<'_>,
        range: Range<u64>,
        pieces: &Pieces,
        check: Check,
        cancel: &CancelOnDrop,
    ) -> Result<(), TierFailure> {
        let (tier, id, name) = (Arc::clone(&source.tier), source.id.clone(), source.reads.name);
        let (pieces, cancel) = (pieces.clone(), cancel.handle().clone());
        let len = range.end - range.start;
        let reading = source.reads.read(&*self.tiers.environment, len, move || {
            let bytes = match check.by_tier {
                true => tier.get_range(&id, range),
                false => tier.get_unverified(&id, range),
            };
            let bytes = bytes.map_err(of_tier)?.ok_or(TierFailure::Useless(None))?;
            if bytes.len() as u64 != len {
                return Err(TierFailure::Useless(None));
            }
            scatter(&bytes, &pieces, &cancel).map_err(|_| TierFailure::Target)?;
            compare(name, &pieces, check.expected)
        });
        match reading.await {
            Ok(outcome) => outcome,
            Err(NotRead::Unanswered) => Err(TierFailure::Unanswered),
            Err(NotRead::Ending) => Err(TierFailure::Ending),
        }
    }
}

/// The checksums that bytes are compared with as they are read.
#[derive(Default)]
struct Check {
    /// The checksums that the tier keeps.
    by_tier: bool,
    /// Those of the put, slice by slice.
    expected: Vec<(u64, Option<Checksum>)>,
}

impl Wanted {
    const fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl TierFailure {
    /// The same, of slices that are counted from the object's first and not from this one.
    fn of_slices_from(mut self, first: usize) -> Self {
        if let Self::Useless(Some(TierError::Damaged {
            source: Damage::Slice { index, .. }, ..
        })) = &mut self
        {
            *index += first;
        }
        self
    }
}

impl Read {
    /// Returns whether parts are left to be read.
    fn is_open(&self) -> bool {
        !self.lost && self.parts.iter().any(|part| !part.verified)
    }

    /// Returns the bytes to read of a part; `None` when there is no memory for it.
    fn wanted(&mut self, nth: usize, pool: &BufferPool) -> Option<Wanted> {
        if !self.prepare(nth, pool) {
            return None;
        }
        let part = &self.parts[nth];
        let range = part.read();
        let mut end = 0;
        let slices = self.list.slices.as_slice().iter();
        let before = slices.take_while(|slice| {
            end += slice.len;
            end <= range.start
        });
        let first_slice = before.count();
        let expected = part.expected().to_vec();
        Some(Wanted { part: nth, range, pieces: part.pieces(), expected, first_slice })
    }
}

/// Compares what was read from `tier` with the put's checksums.
fn compare(
    tier: &str,
    pieces: &Pieces,
    expected: Vec<(u64, Option<Checksum>)>,
) -> Result<(), TierFailure> {
    match first_mismatch(pieces, expected) {
        None => Ok(()),
        Some(Mismatch { run: index, expected, found }) => {
            let source = Damage::Slice { index, expected, found };
            Err(TierFailure::Useless(Some(TierError::Damaged { path: tier.into(), source })))
        }
    }
}

fn of_tier(error: TierError) -> TierFailure {
    match error {
        TierError::Damaged { .. } => TierFailure::Useless(Some(error)),
        error => TierFailure::Tier(error),
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
