//! Batches of keys, asked about many at a time.

use core::ops::Range;

use mc_meta::{RangeRead, ScopedKey};
use mc_types::KeyRef;

use super::CallContext;
use crate::refusal::Refusal;
use crate::request::{Items, RangedReads, parse_read};

/// Keys that the master is asked about at a time: enough for it to look many up under one
/// lock, few enough that their answers take little memory before they are written.
const KEY_BATCH: usize = 1024;

impl CallContext<'_> {
    /// Asks about keys, many at a time, and hands on the answer to each in their order;
    /// what is no key is answered without asking.
    pub(super) fn in_key_batches<'k, T>(
        self,
        keys: Items<'k>,
        ask: impl Fn(&[KeyRef<'_>]) -> Vec<T>,
        mut answered: impl FnMut(Result<T, Refusal>),
    ) {
        let (most, mut keys) = (keys.len().min(KEY_BATCH), keys.keys());
        loop {
            let batch = keys.by_ref().take(KEY_BATCH).map(|key| self.scoped(key?));
            let Some((keys, refused)) = sorted(batch, most) else { return };
            let good: Vec<KeyRef<'_>> = keys.iter().map(ScopedKey::as_ref).collect();
            merge(refused, ask(&good), &mut answered);
        }
    }

    /// [`in_key_batches`](Self::in_key_batches) of keys with ranges, of which there are at most
    /// [`MAX_BATCH`](crate::MAX_BATCH) altogether.
    pub(super) fn in_ranged_key_batches<T>(
        self,
        reads: &RangedReads<'_>,
        ask: impl Fn(&[RangeRead<'_>]) -> Vec<T>,
        mut answered: impl FnMut(Result<T, Refusal>),
    ) {
        let (most, mut messages) = (reads.len().min(KEY_BATCH), reads.messages());
        let mut ranges = Vec::new();
        loop {
            ranges.clear();
            let parse = |message| -> Result<(ScopedKey<'_>, Range<usize>), Refusal> {
                let first = ranges.len();
                let key = parse_read(message, &mut ranges)?;
                Ok((self.scoped(key)?, first..ranges.len()))
            };
            let batch = messages.by_ref().take(KEY_BATCH).map(parse);
            let Some((reads, refused)) = sorted(batch, most) else { return };
            let good: Vec<RangeRead<'_>> = reads
                .iter()
                .map(|(key, range)| RangeRead { key: key.as_ref(), ranges: &ranges[range.clone()] })
                .collect();
            merge(refused, ask(&good), &mut answered);
        }
    }
}

/// Refused items, each with its place in its batch.
type Refused = Vec<(usize, Refusal)>;

/// Sorts the good items of a batch, of which there are at most so many, from those that are refused;
/// `None` when it is empty.
fn sorted<T>(
    batch: impl Iterator<Item = Result<T, Refusal>>,
    most: usize,
) -> Option<(Vec<T>, Refused)> {
    let (mut good, mut refused) = (Vec::with_capacity(most), Vec::new());
    for (place, item) in batch.enumerate() {
        match item {
            Ok(item) => good.push(item),
            Err(refusal) => refused.push((place, refusal)),
        }
    }
    (!good.is_empty() || !refused.is_empty()).then_some((good, refused))
}

/// Hands on the answers to the good items and the refusals of the others, in the order of the items.
fn merge<T>(refused: Refused, answers: Vec<T>, answered: &mut impl FnMut(Result<T, Refusal>)) {
    let (mut answers, mut next) = (answers.into_iter(), 0);
    for (place, refusal) in refused {
        answers.by_ref().take(place - next).for_each(|answer| answered(Ok(answer)));
        answered(Err(refusal));
        next = place + 1;
    }
    answers.for_each(|answer| answered(Ok(answer)));
}
