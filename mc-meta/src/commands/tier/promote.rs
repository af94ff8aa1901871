//! Commands of promotions: a client is handed an object, reads it into memory and says so.

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::commands::reply::ReplicaList;
use crate::effect::emit::{Emit, unseen};
use crate::master::Master;
use crate::shard::Shard;
use crate::side_tables::offload_queue::TierJob;
use crate::side_tables::promotion::{Promotion, PromotionGrant, PromotionStartError, TICK_JOBS};
use crate::side_tables::promotion_queue::{EndedPromotion, PromotionError, TierHit};
use crate::space::replica::{Replica, Replicas};
use crate::vocabulary::request::{LateWrites, ReplicateConfig, TransferHandle};
use crate::vocabulary::slot::ObjectSlot;

/// Clients that are considered for bringing back an object that is in a file alone.
const CONTRIBUTORS: usize = 16;

impl Master {
    /// Counts a read of an object that has nothing in memory.
    pub(crate) fn count_tier_hit(
        &self,
        now: Time,
        shard: &Shard,
        slot: ObjectSlot,
        list: &ReplicaList,
    ) {
        let Some(key) = shard.object(slot).map(|_| shard.key(slot)) else { return };
        let hash = shard.config().hasher.hash(key);
        let local = list.local_disks.first().map(|replica| replica.client);
        let contributors = match local {
            Some(_) => Vec::new(),
            None => self.some_contributors(hash),
        };
        let room = self.is_below_watermark();
        let mut book = self.local.book.lock();
        // Another client has no disk, and may have no files, or be an older one, which never asks.
        let Some(owner) = local.or_else(|| book.promoter(&contributors, now)) else { return };
        let (generation, len) = (list.generation, list.slices.total_len());
        let hit = TierHit { owner, key, hash, generation, len };
        book.promotions.hit(now, &hit, room);
    }

    /// Hands a client the next objects to bring back from a disk into memory.
    pub fn promotion_heartbeat(&self, now: Time, client: ClientId) -> Vec<TierJob> {
        self.local.book.lock().promotions.drain(now, client)
    }

