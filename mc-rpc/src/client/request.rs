//! A request that may be sent more than once.

use core::time::Duration;

use bytes::BytesMut;

use super::config::ClientConfig;
use crate::error::RpcError;
use crate::frame::{HEADER_LEN, append_request};
use crate::method::{Method, Pace};

/// Largest request that fits into a frame, whatever a master accepts.
const MAX_LEN: usize = u32::MAX as usize;

/// How long after its first attempt a tracked call may be sent again. A master knows it
/// for a minute.
pub(super) const KNOWN_FOR: Duration = Duration::from_secs(45);

/// Largest frame whose answer is overdue when the connection has been silent for a part of the
/// call's time: a larger one takes long to arrive and to be executed.
const MAX_PROMPT_LEN: usize = 64 << 10;

/// How long an attempt may hear nothing before the next one is made on another connection: a
/// third of the call's time, so that the call's end can still be learnt in time. `None` for calls
/// that may take longer than that.
pub(super) fn silence(config: &ClientConfig, method: Method, frame: usize) -> Option<Duration> {
    let is_prompt = method.pace() == Pace::Short && frame <= MAX_PROMPT_LEN;
    is_prompt.then(|| config.call_timeout / 3)
}

/// Appends the frame of a request whose message `write` writes; [`address`] completes it.
pub(super) fn write_request(
    out: &mut BytesMut,
    method: Method,
    token: Option<u64>,
    write: impl FnOnce(&mut BytesMut),
) -> Result<(), RpcError> {
    let begin = out.len() + HEADER_LEN;
    append_request(out, 0, method.number(), token, None, |out| {
        write(out);
        check_len(method, out.len() - begin, MAX_LEN)
    })
}

/// Whether a master takes a payload of `len` bytes.
pub(super) fn check_len(method: Method, len: usize, max: usize) -> Result<(), RpcError> {
    if len <= max { Ok(()) } else { Err(RpcError::RequestTooLarge { method, len, max }) }
}

/// Puts the call's id on its connection, and the time that it has left, into the frame.
pub(super) fn address(frame: &mut [u8], id: u64, left: Duration) {
    let millis = left.as_secs().saturating_mul(1000);
    let millis = millis.saturating_add(left.subsec_nanos().div_ceil(1_000_000).into());
    let millis = u32::try_from(millis).unwrap_or(u32::MAX).max(1);
    frame[4..12].copy_from_slice(&id.to_le_bytes());
    frame[16..HEADER_LEN].copy_from_slice(&millis.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::first_frame;

    #[test]
    fn a_frame_is_completed_again_and_again() {
        let mut frame = BytesMut::new();
        write_request(&mut frame, Method::Remove, Some(9), |out| out.extend_from_slice(b"xy"))
            .unwrap();
        for (id, left, millis) in [
            (1, Duration::from_secs(10), 10_000),
            (u64::MAX, Duration::from_nanos(1), 1),
            (7, Duration::ZERO, 1),
            (8, Duration::new(1, 1_000_001), 1002),
            (9, Duration::MAX, u32::MAX),
        ] {
            address(&mut frame, id, left);
            let (header, payload) = first_frame(&frame, 64).unwrap().unwrap();
            assert_eq!((header.id, header.timeout_ms), (id, millis));
            assert_eq!((header.method, header.tracked), (Method::Remove.number(), true));
            assert_eq!(payload, b"\x09\0\0\0\0\0\0\0xy");
        }
    }
}
