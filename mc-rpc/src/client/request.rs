//! A request that may be sent more than once.

use core::time::Duration;

use bytes::{BufMut, BytesMut};
use mc_meta::ReadProgress;
use mc_trace::TraceContext;
use mc_types::ErrorCode;

use super::config::ClientConfig;
use crate::error::RpcError;
use crate::frame::{FrameHeader, HEADER_LEN, Kind, READS_LEN, SEND_TIME_LEN, TRACE_LEN, put_reads};
use crate::method::{Method, Pace};

/// The most bytes in front of a request's token.
const FIRST: usize = SEND_TIME_LEN + READS_LEN + TRACE_LEN;

/// Largest request that fits into a frame with what comes first, whatever a master accepts.
const MAX_LEN: usize = u32::MAX as usize - FIRST;

/// Room in front of a request's payload: for its header, and for what comes first on connections
/// that take it.
const ROOM: usize = HEADER_LEN + FIRST;

/// The optional fields of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    /// How long after the connection's hello it is sent.
    pub(super) sent: Option<Duration>,
    /// The reads of its client that are over.
    pub(super) reads: Option<ReadProgress>,
    /// The trace that it belongs to.
    pub(super) trace: Option<TraceContext>,
}

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

/// Writes a request whose message `write` writes into `out`, which is empty; [`address`] completes
/// it.
pub(super) fn write_request(
    out: &mut BytesMut,
    method: Method,
    token: Option<u64>,
    write: impl FnOnce(&mut BytesMut),
) -> Result<FrameHeader, RpcError> {
    debug_assert!(out.is_empty(), "the room is at the beginning");
    out.put_bytes(0, ROOM);
    if let Some(token) = token {
        out.put_u64_le(token);
    }
    write(out);
    let len = out.len() - ROOM;
    check_len(method, len, MAX_LEN)?;
    let header = FrameHeader::new(0, method.number(), Kind::Request);
    // Checked above.
    Ok(FrameHeader { payload_len: len as u32, tracked: token.is_some(), ..header })
}

/// The message in a tracked request that [`write_request`] has written.
pub(super) fn message_of(request: &[u8]) -> &[u8] {
    request.get(ROOM + size_of::<u64>()..).unwrap_or_default()
}

/// Returns whether a master takes a payload of `len` bytes.
pub(super) fn check_len(method: Method, len: usize, max: usize) -> Result<(), RpcError> {
    if len <= max { Ok(()) } else { Err(RpcError::RequestTooLarge { method, len, max }) }
}

/// Completes a request for a connection: with the call's id there, the time that it has left, and
/// what it says first. Returns where in `request` the frame begins, which ends with it.
pub(super) fn address(
    request: &mut [u8],
    header: FrameHeader,
    id: u64,
    left: Duration,
    said: Said,
) -> usize {
    let millis = left.as_secs().saturating_mul(1000);
    let millis = millis.saturating_add(left.subsec_nanos().div_ceil(1_000_000).into());
    let timeout_ms = u32::try_from(millis).unwrap_or(u32::MAX).max(1);
    let mut header = FrameHeader { id, timeout_ms, ..header };
    let mut begin = ROOM;
    if let Some(trace) = &said.trace {
        begin -= TRACE_LEN;
        header.traced = true;
        request[begin..begin + TRACE_LEN].copy_from_slice(&trace.encode());
    }
    if let Some(reads) = &said.reads {
        begin -= READS_LEN;
        header.reads = true;
        put_reads(&mut request[begin..], reads);
    }
    if let Some(sent) = said.sent {
        begin -= SEND_TIME_LEN;
        header.timed = true;
        let micros = u64::try_from(sent.as_micros()).unwrap_or(u64::MAX);
        request[begin..begin + SEND_TIME_LEN].copy_from_slice(&micros.to_le_bytes());
    }
    header.payload_len += (ROOM - begin) as u32; // bounded by MAX_LEN
    begin -= HEADER_LEN;
    request[begin..begin + HEADER_LEN].copy_from_slice(&header.encode());
    begin
}

/// Returns whether a request of `len` bytes has room for what comes first where `max` are accepted.
pub(super) fn has_room(len: usize, max: usize) -> bool {
    len.saturating_add(FIRST) <= max
}

/// Returns whether this refusal says that the call's time is over.
pub(super) fn is_too_late(kind: Kind, payload: &[u8]) -> bool {
    kind == Kind::Error && payload.starts_with(&ErrorCode::RpcTimeout.code().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{first_frame, reads_of, send_time_of, token_of, trace_of};

    #[test]
    fn a_frame_is_completed_again_and_again() {
        let mut request = BytesMut::new();
        let write = |out: &mut BytesMut| out.extend_from_slice(b"xy");
        let begun = write_request(&mut request, Method::Remove, Some(9), write).unwrap();
        assert_eq!(message_of(&request), b"xy");
        for (id, left, millis, sent) in [
            (1, Duration::from_secs(10), 10_000, None),
            (u64::MAX, Duration::from_nanos(1), 1, Some(Duration::from_micros(3))),
            (7, Duration::ZERO, 1, Some(Duration::MAX)),
            (8, Duration::new(1, 1_000_001), 1002, None),
            (9, Duration::MAX, u32::MAX, Some(Duration::ZERO)),
        ] {
            let reads = ReadProgress { reader: u128::MAX - 1, begun: 7, over: id >> 1 };
            let reads = Some(reads).filter(|_| id != 7);
            let trace = TraceContext::new(id.into(), id, true).filter(|_| id % 8 != 0);
            let begin = address(&mut request, begun, id, left, Said { sent, reads, trace });
            let (header, payload) = first_frame(&request[begin..], 128).unwrap().unwrap();
            assert_eq!(reads_of(header, payload), reads);
            assert_eq!(trace_of(header, payload), trace);
            assert_eq!((header.id, header.timeout_ms), (id, millis));
            assert_eq!((header.method, header.tracked), (Method::Remove.number(), true));
            let micros = sent.map(|sent| sent.as_micros().min(u64::MAX.into()) as u64);
            assert_eq!(send_time_of(header, payload), micros);
            assert_eq!(token_of(header, payload), (Some(9), &b"xy"[..]));
            assert_eq!(begin + HEADER_LEN + payload.len(), request.len());
        }
    }
}
