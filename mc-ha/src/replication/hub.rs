//! The leader's view of its standbys, which decides what it may acknowledge.

use core::fmt;
use core::pin::Pin;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{Environment, System};
use mc_types::{Epoch, Sequence};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::frame::ReplicationError;
use crate::encoding::Batch;
use crate::identity::Identity;
use crate::journal::{JournalError, MetadataJournal};
use crate::position::Position;
use crate::writer::JournalProgress;

/// Bytes of the last batches that are kept in memory for standbys.
const RECENT: usize = 32 << 20;

/// Settings of a [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubSettings {
    /// Whether a change is acknowledged only when every standby in sync has it. Default no.
    pub semi_synchronous: bool,
    /// How far a standby may be behind before it is not counted on any more. Default 2 seconds.
    pub sync_timeout: Duration,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self { semi_synchronous: false, sync_timeout: Duration::from_secs(2) }
    }
}

/// The leader's view of one standby.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowerState {
    /// The standby's member id.
    pub id: String,
    /// How far its journal is durable.
    pub position: Position,
    /// Changes that it lacks.
    pub lag: u64,
    /// How long it has lacked the oldest of them.
    pub behind_for: Duration,
    /// Whether it is connected.
    pub is_connected: bool,
}

/// The batches of a leader for its standbys, and what these have of them. It is the
/// [`JournalProgress`] of the leader's writer, and passes on to the leader what may be acknowledged.
pub struct Hub {
    settings: HubSettings,
    epoch: Epoch,
    last_unclean: Epoch,
    identity: Identity,
    journal: Arc<dyn MetadataJournal>,
    leader: Arc<dyn JournalProgress>,
    environment: Arc<dyn Environment>,
    state: Mutex<State>,
    /// Notified when batches were appended: in the order in which the streams wait, which that of a
    /// `watch` channel is not.
    appended: Notify,
}

/// A read of the journal that is under way.
pub(super) type Reading<T> = Pin<Box<dyn Future<Output = Result<T, ReplicationError>> + Send>>;

struct State {
    recent: VecDeque<(Instant, Batch)>,
    recent_bytes: usize,
    /// The position that the first of them follows.
    base: Position,
    /// The last batch that was appended.
    last: Position,
    followers: BTreeMap<String, Follower>,
    /// Up to here the leader itself would acknowledge.
    local: Sequence,
    /// Up to here it was told that it may.
    told: Sequence,
}

