//! A leader's term: what keeps it, and what ends it.

use core::fmt;
use std::sync::Arc;
use std::time::Duration;

use mc_ha::election::{
    Authority, ElectionError, LeaderElection, Leadership, MemberId, MemberStatus, Standing,
};
use mc_ha::replication::{FollowerState, Hub};
use mc_ha::{HistoryId, Position};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::journal::{JournalTrouble, JournalWatch, LedJournal};
use super::snapshots::SnapshotRequest;
use crate::abort_on_drop::AbortOnDrop;
use crate::ticker::TickerWatch;

/// How often it is looked which standbys are in sync.
const LOOK: Duration = Duration::from_millis(100);

/// The wait before they are recorded again after that failed.
const RETRY: Duration = Duration::from_secs(1);

/// How long a standby that is to take over may need to get the rest of the journal.
const CATCH_UP: Duration = Duration::from_secs(5);

/// How long one that has lost its connection may need to be there again: it pauses before it connects.
const COMES_BACK: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const CATCH_UP_LOOK: Duration = Duration::from_millis(2);

/// How long the journal of a leader may fail before another one leads.
const FAILING: Duration = Duration::from_secs(3);

/// The term of a leader, as its server needs it.
#[derive(Debug)]
pub(crate) struct MayAnswer(pub(crate) Authority);

impl mc_rpc::Authority for MayAnswer {
    fn may_answer(&self) -> bool {
        self.0.is_valid()
    }
}

/// Gives the standbys the journal over the leader's port.
#[derive(Debug)]
pub(crate) struct JournalPort {
    pub(crate) hub: Arc<Hub>,
    pub(crate) snapshots: SnapshotRequest,
}

impl mc_rpc::TakeStream for JournalPort {
    fn take<'a>(
        &'a self,
        stream: Box<dyn mc_rpc::ByteStream>,
        peer: Option<std::net::SocketAddr>,
    ) -> mc_rpc::Taking<'a> {
        let hub = Arc::clone(&self.hub);
        Box::pin(async move {
            let snapshots = self.snapshots.clone();
            let Err(ended) = hub.serve(stream, move || snapshots.ask()).await else { return };
            info!(?peer, %ended, "a standby's stream has ended");
        })
    }
}

/// The wish that another member leads.
pub(crate) struct HandOver {
    /// That member; `None` for the one in sync that has most.
    pub(crate) to: Option<MemberId>,
    /// Is told when the term is over, or why it goes on.
    pub(crate) done: Option<oneshot::Sender<Result<(), HandOverError>>>,
}

/// Why a term goes on that was to be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// None can take over.
    #[error("no standby is in sync, so none can take over")]
    NobodyInSync,
    /// The one that was to take over is too slow, or gone.
    #[error(
        "{to} was to take over, but it did not get the last {changes} changes within {} s; it may be slow, \
         or disconnected: try again when it is in sync",
        CATCH_UP.as_secs()
    )]
    Behind {
        /// That one.
        to: MemberId,
        /// The changes that it lacks.
        changes: u64,
    },
    /// The set of members in sync could not be recorded.
    #[error("the election service was not told, so this master goes on: {0}")]
    NotTold(String),
}

/// The parts of a term.
pub(crate) struct TermParts {
    pub(crate) leadership: Leadership,
    pub(crate) election: Arc<dyn LeaderElection>,
    pub(crate) led: LedJournal,
    pub(crate) journal: JournalWatch,
    pub(crate) ticker: TickerWatch,
    pub(crate) history: HistoryId,
    /// Returns whether the history began with this term, and holds no object.
    pub(crate) is_blank: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) leases: Box<dyn Fn(Leases) + Send + Sync>,
}

/// A message of a leader to its successor about leases, through the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leases {
    /// A list of the leased objects.
    List,
    /// The list is void.
    Withdraw,
}

/// Keeps a term until it ends.
pub(crate) struct RunningTerm {
    over: watch::Receiver<bool>,
    wishes: mpsc::Sender<HandOver>,
    /// Aborting it drops the leadership, which ends the term.
    _task: AbortOnDrop,
}

impl fmt::Debug for RunningTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningTerm").field("over", &*self.over.borrow()).finish_non_exhaustive()
    }
}

