//! Answers to tracked calls, kept for a while: a client that lost its connection sends
//! such a call again with the same token, and gets the answer of the first attempt.
//!
//! A client's calls are told apart by its session, which it draws at random and names on
//! each of its connections. What is kept is bounded in time and in bytes. A second attempt
//! that comes too late is refused, because nobody can tell any more whether there was a
//! first. One whose answer had to make room for others before its time is executed: calls
//! do not come in the order of their tokens, so that a lower one may well be new.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use mc_types::ErrorCode;
use parking_lot::Mutex;

use crate::caller::Caller;
use crate::error::Refusal;

/// How long an answer is kept. Longer than any client waits for one.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Bytes of answers that all sessions together keep.
const MAX_BYTES: usize = 64 << 20;

/// Bytes that a session may keep however many the others keep.
const FLOOR_BYTES: usize = 4 << 10;

/// What an answer costs beside its bytes.
const ENTRY_BYTES: usize = 96;

/// Sessions at a time, for each connection that the server allows.
const SESSIONS_PER_CONNECTION: usize = 2;

/// All sessions of a server.
#[derive(Debug)]
pub(super) struct Sessions {
    by_id: Mutex<HashMap<u128, Arc<Session>>>,
    max: usize,
    bytes: Arc<AtomicUsize>,
}

/// What one client has asked for.
#[derive(Debug)]
pub(super) struct Session {
    caller: Arc<Caller>,
    answers: Mutex<Answers>,
    /// Bytes kept by all sessions.
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Answers {
    by_token: HashMap<u64, Answer>,
    /// Tokens in the order in which their calls ended.
    ended: VecDeque<(u64, Instant)>,
    bytes: usize,
    /// The highest token whose answer has been given up for its age.
    forgotten: Option<u64>,
}

#[derive(Debug)]
enum Answer {
    /// The call is being executed.
    Coming,
    /// The frame that answered it.
    Given(Bytes),
}

/// What to do with a tracked call.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Execute it, then tell [`Session::answered`].
    First,
    /// It has been executed; this is the frame that answered it, with that call's id.
    Repeated(Bytes),
    /// It cannot be executed now, or ever.
    Refused(Refusal),
}

impl Sessions {
    pub(super) fn new(max_connections: usize) -> Self {
        let max = max_connections.saturating_mul(SESSIONS_PER_CONNECTION);
        Self { by_id: Mutex::default(), max, bytes: Arc::default() }
    }

    /// The session that a connection of `caller` names.
    ///
    /// # Errors
    /// A [`Refusal`] when another caller has this session, or there are too many.
    pub(super) fn open(&self, id: u128, caller: &Arc<Caller>) -> Result<Arc<Session>, Refusal> {
        let mut by_id = self.by_id.lock();
        if let Some(session) = by_id.get(&id) {
            if session.caller != *caller {
                return Err(Refusal::new(
                    ErrorCode::PermissionDenied,
                    "the session belongs to another caller; draw one at random",
                ));
            }
            return Ok(Arc::clone(session));
        }
        if by_id.len() >= self.max {
            by_id.retain(|_, session| session.is_of_use(Instant::now()));
        }
        if by_id.len() >= self.max {
            return Err(Refusal::new(
                ErrorCode::Overloaded,
                "this master keeps as many sessions as it can; retry in a minute",
            ));
        }
        let session = Arc::new(Session {
            caller: Arc::clone(caller),
            answers: Mutex::default(),
            bytes: Arc::clone(&self.bytes),
        });
        by_id.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// Forgets what is too old; to be called every few seconds.
    pub(super) fn sweep(&self, now: Instant) {
        self.by_id.lock().retain(|_, session| session.is_of_use(now));
    }
}

impl Session {
    /// Forgets what is too old, and says whether anybody may still want the rest.
    fn is_of_use(self: &Arc<Self>, now: Instant) -> bool {
        let mut answers = self.answers.lock();
        answers.forget_before(now, &self.bytes);
        // Whoever else holds it is a connection, or a call that is being executed.
        !answers.ended.is_empty() || Arc::strong_count(self) > 1
    }

    /// Says what to do with a call that bears `token`.
    pub(super) fn attempt(&self, token: u64) -> Attempt {
        let mut answers = self.answers.lock();
        match answers.by_token.get(&token) {
            Some(Answer::Given(frame)) => return Attempt::Repeated(frame.clone()),
            Some(Answer::Coming) => {
                return Attempt::Refused(Refusal::new(
                    ErrorCode::Overloaded,
                    "the first attempt at this call is still under way; retry shortly",
                ));
            }
            None => {}
        }
        if answers.forgotten.is_some_and(|forgotten| token <= forgotten) {
            return Attempt::Refused(Refusal::new(
                ErrorCode::RpcFail,
                "this call may have been executed before; its answer is not kept any more",
            ));
        }
        answers.by_token.insert(token, Answer::Coming);
        Attempt::First
    }

