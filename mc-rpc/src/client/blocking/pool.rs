//! The connections of a blocking client: those that rest, and who may make another.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use core::time::Duration;
use core::{fmt, mem};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::connection::Connection;
use super::in_place::pause;
use super::settle::Settling;
use crate::client::address::{Address, Route};
use crate::client::backoff::bounded;
use crate::client::config::ClientConfig;
use crate::client::credentials::Identity;
use crate::client::denials::Denials;
use crate::client::dial::{FailedRounds, Round, is_silent, may_pass, tries_again};
use crate::client::metrics::Counters;
use crate::client::outage::{Outage, ROUND};
use crate::error::RpcError;
use crate::frame::Kind;

/// A connection that has rested for longer is closed when the next call begins.
const MAX_REST: Duration = Duration::from_secs(10);

/// Connections that may rest at a time: the master has better uses for its places.
const MAX_RESTING: usize = 16;

/// After so long a rest a connection is looked at before it is used: the master may have
/// told it to go away.
const CHECK_AFTER: Duration = Duration::from_millis(500);

pub(super) struct Pool {
    pub(super) config: ClientConfig,
    pub(super) route: Route,
    pub(super) identity: Arc<Identity>,
    pub(super) counters: Arc<Counters>,
    outage: Arc<Outage>,
    denials: Denials,
    pub(super) settling: Settling,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    /// The one used last at the end.
    resting: VecDeque<Resting>,
    /// Connections there are or that are being made.
    open: usize,
    /// Grows when a connection breaks, or its role does not allow a call: those of the generations
    /// before are probably of no use either, and are not kept.
    generation: u64,
}

struct Resting {
    connection: Box<Connection>,
    since: Instant,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("route", &self.route).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(
        route: Route,
        config: ClientConfig,
        identity: Arc<Identity>,
        counters: Arc<Counters>,
        outage: Arc<Outage>,
    ) -> Self {
        Self {
            route,
            identity,
            counters,
            outage,
            denials: Denials::default(),
            settling: Settling::default(),
            state: Mutex::default(),
            freed: Condvar::new(),
            config,
        }
    }

    /// Makes one connection, in one attempt, and keeps it.
    pub(super) fn check(&self) -> Result<(), RpcError> {
        let begin = Instant::now();
        let deadline = begin + bounded(self.config.call_timeout);
        let (place, resting) = self.place(begin, deadline)?;
        let connection = resting.map_or_else(|| self.open(deadline), Ok)?;
        Lease { place, connection }.give_back();
        Ok(())
    }