impl RunningTerm {
    /// Keeps it from now on. Why it was not handed over last is noted in `notice`.
    pub(crate) fn start(parts: TermParts, notice: Arc<Mutex<Option<String>>>) -> Self {
        let (told, over) = watch::channel(false);
        let (wishes, taken) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let in_sync = InSync::default();
            KeptTerm { parts, in_sync, notice, withdrawal: None }.keep(taken).await;
            // There is no receiver when the master is gone.
            let _ = told.send(true);
        });
        Self { over, wishes, _task: AbortOnDrop(task) }
    }

    /// Takes wishes to hand over.
    pub(crate) fn wishes(&self) -> mpsc::Sender<HandOver> {
        self.wishes.clone()
    }

    /// Hands over to the standby that has most, and waits until that is done.
    pub(crate) async fn hand_over(&self) -> Result<(), HandOverError> {
        let (done, outcome) = oneshot::channel();
        let wish = HandOver { to: None, done: Some(done) };
        // The term is over when its task takes no request, or does not answer this one.
        if self.wishes.send(wish).await.is_err() {
            return Ok(());
        }
        outcome.await.unwrap_or(Ok(()))
    }

    /// Waits until the term is over.
    pub(crate) async fn over(&self) {
        let mut over = self.over.clone();
        // It also ends when the task has gone.
        let _ = over.wait_for(|over| *over).await;
    }
}

/// A term that is kept.
struct KeptTerm {
    parts: TermParts,
    in_sync: InSync,
    notice: Arc<Mutex<Option<String>>>,
    /// Where the journal says that the list of leases holds no more, until every standby that could take
    /// over has that. Nothing is acknowledged before, so that no lease is granted that the list lacks.
    withdrawal: Option<Position>,
}

/// The next step of a leader.
enum Next {
    /// The leader hands over on request.
    Planned(HandOver),
    /// The leader hands over because its journal cannot be written, or its time does not pass.
    Unable(String),
    /// The leader yields to a member of another history.
    Yield(MemberId),
    End,
}

impl KeptTerm {
    /// Keeps it until it is over.
    async fn keep(mut self, mut wishes: mpsc::Receiver<HandOver>) {
        let epoch = self.parts.leadership.epoch().as_u64();
        loop {
            let (refused, done) = match self.next(&mut wishes).await {
                Next::End => return,
                Next::Unable(trouble) => {
                    warn!(epoch, %trouble, "this master cannot work; handing over to another one");
                    // What is appended no more cannot be handed over.
                    let until = self.parts.led.hub.end();
                    match self.resign(None, until).await {
                        Ok(()) => return,
                        Err(kept) => (kept, None),
                    }
                }
                Next::Planned(HandOver { to, done }) => {
                    let to = match to {
                        Some(to) => Some(to),
                        None => self.successor().await,
                    };
                    let is_listed = to.is_some();
                    self.parts.led.answers.hold();
                    if is_listed {
                        (self.parts.leases)(Leases::List);
                    }
                    let (until, _) = self.parts.journal.ends();
                    match self.resign(to, until).await {
                        Ok(()) => {
                            // The caller may have gone.
                            done.map(|done| done.send(Ok(())));
                            return;
                        }
                        Err((mut kept, error)) => {
                            if is_listed {
                                kept.withdraw();
                            }
                            kept.part_from_those_behind(until).await;
                            ((kept, error), done)
                        }
                    }
                }
                Next::Yield(to) => {
                    self.parts.led.answers.hold();
                    if (self.parts.is_blank)() {
                        warn!(
                            epoch, %to,
                            "this cluster has no object yet, and a member has a journal of another \
                             history: it is to lead"
                        );
                        let yielded = self.parts.leadership.yield_to(&to).await;
                        yielded.unwrap_or_else(|error| warn!(%error, "cannot tell the other masters; one of them leads when the lease is over"));
                        return;
                    }
                    self.release();
                    continue;
                }
            };
            let (this, error) = refused;
            self = this;
            self.release();
            warn!(epoch, %error, "the leadership was not handed over");
            *self.notice.lock() = Some(error.to_string());
            done.map(|done| done.send(Err(error)));
        }
    }