    /// Keeps the frame that answered the call with `token`.
    pub(super) fn answered(&self, token: u64, frame: &[u8]) {
        let now = Instant::now();
        let mut answers = self.answers.lock();
        answers.ended.push_back((token, now));
        answers.by_token.insert(token, Answer::Given(Bytes::copy_from_slice(frame)));
        let cost = frame.len() + ENTRY_BYTES;
        answers.bytes += cost;
        self.bytes.fetch_add(cost, Ordering::Relaxed);
        answers.forget_before(now, &self.bytes);
        while self.bytes.load(Ordering::Relaxed) > MAX_BYTES && answers.bytes > FLOOR_BYTES {
            answers.forget_oldest(&self.bytes);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.answers.get_mut().bytes, Ordering::Relaxed);
    }
}

impl Answers {
    fn forget_before(&mut self, now: Instant, total: &AtomicUsize) {
        while self.ended.front().is_some_and(|(_, at)| now.duration_since(*at) >= KEPT_FOR) {
            self.forgotten = self.forgotten.max(self.forget_oldest(total));
        }
    }

    fn forget_oldest(&mut self, total: &AtomicUsize) -> Option<u64> {
        let (token, _) = self.ended.pop_front()?;
        if let Some(Answer::Given(frame)) = self.by_token.remove(&token) {
            let cost = frame.len() + ENTRY_BYTES;
            self.bytes -= cost;
            total.fetch_sub(cost, Ordering::Relaxed);
        }
        Some(token)
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

    fn sessions() -> (Sessions, Arc<Session>) {
        let sessions = Sessions::new(8);
        let session = sessions.open(1, &Arc::new(Caller::ANYBODY)).unwrap();
        (sessions, session)
    }

    #[test]
    fn the_second_attempt_gets_the_first_answer() {
        let (sessions, session) = sessions();
        assert!(matches!(session.attempt(5), Attempt::First));
        let Attempt::Refused(refusal) = session.attempt(5) else { panic!("executed twice") };
        assert!(refusal.is_retryable());
        session.answered(5, b"frame");
        // On another connection too.
        let again = sessions.open(1, &Arc::new(Caller::ANYBODY)).unwrap();
        assert!(matches!(again.attempt(5), Attempt::Repeated(frame) if &frame[..] == b"frame"));
        assert!(matches!(again.attempt(6), Attempt::First));
        let other = sessions.open(2, &Arc::new(Caller::ANYBODY)).unwrap();
        assert!(matches!(other.attempt(5), Attempt::First));
    }

    #[test]
    fn nobody_gets_into_the_session_of_another() {
        let (sessions, _session) = sessions();
        let stranger = Arc::new(Caller::new("stranger", Role::Admin));
        assert_eq!(sessions.open(1, &stranger).unwrap_err().code, ErrorCode::PermissionDenied);
    }

    #[test]
    fn what_is_old_is_forgotten_and_never_executed_again() {
        let (sessions, session) = sessions();
        for token in 1..=3 {
            assert!(matches!(session.attempt(token), Attempt::First));
            session.answered(token, &[0; 100]);
        }
        sessions.sweep(Instant::now() + KEPT_FOR);
        assert_eq!(sessions.bytes.load(Ordering::Relaxed), 0);
        let Attempt::Refused(refusal) = session.attempt(2) else { panic!("executed twice") };
        assert_eq!((refusal.code, refusal.is_retryable()), (ErrorCode::RpcFail, false));
        assert!(matches!(session.attempt(4), Attempt::First));
        // A session without a connection goes whole.
        drop(session);
        sessions.sweep(Instant::now() + KEPT_FOR);
        assert!(sessions.by_id.lock().is_empty());
    }

    #[test]
    fn sessions_and_their_bytes_are_bounded() {
        let (sessions, session) = sessions();
        for token in 1..=3000 {
            assert!(matches!(session.attempt(token), Attempt::First));
            session.answered(token, &[0; 32 << 10]);
            assert!(sessions.bytes.load(Ordering::Relaxed) <= MAX_BYTES);
        }
        // What made room says nothing of a call that is late but new.
        assert!(matches!(session.attempt(0), Attempt::First));
        let held: Vec<_> =
            (2..).map_while(|id| sessions.open(id, &Arc::new(Caller::ANYBODY)).ok()).collect();
        assert_eq!(held.len(), 15);
        drop((held, session));
        sessions.sweep(Instant::now() + KEPT_FOR);
        assert_eq!(sessions.bytes.load(Ordering::Relaxed), 0);
    }
}
