//! How objects are read: a leased replica list from the master, bytes from a replica, and
//! proof that they are the ones that were put.

mod below;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use mc_lease::ReaderLease;
use mc_meta::VerifiedSpan;
use mc_rpc::{RangedList, Refusal, ReplicaList, RpcError, SegmentLocation};
use mc_transport::{
    BootClock, BootTime, BufferPool, Cancel, Memory, MemorySlice, Operation, RemoteSpan,
    TransferError,
};
use mc_types::{ErrorCode, Generation, KeyRef, Time};
use smallvec::{SmallVec, smallvec};

use super::checksums::{Pieces, prefix, scatter};
use super::data::{Holder, Job, Moved, Patience, Transfers};
use super::hot_cache::HotCache;
use super::master_link::MasterLink;
use super::part::Part;
use super::ranges::ask_for_ranges;
use super::reports::Reports;
use super::segments::Segments;
use super::tiers::Tiers;
use crate::by_key::{Positions, by_key};
use crate::error::{GetError, PeerError};

/// Objects asked for in one call, and parts of objects read at a time.
const CHUNK: usize = 1024;

/// How often a read begins again because the object, or its node's master, changed under it.
const ATTEMPTS: u32 = 3;

/// Makes memory for the value of one of several keys, by the key's place among them and the value's length; `None`
/// where other memory will do.
pub type MakeMemory<'a> = dyn Fn(usize, usize) -> Option<Memory> + Send + Sync + 'a;

/// Where an object's bytes go.
pub(super) enum Target {
    /// Into memory taken when the length is known, which is at most this.
    Owned(Option<Memory>, u64),
    /// The bytes of an earlier read.
    Cached(Bytes),
    /// Into the caller's.
    Given(Vec<MemorySlice>),
}

impl Target {
    /// Into memory of the client.
    pub(super) const OWNED: Self = Self::Owned(None, u64::MAX);
}

/// An object on its way, or a part of one.
pub(super) struct Item<'a> {
    /// `None` when it is invalid, which is the outcome then.
    key: Option<KeyRef<'a>>,
    /// The wanted range.
    range: Option<Range<u64>>,
    /// The only put that it may be of.
    generation: Option<Generation>,
    target: Target,
    /// Makes the memory of a target of the client's own, and the place of the key for it.
    make: Option<(usize, &'a MakeMemory<'a>)>,
    outcome: Option<Result<u64, GetError>>,
    /// The put that its bytes are of, when it has them.
    read_of: Option<Generation>,
}

/// All items of one key. They are read together, so that their bytes are of one put.
struct Object<'a> {
    key: KeyRef<'a>,
    items: Positions,
    /// The checksums that verify the ranges of its items, one for each in their order.
    spans: Vec<Option<VerifiedSpan>>,
    attempts: u32,
    is_open: bool,
    /// Why the last attempt failed, if a node gave no answer: the master may call the node's
    /// objects not ready by now, which names neither.
    silence: Option<GetError>,
}

/// One attempt to read an object, from one answer of the master.
struct Read {
    object: usize,
    list: ReplicaList,
    lease: ReaderLease,
    /// Replicas in the order in which to try them.
    order: SmallVec<[usize; 2]>,
    /// The first so many of them are no suspects.
    trusted: usize,
    parts: SmallVec<[Part; 1]>,
    /// The object went away while it was read.
    lost: bool,
    /// Replicas whose bytes were not those that were put.
    damaged: SmallVec<[usize; 1]>,
}

impl<'a> Item<'a> {
    pub(super) fn new(
        key: &'a str,
        range: Option<Range<u64>>,
        generation: Option<Generation>,
        target: Target,
    ) -> Self {
        let (key, outcome) = match KeyRef::new(key) {
            Ok(key) => (Some(key), None),
            Err(error) => (None, Some(Err(GetError::Key(error)))),
        };
        Self { key, range, generation, target, make: None, outcome, read_of: None }
    }

    /// The same, into memory that `make` makes for the key at this place.
    pub(super) fn made_by(self, at: usize, make: &'a MakeMemory<'a>) -> Self {
        Self { make: Some((at, make)), ..self }
    }

