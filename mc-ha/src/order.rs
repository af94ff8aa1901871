//! The order of batches.

use mc_types::Epoch;

use crate::encoding::Batch;
use crate::journal::JournalError;
use crate::position::Position;

/// Checks that a batch that is appended by a master of `term` follows `last`, the end of a journal in
/// term `current`. For implementations of [`MetadataJournal`](crate::MetadataJournal).
///
/// # Errors
/// [`JournalError::Fenced`] when another term may write, [`JournalError::Gap`] when the batch does not
/// follow.
pub fn check_follows(
    term: Epoch,
    batch: &Batch,
    current: Epoch,
    last: Option<Position>,
) -> Result<(), JournalError> {
    for offered in [term, batch.epoch()] {
        if offered > current || term != current {
            return Err(JournalError::Fenced { current, offered });
        }
    }
    let last = last.unwrap_or_default();
    let follows = if last.epoch == batch.epoch() {
        batch.first().sequence.as_u64() == last.sequence.as_u64() + 1
    } else {
        batch.epoch() > last.epoch && batch.first() == Position::start_of(batch.epoch())
    };
    if follows { Ok(()) } else { Err(JournalError::Gap { after: batch.first(), last }) }
}
