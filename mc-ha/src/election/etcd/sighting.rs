//! A member's observations of a term.

use std::time::Duration;

use mc_types::Time;

use super::super::member::Leader;

/// The last term as this member saw it.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub(super) leader: Leader,
    /// The revision of its last renewal, and a time after that.
    pub(super) renewed: i64,
    pub(super) at: Time,
    pub(super) ttl: Duration,
    /// The term is over, as far as this member knows.
    pub(super) over: bool,
}

impl Sighting {
    /// When the term is over, unless it is renewed.
    pub(super) fn end(&self) -> Time {
        self.at + self.ttl
    }
}
