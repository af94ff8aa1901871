//! When a member campaigns.

use std::fmt;
use std::time::Duration;

use mc_types::{BoxFuture, Time};
use tokio::sync::watch;

use super::LeaderElection;
use super::clock::Clock;
use super::error::ElectionError;
use super::leadership::Leadership;
use super::member::{ClusterView, Leader, MemberId};
use crate::position::Position;

/// The pause after an attempt that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Most members ahead that a member waits for one after the other.
const MAX_HEAD_STARTS: u32 = 4;

/// How patient a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidacySettings {
    /// Time without a leader after which a member outside of the in-sync set takes over, which
    /// loses what it lacks. `None`: never.
    pub unclean_takeover_after: Option<Duration>,
    /// Time that the others leave to the member that a leader has handed over to.
    pub successor_wait: Duration,
    /// Time that a member leaves to each member whose journal reaches further.
    pub head_start: Duration,
}

impl Default for CandidacySettings {
    /// No unclean takeover; a second for a successor, 300 ms for a member that is ahead.
    fn default() -> Self {
        Self {
            unclean_takeover_after: None,
            successor_wait: Duration::from_secs(1),
            head_start: Duration::from_millis(300),
        }
    }
}

/// What a member does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Follow this leader, which may be the member itself in an earlier life.
    Follow(Leader),
    /// Campaign.
    Campaign {
        /// The member is not in the in-sync set: if it wins, acknowledged changes may be lost.
        unclean: bool,
    },
    /// Wait for a change of the view, and decide again at a time at the latest.
    Wait {
        /// That time; `None`: only a change can help.
        until: Option<Time>,
        /// The reason.
        reason: WaitReason,
    },
}

/// Why a member does not campaign although nobody leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It is not in the in-sync set.
    NotInSync,
    /// The last leader has handed over to another member.
    Successor(MemberId),
    /// The journal of another member reaches further.
    Behind(MemberId),
}

/// Why, for an operator: "it waits, because …".
impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInSync => f.write_str("it is not in sync, and may lack acknowledged changes"),
            Self::Successor(id) => write!(f, "the last leader has handed over to {id}"),
            Self::Behind(id) => write!(f, "the journal of {id} reaches further"),
        }
    }
}

/// Decides when a member campaigns: a state machine without a clock of its own.
///
/// * While somebody leads, it follows.
/// * A member outside of the in-sync set, or without anything of the term in which that was recorded,
///   waits for [`CandidacySettings::unclean_takeover_after`].
/// * The member that the last leader chose goes first, and the others wait for a second.
/// * A member waits a little for each living member whose journal reaches further.
#[derive(Clone, Debug)]
pub struct Candidacy {
    me: MemberId,
    settings: CandidacySettings,
    /// The last leader. It may still be registered, and is not waited for.
    last_leader: Option<MemberId>,
    leaderless_since: Option<Time>,
    waits: watch::Sender<Option<WaitReason>>,
}

impl Candidacy {
    /// The candidacy of this member.
    #[must_use]
    pub fn new(me: MemberId, settings: CandidacySettings) -> Self {
        let waits = watch::Sender::new(None);
        Self { me, settings, last_leader: None, leaderless_since: None, waits }
    }

    /// Returns why this member waits although nobody leads, as it was last decided; `None` while
    /// somebody leads, while it campaigns and before the first decision.
    #[must_use]
    pub fn waits(&self) -> watch::Receiver<Option<WaitReason>> {
        self.waits.subscribe()
    }

    /// Decides what to do at this time, with this view of the cluster, when the member's own
    /// journal ends at `position`. Call it at each change of the view.
    pub fn decide(&mut self, now: Time, view: &ClusterView, position: Position) -> Decision {
        let decision = self.decide_now(now, view, position);
        self.waits.send_replace(match &decision {
            Decision::Wait { reason, .. } => Some(reason.clone()),
            Decision::Follow(_) | Decision::Campaign { .. } => None,
        });
        decision
    }

