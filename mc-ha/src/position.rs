//! Places in a journal.

use core::fmt;

use mc_types::{Epoch, Sequence};

/// The place of an effect among all effects of a cluster: the term of the master that had it, and
/// its number there. Positions are ordered as the effects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The term.
    pub epoch: Epoch,
    /// The effect; 0 is the state in which the term began.
    pub sequence: Sequence,
}

impl Default for Position {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Position {
    /// The position of an empty journal, before every term.
    pub const EMPTY: Self = Self::start_of(Epoch::new(0));

    /// The position of this effect of this term.
    #[must_use]
    pub const fn new(epoch: Epoch, sequence: Sequence) -> Self {
        Self { epoch, sequence }
    }

    /// The state in which a term begins.
    #[must_use]
    pub const fn start_of(epoch: Epoch) -> Self {
        Self { epoch, sequence: Sequence::new(0) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch.as_u64(), self.sequence.as_u64())
    }
}
