//! The status of a master in the cluster.

use std::sync::Arc;

use mc_ha::election::{Authority, InSync, LeaderElection, Member, MemberId, WaitReason};
use mc_ha::replication::{Applier, ApplierState, Hub};
use mc_ha::{Durability, JournalUsage, SnapshotInfo};
use mc_rpc::{
    DurabilityMode, ElectionOutage, FollowerStatus, HaReport, HaRole, HaStatus, Refusal,
    SnapshotStatus,
};
use mc_types::{Epoch, ErrorCode};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::alone::{mode, of_this_program};
use super::journal::JournalWatch;
use super::term::HandOver;

/// The part of one master, which outlives its terms.
pub(crate) struct Status {
    member: Member,
    election: Arc<dyn LeaderElection>,
    durability: DurabilityMode,
    now: Mutex<Now>,
    /// Why the leadership was not handed over when that was last wanted.
    notice: Arc<Mutex<Option<String>>>,
}

struct Now {
    role: HaRole,
    epoch: Option<Epoch>,
    standby: Option<watch::Receiver<ApplierState>>,
    leader: Option<Leading>,
    /// Why it does not lead although no member does.
    waits: Option<watch::Receiver<Option<WaitReason>>>,
}

/// The state that only a leader has.
pub(crate) struct Leading {
    pub(crate) hub: Arc<Hub>,
    pub(crate) journal: JournalWatch,
    /// The master leads as long as this is valid.
    pub(crate) authority: Authority,
    /// Takes wishes to hand over.
    pub(crate) hand_over: mpsc::Sender<HandOver>,
}

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Status").field("member", &self.member).finish_non_exhaustive()
    }
}

impl Status {
    pub(crate) fn standby(
        member: Member,
        election: Arc<dyn LeaderElection>,
        durability: Durability,
        applier: &Applier,
    ) -> Self {
        let now = Now {
            role: HaRole::Standby,
            epoch: None,
            standby: Some(applier.state()),
            leader: None,
            waits: None,
        };
        Self {
            member,
            election,
            durability: mode(durability),
            now: Mutex::new(now),
            notice: Arc::default(),
        }
    }

    /// Where it is noted why the leadership was not handed over.
    pub(crate) fn notice(&self) -> Arc<Mutex<Option<String>>> {
        Arc::clone(&self.notice)
    }

    pub(crate) fn becomes(&self, role: HaRole, epoch: Option<Epoch>) {
        let mut now = self.now.lock();
        (now.role, now.epoch) = (role, epoch);
    }

    pub(crate) fn leads(&self, epoch: Epoch, leading: Leading) {
        let mut now = self.now.lock();
        *now = Now {
            role: HaRole::Leader,
            epoch: Some(epoch),
            standby: None,
            leader: Some(leading),
            waits: None,
        };
    }

    /// Follows the reasons for which this candidate waits.
    pub(crate) fn waits(&self, waits: watch::Receiver<Option<WaitReason>>) {
        self.now.lock().waits = Some(waits);
    }

    /// Returns whether the last leader's history is another one than that of this member's journal,
    /// which may be the one to be followed: clients would lose what they hold at that leader.
    fn has_other_history(&self) -> bool {
        let own = self.election.standing().history;
        let view = self.election.view();
        let view = view.borrow();
        let in_sync = view.as_ref().and_then(|view| view.in_sync.as_ref());
        let theirs = in_sync.and_then(|in_sync| in_sync.history);
        own.is_some() && theirs.is_some() && own != theirs
    }

    /// The leader's address as this member sees it, when it is not the leader itself.
    fn other_leader(&self) -> Option<Box<str>> {
        if self.has_other_history() {
            return None;
        }
        let leader = self.election.leader();
        let leader = leader.borrow();
        let other = leader.as_ref().filter(|leader| leader.member.id() != self.member.id());
        other.map(|leader| leader.member.rpc_address().into())
    }
}

