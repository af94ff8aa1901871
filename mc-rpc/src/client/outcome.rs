//! Turns an answer into the caller's result.

use std::sync::Arc;

use crate::answer::Answer;
use crate::error::{MalformedReply, RpcError};
use crate::frame::{Kind, parse_refusal};
use crate::method::Method;

/// Reads the answer to a call of `method`: a frame of this kind, which says that it belongs
/// to the method with this number.
pub(crate) fn outcome<T>(
    method: Method,
    addr: &Arc<str>,
    (kind, number, payload): (Kind, u16, &[u8]),
    read: impl FnOnce(&[u8]) -> Answer<T>,
) -> Result<T, RpcError> {
    let answer = match kind {
        Kind::Error => return Err(RpcError::Refused(parse_refusal(payload))),
        _ if number != method.number() => Err(MalformedReply::OtherMethod { number }),
        _ => read(payload),
    };
    match answer {
        Ok(answer) => answer.map_err(RpcError::Refused),
        Err(reason) => Err(RpcError::Malformed { addr: Arc::clone(addr), method, reason }),
    }
}
