//! The set-up of the cases.

use std::sync::Arc;
use std::time::Duration;

use mc_types::{Epoch, Sequence};

use super::{Cluster, Joined};
use crate::election::{
    ClusterView, ElectionError, LeaderElection, Leadership, Member, MemberId, Position, Standing,
    Takeover,
};
use crate::identity::HistoryId;

/// A member that has registered.
pub(super) struct Part {
    pub(super) id: MemberId,
    pub(super) election: Arc<dyn LeaderElection>,
    set_cut: Box<dyn Fn(bool) + Send + Sync>,
}

impl Part {
    pub(super) async fn join(cluster: &dyn Cluster, id: &str, standing: Standing) -> Self {
        let Joined { election, set_cut } = cluster.join().await;
        election.register(member(id), standing).await.expect("the service is there");
        Self { id: member(id).id().clone(), election, set_cut }
    }

    pub(super) fn cut(&self) {
        (self.set_cut)(true);
    }

    pub(super) fn connect(&self) {
        (self.set_cut)(false);
    }

    /// Campaigns until it wins, while there is no leader or the leader's term may have to run out.
    pub(super) async fn win(&self) -> Leadership {
        self.win_as(Takeover::InSync).await
    }

    pub(super) async fn win_as(&self, takeover: Takeover) -> Leadership {
        loop {
            match self.election.campaign(takeover).await {
                Ok(won) => return won,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits for a view of the cluster.
    pub(super) async fn sees(&self, what: impl Fn(&ClusterView) -> bool) {
        let mut view = self.election.view();
        let seen = view.wait_for(|seen| seen.as_ref().is_some_and(|seen| what(seen))).await;
        seen.expect("the election is open");
    }

    /// Waits until the leader is seen to be this member, or none.
    pub(super) async fn sees_leader(&self, id: Option<&MemberId>) {
        let mut leader = self.election.leader();
        let seen = leader.wait_for(|seen| seen.as_ref().map(|seen| seen.member.id()) == id).await;
        seen.expect("the election is open");
    }
}

/// Members `a`, `b` and so on with empty journals.
pub(super) async fn parts<const N: usize>(cluster: &dyn Cluster) -> [Part; N] {
    let mut parts = Vec::new();
    for id in ["a", "b", "c"].into_iter().take(N) {
        parts.push(Part::join(cluster, id, Standing::EMPTY).await);
    }
    parts.try_into().ok().expect("three at most")
}

pub(super) fn member(id: &str) -> Member {
    Member::new(id, &format!("{id}.example:50051")).expect("a good id")
}

pub(super) fn at(epoch: u64, sequence: u64) -> Standing {
    let position = Position::new(Epoch::new(epoch), Sequence::new(sequence));
    Standing { position, history: Some(HistoryId::new(7)) }
}

pub(super) fn lost(result: &Result<Leadership, ElectionError>) -> Option<&MemberId> {
    match result {
        Err(ElectionError::Lost(leader)) => Some(leader.member.id()),
        _ => None,
    }
}
