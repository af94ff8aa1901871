//! The suite that every implementation of [`ObjectStore`] must pass. Ours run it in
//! `tests/it/object_store.rs`, and in that of `mc-standalone`; run it on yours.
//!
//! ```
//! use std::sync::Arc;
//! use mc_store::{MemoryStore, conformance};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! runtime.block_on(conformance::run_all(async || Arc::new(MemoryStore::new())));
//! # Ok(())
//! # }
//! ```
//!
//! A case panics, naming itself, when the implementation breaks the contract or takes more than
//! [`CASE_DEADLINE`]. A case removes everything first: cases may use one store, one after the
//! other. The store needs room for 16 MiB.

mod gets;
mod keys;
mod puts;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{ObjectStore, Put, PutMode, PutOutcome, ReplicateConfig, StoreError};

/// How long one case may take, on a machine that is busy with other things.
pub const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// A store under test.
pub type Subject = Arc<dyn ObjectStore>;

/// One demand of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The demand.
    pub name: &'static str,
    /// Checks it; panics when it is not met.
    pub check: fn(Subject) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! cases {
    ($($subject:ident: $($case:ident,)*;)*) => {
        /// Every case, in the order in which [`run_all`] runs them.
        pub const CASES: &[Case] = &[
            $($(Case {
                name: stringify!($case),
                check: |store| Box::pin($subject::$case(store)),
            },)*)*
        ];
    };
}

cases! {
    puts:
    values_survive_round_trips_of_every_size,
    a_put_never_changes_a_value,
    an_upsert_replaces_a_value,
    parts_follow_each_other,
    memory_is_put_from_where_it_is,
    a_batch_has_one_outcome_for_each_put,
    of_a_key_that_comes_twice_one_value_is_stored,
    what_is_no_object_is_refused,
    of_many_puts_at_once_one_wins,;
    gets:
    a_missing_object_is_not_found,
    ranges_are_exact,
    a_named_put_is_read_or_nothing,
    bytes_are_read_into_memory,
    a_target_that_is_too_small_is_refused,
    a_value_is_not_read_that_is_longer_than_its_reader_takes,
    values_may_be_read_into_memory_that_is_made,
    values_are_scattered,
    a_batch_has_one_value_for_each_key,
    registered_memory_is_read_into,
    a_value_is_taken_by_one_reader,
    a_batch_takes_what_is_there,;
    keys:
    existence_is_told,
    a_probe_keeps_nothing,
    a_put_is_removed_by_its_name_once,
    a_stat_tells_length_and_put,
    what_is_removed_is_gone,
    everything_is_removed,
    patterns_find_and_remove,
    invalid_keys_and_patterns_are_refused,;
}

/// Runs every case on a store that `store` makes, or on one that it hands out again.
///
/// # Panics
/// When a case does not pass.
pub async fn run_all<S: ObjectStore + 'static>(store: impl AsyncFn() -> Arc<S>) {
    for case in CASES {
        let store = store().await;
        let removed = store.remove_all(true).await;
        removed.unwrap_or_else(|error| panic!("{}: nothing can be removed: {error}", case.name));
        // A task of its own, so that the case that panics is named.
        let checked = tokio::spawn(tokio::time::timeout(CASE_DEADLINE, (case.check)(store)));
        match checked.await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => panic!("{}: not done after {CASE_DEADLINE:?}", case.name),
            Err(panicked) => panic!("{}: {panicked}", case.name),
        }
    }
}

/// Bytes that differ from key to key and along the value.
fn content(key: &str, len: usize) -> Bytes {
    let seed = key.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31) ^ u64::from(byte));
    let byte = |n: u64| ((seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..len as u64).map(byte).collect::<Vec<u8>>().into()
}

/// Stores a value under a key that has none.
async fn put(store: &dyn ObjectStore, key: &str, value: impl Into<Bytes>) {
    let outcome = store.put(key, value.into()).await.expect("there is room");
    assert_eq!(outcome, PutOutcome::Stored, "{key}");
}

async fn batch(
    store: &dyn ObjectStore,
    puts: Vec<Put<'_>>,
    mode: PutMode,
) -> Vec<Result<PutOutcome, StoreError>> {
    store.batch_store(puts, &ReplicateConfig::default(), mode).await
}
