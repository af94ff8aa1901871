//! Asking the master what verifies ranges, as many at a time as it answers.

use std::ops::Range;

use mc_meta::RangeRead;
use mc_rpc::{MAX_BATCH, MAX_RANGES, MasterClient, RangedList, Refusal, RpcError};
use mc_types::{ErrorCode, KeyRef};

/// The replicas of each key, with what verifies each of its ranges; in the order of the keys.
///
/// # Errors
/// When a call fails.
pub(super) async fn ask_for_ranges(
    master: &MasterClient,
    wanted: &[(KeyRef<'_>, Vec<Range<u64>>)],
) -> Result<Vec<Result<RangedList, Refusal>>, RpcError> {
    let mut lists: Vec<Option<Result<RangedList, Refusal>>> = vec![None; wanted.len()];
    for (places, reads) in calls(wanted) {
        let answers = master.batch_get_ranges(&reads).await?;
        for (at, answer) in places.into_iter().zip(answers) {
            lists[at] = Some(match lists[at].take() {
                None => answer,
                Some(first) => joined(first, answer),
            });
        }
    }
    Ok(lists.into_iter().map(|list| list.expect("every key is asked for")).collect())
}

/// Splits the wanted ranges into calls, and names the keys of each.
fn calls<'a>(wanted: &'a [(KeyRef<'a>, Vec<Range<u64>>)]) -> Vec<(Vec<usize>, Vec<RangeRead<'a>>)> {
    let mut calls: Vec<(Vec<usize>, Vec<RangeRead<'_>>)> = Vec::new();
    let mut left = 0;
    for (at, (key, ranges)) in wanted.iter().enumerate() {
        let mut rest = &ranges[..];
        loop {
            let (now, later) = rest.split_at(rest.len().min(MAX_RANGES));
            let is_full = |call: &(Vec<usize>, _)| now.len() > left || call.0.len() == MAX_BATCH;
            if calls.last().is_none_or(is_full) {
                calls.push((Vec::new(), Vec::new()));
                left = MAX_BATCH;
            }
            let (places, reads) = calls.last_mut().expect("pushed above");
            places.push(at);
            reads.push(RangeRead { key: *key, ranges: now });
            left -= now.len();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
    }
    calls
}

/// One answer of two about the same key, whose ranges follow each other.
fn joined(
    first: Result<RangedList, Refusal>,
    next: Result<RangedList, Refusal>,
) -> Result<RangedList, Refusal> {
    let (mut first, next) = (first?, next?);
    if first.list.generation != next.list.generation {
        // The key was replaced between two calls.
        return Err(Refusal::new(
            ErrorCode::LeaseExpired,
            "the key was replaced between two calls",
        ));
    }
    first.spans.extend(next.spans);
    Ok(first)
}
