//! Gets: the node agent reads right into shared memory.

use std::borrow::Cow;
use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mc_store::{GetInto, StoreError, by_key};
use mc_transport::Memory;
use mc_types::{Generation, KeyRef};
use tokio::time::Instant;

use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{
    Call, Failure, MAX_OBJECTS, MAX_PIECES, MAX_PIECES_OF_CALL, Object, Reply, Wanted,
};

/// Room for a value whose length is not known, at least.
const SMALLEST_GUESS: usize = 4 << 10;

/// How often a value that changes under its reader is read anew.
const ATTEMPTS: u32 = 4;

/// The length of the values that were read last, to guess that of the next.
#[derive(Debug)]
pub(super) struct Guess(AtomicUsize);

impl Default for Guess {
    fn default() -> Self {
        Self(AtomicUsize::new(64 << 10))
    }
}

impl Guess {
    /// Room for one of `count` values of unknown length, which must not take more than
    /// half of the local buffer together.
    fn len(&self, count: usize, capacity: usize) -> usize {
        let share = (capacity / 2) / count.max(1);
        self.0.load(Ordering::Relaxed).min(share).max(SMALLEST_GUESS.min(capacity))
    }

    fn seen(&self, len: usize) {
        let room = len.checked_next_power_of_two().unwrap_or(len).max(SMALLEST_GUESS);
        self.0.store(room, Ordering::Relaxed);
    }
}

/// A value on its way.
struct Item<'a> {
    key: &'a str,
    /// The range of its bytes that is wanted; `None` for all.
    range: Option<Range<u64>>,
    /// The only put that it may be of.
    generation: Option<Generation>,
    room: usize,
    /// The length of the longest value that the caller takes.
    most: u64,
    attempts: u32,
    outcome: Option<Result<Bytes, StoreError>>,
}

impl<'a> Item<'a> {
    fn new(key: &'a str, room: usize) -> Self {
        let outcome = KeyRef::new(key).err().map(|error| Err(error.into()));
        let (range, generation, most) = (None, None, u64::MAX);
        Self { key, range, generation, room, most, attempts: 0, outcome }
    }
}

impl Shared {
    /// Reads as many values at the same time as the local buffer has room for.
    pub(super) async fn read_whole(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        let named = by_key(keys.iter().copied());
        let guess = self.guess.len(named.len(), self.arena.memory().len());
        let items = named.iter().map(|(key, _)| Item::new(key, guess)).collect();
        let mut values: Vec<Option<Result<Bytes, StoreError>>> = vec![None; keys.len()];
        for ((_, places), value) in named.iter().zip(self.read_all(items).await) {
            places.iter().for_each(|&at| values[at] = Some(value.clone()));
        }
        values.into_iter().map(|value| value.expect("every key is in a group")).collect()
    }