    /// Grants space in memory for an object that the client was handed, if possible in
    /// one of the segments named `preferred`. When there is none the object stays on its
    /// disk, and the client has nothing more to do.
    ///
    /// # Errors
    /// [`PromotionStartError`].
    pub fn promotion_alloc_start(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Generation,
        len: u64,
        preferred: &[&str],
    ) -> Result<PromotionGrant, PromotionStartError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_of_put(key, generation, emit);
        let slot = slot.ok_or(PromotionStartError::NotFound)?;
        let object = shard.get_mut(slot);
        if object.has_memory() || !object.is_complete() {
            self.local.book.lock().promotions.cancel(generation);
            return Err(PromotionStartError::InMemory);
        }
        let mut book = self.local.book.lock();
        book.promotions.begin(now, client, generation, len)?;
        drop(book);
        let preferred = preferred.iter().take(crate::MAX_NAMED_SEGMENTS);
        let preferred_segments = preferred.map(|name| Box::from(*name)).collect();
        let config = ReplicateConfig { preferred_segments, ..ReplicateConfig::default() };
        let len = object.len();
        let Some(space) = self.place_for(&shard, slot, &config, client) else {
            // It is the client's task, so that nothing can be wrong with this.
            let _ = self.local.book.lock().promotions.fail(client, generation);
            return Err(PromotionStartError::NoRoom { len });
        };
        let placement = space.placement();
        let time_left = self.config.put_start_release_timeout;
        let (handle, due) = (self.next_transfer(), self.config.grant_time().end(now));
        let promotion = Promotion { space, id: handle.id, client, due };
        shard.open_promotion(slot, promotion);
        self.release_not_before(due);
        shard.emit_transfer(slot, emit);
        Ok(PromotionGrant { handle, placement, time_left })
    }

    /// Notes that an object is in the memory that was granted for it, which makes it
    /// readable there.
    ///
    /// # Errors
    /// [`PromotionError::NoTask`] when the space is not the client's any more, or went
    /// with its segment; what is there is of no use then.
    pub fn notify_promotion_success(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Generation,
        handle: TransferHandle,
    ) -> Result<(), PromotionError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_of_put(key, generation, emit).ok_or(PromotionError::NoTask)?;
        self.check_promotion(&shard, slot, Some(handle))?;
        self.local.book.lock().promotions.finish(client, generation)?;
        let Some(Promotion { space, .. }) = shard.close_promotion(slot) else {
            return Err(PromotionError::NoTask);
        };
        if !space.segment.is_readable() {
            shard.emit_transfer(slot, emit);
            shard.give_back(shard.tenant(slot), Replicas::from_iter([space]));
            return Err(PromotionError::NoTask);
        }
        shard.get_mut(slot).set_replicas([space].into_iter().collect());
        shard.back_in_order(slot);
        shard.emit_changed(slot, emit);
        Ok(())
    }

    /// Notes that a client does not bring an object back. `handle` names the space that was
    /// granted, if any was. Where writes may still arrive there it is kept until the [time
    /// of the grant](PromotionGrant::time_left) is over, or the failure is noted again when
    /// none can. Saying it twice is harmless.
    ///
    /// # Errors
    /// [`PromotionError::IllegalClient`], also when the handle is not that of the space.
    pub fn notify_promotion_failure(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Generation,
        handle: Option<TransferHandle>,
        late: LateWrites,
    ) -> Result<(), PromotionError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_of_put(key, generation, emit);
        if let Some(slot) = slot {
            self.check_promotion(&shard, slot, handle)?;
        }
        self.local.book.lock().promotions.fail(client, generation)?;
        let pending = slot.filter(|slot| shard.promotion(*slot).is_some());
        match (pending, handle) {
            (Some(slot), _) if late == LateWrites::Possible => {
                // When its space is due was noted when it was granted.
                shard.abandon_promotion(slot, emit);
                shard.emit_transfer(slot, emit);
            }
            (Some(slot), _) => {
                if let Some(Promotion { space, .. }) = shard.close_promotion(slot) {
                    shard.emit_transfer(slot, emit);
                    shard.give_back(shard.tenant(slot), Replicas::from_iter([space]));
                }
            }
            (None, Some(TransferHandle { id, token })) if self.is_genuine(id, token) => {
                shard.revoked_again(client, id, late, emit);
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Checks that the space that was granted for an object, if any was, is the one that
    /// this handle names.
    fn check_promotion(
        &self,
        shard: &Shard,
        slot: ObjectSlot,
        handle: Option<TransferHandle>,
    ) -> Result<(), PromotionError> {
        let Some(promotion) = shard.promotion(slot) else { return Ok(()) };
        let own = handle.is_some_and(|handle| {
            handle.id == promotion.id && self.is_genuine(handle.id, handle.token)
        });
        own.then_some(()).ok_or(PromotionError::IllegalClient)
    }

    /// Ends what took too long, and tries again what found no room; true when more is
    /// left to do.
    pub(crate) fn expire_promotions(&self, now: Time) -> bool {
        if !self.local.promotes {
            return false;
        }
        let room = self.is_below_watermark();
        let expired = {
            let mut book = self.local.book.lock();
            book.promotions.drop_unfetched(now, TICK_JOBS);
            book.promotions.retry(now, room, TICK_JOBS);
            book.promotions.expire(now, TICK_JOBS)
        };
        let more = expired.len() == TICK_JOBS;
        self.stop_promotions(now, expired);
        more
    }

    /// Takes the space of these back when no client can be writing there any more. Takes no
    /// lock before those of their shards.
    pub(crate) fn stop_promotions(&self, now: Time, ended: Vec<EndedPromotion>) {
        let emit = self.emit(now);
        let stop = |EndedPromotion { job, .. }: EndedPromotion| {
            let key = self.hashed(job.key.as_ref());
            let mut shard = self.shard_of(key);
            let slot = shard.find_of_put(key, job.generation, emit);
            if let Some(slot) = slot
                && let Some(due) = shard.abandon_promotion(slot, emit)
            {
                shard.emit_transfer(slot, emit);
                self.release_not_before(due);
            }
        };
        unseen(|| ended.into_iter().filter(|ended| ended.begun).for_each(stop));
    }

    /// Space for one replica of the object in a slot, which its tenant is charged for.
    fn place_for(
        &self,
        shard: &Shard,
        slot: ObjectSlot,
        config: &ReplicateConfig,
        client: ClientId,
    ) -> Option<Replica> {
        let len = shard.object(slot)?.len();
        let charge = self.quotas.charge_more(shard.tenant(slot), len).ok()?;
        let space = self.place(len, config, client, shard.label(slot)).ok()?.into_iter().next()?;
        charge.keep();
        Some(space)
    }

    fn is_below_watermark(&self) -> bool {
        let table = self.segments.read();
        let (used, capacity) = (table.used(), table.capacity());
        capacity > 0 && self.watermark.get().excess(used, capacity) == 0
    }

    /// Clients that contribute memory, others for another key.
    fn some_contributors(&self, hash: u64) -> Vec<ClientId> {
        let table = self.segments.read();
        let segments = table.pool(table.default_medium()).segments();
        let first = (hash as usize).checked_rem(segments.len()).unwrap_or_default();
        let from_first = segments[first..].iter().chain(&segments[..first]);
        from_first.take(CONTRIBUTORS).map(|segment| segment.client()).collect()
    }
}

impl Shard {
    /// Keeps the space of an object that does not come back into memory from others until
    /// its client writes no more; says until when, if it had any.
    fn abandon_promotion(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> Option<Time> {
        let kept = self.close_promotion(slot)?.linger(self.tenant(slot));
        let due = kept.until;
        self.linger(kept, emit);
        Some(due)
    }
}