    /// The standby in sync that has most. Where none is, because this term has just begun or a standby is
    /// being replaced, one may soon be: as long as there are other members it is waited for.
    async fn successor(&mut self) -> Option<MemberId> {
        let Self { parts: TermParts { leadership, election, led, .. }, in_sync, .. } = self;
        let own = leadership.member().id().clone();
        let begun = Instant::now();
        let may_come = |status: &MemberStatus| {
            let id = status.member.id();
            let patience = if has_left(&led.hub, id) { COMES_BACK } else { CATCH_UP };
            *id != own && begun.elapsed() < patience
        };
        let is_alone = || {
            let view = election.view();
            let view = view.borrow();
            !view.iter().flat_map(|view| &view.members).any(may_come)
        };
        let has_ended = |foremost: &Option<_>| {
            foremost.is_some() || is_alone() || !leadership.authority().is_valid()
        };
        let mut standby = foremost(&led.hub);
        if has_ended(&standby) {
            return standby;
        }
        // What is acknowledged meanwhile waits for none of them.
        if let Err(error) = in_sync.follow(leadership, &led.hub, Vec::new()).await {
            warn!(%error, "cannot record that no standby is in sync");
        }
        while !has_ended(&standby) {
            sleep(CATCH_UP_LOOK).await;
            standby = foremost(&led.hub);
        }
        standby
    }

    /// Records no standby as in sync that lacks anything up to `until`: this master may be about to end, and
    /// one that is recorded would take over without that.
    async fn part_from_those_behind(&mut self, until: Position) {
        let Self { parts: TermParts { leadership, led, .. }, in_sync, .. } = self;
        in_sync.floor = in_sync.floor.max(until);
        if let Err(error) = in_sync.follow(leadership, &led.hub, led.hub.in_sync()).await {
            warn!(%error, "cannot record which standbys are in sync");
        }
    }

    /// Tells that the list of leases holds no more.
    fn withdraw(&mut self) {
        (self.parts.leases)(Leases::Withdraw);
        let (withdrawal, _) = self.parts.journal.ends();
        self.in_sync.floor = withdrawal;
        self.withdrawal = Some(withdrawal);
    }

    /// Goes on acknowledging, unless a standby could take over that trusts the list of leases.
    fn release(&self) {
        if self.withdrawal.is_none() {
            self.parts.led.release(&self.parts.journal);
        }
    }

    /// Keeps the term until something else is to be done.
    async fn next(&mut self, wishes: &mut mpsc::Receiver<HandOver>) -> Next {
        let Self { parts, in_sync, withdrawal, .. } = self;
        let TermParts { leadership, election, led, journal, ticker, history, is_blank, .. } = parts;
        let authority = leadership.authority().clone();
        let epoch = leadership.epoch().as_u64();
        let mut timer = tokio::time::interval(LOOK);
        let mut failing_since = None;
        loop {
            tokio::select! {
                biased;
                () = authority.ended() => {
                    warn!(epoch, "the term is over; this master leads no more");
                    return Next::End;
                }
                wish = wishes.recv() => return wish.map_or(Next::End, Next::Planned),
                _ = timer.tick() => {}
            }
            let (_, durable) = journal.ends();
            election.set_standing(Standing { position: durable, history: Some(*history) });
            let near = led.hub.in_sync();
            match journal.trouble() {
                Some(hangs @ JournalTrouble::Hangs { .. }) if !near.is_empty() => {
                    return Next::Unable(hangs.to_string());
                }
                Some(fails @ JournalTrouble::Fails { .. }) => {
                    let since: &mut Instant = failing_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > FAILING && !near.is_empty() {
                        return Next::Unable(fails.to_string());
                    }
                }
                _ => failing_since = None,
            }
            if let Some(problem) = ticker.read().problem
                && !near.is_empty()
            {
                return Next::Unable(problem.to_string());
            }
            if let Some(stranger) = stranger(&**election, leadership, *history)
                && is_blank()
            {
                return Next::Yield(stranger);
            }
            if let Err(error) = in_sync.follow(leadership, &led.hub, near).await {
                warn!(%error, "cannot record which standbys are in sync");
                timer.reset_after(RETRY);
            }
            if withdrawal.is_some() && in_sync.is_above_floor(&led.hub) {
                *withdrawal = None;
                led.release(journal);
            }
            let recorded = in_sync.recorded.as_deref().unwrap_or_default();
            leadership.set_common(led.hub.common(recorded, durable.sequence));
        }
    }

