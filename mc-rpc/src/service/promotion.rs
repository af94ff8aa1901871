//! Calls of those who bring objects back from disks into memory.

use bytes::BytesMut;

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
            self.master.notify_promotion_failure(self.now, client, key, job.generation)?;
        }
        Ok(())
    }

    pub(super) fn promotion_alloc_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let PromotionStartRequest { client, object, generation, len, preferred } =
            PromotionStartRequest::parse(self.payload)?;
        let (key, now) = (self.scoped_of(&object)?, self.now);
        let placement = self.master.promotion_alloc_start(
            now,
            client,
            key.as_ref(),
            generation,
            len,
            &preferred,
        )?;
        reply::write_promotion(out, &placement);
        Ok(())
    }

    pub(super) fn notify_promotion_success(self) -> Result<(), Refusal> {
        let PromotionFinishRequest { client, object, generation } =
            PromotionFinishRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        Ok(self.master.notify_promotion_success(self.now, client, key.as_ref(), generation)?)
    }

    pub(super) fn notify_promotion_failure(self) -> Result<(), Refusal> {
        let PromotionFinishRequest { client, object, generation } =
            PromotionFinishRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        Ok(self.master.notify_promotion_failure(self.now, client, key.as_ref(), generation)?)
    }
}
