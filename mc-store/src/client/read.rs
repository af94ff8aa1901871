//! How objects are read: a leased replica list from the master, bytes from a replica, and
//! proof that they are the ones that were put.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mc_lease::ReaderLease;
use mc_rpc::ReplicaList;
use mc_transport::{BufferPool, Memory, MemorySlice, Operation, RemoteSpan};
use mc_types::{Checksum, ErrorCode, KeyRef, Time};

use super::Core;
use super::data::{Job, Moved, match_checksums, prefix};
use crate::error::GetError;

/// Objects asked for in one call.
const CHUNK: usize = 1024;

/// How often a read begins again because the object changed under it.
const ATTEMPTS: u32 = 3;

/// Where an object's bytes go.
pub(super) enum Target {
    /// Into memory taken when the length is known.
    Owned(Option<Memory>),
    /// It is there already: somebody read it before.
    Cached(Bytes),
    /// Into the caller's.
    Given(Vec<MemorySlice>),
}

impl Target {
    /// Into memory of the client.
    pub(super) const OWNED: Self = Self::Owned(None);
}

/// An object on its way.
pub(super) struct Item<'a> {
    key: &'a str,
    /// What is wanted of it.
    range: Option<Range<u64>>,
    target: Target,
    outcome: Option<Result<u64, GetError>>,
    attempts: u32,
}

/// One attempt to read an item, from one answer of the master.
struct Read {
    at: usize,
    list: ReplicaList,
    lease: ReaderLease,
    /// The first of the object's bytes that is read, and how many are.
    start: u64,
    len: u64,
    pieces: Arc<[MemorySlice]>,
    /// Replicas in the order in which to try them.
    order: Vec<usize>,
    failure: Option<GetError>,
    verified: bool,
    /// The object went away while it was read.
    lost: bool,
}

impl<'a> Item<'a> {
    pub(super) fn new(key: &'a str, range: Option<Range<u64>>, target: Target) -> Self {
        let outcome = KeyRef::new(key).err().map(|error| Err(GetError::Key(error)));
        Self { key, range, target, outcome, attempts: 0 }
    }

