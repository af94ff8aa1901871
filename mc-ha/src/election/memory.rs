//! Elections among members in one process, for tests and simulations.
//!
//! ```
//! use std::time::Duration;
//! use mc_ha::election::memory::MemoryCluster;
//! use mc_ha::election::{LeaderElection, Member, Standing, Takeover};
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let cluster = MemoryCluster::start(Duration::from_secs(2))?;
//! let election = cluster.join();
//! election.register(Member::new("a", "host:50051")?, Standing::EMPTY).await?;
//! let leadership = election.campaign(Takeover::InSync).await?;
//! assert!(leadership.authority().is_valid());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).map_err(|e| e.to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use mc_environment::{Environment, System};
use mc_types::{Epoch, Sequence, Time};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::LeaderElection;
use super::authority::{Fence, safe_lease};
use super::candidacy::Takeover;
use super::clock::{BootClock, Clock};
use super::error::ElectionError;
use super::leadership::{Leadership, Term};
use super::member::{
    ClusterView, InSync, Leader, Member, MemberId, MemberStatus, Progress, Standing,
};

/// An election service in memory. Clones are the same service.
#[derive(Clone)]
pub struct MemoryCluster(Arc<Mutex<State>>);

/// One member's part in the election of a [`MemoryCluster`].
pub struct MemoryElection {
    cluster: MemoryCluster,
    node: usize,
    view: watch::Receiver<Option<Arc<ClusterView>>>,
    leader: watch::Receiver<Option<Leader>>,
}

struct State {
    clock: Arc<dyn Clock>,
    ttl: Duration,
    epoch: Epoch,
    nodes: Vec<Node>,
    registrations: BTreeMap<MemberId, Registration>,
    term: Option<Held>,
    in_sync: Option<InSync>,
    successor: Option<MemberId>,
    progress: Option<Progress>,
}

/// One [`MemoryElection`].
struct Node {
    cut: bool,
    closed: bool,
    member: Option<Member>,
    standing: Standing,
    view: watch::Sender<Option<Arc<ClusterView>>>,
    leader: watch::Sender<Option<Leader>>,
}

struct Registration {
    node: usize,
    status: MemberStatus,
    expires: Time,
}

struct Held {
    node: usize,
    leader: Leader,
    fence: Fence,
    begun: Time,
    common: Sequence,
    last_unclean: Epoch,
    expires: Time,
}

impl MemoryCluster {
    /// A service whose leases last `ttl`, with a thread that lets its time pass.
    ///
    /// # Errors
    /// [`ElectionError::Thread`] when the thread cannot be started.
    pub fn start(ttl: Duration) -> Result<Self, ElectionError> {
        Self::start_in(&System, ttl, Arc::new(BootClock))
    }

    /// A service on this clock, whose time passes where the environment runs work apart.
    ///
    /// # Errors
    /// [`ElectionError::Thread`] when that cannot be started.
    pub fn start_in(
        environment: &dyn Environment,
        ttl: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ElectionError> {
        let cluster = Self::with_clock(ttl, clock);
        let state = Arc::downgrade(&cluster.0);
        let pause = (ttl / 20).max(Duration::from_millis(1));
        let run = async move {
            while let Some(state) = Weak::upgrade(&state) {
                state.lock().tick();
                drop(state);
                tokio::time::sleep(pause).await;
            }
        };
        let started = environment.spawn_apart("mc-election", Box::pin(run));
        started.map_err(|source| ElectionError::Thread { source: Arc::new(source) })?;
        Ok(cluster)
    }

    /// A service on this clock, which looks at it when [`tick`](Self::tick) is called.
    #[must_use]
    pub fn with_clock(ttl: Duration, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Mutex::new(State {
            clock,
            ttl,
            epoch: Epoch::new(0),
            nodes: Vec::new(),
            registrations: BTreeMap::new(),
            term: None,
            in_sync: None,
            successor: None,
            progress: None,
        })))
    }

    /// Renews the leases of all that are not cut off, and ends those whose time is up.
    pub fn tick(&self) {
        self.0.lock().tick();
    }

    /// Returns the part of one more member.
    #[must_use]
    pub fn join(&self) -> MemoryElection {
        let mut state = self.0.lock();
        let (view, leader) = (watch::Sender::new(None), watch::Sender::new(None));
        let election = MemoryElection {
            cluster: self.clone(),
            node: state.nodes.len(),
            view: view.subscribe(),
            leader: leader.subscribe(),
        };
        state.nodes.push(Node {
            cut: false,
            closed: false,
            member: None,
            standing: Standing::EMPTY,
            view,
            leader,
        });
        state.publish();
        election
    }
}

