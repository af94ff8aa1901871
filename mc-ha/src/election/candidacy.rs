//! When a member campaigns.

use std::fmt;
use std::time::Duration;

use mc_types::{BoxFuture, Time};
use tokio::sync::watch;

use super::LeaderElection;
use super::clock::Clock;
use super::error::ElectionError;
use super::leadership::Leadership;
use super::member::{Behind, ClusterView, Leader, MemberId, MemberStatus, Progress, Standing};

/// The pause after an attempt that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Most members ahead that a member waits for one after the other.
const MAX_HEAD_STARTS: u32 = 4;

/// How patient a candidate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CandidacySettings {
    /// Time without a leader after which a member outside of the in-sync set takes over, which
    /// loses what it lacks. `None`: never. It must have followed the last leader, and lack no more than
    /// [`unclean_bound`](Self::unclean_bound).
    pub unclean_takeover_after: Option<Duration>,
    /// The most that a member may lack when it takes over uncleanly, as the time in which the last
    /// leader made it.
    pub unclean_bound: Duration,
    /// The most that a member in the in-sync set may lack of the last leader's journal, as the time
    /// in which that leader made it: more than the standbys in sync ever do. One that lacks more
    /// has lost a part of its journal.
    pub sync_slack: Duration,
    /// Time without a leader and without any record of one, until which all members should have
    /// registered.
    pub first_start_wait: Duration,
    /// Whether the member leads whatever its journal holds, as soon as there is no leader, because an
    /// administrator says so. That is over when it has seen a leader.
    pub is_forced: bool,
    /// Time that the others leave to the member that a leader has handed over to.
    pub successor_wait: Duration,
    /// Time that a member leaves to each member whose journal reaches further.
    pub head_start: Duration,
}

impl Default for CandidacySettings {
    /// No unclean takeover, whose bound is a minute; two seconds for the first start, a second for a
    /// successor, 300 ms for a member that is ahead.
    fn default() -> Self {
        Self {
            unclean_takeover_after: None,
            unclean_bound: Duration::from_secs(60),
            sync_slack: Duration::from_secs(12),
            first_start_wait: Duration::from_secs(2),
            is_forced: false,
            successor_wait: Duration::from_secs(1),
            head_start: Duration::from_millis(300),
        }
    }
}

/// The next step of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Follow this leader, which may be the member itself in an earlier life.
    Follow(Leader),
    /// Campaign.
    Campaign(Takeover),
    /// Wait for a change of the view, and decide again at a time at the latest.
    Wait {
        /// The latest time of the next decision; `None`: only a change can help.
        until: Option<Time>,
        /// The reason.
        reason: WaitReason,
    },
}

/// The state in which a member takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Takeover {
    /// Everything that was acknowledged.
    InSync,
    /// Nothing is known of any leader before: the cluster begins, or its election service has lost its
    /// records.
    FirstStart,
    /// The member is not in the in-sync set: acknowledged changes are lost, so many if that is
    /// known.
    Unclean(Option<Behind>),
}

/// Why a member does not campaign although there is no leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// The member is not in the in-sync set.
    NotInSync,
    /// No leader is recorded, and others may not have registered yet.
    FirstStart,
    /// The member's journal is empty, and those of others are not, or were not.
    Empty,
    /// Its journal is of another history than the last leader's.
    OtherHistory,
    /// Its journal has nothing of the last term.
    FormerTerm,
    /// The member lacks more than it may, or more than is known.
    TooFarBehind(Option<Behind>),
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
            Self::FirstStart => f.write_str("no leader is recorded, and other members may come"),
            Self::Empty => f.write_str("its journal is empty, and others hold something, or held"),
            Self::OtherHistory => {
                f.write_str("its journal is of another history than the last leader's")
            }
            Self::FormerTerm => f.write_str("its journal has nothing of the last term"),
            Self::TooFarBehind(None) => f.write_str("it lacks more than is known"),
            Self::TooFarBehind(Some(Behind { changes, time })) => {
                let seconds = time.as_secs_f64();
                write!(f, "it lacks {changes} changes, which were made in {seconds:.1} s")
            }
            Self::Successor(id) => write!(f, "the last leader has handed over to {id}"),
            Self::Behind(id) => write!(f, "the journal of {id} reaches further"),
        }
    }
}