    /// A connection for one call; waits for it until `deadline`.
    pub(super) fn take(&self, now: Instant, deadline: Instant) -> Result<Lease<'_>, RpcError> {
        let (place, resting) = self.place(now, deadline)?;
        let connection = resting.map_or_else(|| self.dial(deadline), Ok)?;
        Ok(Lease { place, connection })
    }

    /// The right to a connection, and one that rests if there is any.
    fn place(
        &self,
        now: Instant,
        deadline: Instant,
    ) -> Result<(Place<'_>, Option<Box<Connection>>), RpcError> {
        let max = self.config.connections_max.max(1);
        let is_old = |resting: &Resting| now.saturating_duration_since(resting.since) > MAX_REST;
        // Closed when the lock is no longer held.
        let _old;
        let mut state = self.state.lock();
        if state.resting.front().is_some_and(is_old) {
            let first_kept = state.resting.iter().position(|resting| !is_old(resting));
            let old = first_kept.unwrap_or(state.resting.len());
            state.open -= old;
            let kept = state.resting.split_off(old);
            _old = mem::replace(&mut state.resting, kept);
        }
        loop {
            if let Some(Resting { connection, since }) = state.resting.pop_back() {
                let rested = now.saturating_duration_since(since);
                let has_ended = rested > CHECK_AFTER && connection.has_ended();
                if has_ended || connection.check_term().is_err() {
                    self.counters.connections_lost.fetch_add(1, Ordering::Relaxed);
                    state.open -= 1;
                    continue;
                }
                return Ok((Place { pool: self }, Some(connection)));
            }
            if state.open < max {
                state.open += 1;
                return Ok((Place { pool: self }, None));
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return Err(RpcError::NoFreeConnection { max, after: self.config.call_timeout });
            }
        }
    }

    /// Connects; tries again while that may help, until `deadline` or until the master is known to be
    /// down.
    fn dial(&self, deadline: Instant) -> Result<Box<Connection>, RpcError> {
        let mut failed = FailedRounds::default();
        loop {
            let begun = Instant::now();
            let known = self.outage.known(begun);
            if let Some(error) = &known
                && !self.outage.takes_round(begun)
            {
                return Err(error.clone());
            }
            let until = match self.outage.known_from(begun) {
                Some(_) if known.is_some() => begun + ROUND,
                Some(from) => from,
                None => deadline,
            };
            let until = until.min(deadline);
            let error = match self.open(until) {
                Ok(connection) => {
                    self.outage.ended();
                    return Ok(connection);
                }
                Err(error) => error,
            };
            let now = Instant::now();
            // An attempt that its caller cancelled is no failed round.
            if may_pass(&error) {
                self.outage.failed(&error, &self.config, begun, now);
            }
            let next = failed.add(&error, &self.config, begun, now);
            let until = self.outage.known_from(now).map_or(deadline, |from| from.min(deadline));
            if !tries_again(&self.config, &error) || next >= deadline || now >= until {
                return Err(error);
            }
            if !pause(next.min(until) - now) {
                return Err(error);
            }
        }
    }

    /// Tries each address. One that is silent is given all of its time when the others have failed.
    fn open(&self, deadline: Instant) -> Result<Box<Connection>, RpcError> {
        let mut round = loop {
            match Round::begin(&self.route)? {
                Some(round) => break round,
                None => self.route.resolve()?,
            }
        };
        let (whole, mut silent) = (self.config.connect_timeout, Vec::new());
        let first = round.stagger().map_or(whole, |stagger| stagger.min(whole));
        while let Some((place, address)) = round.next() {
            match self.attempt(&address, first, deadline) {
                Ok(connection) => {
                    round.worked(place);
                    return Ok(connection);
                }
                Err(error) if first < whole && is_silent(&error) => silent.push((place, address)),
                Err(error) => round.failed(error)?,
            }
        }
        for (place, address) in silent {
            match self.attempt(&address, whole, deadline) {
                Ok(connection) => {
                    round.worked(place);
                    return Ok(connection);
                }
                Err(error) => round.failed(error)?,
            }
        }
        Err(round.over())
    }

    /// Connects to one address within `time`, until `deadline` at the latest.
    fn attempt(
        &self,
        address: &Address,
        time: Duration,
        deadline: Instant,
    ) -> Result<Box<Connection>, RpcError> {
        let generation = self.state.lock().generation;
        let mut connection =
            Connection::open(address, &self.identity, &self.config, time, deadline)?;
        self.counters.connections_made.fetch_add(1, Ordering::Relaxed);
        connection.generation = generation;
        connection.rest();
        Ok(Box::new(connection))
    }

    /// A connection of this generation broke.
    fn broke(&self, generation: u64) {
        self.counters.connections_lost.fetch_add(1, Ordering::Relaxed);
        self.replace(generation);
    }

    /// Keeps no connection up to this generation.
    fn replace(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        state.generation += 1;
        let stale = mem::take(&mut state.resting);
        state.open -= stale.len();
        drop(state);
        self.freed.notify_all();
    }

    fn rest(&self, connection: Box<Connection>) {
        let resting = Resting { connection, since: Instant::now() };
        let mut state = self.state.lock();
        state.resting.push_back(resting);
        // Closed when the lock is no longer held.
        let _one_too_many = if state.resting.len() > MAX_RESTING {
            state.open -= 1;
            state.resting.pop_front()
        } else {
            None
        };
        drop(state);
        self.freed.notify_one();
    }
}

/// The right to have a connection.
struct Place<'a> {
    pool: &'a Pool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().open -= 1;
        self.pool.freed.notify_one();
    }
}

/// A connection in the hands of one call. Dropping it closes it.
pub(super) struct Lease<'a> {
    place: Place<'a>,
    connection: Box<Connection>,
}

impl Deref for Lease<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Lease<'_> {
    /// The call has ended: the connection is free for another, unless it broke or the master takes
    /// none.
    pub(super) fn give_back(self) {
        let Self { place, mut connection } = self;
        if connection.going {
            return;
        }
        connection.rest();
        place.pool.rest(connection);
        // The connection keeps its place.
        mem::forget(place);
    }

    /// The connection broke; others that have rested meanwhile probably did too.
    pub(super) fn note_broken(&self) {
        self.place.pool.broke(self.connection.generation);
    }

    /// Has the next calls connect anew if the last answer, which is of this kind, says that this
    /// client's role does not allow the call.
    pub(super) fn look_for_denial(&mut self, kind: Kind) {
        let (pool, connection) = (self.place.pool, &mut self.connection);
        if pool.denials.replaces((kind, connection.answer()), &pool.config, Instant::now) {
            connection.going = true;
            pool.replace(connection.generation);
        }
    }

    /// Another connection with the same request.
    pub(super) fn renew(&mut self, deadline: Instant) -> Result<(), RpcError> {
        let mut next = self.place.pool.dial(deadline)?;
        next.outbox = mem::take(&mut self.connection.outbox);
        self.connection = next;
        Ok(())
    }
}
