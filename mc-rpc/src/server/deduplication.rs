//! Answers to tracked calls, kept for a while: a client that lost its connection sends
//! such a call again with the same token, and gets the answer of the first attempt.
//!
//! A client's calls are told apart by its session, which it draws at random and names on
//! each of its connections. What is kept is bounded in time and in bytes. A call whose
//! answer is not kept any more is refused and never executed again: a session remembers the
//! tokens whose answers were discarded, and a session that was discarded as a whole leaves
//! its highest token. A session costs nothing before its first tracked call.

mod given_up;

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use mc_types::ErrorCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::peer::Source;
use crate::caller::Caller;
use crate::refusal::{Completion, Refusal};
use given_up::GivenUp;

/// How long an answer is kept. Longer than any client sends a call again.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Bytes of answers that all sessions together keep.
const MAX_BYTES: usize = 64 << 20;

/// Bytes that a session may keep however many the others keep.
const FLOOR_BYTES: usize = 4 << 10;

/// The bytes that a kept answer costs beside its own.
const ENTRY_BYTES: usize = 96;

/// Sessions at a time, for each connection that the server allows.
const SESSIONS_PER_CONNECTION: usize = 2;

/// When there are as many sessions as there may be, this part of them goes at a time, so
/// that looking for the oldest costs each new one little.
const GONE_AT_A_TIME: usize = 16;

/// Sessions that were discarded and whose highest token is known.
const MAX_MARKS: usize = 1 << 17;

/// All sessions of a server.
#[derive(Debug)]
pub(super) struct Sessions {
    known: Mutex<Directory>,
    max: usize,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Directory {
    by_id: HashMap<u128, Arc<Session>>,
    /// The marks of sessions that had to make room for others.
    marks: HashMap<u128, Mark>,
    /// Their ids in the order in which they were discarded; some are back meanwhile.
    marked: VecDeque<(u128, Instant)>,
    /// How many of both come from where.
    by_source: HashMap<Source, usize>,
}

/// A session that was discarded.
#[derive(Debug)]
struct Mark {
    /// No token up to this one is executed.
    highest: u64,
    at: Instant,
    source: Source,
}

/// The memory that all sessions together use.
#[derive(Debug)]
struct Budget {
    bytes: AtomicUsize,
    /// The most that one session may keep while there is no room for all.
    share: AtomicUsize,
}

/// The session that a connection has named. It is there from the first tracked call on.
#[derive(Debug)]
pub(super) struct SessionRef {
    id: u128,
    source: Source,
    session: OnceLock<Arc<Session>>,
}

/// The tracked calls of one client.
#[derive(Debug)]
pub(super) struct Session {
    caller: Arc<Caller>,
    source: Source,
    answers: Mutex<Answers>,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Answers {
    by_token: HashMap<u64, KeptAnswer>,
    /// Tokens in the order in which their calls ended.
    ended: VecDeque<(u64, Instant)>,
    bytes: usize,
    /// The highest token of a call whose execution has begun.
    highest: Option<u64>,
    /// Tokens of calls that were executed and whose answers are not kept.
    given_up: GivenUp,
    /// When a call ended last.
    used: Instant,
}

#[derive(Debug)]
enum KeptAnswer {
    /// The call is being executed.
    Coming,
    /// The frame that answered it, and when it may be sent.
    Given(Bytes, Completion),
}

/// The next step with a tracked call.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Execute it, then tell [`Sessions::answered`].
    First,
    /// The call has been executed; this is the frame that answered it, with that call's id. It is
    /// held as the first one was: what it says may still not be durable.
    Repeated(Bytes, Completion),
    /// The call cannot be executed now, or ever.
    Refused(Refusal),
}

impl SessionRef {
    /// The session, which begins with its first tracked call.
    ///
    /// # Errors
    /// A [`Refusal`] when another caller has this session, or there are too many.
    pub(super) fn session(
        &self,
        sessions: &Sessions,
        caller: &Arc<Caller>,
    ) -> Result<&Session, Refusal> {
        if let Some(session) = self.session.get() {
            return Ok(session);
        }
        let begun = sessions.begin(self.id, self.source, caller)?;
        Ok(self.session.get_or_init(|| begun))
    }
}

impl Sessions {
    pub(super) fn new(max_connections: usize) -> Self {
        let max = max_connections.saturating_mul(SESSIONS_PER_CONNECTION);
        let budget = Budget { bytes: AtomicUsize::new(0), share: AtomicUsize::new(MAX_BYTES) };
        Self { known: Mutex::default(), max, budget: Arc::new(budget) }
    }

