//! From a call in a frame to the frame that answers it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use mc_meta::ReadProgress;
use mc_trace::{Span, TraceContext};
use mc_types::ErrorCode;

use super::audit;
use super::deduplication::{Attempt, SessionRef, readdressed};
use super::metrics::{Counters, add};
use crate::caller::Caller;
use crate::frame::{
    FrameError, FrameHeader, Kind, append_frame, append_refusal, reads_of, token_of, trace_of,
};
use crate::method::{Method, Repeat};
use crate::refusal::{Completion, Refusal};
use crate::server::shared::Shared;
use crate::service::{Call, Service};

/// The other end of a connection, as its calls need to know it.
#[derive(Clone, Debug)]
pub(super) struct CallSource {
    pub(super) caller: Arc<Caller>,
    /// The host that it is on, where the connection tells.
    pub(super) from: Option<IpAddr>,
    /// `None` when it tracks no calls.
    pub(super) session: Option<Arc<SessionRef>>,
    /// Most bytes that it accepts as an answer.
    pub(super) max_reply: usize,
}

/// Appends the frame that answers a call, and returns when it may be sent. `payload` is all of the
/// call's payload; it has waited for so long.
pub(super) fn answer_call(
    shared: &Shared,
    asker: &CallSource,
    header: FrameHeader,
    payload: &[u8],
    waited: Duration,
    out: &mut BytesMut,
) -> Completion {
    if header.timeout().is_some_and(|timeout| waited > timeout) {
        let refusal = too_late(&shared.counters);
        return refuse(out, header, &refusal);
    }
    execute(shared, asker, header, payload, out)
}

fn execute(
    shared: &Shared,
    asker: &CallSource,
    header: FrameHeader,
    payload: &[u8],
    out: &mut BytesMut,
) -> Completion {
    let Some(method) = Method::from_number(header.method) else {
        let message =
            format!("this master has no method {}; it may be older than the client", header.method);
        let refusal = Refusal::new(ErrorCode::NotSupported, message);
        return refuse(out, header, &refusal);
    };
    let said = (reads_of(header, payload), trace_of(header, payload));
    let (token, payload) = token_of(header, payload);
    let tracked = token.zip(asker.session.as_deref());
    if header.moved && method.repeat() == Repeat::Once {
        return refuse(out, header, &Refusal::outcome_unknown());
    }
    let Some((token, named)) = tracked.filter(|_| method.repeat() != Repeat::Harmless) else {
        return call(shared, asker, header, method, said, payload, out);
    };
    let session = match named.session(&shared.sessions, &asker.caller) {
        Ok(session) => session,
        Err(refusal) => return refuse(out, header, &refusal),
    };
    match session.attempt(token) {
        Attempt::First => {
            let start = out.len();
            let completion = call(shared, asker, header, method, said, payload, out);
            shared.sessions.answered(session, token, &out[start..], completion);
            completion
        }
        Attempt::Repeated(frame, completion) => {
            add(&shared.counters.repeated, 1);
            out.extend_from_slice(&readdressed(&frame, header.id));
            completion
        }
        Attempt::Refused(refusal) => refuse(out, header, &refusal),
    }
}

fn call(
    shared: &Shared,
    asker: &CallSource,
    header: FrameHeader,
    method: Method,
    (reads, trace): (Option<ReadProgress>, Option<TraceContext>),
    payload: &[u8],
    out: &mut BytesMut,
) -> Completion {
    let (max_reply, caller, from) = (asker.max_reply, &*asker.caller, asker.from);
    let answered = append_frame(out, header.id, header.method, Kind::Reply, |out| {
        let connections = Some(&shared.open);
        let call = Call { method, payload, max_reply, caller, from, reads, trace, connections };
        answer(shared, call, out)
    });
    answered.unwrap_or_else(|refusal| refuse(out, header, &refusal))
}

/// Refuses a call, and returns when the refusal may be sent.
fn refuse(out: &mut BytesMut, header: FrameHeader, refusal: &Refusal) -> Completion {
    append_refusal(out, header.id, header.method, refusal);
    refusal.completion()
}

/// Has the service append its answer, and counts the call.
pub(super) fn answer(
    shared: &Shared,
    call: Call<'_>,
    out: &mut BytesMut,
) -> Result<Completion, Refusal> {
    let Call { method, max_reply, trace, .. } = call;
    let span = trace
        .map_or(Span::NONE, |trace| Span::remote(method.as_str(), mc_trace::Kind::Server, trace));
    let start = out.len();
    let mut answered = shared.service.call(call, out);
    let len = out.len() - start;
    if let Ok(completion) = answered
        && len > max_reply
    {
        let refusal = Refusal::invalid(format!(
            "the answer to {method} has {len} bytes, the caller accepts {max_reply}; \
             ask for less at a time"
        ));
        answered = Err(match completion {
            Completion::Now => refusal,
            Completion::After(sequence) => refusal.held_until(sequence),
        });
    }
    shared.counters.called(method, answered.is_err());
    if span.is_recording() {
        note(&span, &call, (out.len() - start) as u64, answered.as_ref().err());
    }
    if method.is_administrative() {
        audit::record(&call, answered.as_ref().err());
    }
    answered
}

/// Notes what became of a traced call.
fn note(span: &Span, call: &Call<'_>, answer_len: u64, refusal: Option<&Refusal>) {
    span.set("rpc.system", "mc-store");
    span.set("mc.tenant", call.caller.tenant().to_string());
    span.set("mc.request.bytes", call.payload.len());
    if let Some(from) = call.from {
        span.set("client.address", from.to_string());
    }
    match refusal {
        None => span.set("mc.answer.bytes", answer_len),
        Some(refusal) => {
            span.set("error.type", refusal.code.as_str());
            span.failed(&refusal.message);
        }
    }
}

/// Refuses a call that waited too long, and counts it.
pub(super) fn too_late(counters: &Counters) -> Refusal {
    add(&counters.expired, 1);
    let message = "the call waited longer than its caller wanted; it was not executed";
    Refusal::new(ErrorCode::RpcTimeout, message)
}

/// Answers a call that its caller gave up before it was executed.
pub(super) fn refuse_cancelled(counters: &Counters, header: FrameHeader, out: &mut BytesMut) {
    add(&counters.cancelled, 1);
    let refusal = Refusal::new(ErrorCode::Cancelled, "cancelled by its caller; not executed");
    append_refusal(out, header.id, header.method, &refusal);
}

/// Tells a peer what is wrong with its frame.
pub(super) fn refuse_frame(error: FrameError, out: &mut BytesMut) {
    let (id, method) = error.call();
    append_refusal(out, id, method, &Refusal::invalid(error.to_string()));
}
