//! The suite that every implementation of [`Transport`](crate::Transport) must pass, faults
//! included. Ours run it in `tests/it/conformance.rs`; run it on yours.
//!
//! ```
//! use std::sync::Arc;
//! use mc_transport::{MemFabric, conformance};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! runtime.block_on(conformance::run_all(async || {
//!     let fabric = MemFabric::new();
//!     conformance::Pair {
//!         owner: Arc::new(fabric.transport("owner").expect("the name is free")),
//!         peer: Arc::new(fabric.transport("peer").expect("the name is free")),
//!     }
//! }));
//! # Ok(())
//! # }
//! ```
//!
//! A case panics, naming itself, when the implementation breaks the contract or
//! takes more than [`CASE_DEADLINE`].
//!
#![doc = include_str!("../../docs/your-own-transport.md")]

mod batches;
mod endings;
mod refusals;
mod rig;
mod tickets;
mod transfers;
mod withdrawal;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::DynTransport;

/// Time limit for one case, on a machine that is busy with other things.
pub const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// Two nodes that can reach each other.
pub struct Pair {
    /// Owns the memory; has an endpoint.
    pub owner: Arc<dyn DynTransport>,
    /// Reaches for it.
    pub peer: Arc<dyn DynTransport>,
}

/// One demand of the contract.
pub struct Case {
    /// The demand.
    pub name: &'static str,
    /// Checks it; panics when it is not met.
    pub check: fn(Pair) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

macro_rules! cases {
    ($($subject:ident: $($case:ident,)*;)*) => {
        /// Every case, in the order in which [`run_all`] runs them.
        pub const CASES: &[Case] = &[
            $($(Case {
                name: stringify!($case),
                check: |pair| Box::pin($subject::$case(pair)),
            },)*)*
        ];
    };
}

cases! {
    transfers:
    bytes_survive_round_trips_of_every_size,
    odd_offsets_and_lengths_are_exact,
    pieces_are_gathered_and_scattered,
    a_source_may_be_memory_or_bytes,
    checksums_are_those_of_the_bytes,
    slices_are_added_up_with_their_prefixes,
    memory_may_have_several_keys,
    capabilities_are_kept,;
    batches:
    ten_thousand_operations_in_one_batch,
    ten_thousand_operations_of_several_tasks,
    a_batch_that_is_too_large_fails_as_a_whole,
    results_come_one_by_one,
    results_that_nobody_takes_hold_nobody_up,
    an_empty_batch_has_no_results,
    batches_run_concurrently,
    two_nodes_write_different_parts_at_once,;
    refusals:
    an_empty_operation_succeeds,
    empty_operations_are_checked,
    an_unknown_key_is_refused,
    a_key_opens_its_own_region_only,
    a_revoked_key_is_refused,
    a_key_may_be_revoked_while_operations_run,
    access_is_checked_in_both_directions,
    bounds_are_exact,
    bounds_are_exact_for_regions_of_every_size,
    offsets_do_not_wrap_around,
    lengths_must_agree,
    a_refusal_spoils_nothing_else,
    other_schemes_are_refused,;
    endings:
    a_dropped_future_frees_nothing_in_flight,
    a_future_may_be_dropped_at_any_point,
    a_cancelled_read_touches_its_memory_no_more,
    links_are_used_again,
    a_lost_peer_fails_operations,
    an_owner_may_end_while_operations_run,
    a_peer_may_end_while_its_operations_run,;
    withdrawal:
    what_is_withdrawn_is_touched_no_more,
    an_interrupted_region_keeps_its_key,
    a_withdrawn_read_brings_no_foreign_bytes,
    the_memory_serves_again_under_another_key,;
    tickets:
    a_ticket_opens_its_extent_in_its_direction,
    a_ticket_ends_with_its_time,
    what_a_former_master_granted_is_over_after_an_interruption,
    a_plain_key_needs_no_ticket,
    operations_end_with_the_time_of_this_side,;
}

/// Runs every case on a fresh pair.
///
/// # Panics
/// When a case fails.
pub async fn run_all(mut pair: impl AsyncFnMut() -> Pair) {
    for case in CASES {
        run(case, pair().await).await;
    }
}

/// Runs one case.
///
/// # Panics
/// When it fails or takes longer than [`CASE_DEADLINE`].
pub async fn run(case: &Case, pair: Pair) {
    // A task of its own, so that the deadline holds even if the case never yields
    // on a runtime with more than one thread.
    let outcome = tokio::time::timeout(CASE_DEADLINE, tokio::spawn((case.check)(pair))).await;
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(failed)) => panic!("{}: {}", case.name, said(failed)),
        Err(_) => panic!("{}: not finished after {CASE_DEADLINE:?}", case.name),
    }
}

fn said(failed: tokio::task::JoinError) -> String {
    let Ok(payload) = failed.try_into_panic() else { return "the task was ended".to_owned() };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "it panicked".to_owned(), |text| (*text).to_owned()),
    }
}
