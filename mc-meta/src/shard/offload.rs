//! Objects that a client is to write to its disk.

use mc_types::{ClientId, Time};

use crate::effect::emit::Emit;
use crate::object::Object;
use crate::shard::Shard;
use crate::side_tables::offload::Offload;
use crate::side_tables::offload_queue::OffloadError;
use crate::tenant::below::TierBelow;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// Has the first client write an object that holds it in memory and takes it.
    ///
    /// # Errors
    /// Why none does: [`OffloadError::NoDisk`], unless there is something better to say.
    pub(crate) fn queue_offload(
        &mut self,
        slot: ObjectSlot,
        emit: Emit<'_>,
    ) -> Result<ClientId, OffloadError> {
        if self.config().books.quotas.limits_below() && self.would_take(slot, emit.now) {
            let len = self.object(slot).map_or(0, Object::len);
            self.make_room_below(TierBelow::Disks, self.tenant(slot), len, emit);
        }
        self.queue_offload_within(slot, emit.now)
    }

    /// [`queue_offload`](Self::queue_offload), for which no object makes room within the tenant's quota.
    fn queue_offload_within(
        &mut self,
        slot: ObjectSlot,
        now: Time,
    ) -> Result<ClientId, OffloadError> {
        let (tenant, len) = (self.tenant(slot), self.object(slot).map_or(0, Object::len));
        let object = self.object(slot).ok_or(OffloadError::NoDisk)?;
        if !self.config().books.quotas.take_below(TierBelow::Disks, tenant, len) {
            self.config().books.quotas.refuse_below(TierBelow::Disks, tenant);
            return Err(OffloadError::OverQuota);
        }
        let (key, generation) = (self.key(slot), object.generation);
        let mut refusal = OffloadError::NoDisk;
        let mut book = self.config().books.local.book.lock();
        let mut writer = None;
        for replica in object.replicas().filter(|replica| replica.segment.is_readable()) {
            let client = replica.segment.client();
            match book.offloads.queue(now, client, key, generation, len) {
                Ok(()) => {
                    writer = Some(client);
                    break;
                }
                Err(OffloadError::NoDisk | OffloadError::Disabled | OffloadError::Silent) => {}
                Err(error) => refusal = error,
            }
        }
        drop(book);
        let Some(client) = writer else {
            self.config().books.quotas.give_back_below(TierBelow::Disks, tenant, len);
            return Err(refusal);
        };
        self.set_offload(slot, Offload { client, promised: 0, since: now });
        Ok(client)
    }

    /// Has an object written that is used for the first time since its put. Others of the shard stay as
    /// they are, because the command may have looked them up.
    #[cold]
    pub(crate) fn write_used(&mut self, slot: ObjectSlot, now: Time) {
        let object = self.get(slot);
        if object.local_disks().is_empty() && self.offload(slot).is_none() {
            // One that no client can write stays in memory alone, and that is counted.
            let _ = self.queue_offload_within(slot, now);
        }
    }

    /// Returns whether a client that holds an object in memory would write it to its disk.
    fn would_take(&self, slot: ObjectSlot, now: Time) -> bool {
        let Some(object) = self.object(slot) else { return false };
        let book = self.config().books.local.book.lock();
        let replicas = object.replicas().filter(|replica| replica.segment.is_readable());
        let mut clients = replicas.map(|replica| replica.segment.client());
        clients.any(|client| book.offloads.takes(now, client))
    }

    /// Returns whether a client may be reading the memory of an object.
    pub(crate) fn is_in_use(&self, slot: ObjectSlot, now: Time) -> bool {
        let terms = &self.config().terms;
        self.object(slot).is_some_and(|object| object.protection().is_leased(terms, now))
    }
}