    /// The put that was read; `None` when nothing was.
    pub(super) fn read_of(&self) -> Option<(KeyRef<'a>, Generation)> {
        let is_read = matches!(self.outcome, Some(Ok(_)));
        self.key.zip(self.read_of).filter(|_| is_read)
    }

    /// Returns the wanted part of an object of `len` bytes: its beginning, and its length.
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
    fn pieces(&mut self, len: u64, pool: &BufferPool) -> Result<Pieces, GetError> {
        let make = self.make;
        match &mut self.target {
            Target::Given(pieces) => prefix(pieces, len).ok_or_else(|| {
                let given = pieces.iter().map(|piece| piece.len() as u64).sum();
                GetError::BufferTooSmall { needed: len, given }
            }),
            &mut Target::Owned(_, given) if len > given => {
                Err(GetError::BufferTooSmall { needed: len, given })
            }
            Target::Owned(memory, _) => {
                let size = usize::try_from(len).unwrap_or(usize::MAX);
                if memory.as_ref().is_none_or(|memory| memory.len() != size) {
                    let made = make.and_then(|(at, make)| make(at, size));
                    let made = made.filter(|made| made.len() == size && made.is_writable());
                    let taken = made.or_else(|| pool.take(size));
                    let taken = taken.map_or_else(|| Memory::allocate(size), Ok);
                    *memory = Some(taken.map_err(|error| GetError::Memory(Arc::new(error)))?);
                }
                let memory = memory.as_ref().expect("taken above");
                Ok(smallvec![memory.whole()])
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
                let copied = scatter(&part, &pieces, &Cancel::new());
                copied.map_err(|_| GetError::TargetReadOnly)?;
            }
            &Target::Owned(_, given) if len > given => {
                return Err(GetError::BufferTooSmall { needed: len, given });
            }
            Target::Owned(..) | Target::Cached(_) => self.target = Target::Cached(part),
        }
        Ok(len)
    }

    pub(super) fn into_len(self) -> Result<u64, GetError> {
        self.outcome.expect("a chunk is read until every item has an outcome")
    }

