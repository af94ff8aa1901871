//! Batches of keys, asked about many at a time.

use core::ops::Range;

use mc_meta::{RangeRead, ScopedKey};
use mc_types::KeyRef;

use super::Turn;
use crate::error::Refusal;
use crate::request::{Items, RangedReads, parse_read};

/// Keys that the master is asked about at a time: enough for it to look many up under one
/// lock, few enough that their answers take little memory before they are written.
const BUNCH: usize = 1024;

impl Turn<'_> {
    /// Asks about keys, many at a time, and hands on the answer to each in their order;
    /// what is no key is answered without asking.
    pub(super) fn in_bunches<'k, T>(
        self,
        keys: Items<'k>,
        ask: impl Fn(&[KeyRef<'_>]) -> Vec<T>,
        mut answered: impl FnMut(Result<T, Refusal>),
    ) {
        let mut keys = keys.keys();
        loop {
            let bunch: Vec<Result<ScopedKey<'k>, Refusal>> =
                keys.by_ref().take(BUNCH).map(|key| self.scoped(key?)).collect();
            if bunch.is_empty() {
                return;
            }
            let good: Vec<KeyRef<'_>> =
                bunch.iter().filter_map(|key| Some(key.as_ref().ok()?.as_ref())).collect();
            let mut answers = ask(&good).into_iter();
            for key in &bunch {
                answered(match key {
                    Ok(_) => Ok(answers.next().expect("the master answers for each key")),
                    Err(refusal) => Err(refusal.clone()),
                });
            }
        }
    }
    /// [`in_bunches`](Self::in_bunches) of keys with ranges, of which there are at most
    /// [`MAX_BATCH`](crate::MAX_BATCH) altogether.
    pub(super) fn in_ranged_bunches<T>(
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
            let bunch: Vec<_> = messages.by_ref().take(BUNCH).map(parse).collect();
            if bunch.is_empty() {
                return;
            }
            let good: Vec<RangeRead<'_>> = bunch
                .iter()
                .flatten()
                .map(|(key, range)| RangeRead { key: key.as_ref(), ranges: &ranges[range.clone()] })
                .collect();
            let mut answers = ask(&good).into_iter();
            for read in &bunch {
                answered(match read {
                    Ok(_) => Ok(answers.next().expect("the master answers for each read")),
                    Err(refusal) => Err(refusal.clone()),
                });
            }
        }
    }
}
