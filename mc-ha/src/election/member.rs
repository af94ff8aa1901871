//! The members of a cluster and what they know of each other.

use std::fmt;
use std::sync::Arc;

use mc_types::Epoch;

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

/// A member and how far its journal reached when it last said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: Member,
    /// The end of its journal, about a second old.
    pub position: Position,
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
#[non_exhaustive]
pub enum MemberError {
    /// The id.
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
        /// The member.
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
    use mc_types::Sequence;

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
    fn positions_are_ordered_by_epoch_first() {
        let at = |epoch, sequence| Position {
            epoch: Epoch::new(epoch),
            sequence: Sequence::new(sequence),
        };
        assert!(at(2, 1) > at(1, 9) && at(2, 2) > at(2, 1) && at(1, 0) > Position::EMPTY);
    }
}
