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
use mc_trace::Span;

use super::address::Route;
use super::call::Call;
use super::config::ClientConfig;
use super::credentials::Identity;
use super::dial::was_cancelled;
use super::metrics::{ClientMetrics, Counters};
use super::outage::Outage;
use super::outcome::outcome;
use super::request::check_len;
use super::spans::note;
use crate::answer::Answer;
use crate::error::RpcError;
use crate::method::Method;
use in_place::pause;
use pool::{Lease, Pool};
pub(super) use settle::{Asked, Granted, Lost, MAX_CALLS};

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
/// [`ClientConfig::retry`] and [`ClientConfig::outage_timeout`]. Every method ends after [`ClientConfig::call_timeout`] at the
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
    /// `,` or `;` in between, or `scheme://…` for a [`resolver`](ClientConfig::resolver).
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
        let outage = Outage::new(&config, &Route::new(addr, &config.resolvers));
        Self::beside(addr, config, identity, Arc::default(), Arc::new(outage))
    }

    /// One whose calls belong to this session and are counted there, and that shares what is known of
    /// a master that is away.
    pub(super) fn beside(
        addr: &str,
        config: ClientConfig,
        identity: Arc<Identity>,
        counters: Arc<Counters>,
        outage: Arc<Outage>,
    ) -> Self {
        let route = Route::new(addr, &config.resolvers);
        Self { pool: Arc::new(Pool::new(route, config, identity, counters, outage)) }
    }

    /// The master's address, as given.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.pool.route.target()
    }

    /// Returns the figures of this client and its clones.
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
        let pool = &*self.pool;
        let begun = Instant::now();
        let mut call =
            Call::begin(&pool.config, pool.route.target(), &pool.identity, method, begun);
        let span = Span::child(method.as_str(), mc_trace::Kind::Client);
        let answer = span.enter(|| self.make(&mut call, write, read)).map_err(|error| {
            match was_cancelled(&error) {
                true => RpcError::GivenUp { addr: Arc::clone(pool.route.target()), method },
                false => error,
            }
        });
        note(&span, pool.route.target(), answer.as_ref().err());
        call.ended.failed = answer.is_err();
        call.ended.took = begun.elapsed();
        pool.counters.count(method, call.ended);
        answer
    }

    fn make<T>(
        &self,
        call: &mut Call<'_>,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let mut lease = self.pool.take(call.begun, call.deadline)?;
        let written = call.write(&mut lease.outbox, write);
        let answer = written.and_then(|()| self.send(&mut lease, call, read));
        if answer.as_ref().is_err_and(|error| call.left_puts(error)) {
            let first_server = call.first_server();
            let (&mut Call { method, header, begun, .. }, frame) =
                (call, mem::take(&mut lease.outbox));
            self.settle(Lost { method, header, frame, begun, first_server });
        }
        lease.give_back();
        answer
    }

    /// Sends the request in the connection's outbox, which is still there afterwards.
    fn send<T>(
        &self,
        lease: &mut Lease<'_>,
        call: &mut Call<'_>,
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let (method, deadline) = (call.method, call.deadline);
        loop {
            call.goes_to(lease.incarnation)?;
            let header = call.header;
            check_len(method, header.payload_len as usize, lease.max_request)?;
            call.sent();
            let wait =
                match lease.exchange(method, header, call.silence(), call.timeout(), deadline) {
                    Ok(answer) => {
                        call.answered(answer.payload_len as usize);
                        if !lease.is_too_early(answer.kind, deadline) || !call.came_too_early() {
                            lease.look_for_denial(answer.kind);
                            let arrived = (answer.kind, answer.method, lease.answer());
                            return outcome(method, &lease.addr, arrived, read);
                        }
                        Duration::ZERO
                    }
                    Err(error) => {
                        if matches!(error, RpcError::ConnectionLost { .. }) {
                            lease.note_broken();
                        }
                        call.failed(error, Instant::now())?
                    }
                };
            if !pause(wait) {
                return Err(RpcError::GivenUp { addr: Arc::clone(&lease.addr), method });
            }
            if let Err(error) = lease.renew(deadline) {
                return Err(call.unconnected(error, Instant::now()));
            }
            call.connected(Instant::now)?;
        }
    }
}
