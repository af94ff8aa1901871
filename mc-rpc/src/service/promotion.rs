//! Calls of those who bring objects back from disks into memory.

use bytes::BytesMut;
use mc_meta::LateWrites;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, DISK_JOB_CEILING};
use crate::request::{self, MAX_PAGE, PromotionFinishRequest, PromotionStartRequest};

impl Turn<'_> {
    pub(super) fn promotion_heartbeat(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let client = request::parse_ping(self.payload)?;
        let jobs = self.master.promotion_heartbeat(self.now, client);
        let fit = jobs.len().min(MAX_PAGE).min(self.max_reply / DISK_JOB_CEILING);
        for job in &jobs[..fit] {
            reply::write_disk_job(out, job);
        }
        // The others would be nobody's until their time is up. When they are read again
        // they are tried again.
        for job in &jobs[fit..] {
            let key = job.key.as_ref();
            let (generation, late) = (job.generation, LateWrites::Impossible);
            self.master.notify_promotion_failure(self.now, client, key, generation, None, late)?;
        }
        Ok(())
    }

    pub(super) fn promotion_alloc_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let PromotionStartRequest { client, object, generation, len, preferred } =
            PromotionStartRequest::parse(self.payload)?;
        let (key, now) = (self.scoped_of(&object)?, self.now);
        let grant = self.master.promotion_alloc_start(
            now,
            client,
            key.as_ref(),
            generation,
            len,
            &preferred,
        )?;
        reply::write_promotion(out, &grant, self.signer);
        Ok(())
    }

    pub(super) fn notify_promotion_success(self) -> Result<(), Refusal> {
        let PromotionFinishRequest { client, object, generation, handle, .. } =
            PromotionFinishRequest::parse(self.payload)?;
        let missing = || Refusal::invalid("transfer is missing; it says which memory is meant");
        let (key, handle) = (self.scoped_of(&object)?, handle.ok_or_else(missing)?);
        let (now, key) = (self.now, key.as_ref());
        Ok(self.master.notify_promotion_success(now, client, key, generation, handle)?)
    }

    pub(super) fn notify_promotion_failure(self) -> Result<(), Refusal> {
        let PromotionFinishRequest { client, object, generation, handle, late } =
            PromotionFinishRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        let (now, key) = (self.now, key.as_ref());
        Ok(self.master.notify_promotion_failure(now, client, key, generation, handle, late)?)
    }
}
