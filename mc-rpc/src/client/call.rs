//! One call, from its beginning to what its caller is told.
//!
//! Sans-I/O: the async client and the blocking one make the attempts on connections of theirs, and
//! tell the [`Call`] what became of each. It decides whether there is another attempt, and when.

use core::mem;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use super::backoff::{backoff, bounded};
use super::config::ClientConfig;
use super::credentials::Identity;
use super::dial::{broke, may_pass, was_silent};
use super::metrics::Ended;
use super::request::{KNOWN_FOR, silence, write_request};
use crate::error::RpcError;
use crate::frame::{FrameHeader, HEADER_LEN, Kind};
use crate::method::{Method, Repeat};
use crate::refusal::Refusal;

/// A call under way.
pub(super) struct Call<'a> {
    config: &'a ClientConfig,
    /// The master's address, as given.
    addr: &'a Arc<str>,
    pub(super) method: Method,
    /// The header of its request, once that is [written](Self::write).
    pub(super) header: FrameHeader,
    token: Option<u64>,
    /// When its first attempt began.
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    /// Whether it may be sent again when a connection breaks.
    repeats: bool,
    /// Attempts that have failed.
    failures: u32,
    /// The last failure of an attempt that may have been executed.
    lost: Option<RpcError>,
    /// Whether the next attempt repeats one that was sent.
    is_repeat: bool,
    /// The incarnation of the server that has the attempt under way.
    server: u64,
    /// That of the server that had the first attempt which may have been executed.
    first_server: Option<u64>,
    pub(super) ended: Ended,
}

impl<'a> Call<'a> {
    /// Begins a call, with a token where its second execution would do harm.
    pub(super) fn begin(
        config: &'a ClientConfig,
        addr: &'a Arc<str>,
        identity: &Identity,
        method: Method,
        now: Instant,
    ) -> Self {
        let token = match method.repeat() {
            Repeat::Harmless => None,
            Repeat::Tracked | Repeat::Once => identity.next_token(),
        };
        let is_harmless = method.repeat() == Repeat::Harmless || token.is_some();
        Self {
            config,
            addr,
            method,
            header: FrameHeader::new(0, method.number(), Kind::Request),
            token,
            begun: now,
            deadline: now + bounded(config.call_timeout),
            repeats: config.retry && is_harmless,
            failures: 0,
            lost: None,
            is_repeat: false,
            server: 0,
            first_server: None,
            ended: Ended::default(),
        }
    }

    /// Goes on with a call whose request was written and sent before, for the whole time of a call.
    pub(super) fn resume(
        config: &'a ClientConfig,
        addr: &'a Arc<str>,
        (method, header, begun): (Method, FrameHeader, Instant),
        first_server: u64,
        now: Instant,
    ) -> Self {
        Self {
            config,
            addr,
            method,
            header,
            token: None,
            begun,
            deadline: now + bounded(config.call_timeout),
            repeats: true,
            failures: 0,
            lost: None,
            is_repeat: false,
            server: first_server,
            first_server: Some(first_server),
            ended: Ended::default(),
        }
    }

