//! Puts: values lie in shared memory, from where the real client sends them.

use std::borrow::Cow;

use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_transport::{Memory, MemorySlice, Source};
use mc_types::KeyRef;
use tokio::time::Instant;

use super::DummyClient;
use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{
    Call, MAX_OBJECTS, MAX_PIECES, MAX_PIECES_OF_CALL, Object, Outcome, PutCall, Reply,
};
use mc_store::{Put, PutOutcome};

impl DummyClient {
    /// Stores `value` under `key`, in one replica, by way of the local buffer. A key that is
    /// there already keeps its value.
    ///
    /// # Errors
    /// [`DummyError`]; the object is not readable then, unless the answer was lost.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<PutOutcome, DummyError> {
        self.put_one(Put::new(key, value.into()), &ReplicateConfig::default()).await
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
    ) -> Result<PutOutcome, DummyError> {
        self.put_one(Put::new(key, value.into()), config).await
    }

    /// Stores the bytes of `source` under `key`, sent straight from there by the real
    /// client, which must reach them ([`allocate`](Self::allocate),
    /// [`register`](Self::register)). Whoever changes them during the call makes readers see
    /// a checksum that does not match.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        self.put_one(Put::new(key, source.clone()), config).await
    }

    /// Stores `parts`, one after the other, as the value of `key`, by way of the local
    /// buffer. Each is a slice of the object with a checksum of its own; parts without
    /// bytes are left out.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_parts(
        &self,
        key: &str,
        parts: Vec<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        let slices = parts.into_iter().filter(|part| !part.is_empty()).map(Source::from).collect();
        self.put_one(Put { key, slices }, config).await
    }

    async fn put_one(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        let mut outcomes = self.batch_put(vec![put], config).await;
        outcomes.pop().expect("one outcome for each put")
    }

    /// Stores many objects, each on its own: one that fails hinders no other. The outcomes
    /// are in the order of the puts. Slices that are bytes go by way of the local buffer, as
    /// many at the same time as it has room for; slices of memory must be in the real
    /// client's reach.
    pub async fn batch_put(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<PutOutcome, DummyError>> {
        self.core.shared.store_all(puts, config, false).await
    }

    /// Stores `value` under `key`, by way of the local buffer, whether the key has a value or
    /// not. Readers see the old value or the new one.
    ///
    /// # Errors
    /// [`DummyError`]; the old value is still there then, unless the new one was to be
    /// written in its place or the answer was lost.
    pub async fn upsert(&self, key: &str, value: impl Into<Bytes>) -> Result<(), DummyError> {
        self.upsert_with(key, value, &ReplicateConfig::default()).await
    }

    /// Stores `value` under `key` as `config` says, whether the key has a value or not.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn upsert_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<(), DummyError> {
        let mut outcomes = self.batch_upsert(vec![Put::new(key, value.into())], config).await;
        outcomes.pop().expect("one outcome for each upsert")
    }

    /// Stores the bytes of `source` under `key`, as [`put_from`](Self::put_from) does,
    /// whether the key has a value or not.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn upsert_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<(), DummyError> {
        let mut outcomes = self.batch_upsert(vec![Put::new(key, source.clone())], config).await;
        outcomes.pop().expect("one outcome for each upsert")
    }

    /// Stores many objects, each on its own, whether their keys have values or not. The
    /// outcomes are in the order of the upserts. Of a key that comes twice the last value is
    /// stored.
    pub async fn batch_upsert(
        &self,
        upserts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<(), DummyError>> {
        let outcomes = self.core.shared.store_all(upserts, config, true).await;
        outcomes.into_iter().map(|outcome| outcome.map(|_| ())).collect()
    }
}

impl Shared {
    /// Stores objects in as many calls as it takes.
    async fn store_all(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        upsert: bool,
    ) -> Vec<Result<PutOutcome, DummyError>> {
        let deadline = self.deadline();
        let mut outcomes = vec![None; puts.len()];
        let mut next = 0;
        while next < puts.len() {
            let chunk = self.gather(&puts, &mut next, deadline, &mut outcomes).await;
            self.store(chunk, config, upsert, deadline, &mut outcomes).await;
        }
        let done = "every object is in one chunk, or has an error";
        outcomes.into_iter().map(|outcome| outcome.expect(done)).collect()
    }
}

