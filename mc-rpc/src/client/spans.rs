//! The spans of calls.

use mc_trace::Span;

use crate::error::RpcError;

/// Notes what became of a call to the master at `target`.
pub(super) fn note(span: &Span, target: &str, error: Option<&RpcError>) {
    if !span.is_recording() {
        return;
    }
    span.set("rpc.system", "mc-store");
    span.set("server.address", target);
    if let Some(error) = error {
        span.set("error.type", error.code().as_str());
        span.failed(error);
    }
}
