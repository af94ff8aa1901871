//! The latest of the moments that others bound.

use crate::{Moment, Operation};

/// Pairs of moments with the operation that they are of, in the order of the first moments; the
/// second moment of each is the latest up to there.
pub(super) struct Latest<'a>(Vec<(Moment, Moment, &'a Operation)>);

impl<'a> Latest<'a> {
    pub(super) fn new(mut all: Vec<(Moment, Moment, &'a Operation)>) -> Self {
        all.sort_by_key(|(order, ..)| *order);
        for at in 1..all.len() {
            if all[at - 1].1 > all[at].1 {
                (all[at].1, all[at].2) = (all[at - 1].1, all[at - 1].2);
            }
        }
        Self(all)
    }

    /// The latest second moment of those whose first one is before this.
    pub(super) fn before(&self, moment: Moment) -> Option<(Moment, &'a Operation)> {
        self.of_first(self.0.partition_point(|(order, ..)| *order < moment))
    }

    /// As [`before`](Self::before), with those whose first moment is this one.
    pub(super) fn up_to(&self, moment: Moment) -> Option<(Moment, &'a Operation)> {
        self.of_first(self.0.partition_point(|(order, ..)| *order <= moment))
    }

    fn of_first(&self, count: usize) -> Option<(Moment, &'a Operation)> {
        self.0[..count].last().map(|(_, latest, operation)| (*latest, *operation))
    }
}