    /// The session that a connection of `caller` names.
    ///
    /// # Errors
    /// A [`Refusal`] when another caller has this session.
    pub(super) fn name(
        &self,
        id: u128,
        source: Source,
        caller: &Arc<Caller>,
    ) -> Result<SessionRef, Refusal> {
        if let Some(session) = self.known.lock().by_id.get(&id) {
            session.check(caller)?;
        }
        Ok(SessionRef { id, source, session: OnceLock::new() })
    }

    fn begin(
        &self,
        id: u128,
        source: Source,
        caller: &Arc<Caller>,
    ) -> Result<Arc<Session>, Refusal> {
        let now = Instant::now();
        let mut known = self.known.lock();
        if let Some(session) = known.by_id.get(&id) {
            session.check(caller)?;
            return Ok(Arc::clone(session));
        }
        if known.by_id.len() >= self.max {
            known.make_room(now);
        }
        let of_source = known.by_source.get(&source).copied().unwrap_or(0);
        if known.by_id.len() >= self.max || of_source >= MAX_MARKS / 2 {
            return Err(Refusal::new(
                ErrorCode::Overloaded,
                "this master keeps as many sessions as it can; retry in a minute",
            ));
        }
        let mut given_up = GivenUp::default();
        if let Some(mark) = known.marks.remove(&id) {
            known.forget_source(mark.source);
            given_up = GivenUp::up_to(mark.highest);
        }
        let session = Arc::new(Session {
            caller: Arc::clone(caller),
            source,
            answers: Mutex::new(Answers {
                by_token: HashMap::new(),
                ended: VecDeque::new(),
                bytes: 0,
                highest: given_up.highest(),
                given_up,
                used: now,
            }),
            budget: Arc::clone(&self.budget),
        });
        known.by_id.insert(id, Arc::clone(&session));
        *known.by_source.entry(source).or_default() += 1;
        Ok(session)
    }

    /// Keeps the frame that answered the call with `token`.
    pub(super) fn answered(
        &self,
        session: &Session,
        token: u64,
        frame: &[u8],
        completion: Completion,
    ) {
        session.keep(token, frame, completion);
        if self.budget.bytes.load(Ordering::Relaxed) > MAX_BYTES {
            self.share_out();
        }
    }

    /// Finds how much each session may keep so that all together keep what they may, and
    /// takes the oldest answers of those that keep more.
    fn share_out(&self) {
        let known = self.known.lock();
        let over = self.budget.bytes.load(Ordering::Relaxed) > MAX_BYTES;
        if !over {
            // Another call has done it meanwhile.
            return;
        }
        let mut kept: Vec<usize> =
            known.by_id.values().map(|session| session.answers.lock().bytes).collect();
        kept.sort_unstable();
        // Less than all, so that it is not looked for again at once.
        let share = fair_share(&kept, MAX_BYTES - MAX_BYTES / 8).max(FLOOR_BYTES);
        self.budget.share.store(share, Ordering::Relaxed);
        for session in known.by_id.values() {
            session.answers.lock().give_up_beyond(share, &self.budget);
        }
    }

