//! The last changes of the masters, so that the state before any of them is known again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mc_ha::Position;
use mc_types::{Epoch, Generation, SegmentId, Sequence};

use super::state::Readable;

/// Changes that are kept: those of minutes in a cluster of a thousand nodes. No journal lacks more.
const KEPT: usize = 1 << 17;

/// How a master begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The master begins without any metadata.
    Empty,
    /// The master starts from a journal.
    Journal {
        /// The term that it begins.
        term: Epoch,
        /// Where the journal ended before that.
        from: Position,
        /// Acknowledged changes may be missing from the journal, if they are: those that were executed
        /// when the oldest one that is missing was no older than this. `None`: none may.
        may_lack: Option<Duration>,
    },
}

/// A key whose last changes a new master does not know of, because its journal has not got them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undone {
    /// The key.
    pub key: String,
    /// When the first of those changes was made.
    pub since: Duration,
}

/// A change of a master that was followed.
pub(super) struct Change {
    at: Position,
    pub(super) time: Duration,
    pub(super) what: What,
}

pub(super) enum What {
    Stored {
        key: String,
    },
    Removed {
        key: String,
        was: Readable,
        is_requested: bool,
        /// The segments that it went with, as [`State::lost_with`](super::state::State::lost_with) says.
        lost_with: Vec<SegmentId>,
    },
    /// Space was granted to a put.
    Claimed {
        segment: SegmentId,
        start: u64,
        end: u64,
        generation: Generation,
    },
    SegmentGone {
        segment: SegmentId,
    },
}

/// The changes of the master that is followed and of those before it, as far as it builds on them.
#[derive(Default)]
pub(super) struct Changes {
    kept: VecDeque<Change>,
    /// The last change that is not kept any more.
    forgotten: Option<Position>,
    /// Where the journals ended with which terms began.
    begun: BTreeMap<Epoch, Position>,
    /// The terms whose changes were followed.
    followed: BTreeMap<Epoch, Position>,
    /// Where the term begins that is followed.
    begin: Position,
}

impl Changes {
    /// Notes a change of the term that is followed.
    pub(super) fn note(&mut self, at: Position, time: Duration, what: What) {
        self.kept.push_back(Change { at, time, what });
        if self.kept.len() > KEPT {
            self.forgotten = self.kept.pop_front().map(|change| change.at);
        }
    }

    /// Notes that a term began with a journal that ended at `from`, whether it is followed or not.
    pub(super) fn begins(&mut self, term: Epoch, from: Position) {
        self.begun.entry(term).or_insert(from);
    }

    /// Follows a term. Returns the changes that its journal has not got, the last one first, or why it is
    /// not known which ones these are.
    pub(super) fn follow(
        &mut self,
        term: Epoch,
        from: Position,
    ) -> Result<Vec<Change>, &'static str> {
        self.begins(term, from);
        let mut from = from;
        // Nothing was executed in a term that was not followed.
        while !self.followed.contains_key(&from.epoch)
            && let Some(before) = self.begun.get(&from.epoch)
        {
            from = *before;
        }
        self.begin = Position::start_of(term);
        let mut later = self.followed.range(from.epoch..).skip_while(|(it, _)| **it == from.epoch);
        let is_given_up = later.any(|(_, began)| *began < from);
        self.followed.insert(term, from);
        let first = self.kept.partition_point(|change| change.at <= from);
        let mut missing: Vec<Change> = self.kept.drain(first..).collect();
        missing.reverse();
        if is_given_up {
            return Err("it goes on from changes that a master before it did not know of");
        }
        if self.forgotten.is_some_and(|forgotten| forgotten > from) {
            return Err("it lacks more than any journal does");
        }
        Ok(missing)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The place of this effect of the term that is followed.
    pub(super) fn position(&self, sequence: Sequence) -> Position {
        Position::new(self.begin.epoch, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(term: u64, sequence: u64) -> Position {
        Position::new(Epoch::new(term), Sequence::new(sequence))
    }

    /// Follows a term, and notes changes of it that are made once a second.
    fn lead(changes: &mut Changes, term: u64, from: Position, count: u64) -> Vec<u64> {
        let missing = changes.follow(Epoch::new(term), from).unwrap();
        for number in 1..=count {
            let key = number.to_string();
            let what = What::Stored { key };
            changes.note(
                changes.position(Sequence::new(number)),
                Duration::from_secs(number),
                what,
            );
        }
        missing.iter().map(|change| change.time.as_secs()).collect()
    }

    const NONE: [u64; 0] = [];

    #[test]
    fn what_is_behind_the_end_of_a_journal_is_missing_and_nothing_else() {
        let mut changes = Changes::default();
        assert_eq!(lead(&mut changes, 1, Position::EMPTY, 5), NONE);
        assert_eq!(lead(&mut changes, 2, at(1, 3), 2), [5, 4]);
        assert_eq!(lead(&mut changes, 3, at(2, 2), 0), NONE);
        // Through terms in which no master came to lead, and one in which nothing was changed.
        changes.begins(Epoch::new(4), at(3, 0));
        changes.begins(Epoch::new(5), at(4, 0));
        assert_eq!(lead(&mut changes, 6, at(5, 0), 1), NONE);
        assert_eq!(lead(&mut changes, 7, at(6, 0), 0), [1]);
        // From its beginning on a term has what the one before it left.
        assert_eq!(lead(&mut changes, 8, at(2, 0), 0), [2, 1]);
    }

    #[test]
    fn a_journal_with_changes_that_were_given_up_is_found() {
        let mut changes = Changes::default();
        lead(&mut changes, 1, Position::EMPTY, 5);
        lead(&mut changes, 2, at(1, 3), 0);
        assert!(changes.follow(Epoch::new(3), at(1, 5)).is_err());
    }

    #[test]
    fn a_journal_that_lacks_more_than_is_known_is_found() {
        let mut changes = Changes::default();
        lead(&mut changes, 1, Position::EMPTY, KEPT as u64 + 3);
        assert!(changes.follow(Epoch::new(2), at(1, 2)).is_err());
        let mut changes = Changes::default();
        lead(&mut changes, 1, Position::EMPTY, KEPT as u64 + 3);
        assert_eq!(lead(&mut changes, 2, at(1, KEPT as u64 + 2), 0), [KEPT as u64 + 3]);
    }
}
