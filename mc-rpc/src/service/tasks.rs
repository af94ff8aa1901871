//! Calls about tasks: those who want objects elsewhere, and those who do it.

use bytes::BytesMut;
use mc_meta::{TaskError, unscoped};
use mc_types::KeyRef;

use super::Turn;
use crate::caller::Role;
use crate::error::Refusal;
use crate::reply::{self, TASK_CEILING};
use crate::request::{self, CreateCopyTaskRequest, CreateMoveTaskRequest, MarkTaskRequest};

impl Turn<'_> {
    pub(super) fn create_copy_task(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let CreateCopyTaskRequest { object, targets } = CreateCopyTaskRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        let id = self.master.create_copy_task(self.now, key.as_ref(), &targets)?;
        reply::write_task_id(out, id);
        Ok(())
    }

    pub(super) fn create_move_task(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let CreateMoveTaskRequest { object, source, target } =
            CreateMoveTaskRequest::parse(self.payload)?;
        let key = self.scoped_of(&object)?;
        let id = self.master.create_move_task(self.now, key.as_ref(), source, target)?;
        reply::write_task_id(out, id);
        Ok(())
    }

    pub(super) fn query_task(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let info = self.master.query_task(request::parse_query_task(self.payload)?)?;
        // Who may not know of it learns no more than of one that never was.
        if self.role < Role::Node && !self.owns(info.key.as_ref()) {
            return Err(TaskError::NotFound.into());
        }
        reply::write_task_info(out, &info, self.now);
        Ok(())
    }

    pub(super) fn fetch_tasks(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (client, max) = request::parse_fetch_tasks(self.payload)?;
        // What is fetched and does not fit into the answer would be nobody's until its
        // time is up.
        let max = max.min(self.max_reply / TASK_CEILING);
        let tasks = self.master.fetch_tasks(self.now, client, max);
        reply::write_tasks(out, &tasks, self.now);
        Ok(())
    }

    pub(super) fn mark_task_to_complete(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let MarkTaskRequest { client, id, status, outcome } = MarkTaskRequest::parse(self.payload)?;
        let ended = self.master.mark_task_to_complete(self.now, client, id, status, outcome)?;
        reply::write_task_status(out, 2, ended);
        Ok(())
    }

    /// Whether a stored key is one of the caller's tenant.
    fn owns(&self, stored: KeyRef<'_>) -> bool {
        let own = KeyRef::new(unscoped(stored).1).ok().and_then(|key| self.scoped(key).ok());
        own.is_some_and(|own| own.as_ref() == stored)
    }
}
