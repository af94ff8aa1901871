//! Gets: a leased replica list from the master, bytes from a replica, and proof
//! that they are the ones that were put.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mc_lease::ReaderLease;
use mc_rpc::ReplicaList;
use mc_transport::{Memory, MemorySlice, Operation, RemoteSpan};
use mc_types::{ErrorCode, KeyRef, Time};

use super::data::{Job, checksums, prefix};
use super::{Client, ClientOperation, Core};
use crate::error::{GetError, PeerError};

/// Objects asked for in one call.
const CHUNK: usize = 1024;

/// How often a read begins again because the object changed under it.
const ATTEMPTS: u32 = 3;

/// One object to get into memory of the caller.
#[derive(Clone, Debug)]
pub struct GetInto<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Where its bytes go, piece after piece; together at least as long as the
    /// object.
    pub into: Vec<MemorySlice>,
}

impl<'a> GetInto<'a> {
    /// Into one piece of memory.
    #[must_use]
    pub fn new(key: &'a str, into: MemorySlice) -> Self {
        Self { key, into: vec![into] }
    }
}

impl Client {
    /// The value of `key`, whole and verified.
    ///
    /// # Errors
    /// [`GetError`]; no bytes are returned then.
    pub async fn get(&self, key: &str) -> Result<Bytes, GetError> {
        let values = self.get_owned(&[key], ClientOperation::Get).await;
        values.into_iter().next().expect("one value for each key")
    }

    /// Reads the value of `key` straight into `target` and says how many bytes it
    /// has. The rest of `target` is untouched.
    ///
    /// # Errors
    /// [`GetError`]; what is in `target` is then undefined.
    pub async fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, GetError> {
        let get = GetInto::new(key, target.clone());
        let lengths = self.get_given(vec![get], ClientOperation::GetInto).await;
        lengths.into_iter().next().expect("one length for each key")
    }

    /// The values of many keys, each on its own; in the order of the keys.
    pub async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, GetError>> {
        self.get_owned(keys, ClientOperation::BatchGet).await
    }

    /// Reads many objects into memory of the caller, each on its own, and says
    /// how many bytes each has; in the order of the requests. Targets must not
    /// overlap.
    pub async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, GetError>> {
        self.get_given(gets, ClientOperation::BatchGetInto).await
    }

    async fn get_owned(
        &self,
        keys: &[&str],
        operation: ClientOperation,
    ) -> Vec<Result<Bytes, GetError>> {
        let timed = self.core.metrics.start(operation);
        let targets = keys.iter().map(|key| Item::new(key, Target::Owned(None)));
        let mut items: Vec<Item<'_>> = targets.collect();
        self.core.get_all(&mut items).await;
        timed.ended(items.iter().map(Item::tally));
        items.into_iter().map(Item::into_bytes).collect()
    }

    async fn get_given(
        &self,
        gets: Vec<GetInto<'_>>,
        operation: ClientOperation,
    ) -> Vec<Result<u64, GetError>> {
        let timed = self.core.metrics.start(operation);
        let targets = gets.into_iter().map(|get| Item::new(get.key, Target::Given(get.into)));
        let mut items: Vec<Item<'_>> = targets.collect();
        self.core.get_all(&mut items).await;
        timed.ended(items.iter().map(Item::tally));
        let done = "a chunk is read until every item has an outcome";
        items.into_iter().map(|item| item.outcome.expect(done)).collect()
    }
}

/// Where an object's bytes go.
enum Target {
    /// Into memory taken when the length is known.
    Owned(Option<Memory>),
    /// Into the caller's.
    Given(Vec<MemorySlice>),
}

/// An object on its way.
struct Item<'a> {
    key: &'a str,
    target: Target,
    outcome: Option<Result<u64, GetError>>,
    attempts: u32,
}

/// One attempt to read an item, from one answer of the master.
struct Read {
    at: usize,
    list: ReplicaList,
    lease: ReaderLease,
    pieces: Arc<[MemorySlice]>,
    /// Replicas in the order in which to try them.
    order: Vec<usize>,
    failure: Option<GetError>,
    verified: bool,
    /// The object went away while it was read.
    lost: bool,
}

impl<'a> Item<'a> {
    fn new(key: &'a str, target: Target) -> Self {
        let outcome = KeyRef::new(key).err().map(|error| Err(GetError::Key(error)));
        Self { key, target, outcome, attempts: 0 }
    }

