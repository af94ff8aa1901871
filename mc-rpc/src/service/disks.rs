//! Calls about the clients' own disks.

use bytes::BytesMut;
use mc_meta::{FoundOnDisk, LocalDiskInfo, OffloadOutcome};

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply, DISK_JOB_CEILING};
use crate::request::{self, BatchFoundRequest, BatchOutcomeRequest};

impl Turn<'_> {
    pub(super) fn mount_local_disk(self) -> Result<(), Refusal> {
        let (client, endpoint, enabled) = request::parse_mount_disk(self.payload)?;
        Ok(self.master.mount_local_disk(self.now, client, endpoint, enabled)?)
    }

    pub(super) fn unmount_local_disk(self) -> Result<(), Refusal> {
        let client = request::parse_ping(self.payload)?;
        Ok(self.master.unmount_local_disk(self.now, client)?)
    }

    pub(super) fn offload_heartbeat(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (client, enabled, max) = request::parse_offload_heartbeat(self.payload)?;
        // What is fetched and does not fit into the answer would be nobody's until its
        // time is up.
        let max = max.min(self.max_reply / DISK_JOB_CEILING);
        let jobs = self.master.offload_heartbeat(self.now, client, enabled, max)?;
        for job in &jobs {
            reply::write_disk_job(out, job);
        }
        Ok(())
    }

    pub(super) fn notify_offload(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchOutcomeRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.len(), self.max_reply)?;
        for item in batch.items() {
            let noted = item.and_then(|item| {
                let key = self.scoped_of(&item.object)?;
                let (generation, written) = (item.generation, item.written);
                let outcome = OffloadOutcome { key: key.as_ref(), generation, written };
                only(self.master.notify_offload(self.now, batch.client, &[outcome]))
            });
            match noted {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        }
        Ok(())
    }

    pub(super) fn report_local_disk(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchFoundRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.len(), self.max_reply)?;
        for item in batch.items() {
            let noted = item.and_then(|item| {
                let key = self.scoped_of(&item.object)?;
                let (generation, len) = (item.generation, item.len);
                let found = FoundOnDisk { key: key.as_ref(), generation, len };
                only(self.master.report_local_disk(self.now, batch.client, &[found]))
            });
            match noted {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        }
        Ok(())
    }

    pub(super) fn report_ssd_capacity(self) -> Result<(), Refusal> {
        let (client, capacity) = request::parse_ssd_capacity(self.payload)?;
        Ok(self.master.report_ssd_capacity(client, capacity)?)
    }

    pub(super) fn poll_remove_all(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let client = request::parse_ping(self.payload)?;
        reply::write_exists(out, self.master.poll_remove_all(client));
        Ok(())
    }

    pub(super) fn list_local_disks(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (after, limit) = request::parse_disk_page(self.payload)?;
        let disks = self.master.local_disks();
        // They are in the order of their clients' ids.
        let begun = |disk: &LocalDiskInfo| after.is_some_and(|after| disk.client <= after);
        let rest = &disks[disks.partition_point(begun)..];
        reply::write_local_disks(out, rest, limit, self.max_reply);
        Ok(())
    }
}

/// The answer about the one thing that was asked about.
fn only<E>(answers: Vec<Result<(), E>>) -> Result<(), Refusal>
where
    Refusal: From<E>,
{
    answers.into_iter().try_for_each(|answer| answer.map_err(Refusal::from))
}