    pub(super) fn into_bytes(self) -> Result<Bytes, GetError> {
        let len = self.outcome.expect("a chunk is read until every item has an outcome")?;
        let memory = match self.target {
            Target::Owned(Some(memory), _) => memory,
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

impl<'a> Object<'a> {
    fn new(key: KeyRef<'a>, items: Positions) -> Self {
        Self { key, items, spans: Vec::new(), attempts: 0, is_open: true, silence: None }
    }

    fn fail(&mut self, items: &mut [Item<'_>], error: &GetError) {
        self.is_open = false;
        self.items.iter().for_each(|&at| items[at].outcome = Some(Err(error.clone())));
    }

    /// Ends with what was read, or begins again if the object went away too early. Of what was
    /// read then nothing stays: the rest of it will be of another put.
    fn conclude(&mut self, items: &mut [Item<'_>], read: &mut Read) {
        self.attempts += 1;
        let was_cut = read.was_cut_off() && self.attempts == 1;
        self.is_open = was_cut || (read.lost || read.was_refused()) && self.attempts < ATTEMPTS;
        if self.is_open {
            self.silence = read.silence();
            self.items.iter().for_each(|&at| items[at].outcome = None);
            return;
        }
        for part in &mut read.parts {
            items[part.item].read_of = Some(read.list.generation);
            items[part.item].outcome = Some(match part.failure.take() {
                _ if read.lost => Err(GetError::LeaseExpired),
                _ if part.verified => Ok(part.len()),
                failure => Err(failure.unwrap_or(GetError::NotFound)),
            });
        }
    }
}

/// The parts of a client that reads need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'c> {
    pub(super) link: &'c MasterLink,
    pub(super) transfers: &'c Transfers,
    pub(super) tiers: &'c Tiers,
    pub(super) segments: &'c Segments,
    pub(super) reports: &'c Reports,
    pub(super) pool: &'c BufferPool,
    pub(super) hot: Option<&'c HotCache>,
    /// The client's clock, and when its time began.
    pub(super) clock: BootClock,
    pub(super) origin: BootTime,
}

impl Reader<'_> {
    pub(super) async fn get_all(&self, items: &mut [Item<'_>]) {
        if let Err(why) = self.link.request() {
            items.iter_mut().for_each(|item| item.outcome = Some(Err(why.into())));
            return;
        }
        // Until all of them have what they read.
        let _read = self.link.reads.begin();
        let groups = by_key(items.iter().map(|item| item.key)).into_iter();
        // Items without a key have their outcome.
        let mut objects: Vec<Object<'_>> =
            groups.filter_map(|(key, items)| Some(Object::new(key?, items))).collect();
        for chunk in objects.chunks_mut(CHUNK) {
            while chunk.iter().any(|object| object.is_open) {
                self.get_round(chunk, items).await;
            }
        }
    }

    /// Asks for every open object and reads what can be read. What went away meanwhile is
    /// left for another round, a bounded number of times.
    async fn get_round(&self, objects: &mut [Object<'_>], items: &mut [Item<'_>]) {
        let open: Vec<usize> = (0..objects.len()).filter(|&at| objects[at].is_open).collect();
        let asked = self.now();
        let answers = match self.ask(objects, &open, items).await {
            Ok(answers) => answers,
            Err(error) => {
                let error = error.into();
                open.into_iter().for_each(|at| objects[at].fail(items, &error));
                return;
            }
        };
        let mut reads = Vec::with_capacity(open.len());
        for (at, answer) in open.into_iter().zip(answers) {
            let object = &mut objects[at];
            match answer {
                Ok(list) => {
                    let parts = self.parts(object, items, &list);
                    object.is_open = !parts.is_empty();
                    if object.is_open {
                        reads.push(self.read(at, parts, list, asked));
                    }
                }
                Err(refusal) => {
                    let error = GetError::refused(refusal);
                    let silence = object.silence.take();
                    let is_away = matches!(error, GetError::NotReady);
                    object.fail(items, &silence.filter(|_| is_away).unwrap_or(error));
                }
            }
        }
        self.read_replicas(&mut reads, objects).await;
        self.read_disks(&mut reads, objects).await;
        self.read_tiers(&mut reads, objects).await;
        // What no replica gave may have been removed, or its segment mounted anew,
        // since the master was asked: then the answer was old, not the bytes bad.
        self.renew(&mut reads, objects, |read, _| !read.parts.iter().all(|part| part.verified))
            .await;
        for read in &mut reads {
            read.lost |= read.ran_out_of_time();
            if !read.lost {
                self.keep(&objects[read.object], read);
                self.report(&objects[read.object], read);
            }
            objects[read.object].conclude(items, read);
        }
    }

    /// Asks for the objects, and for what verifies the parts of them that items want.
    async fn ask(
        &self,
        objects: &mut [Object<'_>],
        open: &[usize],
        items: &[Item<'_>],
    ) -> Result<Vec<Result<ReplicaList, Refusal>>, RpcError> {
        let ranges = open.iter().map(|&at| {
            let ranges = objects[at].items.iter().filter_map(|&item| items[item].range.clone());
            (objects[at].key, ranges.collect())
        });
        let ranges: Vec<(KeyRef<'_>, Vec<Range<u64>>)> = ranges.collect();
        let keys: Vec<KeyRef<'_>> = ranges.iter().map(|(key, _)| *key).collect();
        let mut answers = if ranges.iter().all(|(_, ranges)| ranges.is_empty()) {
            self.link.master.batch_get_replica_list(&keys).await?
        } else {
            let answers = ask_for_ranges(&self.link.master, &ranges).await?;
            let answers = open.iter().zip(answers).map(|(&at, answer)| {
                let RangedList { list, spans } = answer?;
                objects[at].spans = spans;
                Ok(list)
            });
            answers.collect()
        };
        self.tiers.find_unlisted(&keys, &mut answers).await;
        Ok(answers)
    }

    /// Returns the parts to read of an object with this `list`, for the items that do not get their
    /// outcome here.
    fn parts(
        &self,
        object: &Object<'_>,
        items: &mut [Item<'_>],
        list: &ReplicaList,
    ) -> SmallVec<[Part; 1]> {
        let key = object.key.as_str();
        let cached = self.hot.and_then(|hot| hot.get(key, list.generation, &list.slices));
        let mut parts = SmallVec::with_capacity(object.items.len());
        let mut spans = object.spans.iter().copied();
        for &at in &object.items {
            let item = &mut items[at];
            let span = item.range.as_ref().and_then(|_| spans.next()).flatten();
            if item.generation.is_some_and(|wanted| wanted != list.generation) {
                item.outcome = Some(Err(GetError::Replaced));
            } else if let Some(value) = &cached {
                item.read_of = Some(list.generation);
                item.outcome = Some(item.take_cached(value));
            } else {
                match self.part(at, item, list, span) {
                    Ok(part) => parts.push(part),
                    Err(error) => item.outcome = Some(Err(error)),
                }
            }
        }
        parts
    }

    fn part(
        &self,
        at: usize,
        item: &mut Item<'_>,
        list: &ReplicaList,
        span: Option<VerifiedSpan>,
    ) -> Result<Part, GetError> {
        if list.replicas.is_empty() && list.local_disks.is_empty() && !self.tiers.has_file(list) {
            // The object is in a file only, which this client does not read.
            return Err(GetError::NotReady);
        }
        let (start, len) = item.part(list.slices.total_len())?;
        let pieces = item.pieces(len, self.pool)?;
        let part = Part::new(at, start..start + len, pieces, &list.slices);
        Ok(match span {
            Some(span) => part.verified_by(span, &list.slices),
            None => part,
        })
    }

    fn read(
        &self,
        object: usize,
        parts: SmallVec<[Part; 1]>,
        list: ReplicaList,
        asked: Time,
    ) -> Read {
        let lease = ReaderLease::granted(asked, list.lease);
        let (order, trusted) = self.order(&list);
        let damaged = SmallVec::new();
        Read { object, list, lease, order, trusted, parts, lost: false, damaged }
    }

    /// Reports the replicas that were damaged while the object was there.
    fn report(&self, object: &Object<'_>, read: &Read) {
        for &at in &read.damaged {
            let (generation, replica) = (read.list.generation, &read.list.replicas[at]);
            self.reports.damaged(None, object.key, generation, replica);
        }
    }

    /// Keeps what was read whole, if it is asked for often.
    fn keep(&self, object: &Object<'_>, read: &Read) {
        let ReplicaList { generation, slices, .. } = &read.list;
        let is_whole = |part: &&Part| part.verified && part.len() == slices.total_len();
        if let Some(cache) = self.hot
            && let Some(whole) = read.parts.iter().find(is_whole)
        {
            cache.offer(object.key.as_str(), *generation, slices, whole.target());
        }
    }

    /// Replicas in our own memory first, then those whose node answered lately, us and others, of
    /// these those that share memory, are not busy and near; those that are alike in an order
    /// that differs from object to object, to spread the load. And how many are no suspects.
    fn order(&self, list: &ReplicaList) -> (SmallVec<[usize; 2]>, usize) {
        let count = list.replicas.len();
        if count == 1 {
            return (smallvec![0], 1);
        }
        let mut trusted = 0;
        let first = list.generation.as_u64() as usize % count.max(1);
        let mut order: SmallVec<[usize; 2]> = (0..count).map(|n| (first + n) % count).collect();
        order.sort_by_cached_key(|&at| {
            let replica = &list.replicas[at];
            let endpoint = &replica.segment.endpoint;
            let own = self.segments.local(replica.segment.remote_key, replica.extent).is_some();
            let suspect = at >= count - list.suspects || self.transfers.health.is_suspect(endpoint);
            trusted += usize::from(own || !suspect);
            (!own, suspect, self.transfers.health.loads.distance(endpoint))
        });
        (order, trusted)
    }

    /// Reads every part from the object's first replica, those that failed from the
    /// second, and so on, while the leases are kept from running out. A replica whose node
    /// stalls is left soon while there is another, and comes last once more, with more time.
    async fn read_replicas(&self, reads: &mut [Read], objects: &[Object<'_>]) {
        let peers = &self.transfers.health.peers;
        let mut turn = 0;
        while reads.iter().any(|read| turn < read.order.len()) {
            let mut open = Vec::new();
            for (n, read) in reads.iter().enumerate().filter(|(_, read)| turn < read.order.len()) {
                let parts = read.parts.iter().enumerate();
                open.extend(parts.filter(|(_, part)| !part.verified).map(|(nth, _)| (n, nth)));
            }
            for open in open.chunks(CHUNK) {
                let mut is_ready = |&(n, nth): &(usize, usize)| reads[n].prepare(nth, self.pool);
                let open: Vec<(usize, usize)> =
                    open.iter().copied().filter(&mut is_ready).collect();
                let jobs = open.iter().map(|&(n, nth)| reads[n].job(nth, turn)).collect();
                let results = self.transfer_under_lease(jobs, reads, objects).await;
                for ((n, nth), result) in open.into_iter().zip(results) {
                    if let Err(failed) = &result {
                        let segment = reads[n].segment(turn);
                        peers.holds(&segment.endpoint, segment.id, &segment.name);
                        self.reports.failed(segment.id, &segment.name, &failed.error);
                        if failed.moved_on {
                            self.reports.moved_on();
                            reads[n].put_last(turn);
                        }
                    }
                    reads[n].arrived(nth, turn, result);
                }
            }
            // Bytes are the object's only if it was still there when the last of
            // them arrived.
            self.renew(reads, objects, |read, now| {
                !read.lease.is_active(now) && read.parts.iter().any(|part| part.verified)
            })
            .await;
            turn += 1;
        }
    }

    async fn transfer_under_lease(
        &self,
        jobs: Vec<Job>,
        reads: &mut [Read],
        objects: &[Object<'_>],
    ) -> Vec<Moved> {
        let mut transfer = pin!(self.transfers.transfer(jobs));
        loop {
            let now = self.now();
            let shortest =
                reads.iter().filter(|read| !read.lost).map(|read| read.lease.remaining(now));
            let Some(wait) = shortest.min() else { return transfer.await };
            // Renewed at half time: the answer needs time as well. A master that
            // does not answer must not hold up bytes that have arrived.
            let renewal = async {
                tokio::time::sleep(wait / 2).await;
                self.renew(reads, objects, |_, _| true).await;
            };
            tokio::select! {
                biased;
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
        objects: &[Object<'_>],
        wanted: impl Fn(&Read, Time) -> bool,
    ) {
        let asked = self.now();
        let mut renewed: Vec<&mut Read> =
            reads.iter_mut().filter(|read| !read.lost && wanted(read, asked)).collect();
        if renewed.is_empty() {
            return;
        }
        let keys: Vec<KeyRef<'_>> = renewed.iter().map(|read| objects[read.object].key).collect();
        let answers = self.link.master.batch_get_replica_list(&keys).await;
        let Ok(mut answers) = answers else {
            // Without a master no lease is renewed; those that are over are lost.
            let now = self.now();
            for read in renewed {
                read.lost |= !read.lease.is_active(now);
            }
            return;
        };
        self.tiers.find_unlisted(&keys, &mut answers).await;
        for (read, answer) in renewed.iter_mut().zip(answers) {
            match answer {
                Ok(list) if read.is_still_in(&list) => {
                    read.lease = ReaderLease::granted(asked, list.lease);
                    read.take_tickets(&list);
                }
                _ => read.lost = true,
            }
        }
    }

    /// This client's own clock, for leases.
    fn now(&self) -> Time {
        Time::ORIGIN + self.clock.now().since(self.origin)
    }
}

impl Read {
    /// Makes a part ready to be read; `false` when it cannot be any more.
    fn prepare(&mut self, nth: usize, pool: &BufferPool) -> bool {
        if self.lost {
            return false;
        }
        let part = &mut self.parts[nth];
        part.prepare(pool).map_err(|error| part.failure = Some(error)).is_ok()
    }

    fn job(&self, nth: usize, turn: usize) -> Job {
        let replica = &self.list.replicas[self.order[turn]];
        let from = RemoteSpan::new(replica.segment.remote_key, replica.extent);
        let from = from.with_ticket(replica.ticket);
        let patience = self.patience(turn);
        self.job_from(nth, Holder::Segment(Arc::clone(&replica.segment)), from, patience)
    }

    /// Reads a part from a place of the whole object.
    fn job_from(
        &self,
        nth: usize,
        holder: Holder,
        mut from: RemoteSpan,
        patience: Patience,
    ) -> Job {
        let part = &self.parts[nth];
        let read = part.read();
        let extent = from.extent.part(read.start, read.end - read.start);
        from.extent = extent.expect("a part of the object");
        let mut pieces = part.pieces();
        let operation = match pieces.len() {
            1 => Operation::read(from, pieces.remove(0)),
            _ => Operation::read(from, pieces.into_vec()),
        };
        Job { holder, operation: part.summed(operation), patience }
    }

    /// When the replica of this turn is left because its node stalls: later for suspects alone, and
    /// never when all had their turn.
    fn patience(&self, turn: usize) -> Patience {
        let count = self.list.replicas.len();
        let has_stalled = self.order.len() > count;
        match turn {
            _ if turn >= count => Patience::Whole,
            _ if turn + 1 < self.trusted || has_stalled => Patience::Short,
            _ if turn + 1 < count => Patience::Long,
            _ => Patience::Whole,
        }
    }

    /// Has the replica of this turn tried once more, after all others.
    fn put_last(&mut self, turn: usize) {
        let at = self.order[turn];
        if !self.order[self.list.replicas.len()..].contains(&at) {
            self.order.push(at);
        }
    }

    /// The segment that is read from in this turn.
    fn segment(&self, turn: usize) -> &SegmentLocation {
        &self.list.replicas[self.order[turn]].segment
    }

    fn arrived(&mut self, nth: usize, turn: usize, result: Moved) {
        let part = &mut self.parts[nth];
        match result {
            Ok(done) if part.is_intact(&done) => part.verified = true,
            Ok(_) => {
                let at = self.order[turn];
                if !self.damaged.contains(&at) {
                    self.damaged.push(at);
                }
                let endpoint = self.list.replicas[at].segment.endpoint.clone();
                part.failure = Some(GetError::ChecksumMismatch { endpoint });
            }
            Err(failed) => part.failure = Some(GetError::Peer(failed.error)),
        }
        part.release();
    }

    /// Takes the tickets of a newer answer that names the same replicas and places on disks.
    fn take_tickets(&mut self, newer: &ReplicaList) {
        for replica in &mut self.list.replicas {
            if let Some(same) = newer.replicas.iter().find(|other| *other == replica) {
                replica.ticket = same.ticket;
            }
        }
        for disk in &mut self.list.local_disks {
            if let Some(same) = newer.local_disks.iter().find(|other| *other == disk) {
                disk.ticket = same.ticket;
            }
        }
    }

    /// Whether a ticket ended before its part was read: the object may be there still.
    fn ran_out_of_time(&self) -> bool {
        self.failed_by(|source| matches!(source, TransferError::GrantEnded))
    }

    /// Whether a node refused a part, as one does that has got another master meanwhile: for a ticket of
    /// the one before, and what was under way by such.
    fn was_refused(&self) -> bool {
        self.failed_by(|source| matches!(source, TransferError::KeyRefused))
    }

    /// Whether a part's link was lost, as when a node that has got another master cannot take back an answer that
    /// is half sent; or a disk does not have the part any more, of which the master may know by now.
    fn was_cut_off(&self) -> bool {
        use TransferError::{DeviceFailed, LinkLost};
        self.failed_by(|source| matches!(source, LinkLost { .. } | DeviceFailed))
    }

    /// The failure of a part whose node gave no answer.
    fn silence(&self) -> Option<GetError> {
        let is_silence =
            |error: &&GetError| matches!(error, GetError::Peer(error) if error.is_silence());
        let unread = self.parts.iter().filter(|part| !part.verified);
        unread.filter_map(|part| part.failure.as_ref()).find(is_silence).cloned()
    }

    fn failed_by(&self, is_it: impl Fn(&TransferError) -> bool) -> bool {
        self.parts.iter().any(|part| {
            matches!(
                &part.failure,
                Some(GetError::Peer(PeerError::Transfer { source, .. }))
                    if !part.verified && is_it(source)
            )
        })
    }

    /// Whether `list` names the put that is being read, and every replica that it
    /// is read from where it was.
    fn is_still_in(&self, list: &ReplicaList) -> bool {
        list.generation == self.list.generation
            && self.list.replicas.iter().all(|replica| list.replicas.contains(replica))
    }
}