    fn key(&self) -> KeyRef<'a> {
        KeyRef::new(self.key).expect("an item with a bad key has an outcome from the start")
    }

    /// What is wanted of an object of `len` bytes: where it begins, and its length.
    fn part(&self, len: u64) -> Result<(u64, u64), GetError> {
        match &self.range {
            None => Ok((0, len)),
            Some(range) if range.start > len || range.start > range.end => {
                Err(GetError::OutOfRange { start: range.start, end: range.end, len })
            }
            Some(range) => Ok((range.start, range.end.min(len) - range.start)),
        }
    }

    /// The bytes that were read, or why none were, for the metrics.
    pub(super) fn tally(&self) -> Result<u64, ErrorCode> {
        match &self.outcome {
            Some(Ok(len)) => Ok(*len),
            Some(Err(error)) => Err(error.code()),
            None => Err(ErrorCode::Internal),
        }
    }

    /// Memory for `len` bytes.
    fn pieces(&mut self, len: u64, pool: &BufferPool) -> Result<Arc<[MemorySlice]>, GetError> {
        match &mut self.target {
            Target::Given(pieces) => prefix(pieces, len).ok_or_else(|| {
                let given = pieces.iter().map(|piece| piece.len() as u64).sum();
                GetError::BufferTooSmall { needed: len, given }
            }),
            Target::Owned(memory) => {
                let size = usize::try_from(len).unwrap_or(usize::MAX);
                if memory.as_ref().is_none_or(|memory| memory.len() != size) {
                    let taken = pool.take(size).map_or_else(|| Memory::allocate(size), Ok);
                    *memory = Some(taken.map_err(|error| GetError::Memory(Arc::new(error)))?);
                }
                let memory = memory.as_ref().expect("taken above");
                Ok([memory.whole()].into())
            }
            Target::Cached(_) => unreachable!("what was cached has an outcome"),
        }
    }

    /// Takes what is wanted of `value`, the whole object, from the cache.
    fn take_cached(&mut self, value: &Bytes) -> Result<u64, GetError> {
        let (start, len) = self.part(value.len() as u64)?;
        // Both lie inside of what is in memory.
        let part = value.slice(start as usize..(start + len) as usize);
        match &self.target {
            Target::Given(pieces) => {
                let Some(pieces) = prefix(pieces, len) else {
                    let given = pieces.iter().map(|piece| piece.len() as u64).sum();
                    return Err(GetError::BufferTooSmall { needed: len, given });
                };
                let mut rest = &part[..];
                for piece in &*pieces {
                    let (here, after) = rest.split_at(piece.len());
                    piece.copy_from(0, here).map_err(|_| GetError::TargetReadOnly)?;
                    rest = after;
                }
            }
            Target::Owned(_) | Target::Cached(_) => self.target = Target::Cached(part),
        }
        Ok(len)
    }

    pub(super) fn into_len(self) -> Result<u64, GetError> {
        self.outcome.expect("a chunk is read until every item has an outcome")
    }

    pub(super) fn into_bytes(self) -> Result<Bytes, GetError> {
        let len = self.outcome.expect("a chunk is read until every item has an outcome")?;
        let memory = match self.target {
            Target::Owned(Some(memory)) => memory,
            Target::Cached(value) => return Ok(value),
            _ => unreachable!("an object that was read into own memory left it here"),
        };
        let len = usize::try_from(len).expect("the object is in memory");
        // Something abandoned earlier may still hold the block: then it is copied.
        Ok(memory.try_into_bytes(len).unwrap_or_else(|memory| {
            memory.slice(0, len).expect("the block is as long as the object").to_vec().into()
        }))
    }
}

