//! The client for callers without an async runtime: each call has a socket of its own
//! while it lasts, and the calling thread does all the work. For one call at a time this
//! is the fastest way to ask a master.

mod connection;
mod in_place;
mod pool;
mod settle;
mod spin;
mod stream;

use core::mem;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use super::backoff::{backoff, bounded};
use super::config::ClientConfig;
use super::credentials::Identity;
use super::dial::{broke, was_silent};
use super::metrics::{ClientMetrics, Counters, Ended};
use super::outcome::outcome;
use super::request::{KNOWN_FOR, check_len, silence, write_request};
use crate::answer::Answer;
use crate::error::RpcError;
use crate::frame::{FrameHeader, HEADER_LEN};
use crate::method::{Method, Repeat};
use in_place::pause;
use pool::{Lease, Pool};
pub(super) use settle::{Lost, begins_puts, is_settled};

pub use in_place::in_place;
pub(super) use in_place::is_wanted as is_in_place;

/// The master, seen from a thread that waits for each answer.
///
/// Cloning is cheap, and clones share a pool of connections: at most
/// [`ClientConfig::connections_max`], each with one call under way. A call takes the one
/// that was used last, or makes one. At most 16 stay open for the calls that come next, and
/// those that have not been used for ten seconds are closed with the next call.
///
/// A call whose connection could not be made or broke is made again, see
/// [`ClientConfig::retry`]. Every method ends after [`ClientConfig::call_timeout`] at the
/// latest, except that the system's name lookup takes the time that it takes. Methods
/// block: call them from no async task.
///
/// When a call that begins puts fails without the client's knowing what became of it, a thread
/// asks the master again, and revokes what was granted; it ends with the client.
#[derive(Clone, Debug)]
pub struct MasterClient {
    pool: Arc<Pool>,
}

impl MasterClient {
    /// Connects to the master at `addr`: `host:port`, `unix:/path`, several of these with
    /// commas in between, or `scheme://…` for a [`resolver`](ClientConfig::resolver).
    ///
    /// # Errors
    /// [`RpcError::Address`] when the address is invalid, [`RpcError::Unreachable`] when no
    /// process answers there, [`RpcError::NotAMaster`] when a process answers that is not a
    /// master, [`RpcError::Refused`] when the master rejects the connection.
    pub fn connect(addr: &str, config: ClientConfig) -> Result<Self, RpcError> {
        let client = Self::lazy(addr, config);
        client.pool.check()?;
        Ok(client)
    }

    /// A client that connects on its first call, which also says what is wrong with the
    /// address.
    #[must_use]
    pub fn lazy(addr: &str, config: ClientConfig) -> Self {
        let identity = Arc::new(Identity::new(&config));
        Self::beside(addr, config, identity, Arc::default())
    }

    /// One whose calls belong to this session and are counted there.
    pub(super) fn beside(
        addr: &str,
        config: ClientConfig,
        identity: Arc<Identity>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { pool: Arc::new(Pool::new(addr, config, identity, counters)) }
    }

    /// The master's address, as given.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.pool.route.target()
    }

    /// What this client and its clones have counted so far.
    #[must_use]
    pub fn metrics(&self) -> ClientMetrics {
        self.pool.counters.read()
    }

    pub(crate) fn call<T>(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let (begin, mut ended) = (Instant::now(), Ended::default());
        let answer = self.exchange(method, begin, &mut ended, write, read);
        ended.failed = answer.is_err();
        ended.took = begin.elapsed();
        self.pool.counters.count(method, ended);
        answer
    }

    fn exchange<T>(
        &self,
        method: Method,
        begin: Instant,
        ended: &mut Ended,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let config = &self.pool.config;
        let deadline = begin + bounded(config.call_timeout);
        let token = match method.repeat() {
            Repeat::Harmless => None,
            Repeat::Tracked => self.pool.identity.next_token(),
        };
        let repeats = config.retry && (method.repeat() == Repeat::Harmless || token.is_some());
        let mut lease = self.pool.take(begin, deadline)?;
        let header = match write_request(&mut lease.outbox, method, token, write) {
            Ok(header) => header,
            Err(error) => {
                lease.give_back();
                return Err(error);
            }
        };
        let sending = Sending { method, header, begun: begin, deadline, repeats };
        self.send(lease, &sending, ended, read).map_err(|(error, frame)| {
            if is_settled(method, header, &error) {
                self.settle(Lost { method, header, frame, begun: begin });
            }
            error
        })
    }

    /// Sends the request in the connection's outbox. When that fails the request comes back.
    fn send<T>(
        &self,
        mut lease: Lease<'_>,
        sending: &Sending,
        ended: &mut Ended,
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, (RpcError, BytesMut)> {
        let &Sending { method, header, begun, deadline, repeats } = sending;
        let config = &self.pool.config;
        let len = HEADER_LEN + header.payload_len as usize;
        loop {
            if let Err(error) = check_len(method, len - HEADER_LEN, lease.max_request) {
                let frame = mem::take(&mut lease.outbox);
                lease.give_back();
                return Err((error, frame));
            }
            ended.sent += len;
            let silence = if repeats { silence(config, method, len) } else { None };
            let error = match lease.exchange(method, header, silence, config.call_timeout, deadline)
            {
                Ok(answer) => {
                    ended.received += HEADER_LEN + answer.payload_len as usize;
                    // It was not executed. The clocks of another connection may agree.
                    let is_too_early = lease.is_too_early(answer.kind, deadline);
                    if is_too_early && ended.retries == 0 && lease.renew(deadline).is_ok() {
                        ended.retries += 1;
                        continue;
                    }
                    let arrived = (answer.kind, answer.method, lease.answer());
                    let answer = outcome(method, &lease.addr, arrived, read);
                    let answer = answer.map_err(|error| (error, mem::take(&mut lease.outbox)));
                    lease.give_back();
                    return answer;
                }
                Err(error) => error,
            };
            if matches!(error, RpcError::ConnectionLost { .. }) {
                lease.note_broken();
            }
            // The first attempt most often met a connection that had been lost while nobody
            // looked; its repetition need not wait.
            let failures = ended.retries.checked_sub(1);
            let wait = failures.map_or(Duration::ZERO, |failures| backoff(config, failures));
            let known = !header.tracked || begun.elapsed() < KNOWN_FOR;
            let repeats = repeats && known && broke(&error) && Instant::now() + wait < deadline;
            if !repeats || !pause(wait) || lease.renew(deadline).is_err() {
                // Also when no other connection could be made: this one may have carried
                // the call to the master.
                let is_late = was_silent(&error) && Instant::now() + wait >= deadline;
                let (addr, after) = (Arc::clone(&lease.addr), config.call_timeout);
                let error = match is_late {
                    true => RpcError::TimedOut { addr, method, after },
                    false => error,
                };
                return Err((error, mem::take(&mut lease.outbox)));
            }
            ended.retries += 1;
        }
    }
}

/// A request on its way.
struct Sending {
    method: Method,
    header: FrameHeader,
    /// When it was first sent.
    begun: Instant,
    deadline: Instant,
    /// Whether it may be sent again when a connection breaks.
    repeats: bool,
}