    /// Forgets what is too old; to be called every few seconds.
    pub(super) fn sweep(&self, now: Instant) {
        let mut known = self.known.lock();
        let known = &mut *known;
        let by_source = &mut known.by_source;
        known.by_id.retain(|_, session| {
            let stays = session.is_of_use(now);
            if !stays {
                forget_source(by_source, session.source);
            }
            stays
        });
        known.forget_marks(now);
        if self.budget.bytes.load(Ordering::Relaxed) < MAX_BYTES / 2 {
            self.budget.share.store(MAX_BYTES, Ordering::Relaxed);
        }
    }
}

/// The most that each of `kept`, in ascending order, may have so that all together have no
/// more than `total`.
fn fair_share(kept: &[usize], total: usize) -> usize {
    let mut left = total;
    for (at, &bytes) in kept.iter().enumerate() {
        let share = left / (kept.len() - at);
        if bytes > share {
            return share;
        }
        left -= bytes;
    }
    total
}

impl Directory {
    /// Gives up sessions that no connection has: the oldest of those places that have most.
    fn make_room(&mut self, now: Instant) {
        self.forget_marks(now);
        let room = MAX_MARKS.saturating_sub(self.marks.len());
        let most = (self.by_id.len() / GONE_AT_A_TIME).max(1).min(room);
        let mut idle: Vec<_> = self
            .by_id
            .iter()
            .filter(|(_, session)| Arc::strong_count(session) == 1)
            .map(|(id, session)| {
                let many = self.by_source.get(&session.source).map_or(0, |count| count.ilog2());
                (Reverse(many), session.answers.lock().used, *id)
            })
            .collect();
        idle.sort_unstable();
        for (_, _, id) in idle.into_iter().take(most) {
            let Some(session) = self.by_id.remove(&id) else { continue };
            match session.answers.lock().highest {
                Some(highest) => {
                    self.marks.insert(id, Mark { highest, at: now, source: session.source });
                    self.marked.push_back((id, now));
                }
                None => self.forget_source(session.source),
            }
        }
    }

    fn forget_marks(&mut self, now: Instant) {
        while let Some((id, at)) = self.marked.front().copied()
            && now.saturating_duration_since(at) >= KEPT_FOR
        {
            self.marked.pop_front();
            if self.marks.get(&id).is_some_and(|mark| mark.at == at)
                && let Some(mark) = self.marks.remove(&id)
            {
                self.forget_source(mark.source);
            }
        }
        if self.marked.is_empty() && self.marks.capacity() > 0 {
            (self.marks, self.marked) = Default::default();
        }
    }

    fn forget_source(&mut self, source: Source) {
        forget_source(&mut self.by_source, source);
    }
}

fn forget_source(by_source: &mut HashMap<Source, usize>, source: Source) {
    if let Some(count) = by_source.get_mut(&source) {
        *count -= 1;
        if *count == 0 {
            by_source.remove(&source);
        }
    }
}

impl Session {
    fn check(&self, caller: &Arc<Caller>) -> Result<(), Refusal> {
        if self.caller == *caller {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorCode::PermissionDenied,
            "the session belongs to another caller; draw one at random",
        ))
    }

    /// Drops answers that are too old, and returns whether the session may still be needed.
    fn is_of_use(self: &Arc<Self>, now: Instant) -> bool {
        let mut answers = self.answers.lock();
        answers.give_up_before(now, &self.budget);
        // The client that else holds it is a connection, or a call that is being executed.
        Arc::strong_count(self) > 1 || now.saturating_duration_since(answers.used) < KEPT_FOR
    }

    /// Decides what to do with a call that bears `token`.
    pub(super) fn attempt(&self, token: u64) -> Attempt {
        let mut answers = self.answers.lock();
        match answers.by_token.get(&token) {
            Some(KeptAnswer::Given(frame, completion)) => {
                return Attempt::Repeated(frame.clone(), *completion);
            }
            Some(KeptAnswer::Coming) => {
                return Attempt::Refused(Refusal::new(
                    ErrorCode::Overloaded,
                    "the first attempt at this call is still under way; retry shortly",
                ));
            }
            None => {}
        }
        if answers.given_up.contains(token) {
            return Attempt::Refused(Refusal::new(
                ErrorCode::AnswerNotKept,
                "this call may have been executed; its answer is no longer kept: look at \
                 what it was to change before making it again",
            ));
        }
        answers.highest = answers.highest.max(Some(token));
        answers.by_token.insert(token, KeptAnswer::Coming);
        Attempt::First
    }

