//! Puts: room from the master, bytes to the peers, then the object is readable.

use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_meta::{MAX_NAMED_SEGMENTS, PutEnd, ReplicateConfig};
use mc_rpc::{PutGrant, PutRevokeItem, PutStartItem, Refusal, ReplicaLocation};
use mc_transport::{MemorySlice, Operation, RemoteSpan, Source};
use mc_types::{Checksum, ErrorCode, Generation, KeyRef};

use super::data::{Job, source_checksum};
use super::{Client, ClientOperation, Core};
use crate::error::{PeerError, PutError};

/// Placements tried when bytes cannot be written where the master said.
const PLACEMENTS: u32 = 4;

/// The first pause of a put that waits for room; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Objects asked room for in one call. Larger batches are divided, so that the
/// first objects of a batch that exceeds the pool can make room for its last.
const CHUNK: usize = 1024;

/// What became of a put that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored and readable.
    Stored,
    /// An object with this key was there already. Nothing was changed: a key
    /// names one value.
    Existing,
    /// Somebody else is storing this key at this moment. It is not readable yet.
    Pending,
}

/// One object to put: its slices follow each other, and each has a checksum of
/// its own.
#[derive(Clone, Debug)]
pub struct Put<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its bytes. They are sent from where they are, without a copy.
    pub slices: Vec<Source>,
}

impl<'a> Put<'a> {
    /// An object of one slice.
    pub fn new(key: &'a str, value: impl Into<Source>) -> Self {
        Self { key, slices: vec![value.into()] }
    }
}

impl Client {
    /// Stores `value` under `key`, in one replica. A key that is there already
    /// keeps its value.
    ///
    /// # Errors
    /// [`PutError`]; the object is not readable then.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<PutOutcome, PutError> {
        let put = Put::new(key, value.into());
        self.put_one(put, &ReplicateConfig::default()).await
    }

    /// Stores `value` under `key` as `config` says.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        self.put_one(Put::new(key, value.into()), config).await
    }

    /// Stores the bytes of `source` under `key`, sent straight from there.
    /// Whoever changes them during the call makes readers see a checksum that
    /// does not match.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        self.put_one(Put::new(key, source.clone()), config).await
    }

    async fn put_one(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        let outcomes = self.put_all(vec![put], config, ClientOperation::Put).await;
        outcomes.into_iter().next().expect("one outcome for each put")
    }

    /// Stores many objects, each on its own: one that fails hinders no other.
    /// The outcomes are in the order of the puts.
    ///
    /// An object waits a bounded time for room
    /// ([`put_wait`](super::ClientBuilder::put_wait)) when all that could make
    /// room is being read. When a peer cannot be written to, the object is
    /// placed anew.
    pub async fn batch_put(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<PutOutcome, PutError>> {
        self.put_all(puts, config, ClientOperation::BatchPut).await
    }

    async fn put_all(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        operation: ClientOperation,
    ) -> Vec<Result<PutOutcome, PutError>> {
        if let Err(why) = self.core.request() {
            return puts.iter().map(|_| Err(why.into())).collect();
        }
        let timed = self.core.metrics.start(operation);
        let mut batch: Vec<Item<'_>> = puts.into_iter().map(Item::new).collect();
        for chunk in batch.chunks_mut(CHUNK) {
            self.core.put_chunk(chunk, config).await;
        }
        timed.ended(batch.iter().map(Item::tally));
        let done = "a chunk is put until every item has an outcome";
        batch.into_iter().map(|item| item.outcome.expect(done)).collect()
    }
}

/// An object on its way.
struct Item<'a> {
    put: Put<'a>,
    lengths: Vec<u64>,
    checksums: Vec<Checksum>,
    outcome: Option<Result<PutOutcome, PutError>>,
    placements: u32,
}

impl<'a> Item<'a> {
    fn new(put: Put<'a>) -> Self {
        let outcome = KeyRef::new(put.key).err().map(|error| Err(PutError::Key(error)));
        let lengths = put.slices.iter().map(|slice| slice.len() as u64).collect();
        Self { put, lengths, checksums: Vec::new(), outcome, placements: 0 }
    }

