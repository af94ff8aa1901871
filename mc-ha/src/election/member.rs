//! The members of a cluster and what they know of each other.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Epoch, Sequence};

use crate::identity::HistoryId;
use crate::position::Position;
use thiserror::Error;

/// Longest id of a member in bytes.
const MAX_ID_LEN: usize = 128;

/// Longest address of a member in bytes.
const MAX_ADDRESS_LEN: usize = 512;

/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 64;

/// The name of a member, unique in its cluster: 1 to 128 visible ASCII characters without a slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(Arc<str>);

impl MemberId {
    /// Checks and keeps an id.
    ///
    /// # Errors
    /// [`MemberError::Id`] when it is empty, too long or has other characters.
    pub fn new(id: &str) -> Result<Self, MemberError> {
        let good = (1..=MAX_ID_LEN).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if good { Ok(Self(id.into())) } else { Err(MemberError::Id { id: shortened(id) }) }
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A master of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    id: MemberId,
    rpc_address: Arc<str>,
}

impl Member {
    /// A member that clients reach at this address: 1 to 512 visible ASCII characters.
    ///
    /// # Errors
    /// [`MemberError`] when the id or the address is not valid.
    pub fn new(id: &str, rpc_address: &str) -> Result<Self, MemberError> {
        let id = MemberId::new(id)?;
        let good = (1..=MAX_ADDRESS_LEN).contains(&rpc_address.len())
            && rpc_address.bytes().all(|byte| byte.is_ascii_graphic());
        if !good {
            return Err(MemberError::Address { id, address: shortened(rpc_address) });
        }
        Ok(Self { id, rpc_address: rpc_address.into() })
    }

    /// Returns the member's id.
    #[must_use]
    pub fn id(&self) -> &MemberId {
        &self.id
    }

    /// Returns the address at which clients reach the member.
    #[must_use]
    pub fn rpc_address(&self) -> &str {
        &self.rpc_address
    }
}

/// How far a member's journal reaches, and in which history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The end of its journal.
    pub position: Position,
    /// The history that the journal has a part of; `None` for one that is empty, whose secrets are
    /// lost, or whose master does not say.
    pub history: Option<HistoryId>,
}

impl Standing {
    /// The standing of an empty journal.
    pub const EMPTY: Self = Self { position: Position::EMPTY, history: None };

    /// Returns whether the journal holds anything.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.position != Position::EMPTY
    }
}

impl From<Position> for Standing {
    fn from(position: Position) -> Self {
        Self { position, history: None }
    }
}

/// A member and how far its journal reached when it last said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: Member,
    /// The end of its journal, about a second old.
    pub standing: Standing,
}

/// The leader of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term.
    pub epoch: Epoch,
    /// The member that leads.
    pub member: Member,
}

/// The members that have everything that was acknowledged, as a leader recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSync {
    /// The epoch of the leader that recorded it.
    pub epoch: Epoch,
    /// The members, the leader among them.
    pub members: Vec<MemberId>,
    /// The history of that leader; `None` from one that does not say.
    pub history: Option<HistoryId>,
    /// The last term that began with a member that was not known to have everything; 0 when none did.
    pub last_unclean: Epoch,
}

/// How far a leader was at some moments of its term, so that a member that is not in sync knows how much
/// it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The leader's term.
    pub epoch: Epoch,
    /// The last durable changes, and the times since the term began at which they were, the oldest
    /// first. At most [`MAX_MARKS`](Self::MAX_MARKS).
    pub marks: Vec<(Sequence, Duration)>,
    /// Up to this change the journal of every member in sync was durable, the leader's included: one
    /// that ends before it has lost something.
    pub common: Sequence,
}

/// The part of a leader's journal that a member lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Changes.
    pub changes: u64,
    /// The time in which the leader made them, at most.
    pub time: Duration,
}

impl Progress {
    /// Most moments that are kept.
    pub const MAX_MARKS: usize = 64;

    /// The shortest time between two moments: together they reach two minutes back.
    pub(super) const INTERVAL: Duration = Duration::from_secs(2);

    /// The beginning of a term.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        Self { epoch, marks: Vec::new(), common: Sequence::new(0) }
    }

    /// Notes how far the leader is at a time since the term began.
    pub fn note(&mut self, position: Position, time: Duration) {
        if position.epoch != self.epoch {
            return;
        }
        // The last moment moves until it is far enough from the one before.
        if let [.., (_, before), (_, last)] = self.marks[..]
            && last.saturating_sub(before) < Self::INTERVAL
        {
            self.marks.pop();
        }
        if self.marks.len() == Self::MAX_MARKS {
            self.marks.remove(0);
        }
        self.marks.push((position.sequence, time));
    }

    /// Returns whether a journal that ends at this position has less than every member in sync had.
    #[must_use]
    pub fn is_short(&self, position: Position) -> bool {
        position < Position::new(self.epoch, self.common)
    }

    /// Returns what a journal that ends at this position lacks; `None` when it is of another term, or
    /// further behind than is known.
    #[must_use]
    pub fn behind(&self, position: Position) -> Option<Behind> {
        let &(last, end) = self.marks.last()?;
        if position.epoch != self.epoch {
            return None;
        }
        let of_then = self.marks.iter().rev().find(|(sequence, _)| *sequence <= position.sequence);
        let changes = last.as_u64().saturating_sub(position.sequence.as_u64());
        match of_then {
            _ if changes == 0 => Some(Behind { changes: 0, time: Duration::ZERO }),
            Some((_, time)) => Some(Behind { changes, time: end.saturating_sub(*time) }),
            // The term began with what it has, at least.
            None if self.marks.len() < Self::MAX_MARKS => Some(Behind { changes, time: end }),
            None => None,
        }
    }
}