struct Follower {
    /// Up to here its journal is durable, as it says.
    position: Position,
    /// Whether it has acknowledged something on its last stream. Before, its journal may be of another
    /// history, in which the same position means something else: only the standby can tell.
    is_of_history: bool,
    /// Streams that it has open; the last one counts.
    streams: u64,
    stream: u64,
    /// Whether acknowledgements wait for it.
    is_counted: bool,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Hub {
    /// A hub of the term that is about to begin in this journal; `leader` is told what may be
    /// acknowledged.
    ///
    /// # Errors
    /// What the journal says, which must have an identity.
    pub fn new(
        epoch: Epoch,
        journal: Arc<dyn MetadataJournal>,
        leader: Arc<dyn JournalProgress>,
        settings: HubSettings,
    ) -> Result<Self, JournalError> {
        let identity = journal.identity()?.unwrap_or(Identity { seed: 0, secret: [0; 16] });
        let base = journal.last().unwrap_or_default();
        Ok(Self {
            settings,
            epoch,
            last_unclean: Epoch::new(0),
            identity,
            journal,
            leader,
            environment: Arc::new(System),
            state: Mutex::new(State {
                recent: VecDeque::new(),
                recent_bytes: 0,
                base,
                last: base,
                followers: BTreeMap::new(),
                local: Sequence::new(0),
                told: Sequence::new(0),
            }),
            appended: Notify::new(),
        })
    }

    /// Reads the journal where this environment runs work that may block; by default on the threads of
    /// the runtime that serves the standbys.
    #[must_use]
    pub fn with_environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Tells the standbys that this term was the last one that began
    /// [uncleanly](crate::election::Leadership::last_unclean): what they have from before it, and the
    /// leader has not, they set aside.
    #[must_use]
    pub fn with_last_unclean(mut self, epoch: Epoch) -> Self {
        self.last_unclean = epoch;
        self
    }

    pub(super) fn last_unclean(&self) -> Epoch {
        self.last_unclean
    }

    /// Returns the leader's term.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Begins to read the journal by `read`, which may block.
    pub(super) fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn MetadataJournal) -> Result<T, ReplicationError> + Send + 'static,
    ) -> Reading<T> {
        let journal = Arc::clone(&self.journal);
        let outcome = self.environment.blocking(move || read(&*journal));
        Box::pin(async {
            match outcome.await {
                Some(Ok(outcome)) => outcome,
                // A panic was reported when it happened.
                Some(Err(_)) | None => Err(ReplicationError::Ended),
            }
        })
    }

    /// The last batch that was appended.
    pub(super) fn last(&self) -> Position {
        self.state.lock().last
    }

    /// Waits until more batches are appended after this call.
    pub(super) fn more(&self) -> Notified<'_> {
        self.appended.notified()
    }

    /// The standbys.
    #[must_use]
    pub fn followers(&self) -> Vec<FollowerState> {
        let state = self.state.lock();
        let now = Instant::now();
        let last = state.last;
        let follower = |(id, follower): (&String, &Follower)| FollowerState {
            id: id.clone(),
            position: follower.position,
            lag: if follower.position.epoch == last.epoch {
                last.sequence.as_u64().saturating_sub(follower.position.sequence.as_u64())
            } else {
                last.sequence.as_u64()
            },
            behind_for: state.behind_for(follower.position, now),
            is_connected: follower.stream > 0,
        };
        state.followers.iter().map(follower).collect()
    }

    /// The standbys that are near: they have, or will have in a moment, all that was acknowledged.
    #[must_use]
    pub fn in_sync(&self) -> Vec<String> {
        let state = self.state.lock();
        let now = Instant::now();
        let is_near = |follower: &Follower| {
            follower.follows()
                && follower.position.epoch == self.epoch
                && state.behind_for(follower.position, now) < self.settings.sync_timeout
        };
        let near = state.followers.iter().filter(|(_, follower)| is_near(follower));
        near.map(|(id, _)| id.clone()).collect()
    }

    /// Counts on these standbys from now on: with
    /// [`semi_synchronous`](HubSettings::semi_synchronous) nothing more is acknowledged that one of
    /// them lacks. The others may be told that a standby is in sync when it is counted on and
    /// [has all that was acknowledged before](Self::has_all_acknowledged); it has to be counted on
    /// until they are told that it is not.
    pub fn count_on(&self, standbys: &[String]) {
        let mut state = self.state.lock();
        for (id, follower) in &mut state.followers {
            follower.is_counted = standbys.contains(id);
        }
        self.acknowledge_what_may_be(state);
    }

    /// Returns whether a standby has everything that was acknowledged in this term. Without
    /// [`semi_synchronous`](HubSettings::semi_synchronous) no call waits for that: true.
    #[must_use]
    pub fn has_all_acknowledged(&self, standby: &str) -> bool {
        let state = self.state.lock();
        let follower = state.followers.get(standby);
        follower.is_some_and(|follower| follower.has_in(self.epoch) >= state.told)
    }

    /// Returns whether a standby is connected, and its journal durable up to this position of the term.
    #[must_use]
    pub fn has(&self, standby: &str, until: Position) -> bool {
        let state = self.state.lock();
        let follower = state.followers.get(standby).filter(|follower| follower.follows());
        follower.is_some_and(|follower| follower.position >= until)
    }

    /// Returns the last change of the term that is acknowledged, and that the leader's own journal,
    /// which is durable up to `own`, and these standbys have. 0 without
    /// [`semi_synchronous`](HubSettings::semi_synchronous), where standbys in sync may lack some.
    #[must_use]
    pub fn common(&self, standbys: &[String], own: Sequence) -> Sequence {
        let state = self.state.lock();
        let has = |id| state.followers.get(id).map_or(Sequence::new(0), |it| it.has_in(self.epoch));
        standbys.iter().map(has).fold(own.min(state.told), Sequence::min)
    }

    /// Returns the last batch that standbys can get.
    #[must_use]
    pub fn end(&self) -> Position {
        self.last()
    }

    /// Tells the leader up to where it may acknowledge.
    fn acknowledge_what_may_be(&self, mut state: MutexGuard<'_, State>) {
        let counted = state.followers.values().filter(|follower| follower.is_counted);
        let until = counted.map(|it| it.has_in(self.epoch)).fold(state.local, Sequence::min);
        state.told = state.told.max(until);
        drop(state);
        self.leader.acknowledge(until);
    }

    /// A standby has opened a stream. Returns the stream's number.
    pub(super) fn joined(&self, id: &str, position: Position) -> u64 {
        let mut state = self.state.lock();
        let new =
            Follower { position, is_of_history: false, streams: 0, stream: 0, is_counted: false };
        let follower = state.followers.entry(id.to_owned()).or_insert(new);
        (follower.position, follower.is_of_history) = (position, false);
        follower.streams += 1;
        follower.stream = follower.streams;
        follower.stream
    }

    /// A standby's stream has ended.
    pub(super) fn left(&self, id: &str, stream: u64) {
        let mut state = self.state.lock();
        if let Some(follower) = state.followers.get_mut(id)
            && follower.stream == stream
        {
            follower.stream = 0;
        }
    }

    /// A standby's journal is durable up to here.
    pub(super) fn acknowledged_by(&self, id: &str, stream: u64, position: Position) {
        let mut state = self.state.lock();
        let Some(follower) = state.followers.get_mut(id) else { return };
        if follower.stream != stream {
            return;
        }
        follower.position = follower.position.max(position);
        follower.is_of_history = true;
        if self.settings.semi_synchronous {
            self.acknowledge_what_may_be(state);
        }
    }

    /// The batches behind this position, a few at a time; `None` when they are not in memory any
    /// more.
    pub(super) fn recent_after(&self, position: Position) -> Option<Vec<Batch>> {
        let state = self.state.lock();
        if position < state.base {
            return None;
        }
        let first = state.recent.partition_point(|(_, batch)| batch.last() <= position);
        let (mut some, mut bytes) = (Vec::new(), 0);
        for (_, batch) in state.recent.range(first..) {
            some.push(batch.clone());
            bytes += batch.bytes().len();
            if bytes > 1 << 20 {
                break;
            }
        }
        Some(some)
    }
}