impl Core {
    pub(super) async fn get_all(&self, items: &mut [Item<'_>]) {
        if let Err(why) = self.request() {
            items.iter_mut().for_each(|item| item.outcome = Some(Err(why.into())));
        }
        for chunk in items.chunks_mut(CHUNK) {
            while chunk.iter().any(|item| item.outcome.is_none()) {
                self.get_round(chunk).await;
            }
        }
    }

    /// Asks for every item that has no outcome and reads what can be read. What
    /// went away meanwhile is left for another round, a bounded number of times.
    async fn get_round(&self, items: &mut [Item<'_>]) {
        let open: Vec<usize> = (0..items.len()).filter(|&at| items[at].outcome.is_none()).collect();
        let keys: Vec<KeyRef<'_>> = open.iter().map(|&at| items[at].key()).collect();
        let asked = self.now();
        let answers = match self.master.batch_get_replica_list(&keys).await {
            Ok(answers) => answers,
            Err(error) => {
                for at in open {
                    items[at].outcome = Some(Err(error.clone().into()));
                }
                return;
            }
        };
        let mut reads = Vec::with_capacity(open.len());
        for (at, answer) in open.into_iter().zip(answers) {
            let read = answer
                .map_err(GetError::refused)
                .and_then(|list| self.read(at, &mut items[at], list, asked));
            match read {
                Ok(Some(read)) => reads.push(read),
                Ok(None) => {}
                Err(error) => items[at].outcome = Some(Err(error)),
            }
        }
        self.read_replicas(&mut reads, items).await;
        // What no replica gave may have been removed, or its segment mounted anew,
        // since the master was asked: then the answer was old, not the bytes bad.
        self.renew(&mut reads, items, |read, _| !read.verified).await;
        for read in reads {
            let item = &mut items[read.at];
            item.attempts += 1;
            item.outcome = if read.verified && !read.lost {
                self.keep(item, &read);
                Some(Ok(read.len))
            } else if read.lost && item.attempts < ATTEMPTS {
                None
            } else if read.lost {
                Some(Err(GetError::LeaseExpired))
            } else {
                Some(Err(read.failure.unwrap_or(GetError::NotFound)))
            };
        }
    }

    /// A read as `list` says; `None` when the item has its outcome without one.
    fn read(
        &self,
        at: usize,
        item: &mut Item<'_>,
        list: ReplicaList,
        asked: Time,
    ) -> Result<Option<Read>, GetError> {
        let whole = list.slices.total_len();
        if let Some(cache) = &self.hot
            && let Some(value) = cache.get(item.key, list.generation, &list.slices)
        {
            item.outcome = Some(item.take_cached(&value));
            return Ok(None);
        }
        if list.replicas.is_empty() {
            // The object is on disks only, which this client does not read.
            return Err(GetError::NotReady);
        }
        let (start, len) = item.part(whole)?;
        let pieces = item.pieces(len, &self.pool)?;
        let lease = ReaderLease::granted(asked, list.lease);
        let order = self.order(&list);
        let (failure, verified, lost) = (None, false, false);
        Ok(Some(Read { at, list, lease, start, len, pieces, order, failure, verified, lost }))
    }

    /// Keeps what was read whole, if it is asked for often.
    fn keep(&self, item: &Item<'_>, read: &Read) {
        if let Some(cache) = &self.hot
            && read.len == read.list.slices.total_len()
        {
            cache.offer(item.key, read.list.generation, &read.list.slices, &read.pieces);
        }
    }

    /// Replicas in our own memory first, then those whose node answered lately, of these
    /// those that share memory, are not busy and near; those that are alike in an order
    /// that differs from object to object, to spread the load.
    fn order(&self, list: &ReplicaList) -> Vec<usize> {
        let count = list.replicas.len();
        if count == 1 {
            return vec![0];
        }
        let first = list.generation.as_u64() as usize % count.max(1);
        let mut order: Vec<usize> = (0..count).map(|n| (first + n) % count).collect();
        order.sort_by_cached_key(|&at| {
            let replica = &list.replicas[at];
            let endpoint = &replica.segment.endpoint;
            let own = self.segments.local(replica.segment.remote_key, replica.extent).is_some();
            (!own, self.peers.is_suspect(endpoint), self.loads.distance(endpoint))
        });
        order
    }

    /// Reads every object from its first replica, those that failed from their
    /// second, and so on, while the leases are kept from running out.
    async fn read_replicas(&self, reads: &mut [Read], items: &[Item<'_>]) {
        let replicas = reads.iter().map(|read| read.order.len()).max().unwrap_or(0);
        for turn in 0..replicas {
            let open: Vec<usize> = (0..reads.len())
                .filter(|&n| !reads[n].verified && !reads[n].lost && turn < reads[n].order.len())
                .collect();
            if open.is_empty() {
                return;
            }
            let jobs = open.iter().map(|&n| reads[n].job(turn)).collect();
            let results = self.transfer_under_lease(jobs, reads, items).await;
            for (n, result) in open.into_iter().zip(results) {
                reads[n].conclude(turn, result);
            }
            // Bytes are the object's only if it was still there when the last of
            // them arrived.
            self.renew(reads, items, |read, now| read.verified && !read.lease.is_active(now)).await;
        }
    }

    async fn transfer_under_lease(
        &self,
        jobs: Vec<Job>,
        reads: &mut [Read],
        items: &[Item<'_>],
    ) -> Vec<Moved> {
        let mut transfer = pin!(self.transfer(jobs));
        loop {
            let now = self.now();
            let shortest =
                reads.iter().filter(|read| !read.lost).map(|read| read.lease.remaining(now));
            let Some(wait) = shortest.min() else { return transfer.await };
            // Renewed at half time: the answer needs time as well. A master that
            // does not answer must not hold up bytes that have arrived.
            let renewal = async {
                tokio::time::sleep(wait / 2).await;
                self.renew(reads, items, |_, _| true).await;
            };
            tokio::select! {
                results = &mut transfer => return results,
                () = renewal => {}
            }
        }
    }

    /// Asks again for the objects that `wanted` picks. One that is still the same
    /// put, in the same place, was never gone: its bytes are still where they were
    /// and the lease goes on. Any other is lost.
    async fn renew(
        &self,
        reads: &mut [Read],
        items: &[Item<'_>],
        wanted: impl Fn(&Read, Time) -> bool,
    ) {
        let asked = self.now();
        let mut renewed: Vec<&mut Read> =
            reads.iter_mut().filter(|read| !read.lost && wanted(read, asked)).collect();
        if renewed.is_empty() {
            return;
        }
        let keys: Vec<KeyRef<'_>> = renewed.iter().map(|read| items[read.at].key()).collect();
        let answers = self.master.batch_get_replica_list(&keys).await;
        let Ok(answers) = answers else {
            // Without a master no lease is renewed; those that are over are lost.
            let now = self.now();
            for read in renewed {
                read.lost |= !read.lease.is_active(now);
            }
            return;
        };
        for (read, answer) in renewed.iter_mut().zip(answers) {
            match answer {
                Ok(list) if read.is_still_in(&list) => {
                    read.lease = ReaderLease::granted(asked, list.lease);
                }
                _ => read.lost = true,
            }
        }
    }

    /// This client's own clock, for leases.
    fn now(&self) -> Time {
        let elapsed = Instant::now().duration_since(self.settings.origin);
        Time::ORIGIN + elapsed
    }
}

impl Read {
    fn job(&self, turn: usize) -> Job {
        let replica = &self.list.replicas[self.order[turn]];
        let part = replica.extent.part(self.start, self.len).expect("a part of the object");
        let from = RemoteSpan::new(replica.segment.remote_key, part);
        let operation = match &*self.pieces {
            [piece] => Operation::read(from, piece.clone()),
            pieces => Operation::read(from, pieces.to_vec()),
        };
        let operation = if self.checksum().is_some() { operation.checksummed() } else { operation };
        Job { endpoint: replica.segment.endpoint.clone(), operation }
    }

    /// The checksum that all bytes together must have, if that is one slice's.
    fn checksum(&self) -> Option<Checksum> {
        match self.list.slices.as_slice() {
            [slice] if slice.len == self.len => slice.checksum,
            _ => None,
        }
    }

    fn conclude(&mut self, turn: usize, result: Moved) {
        match result {
            Ok(checksum) if self.is_intact(checksum) => self.verified = true,
            Ok(_) => {
                let endpoint = self.list.replicas[self.order[turn]].segment.endpoint.clone();
                self.failure = Some(GetError::ChecksumMismatch { endpoint });
            }
            Err(error) => self.failure = Some(GetError::Peer(error)),
        }
    }

    /// Whether `list` names the put that is being read, and every replica that it
    /// is read from where it was.
    fn is_still_in(&self, list: &ReplicaList) -> bool {
        list.generation == self.list.generation
            && self.list.replicas.iter().all(|replica| list.replicas.contains(replica))
    }

    /// Whether every slice that was read whole has the checksum that its writer gave.
    /// `moved` is that of all bytes, when it was taken while they came.
    fn is_intact(&self, moved: Option<Checksum>) -> bool {
        if let (Some(expected), Some(found)) = (self.checksum(), moved) {
            return expected == found;
        }
        let (start, end) = (self.start, self.start + self.len);
        let mut at = 0;
        let runs = self.list.slices.as_slice().iter().filter_map(|slice| {
            let (from, to) = (at, at + slice.len);
            at = to;
            let read = to.min(end).checked_sub(from.max(start)).filter(|&read| read > 0)?;
            Some((read, slice.checksum.filter(|_| read == slice.len)))
        });
        match_checksums(&self.pieces, runs)
    }
}