    fn key(&self) -> KeyRef<'a> {
        KeyRef::new(self.key).expect("an item with a bad key has an outcome from the start")
    }

    /// The bytes that were read, or why none were, for the metrics.
    fn tally(&self) -> Result<u64, ErrorCode> {
        match &self.outcome {
            Some(Ok(len)) => Ok(*len),
            Some(Err(error)) => Err(error.code()),
            None => Err(ErrorCode::Internal),
        }
    }

    /// Memory for an object of `len` bytes.
    fn pieces(&mut self, len: u64) -> Result<Arc<[MemorySlice]>, GetError> {
        match &mut self.target {
            Target::Given(pieces) => prefix(pieces, len).ok_or_else(|| {
                let given = pieces.iter().map(|piece| piece.len() as u64).sum();
                GetError::BufferTooSmall { needed: len, given }
            }),
            Target::Owned(memory) => {
                let size = usize::try_from(len).unwrap_or(usize::MAX);
                if memory.as_ref().is_none_or(|memory| memory.len() != size) {
                    let taken = Memory::allocate(size);
                    *memory = Some(taken.map_err(|error| GetError::Memory(Arc::new(error)))?);
                }
                let memory = memory.as_ref().expect("taken above");
                Ok([memory.whole()].into())
            }
        }
    }

    fn into_bytes(self) -> Result<Bytes, GetError> {
        let len = self.outcome.expect("a chunk is read until every item has an outcome")?;
        let Target::Owned(Some(memory)) = self.target else {
            unreachable!("an object that was read into own memory left it here");
        };
        let len = usize::try_from(len).expect("the object is in memory");
        // Something abandoned earlier may still hold the block: then it is copied.
        Ok(memory.try_into_bytes(len).unwrap_or_else(|memory| {
            memory.slice(0, len).expect("the block is as long as the object").to_vec().into()
        }))
    }
}

impl Core {
    async fn get_all(&self, items: &mut [Item<'_>]) {
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
                Ok(read) => reads.push(read),
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
                Some(Ok(read.list.slices.total_len()))
            } else if read.lost && item.attempts < ATTEMPTS {
                None
            } else if read.lost {
                Some(Err(GetError::LeaseExpired))
            } else {
                Some(Err(read.failure.unwrap_or(GetError::NotFound)))
            };
        }
    }

    fn read(
        &self,
        at: usize,
        item: &mut Item<'_>,
        list: ReplicaList,
        asked: Time,
    ) -> Result<Read, GetError> {
        if list.replicas.is_empty() {
            // The object is on disks only, which this client does not read.
            return Err(GetError::NotReady);
        }
        let pieces = item.pieces(list.slices.total_len())?;
        let lease = ReaderLease::granted(asked, list.lease);
        let order = self.order(&list);
        Ok(Read { at, list, lease, pieces, order, failure: None, verified: false, lost: false })
    }

    /// Replicas in our own memory first, then those whose node answered lately,
    /// in an order that differs from object to object to spread the load.
    fn order(&self, list: &ReplicaList) -> Vec<usize> {
        let count = list.replicas.len();
        let first = list.generation.as_u64() as usize % count.max(1);
        let mut order: Vec<usize> = (0..count).map(|n| (first + n) % count).collect();
        order.sort_by_key(|&at| {
            let replica = &list.replicas[at];
            let own = self.segments.local(replica.segment.remote_key, replica.extent).is_some();
            (!own, self.peers.is_suspect(&replica.segment.endpoint))
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
    ) -> Vec<Result<(), PeerError>> {
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
        let from = RemoteSpan::new(replica.segment.remote_key, replica.extent);
        let operation = match &*self.pieces {
            [piece] => Operation::read(from, piece.clone()),
            pieces => Operation::read(from, pieces.to_vec()),
        };
        Job { endpoint: replica.segment.endpoint.clone(), operation }
    }

    fn conclude(&mut self, turn: usize, result: Result<(), PeerError>) {
        match result {
            Ok(()) if self.is_intact() => self.verified = true,
            Ok(()) => {
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

    /// Whether every slice has the checksum that its writer gave.
    fn is_intact(&self) -> bool {
        let slices = self.list.slices.as_slice();
        if slices.iter().all(|slice| slice.checksum.is_none()) {
            return true;
        }
        let found = checksums(&self.pieces, slices.iter().map(|slice| slice.len));
        slices.iter().zip(found).all(|(slice, found)| slice.checksum.is_none_or(|sum| sum == found))
    }
}
