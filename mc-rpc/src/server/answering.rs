//! From a call in a frame to the frame that answers it.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use mc_types::ErrorCode;

use super::Shared;
use super::figures::{Counters, add};
use super::replays::{Attempt, Session, readdressed};
use crate::caller::Caller;
use crate::error::Refusal;
use crate::frame::{FrameError, FrameHeader, Kind, append_frame, append_refusal, token_of};
use crate::method::{Method, Repeat};
use crate::service::{Call, Service};

/// The other end of a connection, as its calls need to know it.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) caller: Arc<Caller>,
    /// `None` when it tracks no calls.
    pub(super) session: Option<Arc<Session>>,
    /// Most bytes that it accepts as an answer.
    pub(super) max_reply: usize,
}

/// Appends the frame that answers a call. `payload` is all of its payload; it had arrived
/// at `arrived`.
pub(super) fn answer_call<S: Service>(
    shared: &Shared<S>,
    asker: &Asker,
    header: FrameHeader,
    payload: &[u8],
    arrived: Instant,
    out: &mut BytesMut,
) {
    if header.timeout().is_some_and(|timeout| arrived.elapsed() > timeout) {
        add(&shared.counters.expired, 1);
        let message = "the call waited longer than its caller wanted; it was not executed";
        let refusal = Refusal::new(ErrorCode::RpcTimeout, message);
        return append_refusal(out, header.id, header.method, &refusal);
    }
    execute(shared, asker, header, payload, out);
}

/// [`answer_call`] for a call that has not waited.
pub(super) fn execute<S: Service>(
    shared: &Shared<S>,
    asker: &Asker,
    header: FrameHeader,
    payload: &[u8],
    out: &mut BytesMut,
) {
    let Some(method) = Method::from_number(header.method) else {
        let message =
            format!("this master has no method {}; it may be older than the client", header.method);
        let refusal = Refusal::new(ErrorCode::NotSupported, message);
        return append_refusal(out, header.id, header.method, &refusal);
    };
    let (token, payload) = token_of(header, payload);
    let tracked = token.zip(asker.session.as_deref());
    let Some((token, session)) = tracked.filter(|_| method.repeat() == Repeat::Tracked) else {
        return call(shared, asker, header, method, payload, out);
    };
    match session.attempt(token) {
        Attempt::First => {
            let start = out.len();
            call(shared, asker, header, method, payload, out);
            session.answered(token, &out[start..]);
        }
        Attempt::Repeated(frame) => {
            add(&shared.counters.repeated, 1);
            out.extend_from_slice(&readdressed(&frame, header.id));
        }
        Attempt::Refused(refusal) => append_refusal(out, header.id, header.method, &refusal),
    }
}

fn call<S: Service>(
    shared: &Shared<S>,
    asker: &Asker,
    header: FrameHeader,
    method: Method,
    payload: &[u8],
    out: &mut BytesMut,
) {
    let answered = append_frame(out, header.id, header.method, Kind::Reply, |out| {
        let (max_reply, start) = (asker.max_reply, out.len());
        let caller = &*asker.caller;
        shared.service.call(Call { method, payload, max_reply, caller }, out)?;
        let len = out.len() - start;
        if len > max_reply {
            return Err(Refusal::invalid(format!(
                "the answer to {method} has {len} bytes, the caller accepts {max_reply}; \
                 ask for less at a time"
            )));
        }
        Ok(())
    });
    shared.counters.called(method, answered.is_err());
    if let Err(refusal) = answered {
        append_refusal(out, header.id, header.method, &refusal);
    }
}

/// Answers a call that its caller gave up before it was executed.
pub(super) fn refuse_cancelled(counters: &Counters, header: FrameHeader, out: &mut BytesMut) {
    add(&counters.cancelled, 1);
    let refusal = Refusal::new(ErrorCode::Cancelled, "given up by its caller; not executed");
    append_refusal(out, header.id, header.method, &refusal);
}

/// Tells a peer what is wrong with its frame.
pub(super) fn refuse_frame(error: FrameError, out: &mut BytesMut) {
    let (id, method) = error.call();
    append_refusal(out, id, method, &Refusal::invalid(error.to_string()));
}
