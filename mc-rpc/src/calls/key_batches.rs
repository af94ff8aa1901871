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
        let mut keys = keys.keys();
        loop {
            let batch: Vec<Result<ScopedKey<'k>, Refusal>> =
                keys.by_ref().take(KEY_BATCH).map(|key| self.scoped(key?)).collect();
            if batch.is_empty() {
                return;
            }
            let good: Vec<KeyRef<'_>> =
                batch.iter().filter_map(|key| Some(key.as_ref().ok()?.as_ref())).collect();
            let mut answers = ask(&good).into_iter();
            for key in &batch {
                answered(match key {
                    Ok(_) => Ok(answers.next().expect("the master answers for each key")),
                    Err(refusal) => Err(refusal.clone()),
                });
            }
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
        let (mut messages, mut ranges) = (reads.messages(), Vec::new());
        loop {
            ranges.clear();
            let parse = |message| -> Result<(ScopedKey<'_>, Range<usize>), Refusal> {
                let first = ranges.len();
                let key = parse_read(message, &mut ranges)?;
                Ok((self.scoped(key)?, first..ranges.len()))
            };
            let batch: Vec<_> = messages.by_ref().take(KEY_BATCH).map(parse).collect();
            if batch.is_empty() {
                return;
            }
            let good: Vec<RangeRead<'_>> = batch
                .iter()
                .flatten()
                .map(|(key, range)| RangeRead { key: key.as_ref(), ranges: &ranges[range.clone()] })
                .collect();
            let mut answers = ask(&good).into_iter();
            for read in &batch {
                answered(match read {
                    Ok(_) => Ok(answers.next().expect("the master answers for each read")),
                    Err(refusal) => Err(refusal.clone()),
                });
            }
        }
    }
}
