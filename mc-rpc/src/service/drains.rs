//! Calls of those who empty segments.

use bytes::BytesMut;

use super::Turn;
use crate::error::Refusal;
use crate::reply;
use crate::request::{self, CreateDrainJobRequest};

impl Turn<'_> {
    pub(super) fn create_drain_job(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let CreateDrainJobRequest { segments, targets, max_concurrency } =
            CreateDrainJobRequest::parse(self.payload)?;
        let created = self.master.create_drain_job(self.now, &segments, &targets, max_concurrency);
        reply::write_job_id(out, created?);
        Ok(())
    }

    pub(super) fn query_drain_job(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let info = self.master.query_drain_job(request::parse_job(self.payload)?)?;
        reply::write_drain_job(out, &info, self.now);
        Ok(())
    }

    pub(super) fn list_drain_jobs(self, out: &mut BytesMut) -> Result<(), Refusal> {
        reply::write_drain_jobs(out, &self.master.list_drain_jobs(), self.now, self.max_reply);
        Ok(())
    }

    pub(super) fn cancel_drain_job(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let id = request::parse_job(self.payload)?;
        reply::write_job_status(out, self.master.cancel_drain_job(self.now, id)?);
        Ok(())
    }

    pub(super) fn reopen_segment(self) -> Result<(), Refusal> {
        Ok(self.master.reopen_segment(self.now, request::parse_reopen(self.payload)?)?)
    }
}
