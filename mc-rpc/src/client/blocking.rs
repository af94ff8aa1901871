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
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use super::call::Call;
use super::config::ClientConfig;
use super::credentials::Identity;
use super::metrics::{ClientMetrics, Counters};
use super::outcome::outcome;
use super::request::check_len;
use crate::answer::Answer;
use crate::error::RpcError;
use crate::method::Method;
use in_place::pause;
use pool::{Lease, Pool};
pub(super) use settle::Lost;

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
        let answer = self.make(&mut call, write, read);
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
        if let Err(error) = call.write(&mut lease.outbox, write) {
            lease.give_back();
            return Err(error);
        }
        self.send(lease, call, read).map_err(|(error, frame)| {
            if call.left_puts(&error) {
                let &mut Call { method, header, begun, .. } = call;
                self.settle(Lost { method, header, frame, begun });
            }
            error
        })
    }

    /// Sends the request in the connection's outbox. When that fails the request comes back.
    fn send<T>(
        &self,
        mut lease: Lease<'_>,
        call: &mut Call<'_>,
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, (RpcError, BytesMut)> {
        let (method, header, deadline) = (call.method, call.header, call.deadline);
        loop {
            let len = header.payload_len as usize;
            if let Err(error) = check_len(method, len, lease.max_request) {
                let frame = mem::take(&mut lease.outbox);
                lease.give_back();
                return Err((error, frame));
            }
            call.sent();
            let exchanged =
                lease.exchange(method, header, call.silence(), call.timeout(), deadline);
            let error = match exchanged {
                Ok(answer) => {
                    call.answered(answer.payload_len as usize);
                    let is_too_early = lease.is_too_early(answer.kind, deadline);
                    if is_too_early && call.came_too_early() && lease.renew(deadline).is_ok() {
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
            let next = call.failed(error, Instant::now()).and_then(|wait| {
                let given_up = || {
                    let addr = Arc::clone(&lease.addr);
                    RpcError::GivenUp { addr, method }
                };
                if pause(wait) { Ok(()) } else { Err(given_up()) }
            });
            let next = next.and_then(|()| {
                let renewed = lease.renew(deadline);
                renewed.map_err(|error| call.unconnected(error, Instant::now()))?;
                call.connected(Instant::now)
            });
            if let Err(error) = next {
                return Err((error, mem::take(&mut lease.outbox)));
            }
        }
    }
}
