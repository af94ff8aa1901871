//! The way to the master across connections: makes them when calls need them, and sends a
//! call again whose connection broke.

use core::time::Duration;
use core::{fmt, mem};
use mc_types::BoxFuture;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use mc_trace::Span;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::address::{Address, Route};
use super::blocking::{self, Lost, MAX_CALLS};
use super::call::Call;
use super::config::ClientConfig;
use super::connection::{Answered, Connection, Failed};
use super::credentials::{Identity, Prepared, reads_files};
use super::denials::Denials;
use super::dial::{Round, STAGGER, tries_again};
use super::metrics::{ClientMetrics, Counters};
use super::outage::Outage;
use super::outcome::outcome;
use super::request::check_len;
use super::settle_task::settle;
use super::spans::note;
use crate::answer::Answer;
use crate::error::RpcError;
use crate::method::Method;

/// The outcome of a round of attempts to make a connection beside the calls.
enum Grown {
    Done,
    /// Nothing, and nothing needs to be until a call asks again, then at the earliest.
    Enough(Instant),
    /// Nothing, and there is no connection; the next round begins then.
    Not(Instant),
}

pub(super) struct Link {
    route: Route,
    config: ClientConfig,
    identity: Arc<Identity>,
    counters: Arc<Counters>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// The client that makes calls on the thread that polls them.
    in_place: OnceLock<blocking::MasterClient>,
    /// Attempts to connect that have ended.
    attempts: AtomicU64,
    /// Held by the one call that connects; the others wait for what it finds.
    dialing: tokio::sync::Mutex<()>,
    outage: Arc<Outage>,
    denials: Denials,
    /// Whether a task makes a further connection.
    growing: AtomicBool,
    /// One for each task that settles a call, in an environment where no thread does.
    settling: Arc<Semaphore>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("route", &self.route).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(addr: &str, config: ClientConfig) -> Self {
        let route = Route::new(addr, &config.resolvers);
        Self {
            outage: Arc::new(Outage::new(&config, &route)),
            route,
            identity: Arc::new(Identity::new(&config)),
            config,
            counters: Arc::default(),
            in_place: OnceLock::new(),
            connections: Mutex::default(),
            attempts: AtomicU64::new(0),
            dialing: tokio::sync::Mutex::default(),
            denials: Denials::default(),
            growing: AtomicBool::new(false),
            settling: Arc::new(Semaphore::new(MAX_CALLS)),
        }
    }

    pub(super) fn addr(&self) -> &Arc<str> {
        self.route.target()
    }