    fn key(&self) -> KeyRef<'a> {
        KeyRef::new(self.put.key).expect("an item with a bad key has an outcome from the start")
    }

    /// The bytes that were stored, or why none were, for the metrics.
    fn tally(&self) -> Result<u64, ErrorCode> {
        match &self.outcome {
            Some(Ok(PutOutcome::Stored)) => Ok(self.lengths.iter().sum()),
            Some(Ok(_)) => Ok(0),
            Some(Err(error)) => Err(error.code()),
            None => Err(ErrorCode::Internal),
        }
    }

    /// Computed when there is room, and once.
    fn checksums(&mut self) -> &[Checksum] {
        if self.checksums.is_empty() {
            self.checksums = self.put.slices.iter().map(source_checksum).collect();
        }
        &self.checksums
    }

    fn job(&self, replica: &ReplicaLocation) -> Job {
        let to = RemoteSpan::new(replica.segment.remote_key, replica.extent);
        let operation = match self.put.slices.as_slice() {
            [slice] => Operation::write(slice.clone(), to),
            slices => Operation::write(slices.to_vec(), to),
        };
        Job { endpoint: replica.segment.endpoint.clone(), operation }
    }
}

impl Core {
    /// Puts until every item has an outcome.
    async fn put_chunk(&self, items: &mut [Item<'_>], config: &ReplicateConfig) {
        let deadline = Instant::now() + self.settings.put_wait;
        let mut pause = FIRST_PAUSE;
        let mut avoid_suspects = true;
        loop {
            let open: Vec<usize> =
                (0..items.len()).filter(|&at| items[at].outcome.is_none()).collect();
            if open.is_empty() {
                return;
            }
            let avoiding = if avoid_suspects { self.avoiding(config) } else { None };
            let patience = Patience { deadline, avoiding: avoiding.is_some() };
            let config = avoiding.as_ref().unwrap_or(config);
            let granted = match self.start(items, &open, config, patience).await {
                Ok(granted) => granted,
                Err(error) => {
                    for at in open {
                        items[at].outcome = Some(Err(error.clone()));
                    }
                    return;
                }
            };
            if granted.is_empty() && avoiding.is_some() {
                // Nobody else has room: a peer that failed may be back.
                avoid_suspects = false;
                continue;
            }
            if granted.is_empty() {
                // Everything left waits for room.
                if items.iter().any(|item| item.outcome.is_none()) {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                continue;
            }
            let written = self.write(items, granted).await;
            self.finish(items, written).await;
        }
    }

    /// `config` with the segments of peers that failed a moment ago excluded;
    /// `None` when there are none.
    fn avoiding(&self, config: &ReplicateConfig) -> Option<ReplicateConfig> {
        let free = MAX_NAMED_SEGMENTS.saturating_sub(config.excluded_segments.len());
        let suspects = self.peers.suspect_segments(free);
        let exclude = |config: ReplicateConfig, name| config.exclude(name);
        (!suspects.is_empty()).then(|| suspects.into_iter().fold(config.clone(), exclude))
    }

    /// Asks for room. Items that are refused get their outcome here, unless they
    /// may wait on.
    async fn start(
        &self,
        items: &mut [Item<'_>],
        open: &[usize],
        config: &ReplicateConfig,
        patience: Patience,
    ) -> Result<Vec<(usize, PutGrant)>, PutError> {
        let puts: Vec<PutStartItem<'_>> = open
            .iter()
            .map(|&at| PutStartItem { key: items[at].key(), slice_lengths: &items[at].lengths })
            .collect();
        let answers = self.master.batch_put_start(self.id, config, &puts).await?;
        let mut granted = Vec::new();
        for (&at, answer) in open.iter().zip(answers) {
            match answer {
                Ok(grant) => granted.push((at, grant)),
                Err(refusal) => items[at].outcome = patience.refused(refusal),
            }
        }
        Ok(granted)
    }

    /// Writes every replica of every granted item.
    async fn write(
        &self,
        items: &mut [Item<'_>],
        granted: Vec<(usize, PutGrant)>,
    ) -> Vec<(usize, Generation, Result<(), PeerError>)> {
        let mut jobs = Vec::new();
        for (at, grant) in &granted {
            jobs.extend(grant.replicas.iter().map(|replica| items[*at].job(replica)));
        }
        let transfer = self.transfer(jobs);
        // While the bytes travel there is time to add them up.
        let (mut results, ()) = tokio::join!(async { transfer.await.into_iter() }, async {
            for (at, _) in &granted {
                items[*at].checksums();
            }
        });
        granted
            .into_iter()
            .map(|(at, grant)| {
                // All of this object's results are taken, also after a failure.
                let replicas: Vec<_> = results.by_ref().take(grant.replicas.len()).collect();
                for (replica, result) in grant.replicas.iter().zip(&replicas) {
                    if result.is_err() {
                        self.peers.holds(&replica.segment.endpoint, &replica.segment.name);
                    }
                }
                (at, grant.generation, replicas.into_iter().collect())
            })
            .collect()
    }

    /// Makes written items readable and gives the others up, to be placed anew if
    /// they have not been too often.
    async fn finish(
        &self,
        items: &mut [Item<'_>],
        written: Vec<(usize, Generation, Result<(), PeerError>)>,
    ) {
        let (mut whole, mut broken) = (Vec::new(), Vec::new());
        for (at, generation, outcome) in written {
            match outcome {
                Ok(()) => whole.push((at, generation)),
                Err(error) => broken.push((at, generation, error)),
            }
        }
        let ends: Vec<PutEnd<'_>> = whole
            .iter()
            .map(|&(at, generation)| PutEnd {
                key: items[at].key(),
                generation: Some(generation),
                checksums: &items[at].checksums,
            })
            .collect();
        let ended = if ends.is_empty() {
            Ok(Vec::new())
        } else {
            self.master.batch_put_end(self.id, &ends).await
        };
        match ended {
            Ok(answers) => {
                for ((at, _), answer) in whole.into_iter().zip(answers) {
                    let outcome = answer.map(|()| PutOutcome::Stored).map_err(PutError::Refused);
                    items[at].outcome = Some(outcome);
                }
            }
            Err(error) => {
                for (at, _) in whole {
                    items[at].outcome = Some(Err(error.clone().into()));
                }
            }
        }
        self.give_up(items, broken).await;
    }

    async fn give_up(&self, items: &mut [Item<'_>], broken: Vec<(usize, Generation, PeerError)>) {
        if broken.is_empty() {
            return;
        }
        let revokes: Vec<PutRevokeItem<'_>> = broken
            .iter()
            .map(|&(at, generation, _)| PutRevokeItem {
                key: items[at].key(),
                generation: Some(generation),
            })
            .collect();
        // A revoke that is lost only delays the space: the master's time-out
        // takes it back. But then the key is not free for another try.
        let revoked = self.master.batch_put_revoke(self.id, &revokes).await.is_ok();
        for (at, _, error) in broken {
            items[at].placements += 1;
            if !revoked || items[at].placements >= PLACEMENTS {
                items[at].outcome = Some(Err(PutError::Peer(error)));
            }
        }
    }
}

/// What a refused put may still try.
#[derive(Clone, Copy)]
struct Patience {
    /// Until when it waits for room.
    deadline: Instant,
    /// Whether segments are left out that are there.
    avoiding: bool,
}

impl Patience {
    /// The outcome of a refused put; `None` when it may try again.
    fn refused(self, refusal: Refusal) -> Option<Result<PutOutcome, PutError>> {
        match refusal.code {
            ErrorCode::ObjectAlreadyExists => Some(Ok(PutOutcome::Existing)),
            ErrorCode::PutInProgress => Some(Ok(PutOutcome::Pending)),
            ErrorCode::TooFewSegments | ErrorCode::ObjectTooLarge if self.avoiding => None,
            ErrorCode::Full
            | ErrorCode::Fragmented
            | ErrorCode::AllLeased
            | ErrorCode::Overloaded
                if Instant::now() < self.deadline =>
            {
                None
            }
            _ => Some(Err(PutError::Refused(refusal))),
        }
    }
}