    /// Reads values that have no more bytes than their callers take.
    pub(super) async fn read_at_most(
        &self,
        gets: &[(&str, u64)],
    ) -> Vec<Result<Bytes, StoreError>> {
        let guess = self.guess.len(gets.len(), self.arena.memory().len());
        let mut items = Vec::with_capacity(gets.len());
        for &(key, most) in gets {
            let room = guess.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1);
            items.push(Item { most, ..Item::new(key, room) });
        }
        self.read_all(items).await
    }

    pub(super) async fn read_range(
        &self,
        key: &str,
        generation: Option<Generation>,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let room = len.min(self.guess.len(1, self.arena.memory().len()));
        let item = Item { range: Some(range), generation, ..Item::new(key, room) };
        self.read_all(vec![item]).await.pop().expect("one value for each key")
    }

    /// Reads until every item has an outcome.
    async fn read_all(&self, mut items: Vec<Item<'_>>) -> Vec<Result<Bytes, StoreError>> {
        let deadline = self.deadline();
        while items.iter().any(|item| item.outcome.is_none()) {
            self.read_some(&mut items, deadline).await;
        }
        let done = "items are read until each has an outcome";
        items.into_iter().map(|item| item.outcome.expect(done)).collect()
    }

    /// Reads those of the open items for which there is room, at least one.
    async fn read_some(&self, items: &mut [Item<'_>], deadline: Instant) {
        let mut taken: Vec<(usize, Memory)> = Vec::new();
        for (at, item) in items.iter_mut().enumerate() {
            if item.outcome.is_some() {
                continue;
            }
            // The first waits for room; the others take what is there.
            let block = if taken.is_empty() {
                self.arena.wait_for(item.room, deadline).await
            } else {
                self.arena.allocate(item.room)
            };
            match block {
                Ok(block) => taken.push((at, block)),
                Err(DummyError::BufferFull { .. }) if !taken.is_empty() => break,
                Err(error) => item.outcome = Some(Err(error.into())),
            }
            if taken.len() == MAX_OBJECTS {
                break;
            }
        }
        let get = |(at, block): &(usize, Memory)| {
            let Item { key, range, generation, .. } = &items[*at];
            let whole = GetInto::new(key, block.whole());
            GetInto { range: range.clone(), generation: *generation, ..whole }
        };
        let gets: Vec<GetInto<'_>> = taken.iter().map(get).collect();
        let lengths = self.read_into(&gets, deadline).await;
        drop(gets);
        for ((at, block), length) in taken.into_iter().zip(lengths) {
            let item = &mut items[at];
            item.attempts += 1;
            match length {
                Err(StoreError::BufferTooSmall { needed, .. }) if needed > item.most => {
                    let given = item.most;
                    item.outcome = Some(Err(StoreError::BufferTooSmall { needed, given }));
                }
                Err(StoreError::BufferTooSmall { needed, .. }) if item.attempts < ATTEMPTS => {
                    item.room = usize::try_from(needed).unwrap_or(usize::MAX);
                }
                outcome => item.outcome = Some(outcome.map(|len| self.copy_out(&block, len))),
            }
        }
    }

    fn copy_out(&self, block: &Memory, len: u64) -> Bytes {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(block.len());
        self.guess.seen(len);
        block.slice(0, len).expect("at most as long as the block").to_vec().into()
    }

    pub(super) async fn read_into(
        &self,
        gets: &[GetInto<'_>],
        deadline: Instant,
    ) -> Vec<Result<u64, StoreError>> {
        let mut lengths: Vec<Option<Result<u64, StoreError>>> = vec![None; gets.len()];
        let mut chunk = GetChunk::default();
        for (key, places) in by_key(gets.iter().map(|get| get.key)) {
            let pieces = places.iter().map(|&at| gets[at].into.len()).sum();
            if !GetChunk::default().has_room_for(places.len(), pieces) {
                self.read_long(gets, key, &places, deadline, &mut lengths).await;
                continue;
            }
            // What one call reads of a key is of one put.
            if !chunk.has_room_for(places.len(), pieces) {
                self.read_chunk(gets, take(&mut chunk), deadline, &mut lengths).await;
            }
            for at in places {
                self.add(&mut chunk, at, &gets[at], None, &mut lengths);
            }
        }
        self.read_chunk(gets, chunk, deadline, &mut lengths).await;
        let done = "every object is in a chunk, or has an error";
        lengths.into_iter().map(|length| length.expect(done)).collect()
    }

    /// Reads what is too much of one key for one call: of the put that is there now, and anew
    /// when it is replaced meanwhile.
    async fn read_long(
        &self,
        gets: &[GetInto<'_>],
        key: &str,
        places: &[usize],
        deadline: Instant,
        lengths: &mut [Option<Result<u64, StoreError>>],
    ) {
        for _ in 0..ATTEMPTS {
            let stats = self.stat(&[key], deadline).await;
            let generation = match stats.map(|mut stats| stats.pop().expect("one for each key")) {
                Ok(Ok(stat)) => stat.generation,
                Ok(Err(error)) | Err(error) => {
                    places.iter().for_each(|&at| lengths[at] = Some(Err(error.clone())));
                    return;
                }
            };
            let mut chunk = GetChunk::default();
            for &at in places {
                if !chunk.has_room_for(1, gets[at].into.len()) {
                    self.read_chunk(gets, take(&mut chunk), deadline, lengths).await;
                }
                self.add(&mut chunk, at, &gets[at], Some(generation), lengths);
            }
            self.read_chunk(gets, chunk, deadline, lengths).await;
            let is_replaced = |&at: &usize| {
                gets[at].generation.is_none()
                    && matches!(lengths[at], Some(Err(StoreError::Replaced)))
            };
            if !places.iter().any(is_replaced) {
                return;
            }
        }
    }

    /// Adds an object of this put, unless the request names one itself; what cannot be added
    /// has its error.
    fn add<'a>(
        &self,
        chunk: &mut GetChunk<'a>,
        at: usize,
        get: &GetInto<'a>,
        generation: Option<Generation>,
        lengths: &mut [Option<Result<u64, StoreError>>],
    ) {
        let generation = get.generation.or(generation);
        if let Err(error) = self.try_add(chunk, at, get, generation) {
            lengths[at] = Some(Err(error));
        }
    }

    fn try_add<'a>(
        &self,
        chunk: &mut GetChunk<'a>,
        at: usize,
        get: &GetInto<'a>,
        generation: Option<Generation>,
    ) -> Result<(), StoreError> {
        KeyRef::new(get.key)?;
        if get.into.len() > MAX_PIECES {
            let (given, max) = (get.into.len(), MAX_PIECES);
            return Err(DummyError::TooManyPieces { given, max }.into());
        }
        let pieces =
            get.into.iter().map(|slice| self.span(slice)).collect::<Result<Vec<_>, _>>()?;
        chunk.pieces += pieces.len();
        chunk.places.push(at);
        chunk.held.extend(get.into.iter().map(|slice| slice.memory().clone()));
        let object = Object { key: Cow::Borrowed(get.key), pieces };
        let range = get.range.as_ref().map(|range| (range.start, range.end));
        let generation = generation.map(Generation::as_u64);
        chunk.objects.push(Wanted { object, range, generation });
        Ok(())
    }

    async fn read_chunk(
        &self,
        gets: &[GetInto<'_>],
        chunk: GetChunk<'_>,
        deadline: Instant,
        lengths: &mut [Option<Result<u64, StoreError>>],
    ) {
        let GetChunk { places, objects, held, .. } = chunk;
        if places.is_empty() {
            return;
        }
        let answer = self.call(&Call::Get { gets: objects }, held, deadline).await;
        let answers = match answer {
            Ok(Reply::Lengths(answers)) if answers.len() == places.len() => answers,
            other => {
                let error = StoreError::from(other.err().unwrap_or_else(|| self.wrong_answer()));
                places.into_iter().for_each(|at| lengths[at] = Some(Err(error.clone())));
                return;
            }
        };
        for (at, answer) in places.into_iter().zip(answers) {
            lengths[at] = Some(answer.map_err(|failure| read_failure(failure, &gets[at])));
        }
    }
}

/// Objects that one call names.
#[derive(Default)]
struct GetChunk<'a> {
    places: Vec<usize>,
    objects: Vec<Wanted<'a>>,
    held: Vec<Memory>,
    pieces: usize,
}

impl GetChunk<'_> {
    fn has_room_for(&self, objects: usize, pieces: usize) -> bool {
        self.objects.len() + objects <= MAX_OBJECTS && self.pieces + pieces <= MAX_PIECES_OF_CALL
    }
}

fn read_failure(failure: Failure, get: &GetInto<'_>) -> StoreError {
    match failure.needed {
        Some(needed) => {
            let given = get.into.iter().map(|slice| slice.len() as u64).sum();
            StoreError::BufferTooSmall { needed, given }
        }
        None => failure.into(),
    }
}