    /// Ends the term when a member has everything up to `until`, so that it leads next.
    async fn resign(
        mut self,
        to: Option<MemberId>,
        until: Position,
    ) -> Result<(), (Self, HandOverError)> {
        let until = until.max(self.in_sync.floor);
        let hub = Arc::clone(&self.parts.led.hub);
        let authority = self.parts.leadership.authority().clone();
        let Some(mut to) = to.or_else(|| foremost(&hub)) else {
            return Err((self, HandOverError::NobodyInSync));
        };
        info!(epoch = authority.epoch().as_u64(), %to, "handing over");
        let begun = Instant::now();
        while !hub.has(to.as_str(), until) && authority.is_valid() {
            if begun.elapsed() > CATCH_UP {
                let changes = lacks(&hub, &to, until);
                return Err((self, HandOverError::Behind { to, changes }));
            }
            if has_left(&hub, &to) && begun.elapsed() > COMES_BACK {
                let Some(next) = foremost(&hub) else {
                    return Err((self, HandOverError::NobodyInSync));
                };
                warn!(%to, %next, "the member that was to lead has left; handing over to another one");
                to = next;
            }
            sleep(CATCH_UP_LOOK).await;
        }
        // If it does not lead after all, another one does that has everything, too.
        let complete = hub.in_sync().into_iter().filter(|id| hub.has(id, until)).collect();
        if let Err(error) = self.in_sync.follow(&self.parts.leadership, &hub, complete).await {
            return Err((self, HandOverError::NotTold(error.to_string())));
        }
        if let Err(error) = self.parts.leadership.resign(Some(&to)).await {
            warn!(%error, "cannot tell the other masters; one of them leads when the lease is over");
        }
        Ok(())
    }
}

/// A member that has a journal of another history than this leader's.
fn stranger(
    election: &dyn LeaderElection,
    leadership: &Leadership,
    own: HistoryId,
) -> Option<MemberId> {
    let view = election.view().borrow().clone()?;
    let strangers = view.members.iter().filter(|status| {
        status.standing.history.is_some_and(|history| history != own)
            && status.member.id() != leadership.member().id()
    });
    let most = strangers.max_by_key(|status| status.standing.position);
    most.map(|status| status.member.id().clone())
}

/// The standbys in sync, as reported to acknowledgements and the election.
#[derive(Default)]
struct InSync {
    /// Those that acknowledgements wait for.
    counted: Vec<String>,
    /// Those that the election knows of: counted on all the time, and with everything that was
    /// acknowledged before they were. `None` before the first record.
    recorded: Option<Vec<String>>,
    /// Without everything up to here none is in sync.
    floor: Position,
}

impl InSync {
    /// Returns whether every standby that the election knows of has everything up to the floor.
    fn is_above_floor(&self, hub: &Hub) -> bool {
        self.recorded.iter().flatten().all(|id| hub.has(id, self.floor))
    }

    /// Brings both up to the standbys that are near now. One that has come near is counted on from
    /// now on, and is recorded by a later call if it still lacks something.
    async fn follow(
        &mut self,
        leadership: &Leadership,
        hub: &Hub,
        mut near: Vec<String>,
    ) -> Result<(), ElectionError> {
        near.retain(|id| hub.has(id, self.floor));
        if self.counted == near && self.recorded.as_ref() == Some(&near) {
            return Ok(());
        }
        let known = self.recorded.iter().flatten();
        self.counted = near.iter().chain(known).cloned().collect();
        hub.count_on(&self.counted);
        let complete: Vec<_> =
            near.iter().filter(|id| hub.has_all_acknowledged(id)).cloned().collect();
        if self.recorded.as_ref() != Some(&complete) {
            let members: Vec<MemberId> =
                complete.iter().filter_map(|id| MemberId::new(id).ok()).collect();
            leadership.set_in_sync(&members).await?;
            info!(standbys = %complete.join(", "), "standbys in sync");
            self.recorded = Some(complete);
        }
        hub.count_on(&near);
        self.counted = near;
        Ok(())
    }
}

/// Returns whether a standby was connected in this term and is not any more.
fn has_left(hub: &Hub, standby: &MemberId) -> bool {
    let is_it = |follower: &FollowerState| follower.id == standby.as_str();
    hub.followers().iter().any(|it| is_it(it) && !it.is_connected)
}

/// How many changes up to this one a standby lacks.
fn lacks(hub: &Hub, standby: &MemberId, until: Position) -> u64 {
    let is_it = |follower: &FollowerState| follower.id == standby.as_str();
    let position = hub.followers().into_iter().find(is_it).map(|follower| follower.position);
    let position = position.filter(|position| position.epoch == until.epoch);
    let has = position.map_or(0, |position| position.sequence.as_u64());
    until.sequence.as_u64().saturating_sub(has)
}

/// The standby in sync that has most.
fn foremost(hub: &Hub) -> Option<MemberId> {
    let in_sync = hub.in_sync();
    let followers = hub.followers();
    let of_those = followers.iter().filter(|follower| in_sync.contains(&follower.id));
    of_those
        .max_by_key(|follower| follower.position)
        .and_then(|follower| MemberId::new(&follower.id).ok())
}