impl MemoryElection {
    /// Cuts the member off from the service, or connects it again.
    pub fn set_cut(&self, cut: bool) {
        let mut state = self.cluster.0.lock();
        state.nodes[self.node].cut = cut;
        state.tick();
    }
}

impl State {
    fn tick(&mut self) {
        let now = self.clock.now();
        let (expires, safe) = (now + self.ttl, now + safe_lease(self.ttl));
        if let Some(term) = &mut self.term {
            if now >= term.expires || self.nodes[term.node].closed {
                term.fence.end();
                self.term = None;
            } else if self.nodes[term.node].cut {
                // The leader notices by itself when its part of the lease is over.
                let _ = term.fence.authority().is_valid();
            } else if term.fence.extend(safe) {
                term.expires = expires;
                let epoch = term.leader.epoch;
                let progress = self.progress.get_or_insert_with(|| Progress::new(epoch));
                progress.note(self.nodes[term.node].standing.position, now - term.begun);
                progress.common = term.common;
            }
        }
        self.registrations.retain(|_, registration| {
            let node = &self.nodes[registration.node];
            now < registration.expires && !node.closed
        });
        for (at, node) in
            self.nodes.iter().enumerate().filter(|(_, node)| !node.cut && !node.closed)
        {
            let Some(member) = node.member.clone() else { continue };
            let status = MemberStatus { member, standing: node.standing };
            let id = status.member.id().clone();
            self.registrations.insert(id, Registration { node: at, status, expires });
        }
        self.publish();
    }

    fn view(&self) -> ClusterView {
        ClusterView {
            leader: self.term.as_ref().map(|term| term.leader.clone()),
            members: self.registrations.values().map(|there| there.status.clone()).collect(),
            in_sync: self.in_sync.clone(),
            successor: self.successor.clone(),
            progress: self.progress.clone(),
        }
    }

    fn publish(&self) {
        let view = Arc::new(self.view());
        for node in self.nodes.iter().filter(|node| !node.cut && !node.closed) {
            node.view.send_if_modified(|seen| {
                let changed = seen.as_ref() != Some(&view);
                if changed {
                    *seen = Some(Arc::clone(&view));
                }
                changed
            });
            node.leader.send_if_modified(|seen| {
                let changed = *seen != view.leader;
                if changed {
                    seen.clone_from(&view.leader);
                }
                changed
            });
        }
    }

    fn check_reach(&self, node: usize) -> Result<(), ElectionError> {
        if self.nodes[node].cut {
            return Err(ElectionError::Unreachable { failures: "memory: cut off".into() });
        }
        Ok(())
    }

    /// The term, if it is still that of this epoch.
    fn held(&self, epoch: Epoch) -> Result<&Held, ElectionError> {
        let held = self.term.as_ref().filter(|held| held.leader.epoch == epoch);
        held.ok_or(ElectionError::Deposed { epoch })
    }

