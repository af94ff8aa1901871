//! The part that a master has among those of its cluster.

use core::fmt;
use core::time::Duration;
use std::time::SystemTime;

use mc_types::{Epoch, ErrorCode, Sequence};

use crate::refusal::Refusal;

/// Stands before the leader's address in the refusals of a standby.
const LEADER_IS: &str = "; the leader is ";

/// Returns why a standby takes no call. Clients [follow](named_leader) to the leader in it.
pub(crate) fn standby_refusal(leader: Option<&str>) -> Refusal {
    let message = match leader {
        Some(leader) => format!("this master is a standby{LEADER_IS}{leader}"),
        None => "this master is a standby, and knows no leader now; ask the others".into(),
    };
    Refusal::new(ErrorCode::UnavailableInCurrentStatus, message)
}

/// Returns the address of the leader that a standby names in its refusal.
pub(crate) fn named_leader(refusal: &Refusal) -> Option<&str> {
    let is_standby = refusal.code == ErrorCode::UnavailableInCurrentStatus;
    let (_, leader) = refusal.message.rsplit_once(LEADER_IS).filter(|_| is_standby)?;
    Some(leader)
}

/// The part of a master in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HaRole {
    /// The master has no other masters beside it.
    #[default]
    Alone,
    /// The master answers calls.
    Leader,
    /// The master follows the leader's journal.
    Standby,
    /// The master is about to lead, and rebuilds its state.
    Recovering,
}

impl HaRole {
    /// Returns the role's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Leader => "leader",
            Self::Standby => "standby",
            Self::Recovering => "recovering",
        }
    }
}

impl fmt::Display for HaRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The promise of a master's replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DurabilityMode {
    /// Nothing outlives the process.
    #[default]
    None,
    /// An acknowledged change is durable some time later.
    Async,
    /// An acknowledged change is durable.
    Sync,
}

impl DurabilityMode {
    /// Returns the mode's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Async => "async",
            Self::Sync => "sync",
        }
    }
}

impl fmt::Display for DurabilityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A master that follows a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerStatus {
    /// Its id among the members.
    pub member: Box<str>,
    /// Its address for calls.
    pub address: Box<str>,
    /// The last record that it has.
    pub position: Sequence,
    /// Records that it lacks.
    pub lag: u64,
    /// How long ago it last had all of them.
    pub behind_for: Duration,
}

/// A snapshot of a master's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// The last record in it.
    pub position: Sequence,
    /// How long ago it was made.
    pub age: Duration,
}

/// An election service that does not answer a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionOutage {
    /// For how long it has not answered.
    pub lasts: Duration,
    /// Why, in words.
    pub cause: Box<str>,
}

/// The part of a master, and the state of its journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaStatus {
    /// The master's part.
    pub role: HaRole,
    /// The term that it leads or follows.
    pub epoch: Option<Epoch>,
    /// Its id among the members; empty when it is alone.
    pub member: Box<str>,
    /// Its address for calls; empty where it is not known.
    pub address: Box<str>,
    /// The leader's address, where it is known.
    pub leader: Option<Box<str>>,
    /// The last record of its journal; `None` without any.
    pub position: Option<Sequence>,
    /// The masters that follow it; only the leader knows them.
    pub followers: Vec<FollowerStatus>,
    /// Ids of the members that have every record that was answered for.
    pub in_sync: Vec<Box<str>>,
    /// The last snapshot.
    pub snapshot: Option<SnapshotStatus>,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Bytes of the snapshots.
    pub snapshot_bytes: u64,
    /// Snapshots that could not be written since the start.
    pub failed_snapshots: u64,
    /// A notice for administrators, such as why the leadership was not handed over.
    pub notice: Option<Box<str>>,
    /// The promise of its replies.
    pub durability: DurabilityMode,
    /// The service in which the leader is elected does not answer; `None` while it does.
    pub election_outage: Option<ElectionOutage>,
    /// Why this standby does not lead although no master does.
    pub waits_because: Option<Box<str>>,
    /// The version of the master's program; `None` from an older master, which does not tell it.
    pub version: Option<Box<str>>,
    /// The time of the master's wall clock when the status was made, in whole milliseconds; `None` from an
    /// older master.
    pub clock: Option<SystemTime>,
}

/// Tells which part this master has, and passes on that it is to hand over.
///
/// All are called on the thread that reads a socket, so that they must not wait.
pub trait HaReport: fmt::Debug + Send + Sync + 'static {
    /// Returns the state now.
    fn ha_status(&self) -> HaStatus;

    /// Returns the address of the leader, where it is known. A standby calls it for each connection
    /// that it refuses, of which there are thousands a second while no master leads.
    fn leader(&self) -> Option<Box<str>> {
        self.ha_status().leader
    }

    /// Begins to hand over to the member with the id `to`, or to the one that has most of the
    /// journal. To hand over to the leader itself changes nothing, and neither does asking again
    /// while it hands over.
    ///
    /// # Errors
    /// A [`Refusal`] when this master does not lead, or no member can take over.
    fn hand_over(&self, to: Option<&str>) -> Result<(), Refusal>;
}
