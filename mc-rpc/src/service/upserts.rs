//! Calls of those who store a new value of a key. Their messages are those of a put.

use bytes::BytesMut;
use mc_meta::Master;

use super::Turn;
use super::puts::{Finish, Starts};
use crate::error::Refusal;

const START: Starts = Starts { first: Master::upsert_start, again: Master::upsert_start_again };

const END: Finish = |master, now, client, put, _| master.upsert_end(now, client, put);

const REVOKE: Finish =
    |master, now, client, put, late| master.upsert_revoke(now, client, put.key, put.handle, late);

impl Turn<'_> {
    pub(super) fn upsert_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.start(out, &START)
    }

    pub(super) fn upsert_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(END)
    }

    pub(super) fn upsert_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(REVOKE)
    }

    pub(super) fn batch_upsert_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_start(out, &START)
    }

    pub(super) fn batch_upsert_end(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, END)
    }

    pub(super) fn batch_upsert_revoke(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, REVOKE)
    }
}
