//! The record of administrative calls, as lines of the log whose target is `audit`.

use std::fmt;

use prost::Message;

use crate::method::Method;
use crate::proto;
use crate::refusal::Refusal;
use crate::service::Call;

/// The target of the lines.
const TARGET: &str = "audit";

/// Characters of a call's request that a line has.
const MAX_SHOWN: usize = 500;

/// Bytes of a request that is read for that.
const MAX_READ: usize = 64 << 10;

/// Writes down who asked for what and what it came to, if the call is administrative: one that removes
/// many objects, or changes what tenants, segments and masters may do.
pub(super) fn record(call: &Call<'_>, refused: Option<&Refusal>) {
    let Some(asked) = asked(call.method, call.payload) else { return };
    let (method, caller) = (call.method, call.caller);
    let (name, role, tenant) = (caller.name(), caller.role(), caller.tenant());
    let from = call.from.map(tracing::field::display);
    match refused {
        None => {
            tracing::info!(target: TARGET, %method, asked, name, %role, %tenant, from, "done");
        }
        Some(refusal) => {
            let (code, why) = (refusal.code, &*refusal.message);
            tracing::warn!(target: TARGET, %method, asked, name, %role, %tenant, from, %code, why, "refused");
        }
    }
}

/// The request of an administrative call, in its words; `None` for other calls.
fn asked(method: Method, payload: &[u8]) -> Option<String> {
    Some(match method {
        Method::RemoveAll => shown::<proto::RemoveAllRequest>(payload),
        Method::RemoveByRegex => shown::<proto::RemoveByRegexRequest>(payload),
        Method::BatchReplicaClear => shown::<proto::BatchReplicaClearRequest>(payload),
        Method::CreateCopyTask => shown::<proto::CreateCopyTaskRequest>(payload),
        Method::CreateMoveTask => shown::<proto::CreateMoveTaskRequest>(payload),
        Method::CreateDrainJob => shown::<proto::CreateDrainJobRequest>(payload),
        Method::CancelDrainJob => shown::<proto::CancelDrainJobRequest>(payload),
        Method::ReopenSegment => shown::<proto::ReopenSegmentRequest>(payload),
        Method::SetTenantQuota => shown::<proto::SetTenantQuotaRequest>(payload),
        Method::ReplaceTenantQuotas => shown::<proto::ReplaceTenantQuotasRequest>(payload),
        Method::DeleteTenantQuota => shown::<proto::DeleteTenantQuotaRequest>(payload),
        Method::HandOver => shown::<proto::HandOverRequest>(payload),
        Method::PinObject => shown::<proto::PinObjectRequest>(payload),
        _ => return None,
    })
}

/// The beginning of a request.
fn shown<M: Message + Default + fmt::Debug>(payload: &[u8]) -> String {
    if payload.len() > MAX_READ {
        return format!("{} bytes", payload.len());
    }
    match M::decode(payload) {
        Ok(request) => {
            let text = format!("{request:?}");
            match text.char_indices().nth(MAX_SHOWN) {
                None => text,
                Some((end, _)) => format!("{}…", &text[..end]),
            }
        }
        Err(error) => format!("{} bytes that are no request: {error}", payload.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrative_calls_are_shown_and_no_others() {
        let request =
            proto::RemoveByRegexRequest { key_regex: "a/.*".into(), ..Default::default() };
        let asked_for = asked(Method::RemoveByRegex, &request.encode_to_vec()).unwrap();
        assert!(asked_for.contains("key_regex: \"a/.*\""), "{asked_for}");
        let long =
            proto::RemoveByRegexRequest { key_regex: "é".repeat(5000), ..Default::default() };
        let asked_for = asked(Method::RemoveByRegex, &long.encode_to_vec()).unwrap();
        assert_eq!(asked_for.chars().count(), MAX_SHOWN + 1);
        assert_eq!(asked(Method::RemoveAll, &vec![0; 70_000]).unwrap(), "70000 bytes");
        assert!(asked(Method::HandOver, &[0xff; 40]).unwrap().starts_with("40 bytes that are no"));
        for method in Method::ALL.iter().copied() {
            assert_eq!(asked(method, &[]).is_some(), method.is_administrative(), "{method}");
        }
    }
}