    fn keep(&self, token: u64, frame: &[u8], completion: Completion) {
        let now = Instant::now();
        let mut answers = self.answers.lock();
        answers.used = now;
        answers.ended.push_back((token, now));
        let answer = KeptAnswer::Given(Bytes::copy_from_slice(frame), completion);
        answers.by_token.insert(token, answer);
        let cost = frame.len() + ENTRY_BYTES;
        answers.bytes += cost;
        self.budget.bytes.fetch_add(cost, Ordering::Relaxed);
        answers.give_up_before(now, &self.budget);
        let share = self.budget.share.load(Ordering::Relaxed).max(FLOOR_BYTES);
        while self.budget.bytes.load(Ordering::Relaxed) > MAX_BYTES && answers.bytes > share {
            answers.give_up_oldest(&self.budget);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.answers.get_mut().bytes, Ordering::Relaxed);
    }
}

impl Answers {
    fn give_up_before(&mut self, now: Instant, budget: &Budget) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= KEPT_FOR;
        while self.ended.front().is_some_and(|(_, at)| is_old(*at)) {
            self.give_up_oldest(budget);
        }
        if self.ended.is_empty() && self.ended.capacity() > 64 {
            self.ended = VecDeque::new();
            self.by_token.shrink_to_fit();
        }
    }

    fn give_up_beyond(&mut self, share: usize, budget: &Budget) {
        while self.bytes > share {
            self.give_up_oldest(budget);
        }
    }

    fn give_up_oldest(&mut self, budget: &Budget) {
        let Some((token, _)) = self.ended.pop_front() else { return };
        self.given_up.insert(token);
        if let Some(KeptAnswer::Given(frame, _)) = self.by_token.remove(&token) {
            let cost = frame.len() + ENTRY_BYTES;
            self.bytes -= cost;
            budget.bytes.fetch_sub(cost, Ordering::Relaxed);
        }
    }
}

