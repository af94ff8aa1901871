//! The suite that every implementation of [`LeaderElection`] must pass. Ours run it in
//! `tests/it/election.rs`; run it on yours.
//!
//! A case panics, naming itself, when the implementation breaks the contract or takes more than
//! [`CASE_DEADLINE`].

mod membership;
mod policy;
mod rig;
mod terms;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::LeaderElection;

/// Time limit for one case, on a machine that is busy with other things.
pub const CASE_DEADLINE: Duration = Duration::from_secs(60);

/// A cluster without members, on the clocks of the system.
#[async_trait]
pub trait Cluster: fmt::Debug + Send + Sync {
    /// How long a leader that has died is believed to live.
    fn ttl(&self) -> Duration;

    /// Returns the part of one more member, not registered yet.
    async fn join(&self) -> Joined;
}

/// One member of a [`Cluster`].
pub struct Joined {
    /// The election as this member takes part in it.
    pub election: Arc<dyn LeaderElection>,
    /// Cuts it off from the election service, or connects it again.
    pub set_cut: Box<dyn Fn(bool) + Send + Sync>,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("election", &self.election).finish_non_exhaustive()
    }
}

/// One demand of the contract.
pub struct Case {
    /// The demand.
    pub name: &'static str,
    /// Checks it; panics when it is not met.
    pub check: fn(Arc<dyn Cluster>) -> Check,
}

/// A case under way.
type Check = Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($subject:ident: $($case:ident,)*;)*) => {
        /// Every case, in the order in which [`run_all`] runs them.
        pub const CASES: &[Case] = &[
            $($(Case {
                name: stringify!($case),
                check: |cluster| Box::pin($subject::$case(cluster)),
            },)*)*
        ];
    };
}

cases! {
    membership:
    members_see_each_other_and_their_positions,
    a_registration_that_was_lost_comes_back,
    a_closed_election_ends_its_registration,;
    terms:
    one_of_many_wins,
    who_has_not_registered_does_not_campaign,
    epochs_only_rise,
    a_term_that_is_dropped_ends,
    a_campaign_that_is_dropped_leaves_no_term,
    the_authority_ends_before_another_can_win,
    the_in_sync_set_is_the_leaders_alone,;
    policy:
    the_chosen_successor_leads,
    a_member_that_is_not_in_sync_does_not_lead,
    how_far_the_leader_was_is_recorded,
    an_unclean_takeover_is_remembered,
    a_leader_that_yields_leaves_no_record,;
}

/// Runs every case on a fresh cluster.
///
/// # Panics
/// When a case fails.
pub async fn run_all(mut cluster: impl AsyncFnMut() -> Arc<dyn Cluster>) {
    for case in CASES {
        run(case, cluster().await).await;
    }
}

/// Runs one case.
///
/// # Panics
/// When it fails or takes longer than [`CASE_DEADLINE`].
pub async fn run(case: &Case, cluster: Arc<dyn Cluster>) {
    match tokio::time::timeout(CASE_DEADLINE, tokio::spawn((case.check)(cluster))).await {
        Ok(Ok(())) => {}
        Ok(Err(failed)) => panic!("{}: {failed}", case.name),
        Err(_) => panic!("{}: not finished after {CASE_DEADLINE:?}", case.name),
    }
}
