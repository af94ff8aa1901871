//! The order of batches.

use mc_types::Epoch;

use crate::encoding::Batch;
use crate::journal::JournalError;
use crate::position::Position;

/// Checks that a batch of the current term follows what is there.
pub(crate) fn check_follows(
    batch: &Batch,
    epoch: Epoch,
    last: Option<Position>,
) -> Result<(), JournalError> {
    if batch.epoch() != epoch {
        return Err(JournalError::Fenced { current: epoch, offered: batch.epoch() });
    }
    let follows = match last {
        Some(last) if last.epoch == epoch => {
            batch.first().sequence.as_u64() == last.sequence.as_u64() + 1
        }
        _ => batch.first() == Position::start_of(epoch),
    };
    let last = last.unwrap_or_default();
    if follows { Ok(()) } else { Err(JournalError::Gap { after: batch.first(), last }) }
}
