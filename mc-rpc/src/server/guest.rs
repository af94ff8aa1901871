//! Guest protocols: their connections come to a server's port, and their calls to its service, under
//! the same limits as those of the native protocol.

use core::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use mc_places::{Place, Seat, Stage};
use mc_trace::TraceContext;
use mc_types::{BoxFuture, ErrorCode, Sequence};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::close_reason::CloseReason;
use super::config::ServerConfig;
use super::dispatch::{answer, too_late};
use super::executor::takes_long;
use super::held_answers::not_durable;
use super::identity::Shown;
use super::long_calls::AT_A_TIME;
use super::metrics::add;
use super::shared::Shared;
use super::term::Guarded;
use crate::caller::Caller;
use crate::method::Method;
use crate::refusal::{Completion, Refusal};
use crate::service::{Call, JournalEnded, Service};
use crate::stream::{ByteStream, Stream};

/// A further protocol on the port of a server, for clients of another kind: gRPC is one, in
/// `mc-rpc-grpc`.
pub trait GuestProtocol: fmt::Debug + Send + Sync + 'static {
    /// The first byte of each of its connections: another one than the native protocol's
    /// ([`MAGIC`](crate::frame::MAGIC)).
    fn first_byte(&self) -> u8;

    /// Serves a connection to its end; `begun` has been read from `stream`. Once the connection is to
    /// [leave](Guest::leave) it takes no new calls, and ends when those under way are answered. The
    /// server drops the future when it shuts down: calls that have not begun are not executed.
    ///
    /// The future fails with the reason why this side, or the network, ended the connection.
    fn serve(
        &self,
        stream: Box<dyn ByteStream>,
        begun: Bytes,
        guest: Guest,
    ) -> BoxFuture<'static, Result<(), CloseReason>>;
}

/// A connection of a [`GuestProtocol`]. It has its place at the server until it is dropped.
#[derive(Debug)]
pub struct Guest {
    calls: Arc<GuestCalls>,
    seat: Seat,
    draining: watch::Receiver<bool>,
}

impl Guest {
    /// The guest, and its stream: once the term of the server is over that moves no byte after a call
    /// was [admitted](GuestCalls::admit), since the guest may hold its answer.
    pub(super) fn new(
        stream: Stream,
        shared: Arc<Shared>,
        shown: Shown,
        seat: Seat,
        draining: watch::Receiver<bool>,
    ) -> (Box<dyn ByteStream>, Self) {
        let answers = Arc::<AtomicBool>::default();
        let term = shared.config.term.as_ref();
        let stream = Guarded::from_first_answer(stream, term, Arc::clone(&answers));
        let (place, turns) = (Arc::clone(seat.place()), Semaphore::new(AT_A_TIME));
        let calls = Arc::new(GuestCalls { shared, shown, place, answers, turns });
        (Box::new(stream), Self { calls, seat, draining })
    }

    /// The side that answers the calls of the connection.
    #[must_use]
    pub fn calls(&self) -> &Arc<GuestCalls> {
        &self.calls
    }

    /// A watch that turns true, or loses its sender, when the server is to end.
    #[must_use]
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.clone()
    }

    /// Waits until the connection is to end: the server is to, or is gone, or another connection needs
    /// the place.
    pub async fn leave(&mut self) {
        tokio::select! {
            _ = self.draining.wait_for(|draining| *draining) => {}
            _ = &mut self.seat.go => {}
        }
    }
}

/// The part of a server that answers the calls of one guest's connection.
#[derive(Debug)]
pub struct GuestCalls {
    shared: Arc<Shared>,
    /// The peer's identity as the connection itself shows it.
    shown: Shown,
    place: Arc<Place>,
    /// Whether a call was admitted.
    answers: Arc<AtomicBool>,
    /// Turns for its calls that take long, so that connections take turns however many calls
    /// each has.
    turns: Semaphore,
}

/// A call that was [admitted](GuestCalls::admit), without its message.
#[derive(Debug)]
pub struct GuestCall {
    /// The end of the caller's patience; none at first.
    pub deadline: Option<Instant>,
    /// Most bytes that the caller accepts as an answer; at first as many as a request may have.
    pub max_reply: usize,
    /// The trace that it belongs to; none at first.
    pub trace: Option<TraceContext>,
    method: Method,
    caller: Arc<Caller>,
    from: Option<IpAddr>,
}

/// An answer, and when it may be sent.
type Answer = (BytesMut, Completion);

