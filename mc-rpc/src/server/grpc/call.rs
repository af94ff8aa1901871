//! One call, from its request to its answer.

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use mc_types::{ErrorCode, Sequence};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

use super::super::dispatch::{answer, too_late};
use super::super::executor::takes_long;
use super::super::held_answers::not_durable;
use super::super::metrics::add;
use super::connection::{Connection, MASTER_SERVICE};
use super::memory_budget::Reservation;
use super::message::{PREFIX_LEN, Reply, read_message, seal};
use super::metadata;
use super::status::status;
use crate::caller::Caller;
use crate::method::Method;
use crate::refusal::{Completion, Refusal};
use crate::server::shared::Shared;
use crate::service::{Call, JournalEnded, Service};

impl Connection {
    /// Answers a call of `MasterService`.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let arrived = Instant::now();
        let ready = self.prepare(&request, arrived).map_err(|refusal| status(&refusal))?;
        let (method, deadline) = (ready.method, ready.deadline);
        let mut body = request.into_body();
        let shared = &self.shared;
        let config = &shared.config;

        let mut held = self.memory_budget.nothing();
        let stalled_at = arrived + config.stall_timeout;
        let read = read_message(&mut body, config.max_payload, &mut held);
        let payload =
            match timeout_at(deadline.map_or(stalled_at, |at| at.min(stalled_at)), read).await {
                Ok(payload) => payload?,
                Err(_) if is_late(deadline) => return Err(status(&too_late(&shared.counters))),
                Err(_) => return Err(status(&slow_request(method, config.stall_timeout))),
            };
        add(&shared.counters.bytes_in, (PREFIX_LEN + payload.len()) as u64);

        let answered = match takes_long(Some(method), payload.len()) {
            false => ready.execute(&payload).map(|answer| (answer, held)),
            true => self.run_long(ready, payload, held).await,
        };
        let completion = match &answered {
            Ok(((_, completion), _)) => *completion,
            Err(refusal) => refusal.completion(),
        };
        if let Completion::After(sequence) = completion {
            self.wait_until_durable(sequence, deadline)
                .await
                .map_err(|refusal| status(&refusal))?;
        }
        let ((bytes, _), held) = answered.map_err(|refusal| status(&refusal))?;
        add(&shared.counters.bytes_out, bytes.len() as u64);
        let mut response = Response::new(Body::new(Reply::new(held.answer(bytes))));
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        Ok(response)
    }

    /// Everything about a call but its message.
    fn prepare(&self, request: &Request<Incoming>, arrived: Instant) -> Result<Ready, Refusal> {
        let name = request.uri().path().strip_prefix(MASTER_SERVICE).unwrap_or_default();
        let method = Method::from_name(name).ok_or_else(|| {
            let message =
                format!("this master has no method {name:?}; it may be older than the client");
            Refusal::new(ErrorCode::NotSupported, message)
        })?;
        let headers = request.headers();
        let caller = self.identify(headers)?;
        self.shared.check_term()?;
        self.answers.store(true, Ordering::Release);
        Ok(Ready {
            shared: Arc::clone(&self.shared),
            method,
            caller,
            from: self.shown.from(),
            deadline: metadata::deadline(headers, arrived)?,
            max_reply: metadata::max_reply(headers, self.shared.config.max_payload)?,
        })
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

    /// Runs the call when it is its turn. When this future is dropped first, because the
    /// client gave the call up or is gone, the call is not executed.
    async fn run_long(
        &self,
        ready: Ready,
        payload: BytesMut,
        held: Reservation,
    ) -> Result<(Answer, Reservation), Refusal> {
        let (shared, method) = (Arc::clone(&ready.shared), ready.method);
        let (reply, replied) = oneshot::channel();
        let deadline = ready.deadline;
        let work = move || {
            if reply.is_closed() {
                return add(&ready.shared.counters.cancelled, 1);
            }
            let executed = ready.execute(&payload).map(|answer| (answer, held));
            // No client may be left to hear of it.
            drop(reply.send(executed));
        };
        let run = async {
            let _turn = self.turns.acquire().await;
            // What panics has dropped its reply.
            drop(shared.executor.run(Some(method), work).await);
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
}

/// An answer with its prefix, and when it may be sent.
type Answer = (BytesMut, Completion);

/// A call of which only the message is missing.
struct Ready {
    shared: Arc<Shared>,
    method: Method,
    caller: Arc<Caller>,
    from: Option<IpAddr>,
    deadline: Option<Instant>,
    max_reply: usize,
}

impl Ready {
    fn execute(&self, payload: &[u8]) -> Result<Answer, Refusal> {
        if is_late(self.deadline) {
            return Err(too_late(&self.shared.counters));
        }
        let &Self { method, from, max_reply, .. } = self;
        let mut out = BytesMut::zeroed(PREFIX_LEN);
        let call = Call { method, payload, max_reply, caller: &self.caller, from, reads: None };
        let completion = answer(&self.shared, call, &mut out)?;
        seal(&mut out);
        Ok((out, completion))
    }
}

fn is_late(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|at| at <= Instant::now())
}

fn no_answer_in_time(method: Method) -> Refusal {
    let message = format!("{method} had no answer before its deadline; it may have been executed");
    Refusal::new(ErrorCode::RpcTimeout, message)
}

fn slow_request(method: Method, stall: Duration) -> Refusal {
    let message = format!("the request of {method} has not arrived completely within {stall:?}");
    Refusal::new(ErrorCode::RpcTimeout, message)
}