    pub(super) fn preferred_addr(&self) -> Option<Arc<str>> {
        self.route.preferred()
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn metrics(&self) -> ClientMetrics {
        self.counters.read()
    }

    /// The connection with the least to do. When all have some and there may be more, a
    /// task makes another.
    fn current(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let connections = self.connections.lock();
        let mut open = connections.iter().filter(|connection| connection.is_open());
        let least = if self.config.connections <= 1 {
            open.next_back()?
        } else {
            let (count, least) = open.fold((0, None), |(count, least), connection| {
                let load = connection.load();
                let less = least.is_none_or(|(least, _)| load < least);
                (count + 1, if less { Some((load, connection)) } else { least })
            });
            let (load, least) = least?;
            if load != 0 && count < self.config.connections {
                self.grow();
            }
            least
        };
        Some(Arc::clone(least))
    }

    /// Has a task make a connection beside the calls, unless one does. While there is none it goes on
    /// until it has one: a master that comes back is found soon, also by who asks rarely.
    fn grow(self: &Arc<Self>) {
        if self.growing.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(strong) = link.upgrade() else { return };
                let grown = strong.grow_once().await;
                // The client may end while this waits.
                drop(strong);
                let until = match grown {
                    Grown::Done => break,
                    Grown::Enough(until) | Grown::Not(until) => until,
                };
                tokio::time::sleep_until(until).await;
                let is_needed = || link.upgrade().is_some_and(|strong| !strong.is_connected());
                if matches!(grown, Grown::Enough(_)) || !is_needed() {
                    break;
                }
            }
            if let Some(strong) = link.upgrade() {
                strong.growing.store(false, Ordering::Release);
            }
        });
    }

    /// Makes a connection, in one round of attempts.
    async fn grow_once(self: &Arc<Self>) -> Grown {
        let begun = Instant::now().into_std();
        let error = match self.open().await {
            Ok(connection) => {
                self.outage.ended();
                self.keep(connection);
                return Grown::Done;
            }
            Err(error) => error,
        };
        // While there is another connection the master is not away.
        if self.is_connected() {
            return Grown::Enough(Instant::now() + self.config.max_backoff);
        }
        let next = self.outage.failed(&error, &self.config, begun, Instant::now().into_std());
        let next = Instant::from_std(next);
        if tries_again(&self.config, &error) { Grown::Not(next) } else { Grown::Enough(next) }
    }

    fn is_connected(&self) -> bool {
        self.connections.lock().iter().any(|connection| connection.is_open())
    }

    /// Has the next calls connect anew if an answer says that this client's role does not allow the
    /// call.
    fn look_for_denial(&self, answer: &Answered) {
        let now = || Instant::now().into_std();
        if self.denials.replaces((answer.kind, &answer.payload), &self.config, now) {
            self.connections.lock().iter().for_each(|connection| connection.retire());
        }
    }

    fn keep(&self, connection: Arc<Connection>) {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.is_open());
        connections.push(connection);
    }

    /// The connection there is, or a new one. Calls that wait while another
    /// call connects share its success and its failure, so that a master that is
    /// away costs each of them one attempt's time, and none while it is known to be down.
    ///
    /// Cancelling gives up the attempt.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, RpcError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let now = Instant::now().into_std();
        if let Some(error) = self.outage.known(now) {
            self.grow();
            // A caller that calls again and again must not keep that task from running.
            tokio::task::yield_now().await;
            return Err(error);
        }
        let seen = self.attempts.load(Ordering::Acquire);
        let _dialing = self.dialing.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some((error, next)) = self.outage.last() {
            if self.attempts.load(Ordering::Acquire) != seen {
                return Err(error);
            }
            tokio::time::sleep_until(next.into()).await;
        }
        let begun = Instant::now().into_std();
        let opened = self.open().await;
        match &opened {
            Ok(connection) => {
                self.outage.ended();
                self.keep(Arc::clone(connection));
            }
            Err(error) => {
                self.outage.failed(error, &self.config, begun, Instant::now().into_std());
            }
        }
        self.attempts.fetch_add(1, Ordering::Release);
        opened
    }

    /// Returns why the last round of attempts to connect failed.
    pub(super) fn last_failure(&self) -> RpcError {
        let failure = self.outage.last().map(|(error, _)| error);
        failure.unwrap_or_else(|| self.no_connection())
    }

    /// Returns whether the master is known to be down, so that calls do not wait for it.
    pub(super) fn is_known_down(&self) -> bool {
        self.outage.known(Instant::now().into_std()).is_some()
    }

    /// No connection was made within the time of a call.
    fn no_connection(&self) -> RpcError {
        let text = format!("no connection after {:?}", self.config.call_timeout);
        let source = Arc::new(io::Error::new(io::ErrorKind::TimedOut, text));
        RpcError::Unreachable { addr: Arc::clone(self.addr()), source }
    }

    async fn open(self: &Arc<Self>) -> Result<Arc<Connection>, RpcError> {
        self.dial(|link, address| async move {
            let prepared = link.prepare().await?;
            let (identity, config) = (&link.identity, &link.config);
            Connection::open(&address, &prepared, identity, config, &link.counters).await
        })
        .await
    }

    /// Makes one attempt at each address, and returns what the first one comes to that works. When
    /// an address fails the next is tried at once; while one is silent the next is tried beside it.
    ///
    /// Cancelling gives up the attempts.
    pub(super) async fn dial<T, F>(
        self: &Arc<Self>,
        attempt: impl Fn(Arc<Self>, Address) -> F,
    ) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RpcError>> + Send + 'static,
    {
        let mut round = loop {
            match Round::begin(&self.route)? {
                Some(round) => break round,
                None => self.blocking(|link| link.route.resolve()).await?,
            }
        };
        let mut attempts = JoinSet::new();
        loop {
            if let Some((place, address)) = round.next() {
                let attempt = attempt(Arc::clone(self), address);
                attempts.spawn(async move { (place, attempt.await) });
            }
            tokio::select! {
                biased;
                ended = attempts.join_next() => match ended {
                    Some(Ok((place, Ok(opened)))) => {
                        round.worked(place);
                        return Ok(opened);
                    }
                    Some(Ok((_, Err(error)))) => round.failed(error)?,
                    Some(Err(panicked)) => round.failed(self.broke_off(panicked))?,
                    None => return Err(round.over()),
                },
                () = tokio::time::sleep(STAGGER), if round.has_more() => {}
            }
        }
    }

    /// An attempt panicked, or its runtime ends.
    fn broke_off(&self, panicked: JoinError) -> RpcError {
        let (addr, source) = (Arc::clone(self.addr()), Arc::new(io::Error::other(panicked)));
        RpcError::Unreachable { addr, source }
    }

    pub(super) async fn prepare(self: &Arc<Self>) -> Result<Prepared, RpcError> {
        if reads_files(&self.config) {
            self.blocking(|link| link.identity.prepare(&link.config)).await
        } else {
            self.identity.prepare(&self.config)
        }
    }

    /// Runs `work` where it may block.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, RpcError> {
        let link = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&link)).await;
        done.unwrap_or_else(|panicked| Err(self.broke_off(panicked)))
    }

    /// Sends a request that `write` writes, waits for its answer, and says what `read`
    /// makes of it.
    pub(super) async fn call<T>(
        self: &Arc<Self>,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        if blocking::is_in_place() && self.config.environment.is_none() {
            return self.in_place().call(method, write, read);
        }
        let span = Span::child(method.as_str(), mc_trace::Kind::Client);
        let begun = Instant::now().into_std();
        let call = Call::begin(&self.config, self.addr(), &self.identity, method, begun);
        let frame = BytesMut::with_capacity(160);
        let mut sent = Sent { link: self, call, frame, is_unknown: false };
        let Sent { call, frame, .. } = &mut sent;
        let answered = match call.write(frame, write) {
            Ok(()) => span.within(self.send(&mut sent)).await,
            Err(error) => Err(error),
        };
        let answer = answered.and_then(|Answered { kind, method: number, payload }| {
            outcome(method, self.addr(), (kind, number, &payload), read)
        });
        note(&span, self.addr(), answer.as_ref().err());
        let mut ended = sent.call.ended;
        ended.failed = answer.is_err();
        ended.took = Instant::now().into_std().saturating_duration_since(begun);
        self.counters.count(method, ended);
        answer
    }

    fn in_place(&self) -> &blocking::MasterClient {
        self.in_place.get_or_init(|| {
            let (identity, counters) = (Arc::clone(&self.identity), Arc::clone(&self.counters));
            let (config, outage) = (self.config.clone(), Arc::clone(&self.outage));
            blocking::MasterClient::beside(self.addr(), config, identity, counters, outage)
        })
    }

    fn send<'a>(
        self: &'a Arc<Self>,
        sent: &'a mut Sent<'_>,
    ) -> BoxFuture<'a, Result<Answered, RpcError>> {
        Box::pin(async move {
            let answer = self.attempt(sent).await;
            sent.is_unknown = answer.as_ref().is_err_and(|error| sent.call.left_puts(error));
            answer
        })
    }

    /// Sends a call again that was lost, and says what `read` makes of the answer. Nothing settles
    /// it when that fails.
    pub(super) async fn send_again<T>(
        self: &Arc<Self>,
        lost: &mut Lost,
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let method = lost.method;
        let of = (method, lost.header, lost.begun);
        let (first, now) = (lost.first_server, Instant::now().into_std());
        let call = Call::resume(&self.config, self.addr(), of, first, now);
        let frame = mem::take(&mut lost.frame);
        let mut sent = Sent { link: self, call, frame, is_unknown: false };
        let answered = self.attempt(&mut sent).await;
        sent.is_unknown = false;
        lost.frame = mem::take(&mut sent.frame);
        answered.and_then(|Answered { kind, method: number, payload }| {
            outcome(method, self.addr(), (kind, number, &payload), read)
        })
    }

    async fn attempt(self: &Arc<Self>, sent: &mut Sent<'_>) -> Result<Answered, RpcError> {
        let deadline = Instant::from_std(sent.call.deadline);
        loop {
            let connection = match self.current() {
                Some(connection) => connection,
                None => self
                    .connection_until(deadline)
                    .await
                    .map_err(|error| sent.call.unconnected(error, Instant::now().into_std()))?,
            };
            sent.call.connected(|| Instant::now().into_std())?;
            sent.call.goes_to(connection.incarnation())?;
            let len = sent.call.header.payload_len as usize;
            check_len(sent.call.method, len, connection.max_request())?;
            sent.is_unknown = sent.call.begins_puts();
            let Sent { call, frame, .. } = &mut *sent;
            let wait = match connection.call(call, frame, deadline).await {
                Ok(answer) => {
                    call.sent();
                    call.answered(answer.payload.len());
                    self.look_for_denial(&answer);
                    return Ok(answer);
                }
                Err(Failed::Call(error)) => {
                    call.sent();
                    call.failed(error, Instant::now().into_std())?
                }
                Err(Failed::TooEarly(answer)) => {
                    call.sent();
                    call.answered(answer.payload.len());
                    if !call.came_too_early() {
                        return Ok(answer);
                    }
                    Duration::ZERO
                }
                Err(Failed::NotSent) => call.not_sent(),
            };
            if !wait.is_zero() {
                tokio::time::sleep_until((Instant::now() + wait).min(deadline)).await;
            }
        }
    }

    /// As [`connection`](Self::connection), again and again while that may help.
    async fn connection_until(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<Arc<Connection>, RpcError> {
        let mut failure = None;
        loop {
            let now = Instant::now().into_std();
            let known_from = self.outage.known_from(now).map(Instant::from_std);
            let until = known_from.map_or(deadline, |from| from.min(deadline));
            match tokio::time::timeout_at(until, self.connection()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => {
                    let is_known = self.outage.known(Instant::now().into_std()).is_some();
                    if is_known || !tries_again(&self.config, &error) {
                        return Err(error);
                    }
                    failure = Some(error);
                }
                Err(_) => return Err(failure.unwrap_or_else(|| self.last_failure())),
            }
        }
    }
}

/// A call on its way. When its caller stops waiting, or gets no answer, what it began is
/// settled.
struct Sent<'a> {
    link: &'a Arc<Link>,
    call: Call<'a>,
    frame: BytesMut,
    /// Whether it may have begun puts that its caller knows nothing of.
    is_unknown: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.is_unknown {
            let Call { method, header, begun, .. } = self.call;
            let frame = mem::take(&mut self.frame);
            let first_server = self.call.first_server();
            let lost = Lost { method, header, frame, begun, first_server };
            if self.link.config.environment.is_none() {
                self.link.in_place().settle(lost);
                return;
            }
            // As beyond what a thread takes: such puts wait for the master's own time-out.
            let place = Arc::clone(&self.link.settling).try_acquire_owned();
            if let (Ok(place), Ok(runtime)) = (place, Handle::try_current()) {
                runtime.spawn(settle(Arc::downgrade(self.link), lost, place));
            }
        }
    }
}