    fn decide_now(&mut self, now: Time, view: &ClusterView, position: Position) -> Decision {
        if let Some(leader) = &view.leader {
            self.leaderless_since = None;
            self.last_leader = Some(leader.member.id().clone());
            return Decision::Follow(leader.clone());
        }
        let mut since = *self.leaderless_since.get_or_insert(now);
        // One that has lost its journal since it was recorded has nothing of that term.
        let has_term = view.in_sync.as_ref().is_none_or(|set| position.epoch >= set.epoch);
        let unclean = !view.is_in_sync(&self.me) || !has_term;
        if unclean {
            let until = self.settings.unclean_takeover_after.map(|wait| since + wait);
            match until {
                Some(until) if now >= until => since = until,
                until => return Decision::Wait { until, reason: WaitReason::NotInSync },
            }
        }
        match self.rival(since, unclean, view, position) {
            Some((until, reason)) if now < until => Decision::Wait { until: Some(until), reason },
            _ => Decision::Campaign { unclean },
        }
    }

    /// The member that goes first, and until when.
    fn rival(
        &self,
        since: Time,
        unclean: bool,
        view: &ClusterView,
        position: Position,
    ) -> Option<(Time, WaitReason)> {
        if let Some(successor) = view.successor.as_ref().filter(|id| view.member(id).is_some()) {
            if *successor == self.me {
                return None;
            }
            if view.is_in_sync(successor) {
                let until = since + self.settings.successor_wait;
                return Some((until, WaitReason::Successor(successor.clone())));
            }
        }
        let ahead = || {
            view.members.iter().filter(|status| {
                let id = status.member.id();
                status.position > position
                    && *id != self.me
                    && self.last_leader.as_ref() != Some(id)
                    && (unclean || view.is_in_sync(id))
            })
        };
        let first = ahead().max_by_key(|status| status.position)?;
        let number = u32::try_from(ahead().count()).unwrap_or(u32::MAX).min(MAX_HEAD_STARTS);
        let until = since + self.settings.head_start * number;
        Some((until, WaitReason::Behind(first.member.id().clone())))
    }
}