/// A kept frame as the answer to another call: everything but its id.
pub(super) fn readdressed(frame: &Bytes, id: u64) -> BytesMut {
    let mut frame = BytesMut::from(&frame[..]);
    frame[4..12].copy_from_slice(&id.to_le_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Role;

    const HERE: Source = Source::Local { uid: 1, pid: 1 };
    const THERE: Source = Source::Local { uid: 1, pid: 2 };

    fn begin(sessions: &Sessions, id: u128) -> Arc<Session> {
        sessions.begin(id, HERE, &Arc::new(Caller::ANYBODY)).unwrap()
    }

    fn execute(sessions: &Sessions, session: &Session, token: u64, frame: &[u8]) {
        assert!(matches!(session.attempt(token), Attempt::First));
        sessions.answered(session, token, frame, Completion::Now);
    }

    fn refused(session: &Session, token: u64) -> Refusal {
        match session.attempt(token) {
            Attempt::Refused(refusal) => refusal,
            attempt => panic!("{token}: {attempt:?}"),
        }
    }

    #[test]
    fn the_second_attempt_gets_the_first_answer() {
        let sessions = Sessions::new(8);
        let session = begin(&sessions, 1);
        assert!(matches!(session.attempt(5), Attempt::First));
        assert!(refused(&session, 5).is_retryable());
        sessions.answered(&session, 5, b"frame", Completion::Now);
        // On another connection too.
        let again = begin(&sessions, 1);
        assert!(matches!(again.attempt(5), Attempt::Repeated(frame, _) if &frame[..] == b"frame"));
        assert!(matches!(again.attempt(6), Attempt::First));
        let other = begin(&sessions, 2);
        assert!(matches!(other.attempt(5), Attempt::First));
    }

    #[test]
    fn nobody_gets_into_the_session_of_another() {
        let sessions = Sessions::new(8);
        let stranger = Arc::new(Caller::new("stranger", Role::Admin));
        // No client has it before its first tracked call.
        let named = sessions.name(1, HERE, &stranger).unwrap();
        let _session = begin(&sessions, 1);
        let denied = |refusal: Refusal| assert_eq!(refusal.code, ErrorCode::PermissionDenied);
        denied(sessions.name(1, HERE, &stranger).unwrap_err());
        denied(named.session(&sessions, &stranger).unwrap_err());
    }

    #[test]
    fn what_is_old_is_given_up_and_never_executed_again() {
        let sessions = Sessions::new(8);
        let session = begin(&sessions, 1);
        for token in 1..=3 {
            execute(&sessions, &session, token, &[0; 100]);
        }
        sessions.sweep(Instant::now() + KEPT_FOR);
        assert_eq!(sessions.budget.bytes.load(Ordering::Relaxed), 0);
        let refusal = refused(&session, 2);
        assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::AnswerNotKept, false));
        assert!(matches!(session.attempt(4), Attempt::First));
        // A session without a connection goes whole.
        drop(session);
        sessions.sweep(Instant::now() + KEPT_FOR);
        let known = sessions.known.lock();
        assert!(known.by_id.is_empty() && known.by_source.is_empty());
    }

    #[test]
    fn a_busy_session_gives_up_its_own_answers_and_executes_none_again() {
        let sessions = Sessions::new(8);
        let (busy, other) = (begin(&sessions, 1), begin(&sessions, 2));
        execute(&sessions, &other, 1, &[1; 100_000]);
        for token in 2..=3000 {
            execute(&sessions, &busy, token, &[0; 32 << 10]);
            assert!(sessions.budget.bytes.load(Ordering::Relaxed) <= MAX_BYTES);
            if token % 100 == 0 {
                execute(&sessions, &other, token, &[1; 100]);
            }
        }
        for token in (100..=3000).step_by(100).chain([1]) {
            assert!(matches!(other.attempt(token), Attempt::Repeated(_, _)), "{token}");
        }
        assert_eq!(refused(&busy, 2).code, ErrorCode::AnswerNotKept);
        // One that is late but new is none of them.
        assert!(matches!(busy.attempt(1), Attempt::First));
    }

    #[test]
    fn sessions_are_bounded_and_those_given_up_execute_nothing_again() {
        let sessions = Sessions::new(8);
        let connected = begin(&sessions, 1);
        execute(&sessions, &connected, 7, b"kept");
        let few = sessions.begin(2, THERE, &Arc::new(Caller::ANYBODY)).unwrap();
        execute(&sessions, &few, 7, b"kept");
        drop(few);
        for id in 3..1000 {
            execute(&sessions, &begin(&sessions, id), 9, b"frame");
            assert!(sessions.known.lock().by_id.len() <= 16);
        }
        for id in 1..3 {
            assert!(matches!(begin(&sessions, id).attempt(7), Attempt::Repeated(_, _)), "{id}");
        }
        let back = begin(&sessions, 3);
        assert_eq!(refused(&back, 9).code, ErrorCode::AnswerNotKept);
        assert!(matches!(back.attempt(10), Attempt::First));
        drop((back, connected));
        sessions.sweep(Instant::now() + KEPT_FOR);
        let known = sessions.known.lock();
        assert!(known.by_id.is_empty() && known.marks.is_empty() && known.by_source.is_empty());
    }

    #[test]
    fn shares_are_fair() {
        assert_eq!(fair_share(&[], 10), 10);
        assert_eq!(fair_share(&[1, 2, 3], 10), 10);
        assert_eq!(fair_share(&[1, 2, 30], 10), 7);
        assert_eq!(fair_share(&[1, 20, 30], 11), 5);
        assert_eq!(fair_share(&[20, 20, 30], 9), 3);
    }
}