/// Decides when a member campaigns: a state machine without a clock of its own.
///
/// * While there is a leader, it follows.
/// * Where no leader is recorded, it waits for [`CandidacySettings::first_start_wait`], and one that
///   holds nothing lets those that hold something lead. Of several histories the one that most members
///   have goes first.
/// * A member that holds nothing of the last term, or another history, never campaigns by itself.
/// * A member outside of the in-sync set waits for [`CandidacySettings::unclean_takeover_after`], and
///   campaigns then if it does not lack too much.
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

    /// Returns why this member waits although there is no leader, as it was last decided; `None` while
    /// there is one, while it campaigns and before the first decision.
    #[must_use]
    pub fn waits(&self) -> watch::Receiver<Option<WaitReason>> {
        self.waits.subscribe()
    }

    /// Decides what to do at this time, with this view of the cluster, when the member's own
    /// journal stands like this. Call it at each change of the view.
    pub fn decide(&mut self, now: Time, view: &ClusterView, own: Standing) -> Decision {
        let decision = self.decide_now(now, view, own);
        self.waits.send_replace(match &decision {
            Decision::Wait { reason, .. } => Some(reason.clone()),
            Decision::Follow(_) | Decision::Campaign(_) => None,
        });
        decision
    }

    fn decide_now(&mut self, now: Time, view: &ClusterView, own: Standing) -> Decision {
        if let Some(leader) = &view.leader {
            self.leaderless_since = None;
            self.last_leader = Some(leader.member.id().clone());
            self.settings.is_forced = false;
            return Decision::Follow(leader.clone());
        }
        let since = *self.leaderless_since.get_or_insert(now);
        let (takeover, begins) = match self.claim(view, own) {
            Ok((takeover, wait)) => (takeover, since + wait),
            Err(reason) => return Decision::Wait { until: None, reason },
        };
        if now < begins {
            let reason = match takeover {
                Takeover::FirstStart => WaitReason::FirstStart,
                _ => WaitReason::NotInSync,
            };
            return Decision::Wait { until: Some(begins), reason };
        }
        match self.rival(begins, takeover, view, own) {
            Some((until, reason)) if now < until => Decision::Wait { until: Some(until), reason },
            _ => Decision::Campaign(takeover),
        }
    }

    /// Returns as what the member may lead, and for how long there must have been no leader; or why it
    /// may not.
    fn claim(&self, view: &ClusterView, own: Standing) -> Result<(Takeover, Duration), WaitReason> {
        let Some(in_sync) = &view.in_sync else { return self.first_claim(view, own) };
        let behind = view.progress.as_ref().and_then(|progress| progress.behind(own.position));
        if self.settings.is_forced {
            return Ok((Takeover::Unclean(behind), Duration::ZERO));
        }
        if !own.has_data() {
            return Err(WaitReason::Empty);
        }
        if in_sync.history.is_some() && in_sync.history != own.history {
            return Err(WaitReason::OtherHistory);
        }
        if own.position.epoch < in_sync.epoch {
            return Err(WaitReason::FormerTerm);
        }
        // A leader of an older version does not say how far it was.
        let progress = view.progress.as_ref().filter(|progress| progress.epoch == in_sync.epoch);
        let lacks_much = |progress: &Progress| {
            let behind = progress.behind(own.position);
            !progress.marks.is_empty() && behind.is_none_or(|it| it.time > self.settings.sync_slack)
        };
        let is_short = progress
            .is_some_and(|progress| progress.is_short(own.position) || lacks_much(progress));
        if in_sync.members.contains(&self.me) && !is_short {
            return Ok((Takeover::InSync, Duration::ZERO));
        }
        let Some(wait) = self.settings.unclean_takeover_after else {
            return Err(WaitReason::NotInSync);
        };
        match (progress, behind) {
            (Some(_), None) => Err(WaitReason::TooFarBehind(None)),
            (Some(_), Some(behind)) if behind.time > self.settings.unclean_bound => {
                Err(WaitReason::TooFarBehind(Some(behind)))
            }
            _ => Ok((Takeover::Unclean(behind), wait)),
        }
    }

    /// Where nothing is known of a leader.
    fn first_claim(
        &self,
        view: &ClusterView,
        own: Standing,
    ) -> Result<(Takeover, Duration), WaitReason> {
        let is_chosen = view.successor.as_ref() == Some(&self.me);
        if self.settings.is_forced || is_chosen {
            return Ok((Takeover::FirstStart, Duration::ZERO));
        }
        if !own.has_data() && view.members.iter().any(|status| status.standing.has_data()) {
            return Err(WaitReason::Empty);
        }
        Ok((Takeover::FirstStart, self.settings.first_start_wait))
    }

    /// The member that goes first, and until when.
    fn rival(
        &self,
        since: Time,
        takeover: Takeover,
        view: &ClusterView,
        own: Standing,
    ) -> Option<(Time, WaitReason)> {
        if self.settings.is_forced {
            return None;
        }
        if let Some(successor) = view.successor.as_ref().filter(|id| view.member(id).is_some()) {
            if *successor == self.me {
                return None;
            }
            if view.is_in_sync(successor) {
                let until = since + self.settings.successor_wait;
                return Some((until, WaitReason::Successor(successor.clone())));
            }
        }
        let rank = |standing: Standing| {
            let of_history = |other: &&MemberStatus| other.standing.history == standing.history;
            let sharers = match takeover {
                Takeover::FirstStart => view.members.iter().filter(of_history).count(),
                _ => 0,
            };
            (sharers, standing.position)
        };
        let ahead = || {
            view.members.iter().filter(|status| {
                let id = status.member.id();
                rank(status.standing) > rank(own)
                    && *id != self.me
                    && (takeover == Takeover::FirstStart || self.last_leader.as_ref() != Some(id))
                    && (takeover != Takeover::InSync || view.is_in_sync(id))
            })
        };
        let first = ahead().max_by_key(|status| rank(status.standing))?;
        let number = u32::try_from(ahead().count()).unwrap_or(u32::MAX).min(MAX_HEAD_STARTS);
        let until = since + self.settings.head_start * number;
        Some((until, WaitReason::Behind(first.member.id().clone())))
    }

    /// Tells of a takeover that is about to be tried.
    fn tell(&self, takeover: Takeover, own: Standing) {
        let position = own.position;
        match takeover {
            Takeover::InSync => {}
            Takeover::FirstStart if !own.has_data() => {
                tracing::info!(member = %self.me, "no leader is recorded: the cluster begins");
            }
            Takeover::FirstStart => tracing::warn!(
                member = %self.me, %position,
                "no leader is recorded, but this member's journal is of a cluster that had one: the \
                 election service has lost its records, or this is the first start with it; taking over \
                 with what the journal has"
            ),
            Takeover::Unclean(Some(Behind { changes, time })) => tracing::warn!(
                member = %self.me, %position, changes, lacks_seconds = time.as_secs_f64(),
                "taking over without being in sync: acknowledged changes are lost"
            ),
            Takeover::Unclean(None) => tracing::warn!(
                member = %self.me, %position,
                "taking over without being in sync, and without knowing what this member lacks"
            ),
        }
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
        let mut waits = None;
        // It is tried many times a second, and told once.
        let mut told: Option<String> = None;
        loop {
            let seen = views.borrow_and_update().clone();
            let own = election.standing();
            let decision = seen.map(|view| candidacy.decide(clock.now(), &view, own));
            let until = match decision {
                Some(Decision::Campaign(takeover)) => {
                    candidacy.tell(takeover, own);
                    match election.campaign(takeover).await {
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
                Some(Decision::Wait { until, reason }) => {
                    if waits.as_ref() != Some(&reason) {
                        tracing::info!(member = %candidacy.me, %reason, "no master leads; this one waits");
                        waits = Some(reason);
                    }
                    until
                }
                Some(Decision::Follow(_)) | None => {
                    waits = None;
                    None
                }
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

    use super::super::member::{InSync, Member};
    use super::*;
    use crate::identity::HistoryId;
    use crate::position::Position;

    const UNCLEAN: Duration = Duration::from_secs(30);

    fn id(id: &str) -> MemberId {
        MemberId::new(id).unwrap()
    }

    const OURS: HistoryId = HistoryId::new(7);

    fn at(sequence: u64) -> Standing {
        let position = Position::new(Epoch::new(1), Sequence::new(sequence));
        Standing { position, history: Some(OURS) }
    }

    /// The standing of a journal of another history.
    fn foreign(sequence: u64) -> Standing {
        Standing { history: Some(HistoryId::new(8)), ..at(sequence) }
    }

    /// Members `a`, `b` and so on at these positions; those named in `in_sync` are.
    fn cluster(positions: &[u64], in_sync: &[&str]) -> ClusterView {
        let members = ["a", "b", "c", "d", "e", "f", "g"].iter().zip(positions);
        let status = |(name, sequence): (&&str, &u64)| MemberStatus {
            member: Member::new(name, "host:1").unwrap(),
            standing: at(*sequence),
        };
        ClusterView {
            members: members.map(status).collect(),
            in_sync: Some(InSync {
                epoch: Epoch::new(1),
                members: in_sync.iter().copied().map(id).collect(),
                history: Some(OURS),
                last_unclean: Epoch::new(0),
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

    const CLEAN: Decision = Decision::Campaign(Takeover::InSync);
    const FIRST: Decision = Decision::Campaign(Takeover::FirstStart);
    const UNKNOWN: Decision = Decision::Campaign(Takeover::Unclean(None));

    fn never(reason: WaitReason) -> Decision {
        Decision::Wait { until: None, reason }
    }

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
    fn a_cluster_that_never_had_a_leader_takes_any_when_all_had_time_to_register() {
        let waits = wait(2000, WaitReason::FirstStart);
        let view = ClusterView { in_sync: None, ..cluster(&[], &[]) };
        let mut me = candidacy("a");
        assert_eq!(me.decide(now(0), &view, Standing::EMPTY), waits);
        assert_eq!(me.decide(now(2000), &view, Standing::EMPTY), FIRST);
        // Of two with data the one ahead goes first, if it is the last leader, too.
        let view = ClusterView { in_sync: None, ..cluster(&[1, 9], &[]) };
        let mut me = candidacy("a");
        me.decide(now(0), &led_by("b", &view), at(1));
        assert_eq!(me.decide(now(0), &view, at(1)), waits);
        let behind = wait(2300, WaitReason::Behind(id("b")));
        assert_eq!(me.decide(now(2000), &view, at(1)), behind);
        assert_eq!(me.decide(now(2300), &view, at(1)), FIRST);
    }

    #[test]
    fn who_holds_nothing_never_leads_where_others_do_or_did() {
        let recorded = cluster(&[], &["c"]);
        let others = ClusterView { in_sync: None, ..cluster(&[1], &[]) };
        for view in [recorded, others] {
            let mut me = candidacy("b");
            for millis in [0, 1_000_000_000] {
                let decision = me.decide(now(millis), &view, Standing::EMPTY);
                assert_eq!(decision, never(WaitReason::Empty));
            }
        }
    }

    #[test]
    fn a_member_whose_journal_was_replaced_by_an_older_one_is_not_in_sync() {
        let mut view = cluster(&[5], &["a"]);
        let mut progress = Progress::new(Epoch::new(1));
        progress.note(at(9).position, Duration::from_secs(1));
        progress.common = Sequence::new(7);
        view.progress = Some(progress);
        let mut me = candidacy("a");
        assert_eq!(me.decide(now(0), &view, at(7)), CLEAN);
        let waits = wait(30_000, WaitReason::NotInSync);
        assert_eq!(me.decide(now(0), &view, at(6)), waits);
        // One from before all that is known.
        let old = view.progress.as_mut().unwrap();
        (10..200).for_each(|n| old.note(at(n).position, Duration::from_secs(n)));
        assert_eq!(me.decide(now(0), &view, at(7)), never(WaitReason::TooFarBehind(None)));
    }

    #[test]
    fn another_history_never_leads() {
        let (view, mut me) = (cluster(&[9], &["a"]), candidacy("a"));
        let never = never(WaitReason::OtherHistory);
        assert_eq!(me.decide(now(0), &view, foreign(9)), never);
        let lost = Standing { history: None, ..at(9) };
        assert_eq!(me.decide(now(1_000_000), &view, lost), never);
        assert_eq!(me.decide(now(1_000_000), &view, at(9)), CLEAN);
    }

    #[test]
    fn where_no_leader_is_recorded_the_history_of_most_members_goes_first() {
        let mut view = ClusterView { in_sync: None, ..cluster(&[1, 2, 9], &[]) };
        view.members[2].standing = foreign(9);
        let mut stranger = candidacy("c");
        stranger.decide(now(0), &view, foreign(9));
        let waits = wait(2600, WaitReason::Behind(id("b")));
        assert_eq!(stranger.decide(now(2000), &view, foreign(9)), waits);
        let mut own = candidacy("b");
        own.decide(now(0), &view, at(2));
        assert_eq!(own.decide(now(2000), &view, at(2)), FIRST);
    }

    #[test]
    fn whom_a_leader_without_data_yields_to_leads_at_once() {
        let mut view = ClusterView { in_sync: None, ..cluster(&[9, 1], &[]) };
        view.successor = Some(id("a"));
        assert_eq!(candidacy("a").decide(now(0), &view, at(9)), FIRST);
        let waits = wait(2000, WaitReason::FirstStart);
        assert_eq!(candidacy("b").decide(now(0), &view, foreign(1)), waits);
    }

    #[test]
    fn an_administrator_makes_any_member_lead_once() {
        let mut forced = candidacy("a");
        forced.settings.is_forced = true;
        let view = cluster(&[0, 9], &["b"]);
        assert_eq!(forced.decide(now(0), &view, Standing::EMPTY), UNKNOWN);
        forced.decide(now(0), &led_by("b", &view), Standing::EMPTY);
        assert_eq!(forced.decide(now(0), &view, Standing::EMPTY), never(WaitReason::Empty));
    }

    #[test]
    fn who_lacks_too_much_does_not_take_over() {
        let mut view = cluster(&[1], &["c"]);
        let mut progress = Progress::new(Epoch::new(1));
        for second in 0..100 {
            let leader = Position::new(Epoch::new(1), Sequence::new(10 * second));
            progress.note(leader, Duration::from_secs(second));
        }
        view.progress = Some(progress);
        let mut me = candidacy("a");
        me.decide(now(0), &view, at(900));
        let behind = Behind { changes: 90, time: Duration::from_secs(9) };
        let takes_over = Decision::Campaign(Takeover::Unclean(Some(behind)));
        assert_eq!(me.decide(now(30_000), &view, at(900)), takes_over);
        let behind = Behind { changes: 690, time: Duration::from_secs(69) };
        let never = |behind| never(WaitReason::TooFarBehind(behind));
        assert_eq!(me.decide(now(30_000), &view, at(300)), never(Some(behind)));
        let mut late = candidacy("a");
        late.settings.unclean_bound = Duration::from_secs(70);
        late.decide(now(0), &view, at(300));
        let takes_over = Decision::Campaign(Takeover::Unclean(Some(behind)));
        assert_eq!(late.decide(now(30_000), &view, at(300)), takes_over);
    }

    #[test]
    fn a_member_that_is_not_in_sync_waits_for_an_unclean_takeover() {
        let (view, mut me) = (cluster(&[1, 9], &["c"]), candidacy("b"));
        let waits = wait(30_005, WaitReason::NotInSync);
        assert_eq!(me.decide(now(5), &view, at(9)), waits);
        assert_eq!(me.decide(now(30_004), &view, at(9)), waits);
        assert_eq!(me.decide(now(30_005), &view, at(9)), UNKNOWN);
        // The time begins anew with each leader.
        me.decide(now(40_000), &led_by("a", &view), at(9));
        assert_eq!(me.decide(now(50_000), &view, at(9)), wait(80_000, WaitReason::NotInSync));
    }

    #[test]
    fn a_member_with_nothing_of_the_last_term_does_not_lead() {
        let (mut view, mut me) = (cluster(&[9], &["a"]), candidacy("a"));
        view.in_sync.as_mut().unwrap().epoch = Epoch::new(2);
        assert_eq!(me.decide(now(0), &view, at(9)), never(WaitReason::FormerTerm));
        assert_eq!(me.decide(now(90_000), &view, at(9)), never(WaitReason::FormerTerm));
        let position = Position::start_of(Epoch::new(2));
        assert_eq!(me.decide(now(90_000), &view, Standing { position, ..at(0) }), CLEAN);
    }

    #[test]
    fn without_unclean_takeover_it_waits_for_a_change() {
        let mut me = Candidacy::new(id("a"), CandidacySettings::default());
        let waits = never(WaitReason::NotInSync);
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
        let unclean = UNKNOWN;
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
