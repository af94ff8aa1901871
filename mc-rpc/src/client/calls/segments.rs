//! Calls of those who contribute memory.

use core::time::Duration;

use bytes::BytesMut;
use mc_meta::SegmentSpec;
use mc_types::{ClientId, SegmentId};

use super::calls;
use crate::answer::{self, ClockReading, Pong};
use crate::request;

calls! {
    /// Contributes a segment, and reads the master's clock.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::MountError`]; or any other
    /// [`RpcError`].
    fn mount_segment(&self, client: ClientId, spec: &SegmentSpec) -> ClockReading {
        MountSegment,
        |out: &mut BytesMut| request::write_mount(out, client, spec),
        answer::read_mounted,
    }

    /// Attaches a segment that was mounted before again, with all that it holds, and reads
    /// the master's clock.
    ///
    /// # Errors
    /// Refused with [`ErrorCode::SegmentNotFound`](mc_types::ErrorCode::SegmentNotFound)
    /// unless the master knows exactly this segment of `client`; or any other
    /// [`RpcError`].
    fn remount_segment(&self, client: ClientId, spec: &SegmentSpec) -> ClockReading {
        ReMountSegment,
        |out: &mut BytesMut| request::write_mount(out, client, spec),
        answer::read_mounted,
    }

    /// Takes a segment back; the replicas in it are gone.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::UnmountError`]; or any other
    /// [`RpcError`].
    fn unmount_segment(&self, client: ClientId, id: SegmentId) -> () {
        UnmountSegment,
        |out: &mut BytesMut| request::write_unmount(out, client, id),
        answer::read_done,
    }

    /// Takes no new objects into a segment from now on, and takes it back when `grace` has
    /// passed; until then what it holds can be read, and moved elsewhere. Asking again
    /// changes nothing.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::UnmountError`]; or any other
    /// [`RpcError`].
    fn graceful_unmount_segment(&self, client: ClientId, id: SegmentId, grace: Duration) -> () {
        GracefulUnmountSegment,
        |out: &mut BytesMut| request::write_graceful_unmount(out, client, id, grace),
        answer::read_done,
    }

    /// The hosts that serve the segments of each of `clients`: addresses or names, each
    /// once. Clients of which nothing is mounted, or that are away, are left out.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) clients; or any
    /// other [`RpcError`].
    fn batch_query_ip(&self, clients: &[ClientId]) -> Vec<(ClientId, Vec<Box<str>>)> {
        BatchQueryIp,
        |out: &mut BytesMut| request::write_client_ids(out, clients),
        |message: &[u8]| answer::read_hosts(message, clients.len()),
    }

    /// Says that `client` lives, and reads the master's clock.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn ping(&self, client: ClientId) -> Pong {
        Ping,
        |out: &mut BytesMut| request::write_ping(out, client),
        answer::read_pong,
    }
}