    /// Writes its request, whose message `write` writes, into `out`, which is empty.
    ///
    /// # Errors
    /// [`RpcError::RequestTooLarge`].
    pub(super) fn write(
        &mut self,
        out: &mut BytesMut,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<(), RpcError> {
        self.header = write_request(out, self.method, self.token, write)?;
        Ok(())
    }

    /// Returns how long the call may take.
    pub(super) const fn timeout(&self) -> Duration {
        self.config.call_timeout
    }

    /// Returns how long an attempt may hear nothing before the next one is made.
    pub(super) fn silence(&self) -> Option<Duration> {
        if self.repeats { silence(self.config, self.method, self.frame_len()) } else { None }
    }

    const fn frame_len(&self) -> usize {
        HEADER_LEN + self.header.payload_len as usize
    }

    /// Notes that its request was sent.
    pub(super) const fn sent(&mut self) {
        self.ended.sent += self.frame_len();
    }

    /// Notes that an answer of this length came.
    pub(super) const fn answered(&mut self, payload_len: usize) {
        self.ended.received += HEADER_LEN + payload_len;
    }

    /// The next attempt is sent to the server with this incarnation, which is told whether another
    /// one may have executed the call.
    ///
    /// # Errors
    /// A refusal, when an older server cannot be told and would execute the call once more.
    pub(super) fn goes_to(&mut self, incarnation: u64) -> Result<(), RpcError> {
        self.server = incarnation;
        let has_moved = self.first_server.is_some_and(|first| first != incarnation);
        let is_told = incarnation != 0;
        self.header.moved = has_moved && is_told;
        if has_moved && !is_told && self.method.repeat() == Repeat::Once {
            return Err(Refusal::outcome_unknown().into());
        }
        Ok(())
    }

    /// Returns the incarnation of the server that had the first attempt.
    pub(super) fn first_server(&self) -> u64 {
        self.first_server.unwrap_or(self.server)
    }

    /// An attempt failed that may have been executed. Returns how long to wait before the next one.
    ///
    /// # Errors
    /// What the caller is told, when there is no further attempt.
    pub(super) fn failed(&mut self, error: RpcError, now: Instant) -> Result<Duration, RpcError> {
        self.first_server.get_or_insert(self.server);
        if !self.repeats || !broke(&error) {
            return Err(error);
        }
        let wait = self.next_wait();
        let next = now + wait;
        // The master knows a token for a limited time.
        let is_known = !self.header.tracked || next - self.begun < KNOWN_FOR;
        if !is_known || next >= self.deadline {
            return Err(self.told(error, next));
        }
        self.lost = Some(error);
        self.is_repeat = true;
        Ok(wait)
    }

    /// There is a connection for the next attempt. To make it may have taken long.
    ///
    /// # Errors
    /// What the caller is told, when the master may have forgotten an attempt before: it would
    /// execute the call once more.
    pub(super) fn connected(&mut self, now: impl FnOnce() -> Instant) -> Result<(), RpcError> {
        match self.lost.take() {
            Some(lost) if self.header.tracked && now() - self.begun >= KNOWN_FOR => Err(lost),
            lost => {
                self.lost = lost;
                self.ended.retries += u32::from(mem::take(&mut self.is_repeat));
                Ok(())
            }
        }
    }

    /// The connection took no calls any more, so that nothing was sent. Returns how long to wait
    /// before the next attempt.
    pub(super) fn not_sent(&mut self) -> Duration {
        self.next_wait()
    }

    /// The master refused to execute the call because its time was over, and it is not: their
    /// clocks do not agree. Returns whether to try another connection; otherwise the refusal is the
    /// answer.
    pub(super) fn came_too_early(&mut self) -> bool {
        let is_first = self.failures == 0;
        if is_first {
            self.failures = 1;
            self.is_repeat = true;
        }
        is_first
    }

    /// There is no connection for another attempt. Returns what the caller is told: an earlier
    /// attempt may have been executed.
    pub(super) fn unconnected(&mut self, error: RpcError, now: Instant) -> RpcError {
        // An attempt to connect that may succeed later failed for lack of time only.
        let at = if may_pass(&error) { self.deadline.max(now) } else { now };
        let error = self.lost.take().unwrap_or(error);
        self.told(error, at)
    }

    /// A call that heard nothing until its deadline has timed out, whatever its last connection
    /// met.
    fn told(&self, error: RpcError, at: Instant) -> RpcError {
        if was_silent(&error) && at >= self.deadline {
            let (addr, after) = (Arc::clone(self.addr), self.config.call_timeout);
            return RpcError::TimedOut { addr, method: self.method, after };
        }
        error
    }

    /// The first failure most often met a connection that had been lost while nothing was under
    /// way; its repetition need not wait.
    fn next_wait(&mut self) -> Duration {
        let before = self.failures.checked_sub(1);
        self.failures = self.failures.saturating_add(1);
        before.map_or(Duration::ZERO, |before| backoff(self.config, before))
    }

    /// Returns whether it begins puts, in a way that the master can tell it again.
    pub(super) fn begins_puts(&self) -> bool {
        self.header.tracked && matches!(self.method, Method::PutStart | Method::BatchPutStart)
    }

    /// Returns whether it may have begun puts that its caller knows nothing of, when it failed so.
    pub(super) fn left_puts(&self, error: &RpcError) -> bool {
        self.begins_puts() && (may_be_executed(error) || matches!(error, RpcError::GivenUp { .. }))
    }
}

/// Returns whether the master may have executed a call that failed so.
pub(super) fn may_be_executed(error: &RpcError) -> bool {
    matches!(error, RpcError::ConnectionLost { .. } | RpcError::TimedOut { .. })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn addr() -> Arc<str> {
        Arc::from("master:1")
    }

    fn lost(kind: io::ErrorKind) -> RpcError {
        RpcError::ConnectionLost { addr: addr(), source: Arc::new(kind.into()) }
    }

    fn config() -> ClientConfig {
        ClientConfig { call_timeout: Duration::from_secs(10), ..ClientConfig::default() }
    }

    /// Begins a call, and writes a request of one byte.
    fn begin<'a>(
        config: &'a ClientConfig,
        addr: &'a Arc<str>,
        method: Method,
        now: Instant,
    ) -> Call<'a> {
        let identity = Identity::new(config);
        let mut call = Call::begin(config, addr, &identity, method, now);
        call.write(&mut BytesMut::new(), |out| out.extend_from_slice(b"x")).unwrap();
        call
    }

    #[test]
    fn a_call_is_sent_again_until_its_time_is_over() {
        let (config, addr, begun) = (config(), addr(), Instant::now());
        let mut call = begin(&config, &addr, Method::Remove, begun);
        assert!(call.header.tracked, "a second execution would be refused");
        let mut now = begun;
        assert_eq!(call.failed(lost(io::ErrorKind::BrokenPipe), now).unwrap(), Duration::ZERO);
        let error = loop {
            now += Duration::from_millis(10);
            match call.failed(lost(io::ErrorKind::BrokenPipe), now) {
                Ok(wait) => {
                    call.connected(|| now).unwrap();
                    assert!(wait >= config.min_backoff / 2 && wait <= config.max_backoff);
                    now += wait;
                    assert!(now < call.deadline);
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
        assert!(now + config.max_backoff >= call.deadline, "no attempt is left out");
        assert!(call.ended.retries > 3);
    }

    #[test]
    fn only_a_broken_connection_is_a_reason_to_send_a_call_again() {
        let (mut config, addr, now) = (config(), addr(), Instant::now());
        let refused = || Refusal::new(mc_types::ErrorCode::Full, "full").into();
        let errors = [refused(), lost(io::ErrorKind::InvalidData)];
        for error in errors {
            let mut call = begin(&config, &addr, Method::ExistKey, now);
            assert!(call.failed(error, now).is_err());
            assert_eq!(call.ended.retries, 0);
        }
        config.retry = false;
        let mut call = begin(&config, &addr, Method::ExistKey, now);
        assert!(call.failed(lost(io::ErrorKind::BrokenPipe), now).is_err());
        assert_eq!(call.silence(), None, "an attempt that is the only one has all the time");
    }

    #[test]
    fn a_token_is_not_used_for_longer_than_the_master_knows_it() {
        let (mut config, addr, begun) = (config(), addr(), Instant::now());
        config.call_timeout = Duration::from_secs(3600);
        let mut call = begin(&config, &addr, Method::Remove, begun);
        let late = begun + KNOWN_FOR;
        assert!(
            call.failed(lost(io::ErrorKind::BrokenPipe), late - Duration::from_millis(1)).is_ok()
        );
        assert!(call.failed(lost(io::ErrorKind::BrokenPipe), late).is_err());
        let mut call = begin(&config, &addr, Method::Remove, begun);
        assert!(call.connected(|| late).is_ok(), "nothing was sent before");
        assert!(call.failed(lost(io::ErrorKind::BrokenPipe), begun).is_ok());
        assert!(call.connected(|| late - Duration::from_millis(1)).is_ok());
        assert!(call.connected(|| late).is_err(), "connecting took too long");
        let mut harmless = begin(&config, &addr, Method::ExistKey, begun);
        assert!(harmless.failed(lost(io::ErrorKind::BrokenPipe), late).is_ok());
        assert!(harmless.connected(|| late).is_ok());
    }

    #[test]
    fn another_server_is_told_that_it_is_not_the_first() {
        let (config, addr, now) = (config(), addr(), Instant::now());
        let begin = |method| begin(&config, &addr, method, now);
        let lose = |call: &mut Call<'_>| {
            call.failed(lost(io::ErrorKind::BrokenPipe), now).unwrap();
        };
        let mut call = begin(Method::Remove);
        call.goes_to(7).unwrap();
        assert!(!call.header.moved);
        // A connection that took no call.
        call.not_sent();
        call.goes_to(8).unwrap();
        assert!(!call.header.moved, "nothing was sent to the other");
        lose(&mut call);
        call.goes_to(8).unwrap();
        assert!(!call.header.moved, "it knows the token");
        lose(&mut call);
        for (server, moved) in [(9, true), (8, false), (10, true)] {
            call.goes_to(server).unwrap();
            assert_eq!(call.header.moved, moved, "{server}");
            lose(&mut call);
        }
        // One that cannot be told.
        let refused = call.goes_to(0).unwrap_err();
        assert_eq!(refused.code(), mc_types::ErrorCode::OutcomeUnknown);
        for method in [Method::PutEnd, Method::ExistKey] {
            let mut call = begin(method);
            call.goes_to(7).unwrap();
            lose(&mut call);
            call.goes_to(0).unwrap();
            assert!(!call.header.moved);
        }
        // Servers that are all older are as they were.
        let mut call = begin(Method::Remove);
        for _ in 0..2 {
            call.goes_to(0).unwrap();
            lose(&mut call);
        }
    }

    #[test]
    fn a_silent_master_times_out() {
        let (config, addr, begun) = (config(), addr(), Instant::now());
        let mut call = begin(&config, &addr, Method::ExistKey, begun);
        assert_eq!(call.silence(), Some(config.call_timeout / 3));
        assert!(call.failed(lost(io::ErrorKind::TimedOut), begun + Duration::from_secs(3)).is_ok());
        let end = call.deadline;
        let told = call.failed(lost(io::ErrorKind::TimedOut), end).unwrap_err();
        assert!(matches!(told, RpcError::TimedOut { .. }), "{told}");
        let unreachable = RpcError::Unreachable {
            addr: Arc::clone(&addr),
            source: Arc::new(io::ErrorKind::ConnectionRefused.into()),
        };
        // The first attempt may have been executed, so that it is what the caller must know of.
        let told = call.unconnected(unreachable.clone(), end);
        assert!(matches!(told, RpcError::TimedOut { .. }), "{told}");
        // Also when the next round of connecting would begin after the deadline.
        let mut early = begin(&config, &addr, Method::ExistKey, begun);
        assert!(early.failed(lost(io::ErrorKind::TimedOut), begun).is_ok());
        let told = early.unconnected(unreachable.clone(), begun + Duration::from_secs(9));
        assert!(matches!(told, RpcError::TimedOut { .. }), "{told}");
        let mut other = begin(&config, &addr, Method::ExistKey, begun);
        let told = other.unconnected(unreachable, end);
        assert!(matches!(told, RpcError::Unreachable { .. }), "{told}");
    }

    #[test]
    fn a_call_that_came_too_early_is_made_once_more() {
        let (config, addr, now) = (config(), addr(), Instant::now());
        let mut call = begin(&config, &addr, Method::ExistKey, now);
        assert!(call.came_too_early());
        assert_eq!(call.ended.retries, 0, "it may find no other connection");
        call.connected(|| now).unwrap();
        assert!(!call.came_too_early());
        assert_eq!(call.ended.retries, 1);
    }

    #[test]
    fn puts_are_left_behind_by_what_may_have_been_executed() {
        let (config, addr, now) = (config(), addr(), Instant::now());
        let timed_out = RpcError::TimedOut {
            addr: Arc::clone(&addr),
            method: Method::PutStart,
            after: Duration::ZERO,
        };
        let refused = Refusal::new(mc_types::ErrorCode::Full, "full").into();
        let put = begin(&config, &addr, Method::PutStart, now);
        assert!(put.left_puts(&timed_out) && put.left_puts(&lost(io::ErrorKind::BrokenPipe)));
        assert!(!put.left_puts(&refused));
        assert!(!begin(&config, &addr, Method::PutEnd, now).left_puts(&timed_out));
    }
}
