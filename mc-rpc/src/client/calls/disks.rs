//! Calls about the clients' own disks.

use bytes::BytesMut;
use mc_types::{ClientId, Endpoint, Generation};

use super::calls;
use crate::answer::{self, DiskJob, LocalDisks};
use crate::error::Refusal;
use crate::request::{self, BatchFoundRequest, BatchOutcomeRequest, TenantKey};

/// One object of [`MasterClient::notify_offload`](crate::MasterClient::notify_offload).
#[derive(Clone, Debug)]
pub struct OffloadItem<'a> {
    /// The object, as [`DiskJob::object`] says.
    pub object: TenantKey<'a>,
    /// The put that it came from, as the job said.
    pub generation: Generation,
    /// Whether it is on the disk now.
    pub written: bool,
}

/// One object of [`MasterClient::report_local_disk`](crate::MasterClient::report_local_disk).
#[derive(Clone, Debug)]
pub struct FoundItem<'a> {
    /// The object.
    pub object: TenantKey<'a>,
    /// The put that it came from.
    pub generation: Generation,
    /// Its length in bytes.
    pub len: u64,
}

calls! {
    /// Makes a client's own disk known, which is served at `endpoint`. From then on the
    /// client [pings](Self::ping), and fetches what to write with
    /// [`offload_heartbeat`](Self::offload_heartbeat) if it is `enabled`.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::LocalDiskError`]; or any other
    /// [`RpcError`].
    fn mount_local_disk(&self, client: ClientId, endpoint: &Endpoint, enabled: bool) -> () {
        MountLocalDisk,
        |out: &mut BytesMut| request::write_mount_disk(out, client, endpoint, enabled),
        answer::read_done,
    }

    /// Forgets a client's own disk with all that is on it.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::LocalDiskError`]; or any other
    /// [`RpcError`].
    fn unmount_local_disk(&self, client: ClientId) -> () {
        UnmountLocalDisk,
        |out: &mut BytesMut| request::write_ping(out, client),
        answer::read_done,
    }

    /// Up to `max` objects to write to the client's disk, oldest first; 0 is as many as one
    /// call fetches, [`MAX_PAGE`](crate::MAX_PAGE). Says whether the client takes more.
    ///
    /// # Errors
    /// Refused with `SegmentNotFound` when the disk is not mounted; or any other
    /// [`RpcError`]. When the answer is lost the objects wait until their time is up.
    fn offload_heartbeat(&self, client: ClientId, enabled: bool, max: usize) -> Vec<DiskJob> {
        OffloadHeartbeat,
        |out: &mut BytesMut| request::write_offload_heartbeat(out, client, enabled, max),
        answer::read_disk_jobs,
    }

    /// Says how the writing of objects went. One that is written can be read from the disk
    /// then.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes an
    /// object that is refused.
    fn notify_offload(&self, client: ClientId, outcomes: &[OffloadItem<'_>]) -> Vec<Result<(), Refusal>> {
        NotifyOffload,
        |out: &mut BytesMut| { let items = outcomes.iter().map(|item| (&item.object, item.generation, item.written)); BatchOutcomeRequest::write(out, client, items); },
        |message: &[u8]| answer::read_all_done(message, outcomes.len()),
    }

    /// Says what is on a client's disk that it has just mounted.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list). The client deletes an
    /// object that is refused.
    fn report_local_disk(&self, client: ClientId, found: &[FoundItem<'_>]) -> Vec<Result<(), Refusal>> {
        ReportLocalDisk,
        |out: &mut BytesMut| { let items = found.iter().map(|item| (&item.object, item.generation, item.len)); BatchFoundRequest::write(out, client, items); },
        |message: &[u8]| answer::read_all_done(message, found.len()),
    }

    /// Says how many bytes a client's disk can hold.
    ///
    /// # Errors
    /// Refused with `SegmentNotFound` when the disk is not mounted; or any other
    /// [`RpcError`].
    fn report_ssd_capacity(&self, client: ClientId, bytes: u64) -> () {
        ReportSsdCapacity,
        |out: &mut BytesMut| request::write_ssd_capacity(out, client, bytes),
        answer::read_done,
    }

    /// Whether a client is to delete everything on its disk, because everything was removed
    /// by force; says so once.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn poll_remove_all(&self, client: ClientId) -> bool {
        PollRemoveAll,
        |out: &mut BytesMut| request::write_ping(out, client),
        answer::read_exists,
    }

    /// Up to `limit` of the disks of clients whose ids come after `after`; 0 lets the
    /// master choose how many.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) disks; or any
    /// other [`RpcError`].
    fn local_disks(&self, after: Option<ClientId>, limit: usize) -> LocalDisks {
        ListLocalDisks,
        |out: &mut BytesMut| request::write_disk_page(out, after, limit),
        answer::read_local_disks,
    }
}