    fn campaign(
        &mut self,
        node: usize,
        takeover: Takeover,
    ) -> Result<(Member, Fence, Epoch), ElectionError> {
        self.check_reach(node)?;
        self.tick();
        let member = self.nodes[node].member.clone().ok_or(ElectionError::NotRegistered)?;
        if let Some(term) = &self.term {
            return Err(ElectionError::Lost(term.leader.clone()));
        }
        let others = self.registrations.values().map(|there| there.status.standing);
        let of_journals = others.map(|standing| standing.position.epoch).max();
        let own = self.nodes[node].standing.position.epoch;
        let last = self.epoch.max(own).max(of_journals.unwrap_or(own));
        let next = last.as_u64().checked_add(1);
        self.epoch = Epoch::new(next.ok_or(ElectionError::NoEpochLeft { epoch: last })?);
        let now = self.clock.now();
        let fence = Fence::new(self.epoch, Arc::clone(&self.clock), now + safe_lease(self.ttl));
        let leader = Leader { epoch: self.epoch, member: member.clone() };
        let expires = now + self.ttl;
        let before = self.in_sync.as_ref().map_or(Epoch::new(0), |before| before.last_unclean);
        let last_unclean = if takeover == Takeover::InSync { before } else { self.epoch };
        let fence_of = fence.clone();
        self.term = Some(Held {
            node,
            leader,
            fence: fence_of,
            begun: now,
            common: Sequence::new(0),
            last_unclean,
            expires,
        });
        self.successor = None;
        self.progress = None;
        self.publish();
        Ok((member, fence, last_unclean))
    }
}

#[async_trait]
impl LeaderElection for MemoryElection {
    async fn register(&self, member: Member, standing: Standing) -> Result<(), ElectionError> {
        let mut state = self.cluster.0.lock();
        state.check_reach(self.node)?;
        let node = &mut state.nodes[self.node];
        node.standing = standing;
        if let Some(before) = node.member.replace(member) {
            state.registrations.remove(before.id());
        }
        state.tick();
        Ok(())
    }

    fn set_standing(&self, standing: Standing) {
        self.cluster.0.lock().nodes[self.node].standing = standing;
    }

    fn standing(&self) -> Standing {
        self.cluster.0.lock().nodes[self.node].standing
    }

    async fn campaign(&self, takeover: Takeover) -> Result<Leadership, ElectionError> {
        let (member, fence, last_unclean) = self.cluster.0.lock().campaign(self.node, takeover)?;
        let authority = fence.authority();
        let term = MemoryTerm { cluster: self.cluster.clone(), node: self.node, fence };
        Ok(Leadership::new(authority, member, last_unclean, Box::new(term)))
    }

    fn view(&self) -> watch::Receiver<Option<Arc<ClusterView>>> {
        self.view.clone()
    }

    fn leader(&self) -> watch::Receiver<Option<Leader>> {
        self.leader.clone()
    }

    async fn read(&self) -> Result<ClusterView, ElectionError> {
        let mut state = self.cluster.0.lock();
        state.check_reach(self.node)?;
        state.tick();
        Ok(state.view())
    }
}

impl Drop for MemoryElection {
    fn drop(&mut self) {
        let mut state = self.cluster.0.lock();
        // As with a service elsewhere, what is cut off ends with its leases.
        let node = &mut state.nodes[self.node];
        node.closed = !node.cut;
        node.member = None;
        state.tick();
    }
}

struct MemoryTerm {
    cluster: MemoryCluster,
    node: usize,
    fence: Fence,
}

impl MemoryTerm {
    fn end(&self, to: Option<&MemberId>, yields: bool) -> Result<(), ElectionError> {
        self.fence.end();
        let mut state = self.cluster.0.lock();
        state.check_reach(self.node)?;
        state.held(self.fence.authority().epoch())?;
        state.term = None;
        state.successor = to.cloned();
        if yields {
            (state.in_sync, state.progress) = (None, None);
        }
        state.publish();
        Ok(())
    }
}

#[async_trait]
impl Term for MemoryTerm {
    async fn set_in_sync(&self, members: &[MemberId]) -> Result<(), ElectionError> {
        let mut state = self.cluster.0.lock();
        state.check_reach(self.node)?;
        let held = state.held(self.fence.authority().epoch())?;
        let (epoch, last_unclean) = (held.leader.epoch, held.last_unclean);
        let history = state.nodes[self.node].standing.history;
        state.in_sync = Some(InSync { epoch, members: members.to_vec(), history, last_unclean });
        state.publish();
        Ok(())
    }