/// A cluster as one member sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The leader; `None` while there is none.
    pub leader: Option<Leader>,
    /// The members whose registration is alive, by their ids.
    pub members: Vec<MemberStatus>,
    /// The in-sync set; `None` until a leader has recorded the first one.
    pub in_sync: Option<InSync>,
    /// The member that the last leader handed over to, until there is a new leader.
    pub successor: Option<MemberId>,
    /// How far the last leader was; `None` from one that does not say.
    pub progress: Option<Progress>,
}

impl ClusterView {
    /// Returns the member of this id, if its registration is alive.
    #[must_use]
    pub fn member(&self, id: &MemberId) -> Option<&MemberStatus> {
        self.members.iter().find(|status| status.member.id() == id)
    }

    /// Returns whether a member may lead without loss of anything acknowledged: it is in the in-sync
    /// set, or none was ever recorded.
    #[must_use]
    pub fn is_in_sync(&self, id: &MemberId) -> bool {
        self.in_sync.as_ref().is_none_or(|in_sync| in_sync.members.contains(id))
    }
}

/// The data of a member is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum MemberError {
    /// The member's id is empty, too long, or has other characters.
    #[error(
        "{id:?} is not a member id; write 1 to {MAX_ID_LEN} visible ASCII characters other than '/'"
    )]
    Id {
        /// The beginning of the id.
        id: Box<str>,
    },
    /// The address.
    #[error(
        "{address:?}, the address of member {id}, is not one; write host:port, in at most \
         {MAX_ADDRESS_LEN} visible ASCII characters"
    )]
    Address {
        id: MemberId,
        /// The beginning of the address.
        address: Box<str>,
    },
}

fn shortened(text: &str) -> Box<str> {
    text.chars().take(MAX_ID_LEN).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_addresses_are_bounded() {
        assert!(Member::new("host-1:50051", "host-1:50051").is_ok());
        for id in ["", "a b", "a/b", "ä", &"x".repeat(129)] {
            assert!(MemberId::new(id).is_err(), "{id}");
        }
        for address in ["", "a b:1", &"x".repeat(513)] {
            assert!(Member::new("m", address).is_err(), "{address}");
        }
    }

    #[test]
    fn what_a_member_lacks_is_known_in_changes_and_time() {
        let at = |epoch, sequence| Position::new(Epoch::new(epoch), Sequence::new(sequence));
        let seconds = Duration::from_secs;
        let mut progress = Progress::new(Epoch::new(7));
        assert_eq!(progress.behind(at(7, 0)), None, "nothing is known");
        for second in 0..10 {
            progress.note(at(7, 100 * second), seconds(second));
        }
        let behind = |changes, time| Some(Behind { changes, time: seconds(time) });
        assert_eq!(progress.behind(at(7, 900)), behind(0, 0));
        assert_eq!(progress.behind(at(7, 901)), behind(0, 0));
        // The moments are two seconds apart: it may lack up to two seconds less than that.
        assert_eq!(progress.behind(at(7, 399)), behind(501, 7));
        assert_eq!(progress.behind(at(6, 399)), None);
        let mut young = Progress::new(Epoch::new(7));
        young.note(at(7, 50), seconds(1));
        assert_eq!(young.behind(at(7, 20)), behind(30, 1), "all of the term is known");
        progress.note(at(6, 1_000), seconds(11));
        assert_eq!(progress.behind(at(7, 900)), behind(0, 0), "of another term");
        for second in 10..1000 {
            progress.note(at(7, 100 * second), seconds(second));
        }
        assert_eq!(progress.marks.len(), Progress::MAX_MARKS);
        assert_eq!(progress.behind(at(7, 900)), None, "longer ago than is known");
        let recent = progress.behind(at(7, 90_000)).unwrap();
        assert_eq!((recent.changes, recent.time.as_secs() / 10), (9_900, 9));
    }

    #[test]
    fn positions_are_ordered_by_epoch_first() {
        let at = |epoch, sequence| Position {
            epoch: Epoch::new(epoch),
            sequence: Sequence::new(sequence),
        };
        assert!(at(2, 1) > at(1, 9) && at(2, 2) > at(2, 1) && at(1, 0) > Position::EMPTY);
    }
}