impl Follower {
    /// Whether it is connected, and follows the history of this journal.
    fn follows(&self) -> bool {
        self.stream > 0 && self.is_of_history
    }

    /// The last effect of this term that its journal has.
    fn has_in(&self, epoch: Epoch) -> Sequence {
        let is_of_term = self.position.epoch == epoch && self.is_of_history;
        if is_of_term { self.position.sequence } else { Sequence::new(0) }
    }
}

impl State {
    /// How long the oldest batch behind this position has been there.
    fn behind_for(&self, position: Position, now: Instant) -> Duration {
        let first = self.recent.partition_point(|(_, batch)| batch.last() <= position);
        // What is not in memory any more is older than all that is.
        let oldest =
            if position < self.base { self.recent.front() } else { self.recent.get(first) };
        oldest.map_or(Duration::ZERO, |(since, _)| now.saturating_duration_since(*since))
    }
}

impl JournalProgress for Hub {
    fn acknowledge(&self, until: Sequence) {
        if !self.settings.semi_synchronous {
            self.leader.acknowledge(until);
            return;
        }
        let mut state = self.state.lock();
        state.local = state.local.max(until);
        self.acknowledge_what_may_be(state);
    }

    fn suspended(&self, cause: Option<&JournalError>) {
        self.leader.suspended(cause);
    }

    fn appended(&self, batches: &[Batch]) {
        let mut state = self.state.lock();
        let now = Instant::now();
        for batch in batches {
            state.recent_bytes += batch.bytes().len();
            state.recent.push_back((now, batch.clone()));
        }
        while state.recent_bytes > RECENT
            && state.recent.len() > 1
            && let Some((_, batch)) = state.recent.pop_front()
        {
            state.recent_bytes -= batch.bytes().len();
            state.base = batch.last();
        }
        if let Some(last) = batches.last() {
            state.last = last.last();
        }
        drop(state);
        self.appended.notify_waiters();
        self.leader.appended(batches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryJournal;

    /// The last change that may be acknowledged.
    struct Told(Mutex<Sequence>);

    impl JournalProgress for Told {
        fn acknowledge(&self, until: Sequence) {
            let mut told = self.0.lock();
            *told = told.max(until);
        }

        fn suspended(&self, _: Option<&JournalError>) {}

        fn appended(&self, _: &[Batch]) {}
    }

    fn at(sequence: u64) -> Position {
        Position { epoch: Epoch::new(1), sequence: Sequence::new(sequence) }
    }

    #[tokio::test]
    async fn a_position_counts_when_the_standby_has_compared_the_histories() {
        let told = Arc::new(Told(Mutex::new(Sequence::new(0))));
        let settings = HubSettings { semi_synchronous: true, ..HubSettings::default() };
        let journal = Arc::new(MemoryJournal::new());
        let leader = Arc::clone(&told) as Arc<dyn JournalProgress>;
        let hub = Hub::new(Epoch::new(1), journal, leader, settings).expect("a journal");
        let standby = ["a".to_owned()];
        // As far as the leader, in a history that may be another one.
        let stream = hub.joined("a", at(25));
        hub.acknowledge(Sequence::new(20));
        assert!(hub.in_sync().is_empty() && !hub.has("a", at(1)));
        hub.count_on(&standby);
        hub.acknowledge(Sequence::new(25));
        assert_eq!(*told.0.lock(), Sequence::new(20), "it may have nothing");
        assert_eq!(hub.common(&standby, Sequence::new(25)), Sequence::new(0));
        hub.acknowledged_by("a", stream, at(25));
        assert_eq!(hub.in_sync(), standby);
        assert!(hub.has("a", at(25)));
        assert_eq!(*told.0.lock(), Sequence::new(25));
        // Another stream, another journal perhaps.
        hub.left("a", stream);
        hub.joined("a", at(25));
        assert!(hub.in_sync().is_empty() && !hub.has("a", at(1)));
    }
}
