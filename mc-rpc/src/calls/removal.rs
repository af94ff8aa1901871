//! The removal of objects.

use bytes::BytesMut;
use mc_meta::ObjectsLeft;
use mc_types::{ClientId, Generation, KeyRef, ObjectKey};

use super::{
    CallContext, MAX_BATCH, at_most, calls, client_id, key, message, object_key, reply,
    segment_name,
};
use crate::answer::{read_all_done, read_done};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::BatchReply;
use crate::request::{self, write_flagged_key, write_flagged_keys};

/// The result of a removal of all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemovedAll {
    /// Objects that are removed.
    pub removed: u64,
    /// Objects that are left; `None` when the master is too old to say.
    pub left: Option<ObjectsLeft>,
}

calls! {
    /// Removes an object; with `force` even while it has a lease.
    fn remove(&self, key: KeyRef<'_>, force: bool) -> () {
        Remove "Refused with the codes of [`mc_meta::RemoveError`].",
        |out: &mut BytesMut| write_flagged_key(out, key, force),
        read_done,
    }

    /// [`remove`](Self::remove) of many keys.
    fn batch_remove(&self, keys: &[KeyRef<'_>], force: bool) -> Vec<Result<(), Refusal>> {
        BatchRemove "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| write_flagged_keys(out, keys, force),
        |message: &[u8]| read_all_done(message, keys.len()),
    }

    /// Removes the objects that these puts have stored, also while they have leases. Of several
    /// calls that name one put, one is answered with `Ok`.
    fn batch_remove_generations(&self, items: &[(KeyRef<'_>, Generation)]) -> Vec<Result<(), Refusal>> {
        BatchRemoveGeneration
            "As [`batch_get_replica_list`](Self::batch_get_replica_list); the code of an item is \
             `LeaseExpired` when its key has the object of another put. A master that does not know the \
             call refuses it with `NotSupported`.",
        message(proto::BatchRemoveGenerationRequest {
            items: items.iter().map(|(key, generation)| proto::RemoveGenerationItem {
                key: key.as_str().into(),
                generation: generation.as_u64(),
            }).collect(),
        }),
        |message: &[u8]| read_all_done(message, items.len()),
    }

    /// Removes every object without a lease, with `force` the others too, and returns how
    /// many that were.
    fn remove_all(&self, force: bool) -> u64 {
        RemoveAll,
        message(proto::RemoveAllRequest { force }),
        reply(|answer: &proto::RemoveAllResponse| Ok(answer.removed)),
    }

    /// [`remove_all`](Self::remove_all), which also says how many objects are left.
    fn remove_all_counted(&self, force: bool) -> RemovedAll {
        RemoveAll,
        message(proto::RemoveAllRequest { force }),
        reply(|answer: &proto::RemoveAllResponse| {
            let left = answer.left.map(|left| ObjectsLeft {
                leased: left.leased,
                in_transfer: left.in_transfer,
                unfinished: left.unfinished,
            });
            Ok(RemovedAll { removed: answer.removed, left })
        }),
    }

    /// Takes back the replicas of those of `keys` that `client` has put: all of them, and
    /// so the object, or with a segment's name only the one there. Returns the keys that were
    /// cleared, in their order. Passed over are objects that are not there or not this
    /// client's, that are under lease or being written, copied or moved, and that have no
    /// replica in the segment.
    fn batch_replica_clear(&self, client: ClientId, keys: &[KeyRef<'_>], segment_name: Option<&str>) -> Vec<ObjectKey> {
        BatchReplicaClear
            "Refused with `InvalidParams` beyond [`MAX_BATCH`](crate::MAX_BATCH) keys.",
        message(proto::BatchReplicaClearRequest {
            object_keys: keys.iter().map(|key| key.as_str().into()).collect(),
            client_id: client.to_bytes().into(),
            segment_name: segment_name.unwrap_or_default().into(),
        }),
        reply(|answer: &proto::BatchReplicaClearResponse| {
            at_most(&answer.cleared_keys, keys.len(), "cleared_keys")?;
            answer.cleared_keys.iter().map(|key| object_key(key)).collect()
        }),
    }
}

impl CallContext<'_> {
    pub(crate) fn remove(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let (key, force) = request::parse_flagged_key(self.payload)?;
        Ok(self.master.remove(self.now, self.scoped(key)?.as_ref(), force)?)
    }

    pub(crate) fn batch_remove(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (keys, force) = request::parse_flagged_keys(self.payload)?;
        BatchReply::new(out, 2, keys.len(), self.max_reply)?.all(keys.keys(), |key| {
            Ok(self.master.remove(self.now, self.scoped(key?)?.as_ref(), force)?)
        });
        Ok(())
    }

    pub(crate) fn batch_remove_generation(
        self,
        request: &proto::BatchRemoveGenerationRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let items = at_most(&request.items, MAX_BATCH, "items")?;
        BatchReply::new(out, 2, items.len(), self.max_reply)?.all(items, |item| {
            let key = self.scoped(key(&item.key, "key")?)?;
            let generation = Generation::new(item.generation);
            Ok(self.master.remove_generation(self.now, key.as_ref(), generation)?)
        });
        Ok(())
    }

    pub(crate) fn remove_all(
        self,
        request: &proto::RemoveAllRequest,
    ) -> Result<proto::RemoveAllResponse, Refusal> {
        let counts = self.master.remove_all_of(self.now, self.tenant, request.force);
        let left = proto::ObjectsLeft {
            leased: counts.left.leased,
            in_transfer: counts.left.in_transfer,
            unfinished: counts.left.unfinished,
        };
        let removed = counts.removed;
        Ok(proto::RemoveAllResponse { removed, left: Some(left), ..Default::default() })
    }

    pub(crate) fn batch_replica_clear(
        self,
        request: &proto::BatchReplicaClearRequest,
    ) -> Result<proto::BatchReplicaClearResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let name = segment_name(&request.segment_name, "segment_name")?;
        let name = (!name.is_empty()).then_some(name);
        at_most(&request.object_keys, MAX_BATCH, "object_keys")?;
        // Asked before anything is taken back: at most, every key of the request is told.
        if self.payload.len() > self.max_reply {
            return Err(Refusal::invalid(format!(
                "the answer may have {} bytes, the caller accepts {}; send fewer keys at a time",
                self.payload.len(),
                self.max_reply
            )));
        }
        let is_cleared = |text: &&String| {
            let Ok(key) = key(text, "object_keys") else { return false };
            self.scoped(key).is_ok_and(|stored| {
                let keys = [stored.as_ref()];
                !self.master.batch_replica_clear(self.now, client, &keys, name).is_empty()
            })
        };
        let cleared_keys = request.object_keys.iter().filter(is_cleared).cloned().collect();
        Ok(proto::BatchReplicaClearResponse { cleared_keys, ..Default::default() })
    }
}