    fn set_common(&self, common: Sequence) {
        let mut state = self.cluster.0.lock();
        let epoch = self.fence.authority().epoch();
        if let Some(held) = state.term.as_mut().filter(|held| held.leader.epoch == epoch) {
            held.common = common;
        }
    }

    async fn resign(
        self: Box<Self>,
        to: Option<&MemberId>,
        yields: bool,
    ) -> Result<(), ElectionError> {
        self.end(to, yields)
    }
}

impl Drop for MemoryTerm {
    fn drop(&mut self) {
        // It fails when the term is over already, or cannot be reached and ends by itself.
        let _ = self.end(None, false);
    }
}

impl fmt::Debug for MemoryCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryCluster").field(&self.0.lock().view()).finish()
    }
}

impl fmt::Debug for MemoryElection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryElection").field("node", &self.node).finish_non_exhaustive()
    }
}

impl fmt::Debug for MemoryTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryTerm").field(&self.fence).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::ManualClock;
    use super::*;
    use crate::position::Position;

    const TTL: Duration = Duration::from_secs(2);

    async fn cluster() -> (Arc<ManualClock>, MemoryCluster, [MemoryElection; 2]) {
        let clock = Arc::new(ManualClock::default());
        let cluster = MemoryCluster::with_clock(TTL, clock.clone());
        let elections = [cluster.join(), cluster.join()];
        for (election, id) in elections.iter().zip(["a", "b"]) {
            let member = Member::new(id, "host:1").unwrap();
            election.register(member, Standing::EMPTY).await.unwrap();
        }
        (clock, cluster, elections)
    }

    #[tokio::test]
    async fn the_authority_ends_before_another_can_win() {
        let (clock, cluster, [a, b]) = cluster().await;
        let first = a.campaign(Takeover::InSync).await.unwrap();
        a.set_cut(true);
        let mut waited = Duration::ZERO;
        let second = loop {
            match b.campaign(Takeover::InSync).await {
                Ok(won) => break won,
                Err(error) => assert!(matches!(error, ElectionError::Lost(_)), "{error}"),
            }
            assert_eq!(first.authority().is_valid(), waited < safe_lease(TTL), "{waited:?}");
            clock.advance(Duration::from_millis(1));
            cluster.tick();
            waited += Duration::from_millis(1);
        };
        assert_eq!(waited, TTL);
        assert!(second.epoch() > first.epoch());
        a.set_cut(false);
        assert!(!first.authority().is_valid() && second.authority().is_valid());
    }

    #[tokio::test]
    async fn a_short_cut_ends_no_term() {
        let (clock, cluster, [a, _b]) = cluster().await;
        let term = a.campaign(Takeover::InSync).await.unwrap();
        a.set_cut(true);
        clock.advance(TTL / 2);
        a.set_cut(false);
        clock.advance(TTL / 2);
        cluster.tick();
        assert!(term.authority().is_valid());
        assert_eq!(term.authority().remaining(), Some(safe_lease(TTL)));
    }

    #[tokio::test]
    async fn a_suspended_host_has_no_authority_when_it_wakes() {
        let (clock, cluster, [a, _b]) = cluster().await;
        let term = a.campaign(Takeover::InSync).await.unwrap();
        clock.advance(Duration::from_secs(3600));
        assert!(!term.authority().is_valid());
        cluster.tick();
        assert!(!term.authority().is_valid());
    }

    #[tokio::test]
    async fn the_last_epoch_is_not_passed() {
        let (_, _, [a, _b]) = cluster().await;
        let epoch = Epoch::new(u64::MAX);
        a.set_standing(Position::start_of(epoch).into());
        let error = a.campaign(Takeover::InSync).await.unwrap_err();
        assert!(matches!(error, ElectionError::NoEpochLeft { .. }), "{error}");
    }
}
