//! Reports of failures, and the heartbeat that carries their checks.

use bytes::BytesMut;
use mc_types::ClientId;

use super::calls;
use crate::answer::{self, Reported};
use crate::request::{Failure, Heartbeat, write_failures, write_heartbeat};

calls! {
    /// Reports replicas that are damaged and segments that could not be reached, at most
    /// [`MAX_FAILURES`](crate::MAX_FAILURES) at a time. The master has them confirmed before it
    /// does anything.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond that many failures, and with `NotSupported` by
    /// masters that do not know the call; or any other [`RpcError`].
    fn report_failures(&self, client: ClientId, failures: &[Failure<'_>]) -> Reported {
        ReportFailures,
        |out: &mut BytesMut| write_failures(out, client, failures),
        answer::read_reported,
    }

    /// [`ping`](Self::ping) of a client that says more of itself than that it lives.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn heartbeat(&self, beat: &Heartbeat<'_>) -> answer::Pong {
        Ping,
        |out: &mut BytesMut| write_heartbeat(out, beat),
        answer::read_pong,
    }
}