type Outcomes = [Option<Result<PutOutcome, DummyError>>];

/// Objects that one call stores.
#[derive(Default)]
struct Chunk<'a> {
    places: Vec<usize>,
    objects: Vec<Object<'a>>,
    held: Vec<Memory>,
    pieces: usize,
}

impl Shared {
    /// Takes as many of `puts` from `next` on as one call may name and the local buffer has
    /// room for, at least one.
    async fn gather<'a>(
        &self,
        puts: &[Put<'a>],
        next: &mut usize,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) -> Chunk<'a> {
        let mut chunk = Chunk::default();
        while let Some(put) = puts.get(*next) {
            let full = chunk.objects.len() == MAX_OBJECTS
                || chunk.pieces + put.slices.len() > MAX_PIECES_OF_CALL;
            if full && !chunk.objects.is_empty() {
                break;
            }
            match self.add_put(&mut chunk, *next, put, deadline).await {
                Ok(()) => {}
                Err(DummyError::BufferFull { .. }) if !chunk.objects.is_empty() => break,
                Err(error) => outcomes[*next] = Some(Err(error)),
            }
            *next += 1;
        }
        chunk
    }

    async fn add_put<'a>(
        &self,
        chunk: &mut Chunk<'a>,
        at: usize,
        put: &Put<'a>,
        deadline: Instant,
    ) -> Result<(), DummyError> {
        KeyRef::new(put.key)?;
        if put.slices.len() > MAX_PIECES {
            return Err(DummyError::TooManyPieces { given: put.slices.len(), max: MAX_PIECES });
        }
        let bytes = put.slices.iter().map(|slice| match slice {
            Source::Bytes(bytes) => bytes.len(),
            Source::Memory(_) => 0,
        });
        let needed = bytes.fold(0, usize::saturating_add);
        let has_bytes = put.slices.iter().any(|slice| matches!(slice, Source::Bytes(_)));
        let block = match has_bytes {
            false => None,
            // The first waits for room; the others take what is there.
            true if chunk.objects.is_empty() => Some(self.arena.wait_for(needed, deadline).await?),
            true => Some(self.arena.allocate(needed)?),
        };
        let mut pieces = Vec::with_capacity(put.slices.len());
        let mut used = 0;
        for slice in &put.slices {
            match (slice, &block) {
                (Source::Bytes(bytes), Some(block)) => {
                    let part = block.slice(used, bytes.len()).expect("the block holds them all");
                    part.copy_from(0, bytes).expect("the part is as long as they are");
                    used += bytes.len();
                    pieces.push(self.span(&part)?);
                }
                (Source::Memory(slice), _) => {
                    pieces.push(self.span(slice)?);
                    chunk.held.push(slice.memory().clone());
                }
                (Source::Bytes(_), None) => unreachable!("a put with bytes has a block"),
            }
        }
        chunk.held.extend(block);
        chunk.pieces += pieces.len();
        chunk.places.push(at);
        chunk.objects.push(Object { key: Cow::Borrowed(put.key), pieces });
        Ok(())
    }

    async fn store(
        &self,
        chunk: Chunk<'_>,
        config: &ReplicateConfig,
        upsert: bool,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) {
        let Chunk { places, objects, held, .. } = chunk;
        if places.is_empty() {
            return;
        }
        let call = Call::Put(PutCall { puts: objects, config: config.into(), upsert });
        match self.call(&call, held, deadline).await {
            Ok(Reply::Put(answers)) if answers.len() == places.len() => {
                for (at, answer) in places.into_iter().zip(answers) {
                    outcomes[at] = Some(answer.map(PutOutcome::from).map_err(DummyError::from));
                }
            }
            other => {
                let error = other.err().unwrap_or_else(|| self.wrong_answer());
                places.into_iter().for_each(|at| outcomes[at] = Some(Err(error.clone())));
            }
        }
    }
}

impl From<Outcome> for PutOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Stored => Self::Stored,
            Outcome::Existing => Self::Existing,
            Outcome::Pending => Self::Pending,
        }
    }
}
