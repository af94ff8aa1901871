//! Batches of keys, asked about many at a time.

use mc_meta::ScopedKey;
use mc_types::KeyRef;

use super::Turn;
use crate::error::Refusal;
use crate::request::Items;

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
}