impl HaReport for Status {
    fn ha_status(&self) -> HaStatus {
        let view = self.election.view().borrow().clone();
        let seen_epoch = self.election.leader().borrow().as_ref().map(|leader| leader.epoch);
        let now = self.now.lock();
        let (mut trouble, mut snapshot, mut usage) = (None, None, JournalUsage::default());
        let mut status = HaStatus {
            role: now.role,
            epoch: now.epoch.or(seen_epoch),
            member: self.member.id().as_str().into(),
            address: self.member.rpc_address().into(),
            leader: self.other_leader(),
            durability: self.durability,
            election_outage: self.election.outage().map(|outage| ElectionOutage {
                lasts: outage.since.elapsed(),
                cause: outage.cause.to_string().into(),
            }),
            ..of_this_program()
        };
        if status.leader.is_none()
            && let Some(waits) = &now.waits
        {
            status.waits_because = waits.borrow().as_ref().map(|why| why.to_string().into());
        }
        let in_sync = view.as_ref().and_then(|view| view.in_sync.as_ref());
        if let Some(InSync { members, .. }) = in_sync {
            status.in_sync = members.iter().map(|id| id.as_str().into()).collect();
        }
        if let Some(standby) = &now.standby {
            let standby = standby.borrow();
            status.position = Some(standby.durable.sequence);
            status.failed_snapshots = standby.failed_snapshots;
            (usage, snapshot) = (standby.usage, standby.snapshot);
        }
        if let Some(Leading { hub, journal, authority, .. }) = &now.leader {
            if authority.is_valid() {
                status.leader = Some(self.member.rpc_address().into());
            } else {
                status.role = HaRole::Standby;
            }
            trouble = journal.trouble();
            let journal = journal.read();
            status.position = Some(journal.writer.durable.sequence);
            status.failed_snapshots = journal.failed_snapshots;
            (usage, snapshot) = (journal.usage, journal.last_snapshot);
            let address = |id: &str| {
                let members = view.iter().flat_map(|view| &view.members);
                let known = members.into_iter().find(|known| known.member.id().as_str() == id);
                known.map_or_else(Box::default, |known| known.member.rpc_address().into())
            };
            status.followers = hub
                .followers()
                .into_iter()
                .filter(|follower| follower.is_connected)
                .map(|follower| FollowerStatus {
                    address: address(&follower.id),
                    member: follower.id.into(),
                    position: follower.position.sequence,
                    lag: follower.lag,
                    behind_for: follower.behind_for,
                })
                .collect();
        }
        drop(now);
        status.snapshot = snapshot.map(|snapshot: SnapshotInfo| SnapshotStatus {
            position: snapshot.at.sequence,
            age: snapshot.finished.elapsed().unwrap_or_default(),
        });
        status.journal_bytes = usage.journal_bytes;
        status.snapshot_bytes = usage.snapshot_bytes;
        let trouble = trouble.map(|trouble| trouble.to_string());
        status.notice = trouble.or_else(|| self.notice.lock().clone()).map(Into::into);
        status
    }

    fn leader(&self) -> Option<Box<str>> {
        let leads = |leading: &Leading| leading.authority.is_valid();
        if self.now.lock().leader.as_ref().is_some_and(leads) {
            return Some(self.member.rpc_address().into());
        }
        self.other_leader()
    }

    fn hand_over(&self, to: Option<&str>) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::new(ErrorCode::UnavailableInCurrentStatus, text));
        let now = self.now.lock();
        let Some(Leading { hub, hand_over, .. }) = &now.leader else {
            return refuse("this master does not lead; ask the leader to hand over".into());
        };
        if to == Some(self.member.id().as_str()) {
            return Ok(());
        }
        let in_sync = hub.in_sync();
        let to = match to {
            Some(to) if in_sync.iter().any(|id| id == to) => MemberId::new(to).ok(),
            Some(to) => {
                return refuse(format!(
                    "{to:?} cannot take over, it is not in sync; in sync are: {}",
                    in_sync.join(", ")
                ));
            }
            None if in_sync.is_empty() => {
                return refuse("no standby is in sync, so none can take over".into());
            }
            None => None,
        };
        *self.notice.lock() = None;
        // When one is asked for already, that goes on.
        let _ = hand_over.try_send(HandOver { to, done: None });
        Ok(())
    }
}