/// Campaigns whenever it is this member's turn, until it has won. Failures that may pass are logged
/// and tried again. A future that is dropped leaves no term behind.
///
/// Runs on a Tokio runtime with time.
///
/// # Errors
/// [`ElectionError`] when it is not [retryable](ElectionError::is_retryable).
pub fn await_leadership<'a>(
    election: &'a dyn LeaderElection,
    candidacy: &'a mut Candidacy,
    clock: &'a dyn Clock,
) -> BoxFuture<'a, Result<Leadership, ElectionError>> {
    Box::pin(async move {
        let mut views = election.view();
        // It is tried many times a second, and told once.
        let mut told: Option<String> = None;
        loop {
            let seen = views.borrow_and_update().clone();
            let decision =
                seen.map(|view| candidacy.decide(clock.now(), &view, election.position()));
            let until = match decision {
                Some(Decision::Campaign { unclean }) => {
                    if unclean {
                        tracing::warn!(
                            member = %candidacy.me,
                            "taking over without being in sync: acknowledged changes may be lost"
                        );
                    }
                    match election.campaign().await {
                        Ok(won) => return Ok(won),
                        // The view shows that leader soon.
                        Err(ElectionError::Lost(_)) => {}
                        Err(error) if error.is_retryable() => {
                            let words = error.to_string();
                            if told.as_ref() != Some(&words) {
                                tracing::warn!(member = %candidacy.me, error = &error as &dyn std::error::Error, "campaign failed; trying again");
                                told = Some(words);
                            }
                        }
                        Err(error) => return Err(error),
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
                Some(Decision::Wait { until, .. }) => until,
                Some(Decision::Follow(_)) | None => None,
            };
            let changed = async { views.changed().await.map_err(|_| ElectionError::Closed) };
            match until {
                None => changed.await?,
                // Nothing has changed by then: it is time to decide again.
                Some(until) => {
                    let changed = tokio::time::timeout(until - clock.now(), changed).await;
                    changed.unwrap_or(Ok(()))?;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use mc_types::{Epoch, Sequence};

    use super::super::member::{InSync, Member, MemberStatus};
    use super::*;

    const UNCLEAN: Duration = Duration::from_secs(30);

    fn id(id: &str) -> MemberId {
        MemberId::new(id).unwrap()
    }

    fn at(sequence: u64) -> Position {
        Position { epoch: Epoch::new(1), sequence: Sequence::new(sequence) }
    }

    /// Members `a`, `b` and so on at these positions; those named in `in_sync` are.
    fn cluster(positions: &[u64], in_sync: &[&str]) -> ClusterView {
        let members = ["a", "b", "c", "d", "e", "f", "g"].iter().zip(positions);
        let status = |(name, sequence): (&&str, &u64)| MemberStatus {
            member: Member::new(name, "host:1").unwrap(),
            position: at(*sequence),
        };
        ClusterView {
            members: members.map(status).collect(),
            in_sync: Some(InSync {
                epoch: Epoch::new(1),
                members: in_sync.iter().copied().map(id).collect(),
            }),
            ..ClusterView::default()
        }
    }

    fn led_by(name: &str, view: &ClusterView) -> ClusterView {
        let member = Member::new(name, "host:1").unwrap();
        ClusterView { leader: Some(Leader { epoch: Epoch::new(1), member }), ..view.clone() }
    }

    fn candidacy(me: &str) -> Candidacy {
        let settings = CandidacySettings {
            unclean_takeover_after: Some(UNCLEAN),
            ..CandidacySettings::default()
        };
        Candidacy::new(id(me), settings)
    }

    const CLEAN: Decision = Decision::Campaign { unclean: false };

    fn now(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn wait(millis: u64, reason: WaitReason) -> Decision {
        Decision::Wait { until: Some(now(millis)), reason }
    }

    #[test]
    fn a_member_that_waits_says_why() {
        let (view, mut me) = (cluster(&[1, 9], &["a", "b"]), candidacy("a"));
        let waits = me.waits();
        let said = || waits.borrow().as_ref().map(ToString::to_string);
        assert_eq!(said(), None);
        me.decide(now(0), &view, at(1));
        assert_eq!(said().as_deref(), Some("the journal of b reaches further"));
        me.decide(now(300), &view, at(1));
        assert_eq!(said(), None, "it campaigns");
        let other = ClusterView { successor: Some(id("b")), ..view.clone() };
        me.decide(now(301), &other, at(1));
        assert_eq!(said().as_deref(), Some("the last leader has handed over to b"));
        me.decide(now(302), &led_by("b", &view), at(1));
        assert_eq!(said(), None, "it follows");
        me.decide(now(303), &cluster(&[1, 9], &["c"]), at(1));
        assert!(said().unwrap().starts_with("it is not in sync"));
    }

    #[test]
    fn a_leader_is_followed() {
        let view = led_by("b", &cluster(&[1, 1], &["a", "b"]));
        let decision = candidacy("a").decide(now(0), &view, at(1));
        assert_eq!(decision, Decision::Follow(view.leader.clone().unwrap()));
    }

    #[test]
    fn a_cluster_that_never_had_a_leader_takes_any() {
        let view = ClusterView { in_sync: None, ..cluster(&[0, 0], &[]) };
        assert_eq!(candidacy("a").decide(now(0), &view, at(0)), CLEAN);
        assert_eq!(candidacy("b").decide(now(0), &view, at(0)), CLEAN);
    }

    #[test]
    fn a_member_that_is_not_in_sync_waits_for_an_unclean_takeover() {
        let (view, mut me) = (cluster(&[1, 9], &["c"]), candidacy("b"));
        let waits = wait(30_005, WaitReason::NotInSync);
        assert_eq!(me.decide(now(5), &view, at(9)), waits);
        assert_eq!(me.decide(now(30_004), &view, at(9)), waits);
        assert_eq!(me.decide(now(30_005), &view, at(9)), Decision::Campaign { unclean: true });
        // The time begins anew with each leader.
        me.decide(now(40_000), &led_by("a", &view), at(9));
        assert_eq!(me.decide(now(50_000), &view, at(9)), wait(80_000, WaitReason::NotInSync));
    }

    #[test]
    fn a_member_that_has_lost_its_journal_is_not_in_sync() {
        let (view, mut me) = (cluster(&[0], &["a"]), candidacy("a"));
        let lost = me.decide(now(0), &view, Position::EMPTY);
        assert_eq!(lost, wait(30_000, WaitReason::NotInSync));
        assert_eq!(me.decide(now(1), &view, at(0)), CLEAN);
    }

    #[test]
    fn without_unclean_takeover_it_waits_for_a_change() {
        let mut me = Candidacy::new(id("a"), CandidacySettings::default());
        let waits = Decision::Wait { until: None, reason: WaitReason::NotInSync };
        let view = cluster(&[1], &["c"]);
        assert_eq!(me.decide(now(0), &view, at(1)), waits);
        assert_eq!(me.decide(now(1_000_000_000), &view, at(1)), waits);
    }

    #[test]
    fn of_members_that_are_not_in_sync_the_one_ahead_goes_first() {
        let (view, mut behind) = (cluster(&[1, 9], &["c"]), candidacy("a"));
        behind.decide(now(0), &view, at(1));
        let waits = wait(30_300, WaitReason::Behind(id("b")));
        assert_eq!(behind.decide(now(30_000), &view, at(1)), waits);
        let unclean = Decision::Campaign { unclean: true };
        assert_eq!(behind.decide(now(30_300), &view, at(1)), unclean);
    }

    #[test]
    fn each_member_ahead_has_a_head_start() {
        let view = cluster(&[1, 5, 9], &["a", "b", "c"]);
        let behind = |millis| wait(millis, WaitReason::Behind(id("c")));
        assert_eq!(candidacy("a").decide(now(0), &view, at(1)), behind(600));
        assert_eq!(candidacy("b").decide(now(0), &view, at(5)), behind(300));
        assert_eq!(candidacy("c").decide(now(0), &view, at(9)), CLEAN);
        // Not for those that cannot lead, or for more than a few.
        let view = cluster(&[1, 5, 9], &["a", "b"]);
        let waits = wait(300, WaitReason::Behind(id("b")));
        assert_eq!(candidacy("a").decide(now(0), &view, at(1)), waits);
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let view = cluster(&[1, 2, 3, 4, 5, 6, 7], &names);
        let waits = wait(1200, WaitReason::Behind(id("g")));
        assert_eq!(candidacy("a").decide(now(0), &view, at(1)), waits);
    }

    #[test]
    fn the_last_leader_is_not_waited_for() {
        let (view, mut me) = (cluster(&[1, 9], &["a", "b"]), candidacy("a"));
        me.decide(now(0), &led_by("b", &view), at(1));
        assert_eq!(me.decide(now(1), &view, at(1)), CLEAN);
    }

    #[test]
    fn a_successor_goes_first() {
        let mut view = cluster(&[1, 9], &["a", "b"]);
        view.successor = Some(id("a"));
        assert_eq!(candidacy("a").decide(now(0), &view, at(1)), CLEAN);
        let (mut other, waits) = (candidacy("b"), wait(1000, WaitReason::Successor(id("a"))));
        assert_eq!(other.decide(now(0), &view, at(9)), waits);
        assert_eq!(other.decide(now(1000), &view, at(9)), CLEAN);
        // A successor that is dead or may not lead is not waited for.
        view.successor = Some(id("x"));
        assert_eq!(candidacy("b").decide(now(0), &view, at(9)), CLEAN);
        let mut view = cluster(&[1, 9], &["b"]);
        view.successor = Some(id("a"));
        assert_eq!(candidacy("b").decide(now(0), &view, at(9)), CLEAN);
    }
}
