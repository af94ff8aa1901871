//! Puts: values lie in shared memory, from where the real client sends them.

use std::borrow::Cow;

use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_store::{Put, PutMode, PutOutcome};
use mc_transport::{Memory, MemorySlice, Source};
use mc_types::KeyRef;
use tokio::time::Instant;

use super::DummyClient;
use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{
    Call, MAX_OBJECTS, MAX_PIECES, MAX_PIECES_OF_CALL, Object, Outcome, PutCall, Reply,
};

/// Values go by way of the local buffer; slices of memory are sent straight from there by the real
/// client, which must reach them ([`allocate`](Self::allocate), [`register`](Self::register)).
impl DummyClient {
    /// As [`ObjectStore::put`](mc_store::ObjectStore::put).
    ///
    /// # Errors
    /// [`DummyError`]; the object is not readable then, unless the answer was lost.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<PutOutcome, DummyError> {
        self.put_with(key, value, &ReplicateConfig::default()).await
    }

    /// As [`ObjectStore::put_with`](mc_store::ObjectStore::put_with).
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        self.store_one(Put::new(key, value.into()), config, PutMode::Put).await
    }

    /// As [`ObjectStore::put_from`](mc_store::ObjectStore::put_from).
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        self.store_one(Put::new(key, source.clone()), config, PutMode::Put).await
    }

    /// As [`ObjectStore::put_parts`](mc_store::ObjectStore::put_parts).
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_parts(
        &self,
        key: &str,
        parts: Vec<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, DummyError> {
        let slices = parts.into_iter().map(Source::from).collect();
        self.store_one(Put { key, slices }, config, PutMode::Put).await
    }

    /// [`ObjectStore::batch_store`](mc_store::ObjectStore::batch_store) in [`PutMode::Put`]. As
    /// many values are on their way as the local buffer has room for.
    pub async fn batch_put(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<PutOutcome, DummyError>> {
        self.core.shared.store_all(puts, config, PutMode::Put).await
    }

    /// As [`ObjectStore::upsert`](mc_store::ObjectStore::upsert).
    ///
    /// # Errors
    /// [`DummyError`]; the old value is still there then, unless the new one was to be
    /// written in its place or the answer was lost.
    pub async fn upsert(&self, key: &str, value: impl Into<Bytes>) -> Result<(), DummyError> {
        self.upsert_with(key, value, &ReplicateConfig::default()).await
    }

    /// As [`ObjectStore::upsert_with`](mc_store::ObjectStore::upsert_with).
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn upsert_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<(), DummyError> {
        self.store_one(Put::new(key, value.into()), config, PutMode::Upsert).await.map(drop)
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
        self.store_one(Put::new(key, source.clone()), config, PutMode::Upsert).await.map(drop)
    }

    /// [`ObjectStore::batch_store`](mc_store::ObjectStore::batch_store) in [`PutMode::Upsert`].
    pub async fn batch_upsert(
        &self,
        upserts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<(), DummyError>> {
        let outcomes = self.core.shared.store_all(upserts, config, PutMode::Upsert).await;
        outcomes.into_iter().map(|outcome| outcome.map(drop)).collect()
    }

    async fn store_one(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Result<PutOutcome, DummyError> {
        let mut outcomes = self.core.shared.store_all(vec![put], config, mode).await;
        outcomes.pop().expect("one outcome for each put")
    }
}

impl Shared {
    /// Stores objects in as many calls as it takes.
    pub(super) async fn store_all(
        &self,
        mut puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, DummyError>> {
        let deadline = self.deadline();
        // An object has no empty slices; a caller's parts may happen to be empty.
        puts.iter_mut().for_each(|put| put.slices.retain(|slice| !slice.is_empty()));
        let mut outcomes = vec![None; puts.len()];
        let mut next = 0;
        while next < puts.len() {
            let chunk = self.gather(&puts, &mut next, deadline, &mut outcomes).await;
            self.store(chunk, config, mode, deadline, &mut outcomes).await;
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
        mode: PutMode,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) {
        let Chunk { places, objects, held, .. } = chunk;
        if places.is_empty() {
            return;
        }
        let upsert = mode == PutMode::Upsert;
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
