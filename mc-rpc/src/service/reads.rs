//! Calls of those who read.

use bytes::BytesMut;
use mc_meta::ScopedKey;
use mc_types::KeyRef;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply, ExistReply};
use crate::request;

impl Turn<'_> {
    pub(super) fn get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let key = self.scoped(request::parse_key(self.payload)?)?;
        let list = self.master.get_replica_list(self.now, key.as_ref())?;
        reply::write_replica_list(out, &list);
        Ok(())
    }

    pub(super) fn batch_get_replica_list(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let mut reply = BatchReply::new(out, 3, keys.len(), self.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_get_replica_list(self.now, keys);
        self.in_bunches(keys, ask, |list| match list.and_then(|list| Ok(list?)) {
            Ok(list) => reply.replica_list(&list),
            Err(refusal) => reply.refused(&refusal),
        });
        Ok(())
    }

    pub(super) fn exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let key = self.scoped(request::parse_key(self.payload)?)?;
        reply::write_exists(out, self.master.exist(self.now, key.as_ref()));
        Ok(())
    }

    pub(super) fn batch_exist(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let mut reply = ExistReply::new(out, keys.len(), self.max_reply)?;
        let ask = |keys: &[KeyRef<'_>]| self.master.batch_exist(self.now, keys);
        self.in_bunches(keys, ask, |exists| match exists {
            Ok(exists) => reply.exists(exists),
            Err(refusal) => reply.refused(&refusal),
        });
        reply.finish()
    }

    pub(super) fn longest_prefix(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let keys = request::parse_keys(self.payload)?;
        let keys = keys
            .keys()
            .map(|key| self.scoped(key?))
            .collect::<Result<Vec<ScopedKey<'_>>, Refusal>>()?;
        let length = self.master.longest_prefix(self.now, keys.iter().map(ScopedKey::as_ref));
        reply::write_count(out, length as u64);
        Ok(())
    }
}
