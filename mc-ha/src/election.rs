//! The election of a leader among the masters of a cluster.
//!
//! Each master [registers](LeaderElection::register) as a member and tells the others how far its
//! journal reaches. One of them [campaigns](LeaderElection::campaign) with success and holds a
//! [`Leadership`]: a term with an epoch that is higher than every epoch before it, and an
//! [`Authority`] that says at any moment, without a call, whether the term still lasts. When a
//! member campaigns is a decision of its own, which [`Candidacy`] takes and [`await_leadership`]
//! carries out.
//!
//! What the election guarantees:
//!
//! * At any moment at most one authority is valid, if the clocks of all hosts run at the same rate
//!   within a tenth. Only their rate counts, not the time that they show.
//! * An authority that was invalid once stays so. A leader that was paused, suspended or cut off
//!   for longer than its lease must campaign again, and gets a new epoch.
//! * An authority can end between a check and the write that follows it. So every write also
//!   carries the epoch, and a receiver that has seen a higher one rejects it.
//!
//! Two implementations: [`memory`], whose members live in one process, and `etcd` (feature `etcd`),
//! whose module documents the keys. Both pass the suite `conformance` (feature `conformance`).

mod authority;
mod candidacy;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod leadership;
mod member;
pub mod memory;
mod outage;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

pub use crate::position::Position;
pub use authority::{Authority, Fence, safe_lease};
pub use candidacy::{
    Candidacy, CandidacySettings, Decision, Takeover, WaitReason, await_leadership,
};
pub use clock::{BootClock, Clock, ManualClock};
pub use error::ElectionError;
pub use leadership::{Leadership, Term};
pub use member::{
    Behind, ClusterView, InSync, Leader, MAX_MEMBERS, Member, MemberError, MemberId, MemberStatus,
    Progress, Standing,
};
pub use outage::ServiceOutage;

/// One master's part in the election of its cluster.
///
/// The methods may be called on every thread. A future that is dropped may leave its effect behind,
/// except for that of [`campaign`](Self::campaign).
#[async_trait]
pub trait LeaderElection: Debug + Send + Sync {
    /// Adds this master to the members, with this standing. The registration has a lease, which is
    /// renewed until this object is dropped; a registration that was lost is made anew.
    ///
    /// Called again, it replaces the member.
    ///
    /// # Errors
    /// [`ElectionError`] when the first attempt fails.
    async fn register(&self, member: Member, standing: Standing) -> Result<(), ElectionError>;

    /// Tells the other members how far this member's journal reaches, and of which history it is; they
    /// learn it within about a second. Cheap: it may be called for each record. While this member
    /// leads, it is recorded how far it was at which time ([`Progress`]).
    fn set_standing(&self, standing: Standing);

    /// Returns the standing that was set last.
    fn standing(&self) -> Standing;

    /// Makes one attempt to become the leader, whether it is this member's turn or not. The epoch
    /// of the term is higher than that of every former leader and of every registered member's
    /// position.
    ///
    /// A future that is dropped gives up the term that it may have won.
    ///
    /// # Errors
    /// [`ElectionError`]; [`Lost`](ElectionError::Lost) when another member leads.
    async fn campaign(&self, takeover: Takeover) -> Result<Leadership, ElectionError>;

    /// Returns what was last seen of the cluster; `None` before the first sight. What is seen while
    /// the election service cannot be reached is old.
    fn view(&self) -> watch::Receiver<Option<Arc<ClusterView>>>;

    /// Returns the leader as it was last seen: `None` when there is none, and before the first
    /// sight.
    fn leader(&self) -> watch::Receiver<Option<Leader>>;

    /// Reads the members, the in-sync set and the leader as they are recorded now. A leader that
    /// has died may still be recorded; [`leader`](Self::leader) is better informed.
    ///
    /// # Errors
    /// [`ElectionError`] when they cannot be read.
    async fn read(&self) -> Result<ClusterView, ElectionError>;

    /// Returns since when the election service has not answered, and why; `None` while it answers,
    /// and for a service that cannot be away.
    fn outage(&self) -> Option<ServiceOutage> {
        None
    }
}