impl GuestCalls {
    /// The settings of the server.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// Bytes in the buffers of all connections that hold many, for
    /// [`Buffered::set`](crate::Buffered::set).
    #[must_use]
    pub fn buffered(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.shared.buffered)
    }

    /// Notes that the peer has said something, and a request until what is returned is dropped.
    #[must_use]
    pub fn open(&self) -> impl Sized + use<> {
        self.shared.places.saw(&self.place);
        self.place.call()
    }

    /// Returns the caller that has this credential and acts for this tenant, of which an empty name is
    /// the credential's. The connection keeps its place from now on while requests are open.
    ///
    /// # Errors
    /// The [`Refusal`] of a caller that is not known.
    pub fn identify(&self, token: Option<&[u8]>, tenant: &str) -> Result<Arc<Caller>, Refusal> {
        let authenticator = self.shared.config.authenticator.as_deref();
        let caller = self.shown.identify(authenticator, token, tenant)?;
        self.place.reached(Stage::Proved);
        Ok(caller)
    }

    /// Admits a call of the caller that [`identify`](Self::identify) finds.
    ///
    /// # Errors
    /// The [`Refusal`] of a caller that is not known, or of a master whose term is over.
    pub fn admit(
        &self,
        method: Method,
        token: Option<&[u8]>,
        tenant: &str,
    ) -> Result<GuestCall, Refusal> {
        let caller = self.identify(token, tenant)?;
        self.shared.check_term()?;
        self.answers.store(true, Ordering::Release);
        let max_reply = self.shared.config.max_payload as usize;
        let (deadline, trace, from) = (None, None, self.shown.from());
        Ok(GuestCall { deadline, max_reply, trace, method, caller, from })
    }

    /// Counts and refuses a call whose deadline passed before it was executed.
    pub fn too_late(&self) -> Refusal {
        too_late(&self.shared.counters)
    }

    /// Answers an admitted call when it is its turn, and when its answer may leave. The answer begins
    /// with `prefix` zeros: the bytes before a message of the guest's, in requests and answers alike.
    /// `held` lives as long as the message, and is given back with the answer.
    ///
    /// When the future is dropped before it is the call's turn, the call is not executed.
    ///
    /// # Errors
    /// The [`Refusal`] that the caller gets.
    pub async fn answer<H: Send + 'static>(
        &self,
        call: GuestCall,
        prefix: usize,
        payload: BytesMut,
        held: H,
    ) -> Result<(BytesMut, H), Refusal> {
        let counters = &self.shared.counters;
        add(&counters.bytes_in, (prefix + payload.len()) as u64);
        let (method, deadline) = (call.method, call.deadline);
        let answered = match takes_long(Some(method), payload.len()) {
            false => call.execute(&self.shared, prefix, &payload).map(|answer| (answer, held)),
            true => self.run_long(call, prefix, payload, held).await,
        };
        let completion = match &answered {
            Ok(((_, completion), _)) => *completion,
            Err(refusal) => refusal.completion(),
        };
        if let Completion::After(sequence) = completion {
            self.wait_until_durable(sequence, deadline).await?;
        }
        let ((bytes, _), held) = answered?;
        add(&counters.bytes_out, bytes.len() as u64);
        Ok((bytes, held))
    }

    /// Waits until the effects up to this one are durable, for as long as the caller waits.
    async fn wait_until_durable(
        &self,
        sequence: Sequence,
        deadline: Option<Instant>,
    ) -> Result<(), Refusal> {
        let Some(mut durable) = self.shared.service.durability() else { return Ok(()) };
        let stall = self.shared.config.stall_timeout;
        let stalled_at = Instant::now() + stall;
        let until = deadline.map_or(stalled_at, |at| at.min(stalled_at));
        let refusal = match timeout_at(until, durable.wait_for(sequence)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(JournalEnded)) => not_durable(None),
            Err(_) => not_durable(Some(stall.saturating_sub(stalled_at - until))),
        };
        add(&self.shared.counters.not_durable, 1);
        Err(refusal)
    }

    /// Runs the call when it is its turn.
    async fn run_long<H: Send + 'static>(
        &self,
        call: GuestCall,
        prefix: usize,
        payload: BytesMut,
        held: H,
    ) -> Result<(Answer, H), Refusal> {
        let (shared, method, deadline) = (Arc::clone(&self.shared), call.method, call.deadline);
        let (reply, replied) = oneshot::channel();
        let work = move || {
            if reply.is_closed() {
                return add(&shared.counters.cancelled, 1);
            }
            let executed = call.execute(&shared, prefix, &payload).map(|answer| (answer, held));
            // No client may be left to hear of it.
            drop(reply.send(executed));
        };
        let run = async {
            let _turn = self.turns.acquire().await;
            // What panics has dropped its reply.
            drop(self.shared.executor.run(Some(method), work).await);
            replied.await
        };
        let replied = match deadline {
            None => run.await,
            Some(at) => timeout_at(at, run).await.map_err(|_| no_answer_in_time(method))?,
        };
        replied.map_err(|_| {
            let message = format!("{method} broke off; the master's log says more");
            Refusal::new(ErrorCode::Internal, message)
        })?
    }

    /// Returns what tells whether the master of this server is well and answers calls; `None` when
    /// it always does.
    #[must_use]
    pub fn wellness(&self) -> Option<Arc<dyn Fn() -> bool + Send + Sync>> {
        let config = &self.shared.config;
        let always = config.liveness.is_none() && config.term.is_none();
        if always && self.shared.service.takes_calls().is_ok() {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move || {
            let liveness = shared.config.liveness.as_ref();
            shared.check_leads().is_ok() && liveness.is_none_or(|alive| alive.is_well())
        }))
    }
}

impl GuestCall {
    /// The method that is called.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Returns whether the deadline has passed.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= Instant::now())
    }

    fn execute(&self, shared: &Shared, prefix: usize, payload: &[u8]) -> Result<Answer, Refusal> {
        if self.is_late() {
            return Err(too_late(&shared.counters));
        }
        let &Self { method, from, max_reply, trace, .. } = self;
        let mut out = BytesMut::zeroed(prefix);
        let (caller, connections) = (&*self.caller, Some(&shared.open));
        let call =
            Call { from, trace, connections, ..Call::new(method, payload, max_reply, caller) };
        let completion = answer(shared, call, &mut out)?;
        Ok((out, completion))
    }
}

fn no_answer_in_time(method: Method) -> Refusal {
    let message = format!("{method} had no answer before its deadline; it may have been executed");
    Refusal::new(ErrorCode::RpcTimeout, message)
}
