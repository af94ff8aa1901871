//! Puts: values lie in shared memory, from where the node agent sends them.

use std::borrow::Cow;

use mc_meta::ReplicateConfig;
use mc_store::{Put, PutMode, PutOutcome, StoreError};
use mc_transport::{Memory, Source};
use mc_types::{Checksum, KeyRef, StoreEventInfo};
use tokio::time::Instant;

use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{
    Call, EventInfo, INFO_BYTES_OF_CALL, MAX_OBJECTS, MAX_PIECES, MAX_PIECES_OF_CALL, NewObject,
    Object, Outcome, PutCall, Reply,
};

impl Shared {
    /// Stores objects in as many calls as it takes.
    pub(super) async fn store_all<'a>(
        &self,
        mut puts: Vec<Put<'a>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let deadline = self.deadline();
        // An object has no empty slices; a caller's parts may happen to be empty.
        puts.iter_mut().for_each(|put| put.slices.retain(|slice| !slice.is_empty()));
        // The node agent may take up the call when the application has changed its memory.
        let is_summed = |put: &Put<'_>| {
            put.checksums.as_ref().is_some_and(|sums| sums.len() == put.slices.len())
        };
        let summed = |put: Put<'a>| if is_summed(&put) { put } else { put.of_this_moment() };
        let puts: Vec<Put<'a>> = puts.into_iter().map(summed).collect();
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

type Outcomes = [Option<Result<PutOutcome, StoreError>>];

/// Objects that one call stores.
#[derive(Default)]
struct PutChunk<'a> {
    places: Vec<usize>,
    objects: Vec<NewObject<'a>>,
    held: Vec<Memory>,
    pieces: usize,
    info_bytes: usize,
}

impl Shared {
    /// Takes as many of `puts` from `next` on as one call may name and the local buffer has
    /// room for, at least one.
    async fn gather<'a>(
        &self,
        puts: &'a [Put<'_>],
        next: &mut usize,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) -> PutChunk<'a> {
        let mut chunk = PutChunk::default();
        while let Some(put) = puts.get(*next) {
            let info = put.event_info.as_deref();
            let info_bytes = info.map_or(0, |info| EventInfo::from(info).max_len());
            let full = chunk.objects.len() == MAX_OBJECTS
                || chunk.pieces + put.slices.len() > MAX_PIECES_OF_CALL
                || chunk.info_bytes + info_bytes > INFO_BYTES_OF_CALL;
            if full && !chunk.objects.is_empty() {
                break;
            }
            match self.add_put(&mut chunk, *next, put, deadline).await {
                Ok(()) => chunk.info_bytes += info_bytes,
                Err(error) if !chunk.objects.is_empty() && is_full(&error) => break,
                Err(error) => outcomes[*next] = Some(Err(error)),
            }
            *next += 1;
        }
        chunk
    }

    async fn add_put<'a>(
        &self,
        chunk: &mut PutChunk<'a>,
        at: usize,
        put: &'a Put<'_>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        KeyRef::new(put.key)?;
        let event_info = put.event_info.as_deref();
        event_info.map_or(Ok(()), StoreEventInfo::check)?;
        if put.slices.len() > MAX_PIECES {
            let (given, max) = (put.slices.len(), MAX_PIECES);
            return Err(DummyError::TooManyPieces { given, max }.into());
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
        let object = Object { key: Cow::Borrowed(put.key), pieces };
        let sums = put.checksums.iter().flatten();
        let checksums = sums.map(|sum| sum.map(Checksum::as_u32)).collect();
        let event_info = event_info.map(EventInfo::from);
        chunk.objects.push(NewObject { object, checksums, event_info });
        Ok(())
    }

    async fn store(
        &self,
        chunk: PutChunk<'_>,
        config: &ReplicateConfig,
        mode: PutMode,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) {
        let PutChunk { places, objects, held, .. } = chunk;
        if places.is_empty() {
            return;
        }
        let upsert = mode == PutMode::Upsert;
        let call = Call::Put(PutCall { puts: objects, config: config.into(), upsert });
        match self.call(&call, held, deadline).await {
            Ok(Reply::Put(answers)) if answers.len() == places.len() => {
                for (at, answer) in places.into_iter().zip(answers) {
                    outcomes[at] = Some(answer.map(PutOutcome::from).map_err(StoreError::from));
                }
            }
            other => {
                let error = StoreError::from(other.err().unwrap_or_else(|| self.wrong_answer()));
                places.into_iter().for_each(|at| outcomes[at] = Some(Err(error.clone())));
            }
        }
    }
}

/// Whether the local buffer has no room now.
fn is_full(error: &StoreError) -> bool {
    matches!(DummyError::behind(error), Some(DummyError::BufferFull { .. }))
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
