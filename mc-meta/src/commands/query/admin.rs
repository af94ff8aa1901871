//! Questions of administrators. Looking grants no lease and counts as no access.

use core::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_types::{KeyRef, ObjectKey, Time};

use crate::commands::error::GetError;
use crate::commands::query::report::MasterReport;
use crate::commands::reply::{ObjectInfo, ReplicaInfo};
use crate::effect::view::ObjectView;
use crate::master::Master;
use crate::object::Object;
use crate::space::replica::Replica;
use crate::space::segment::SegmentInfo;
use crate::tenant::id::TenantId;
use crate::vocabulary::kinds::ReplicaKinds;
use crate::vocabulary::metrics::Totals;
use crate::vocabulary::request::{KeyInfo, KeyPage, ListCursor};
use crate::vocabulary::states::{BufferStatus, ReplicaStatus};

impl Master {
    /// Everything about one object, in whatever state it is.
    ///
    /// # Errors
    /// [`GetError::NotFound`] when no object has the key.
    pub fn describe(&self, now: Time, key: KeyRef<'_>) -> Result<ObjectInfo, GetError> {
        let key = self.hashed(key);
        let shard = self.shard_of(key);
        let slot = shard.find(key).ok_or(GetError::NotFound)?;
        let object = shard.object(slot).ok_or(GetError::NotFound)?;
        let info = |replica: &Replica, status| {
            let status = if replica.segment.is_gone() { ReplicaStatus::Removed } else { status };
            let buffer = BufferStatus::of(status, replica.segment.status());
            ReplicaInfo { status, buffer, placement: replica.placement() }
        };
        let replicas = object.replicas().map(|replica| info(replica, object.status()));
        // Those that a copy or move is making.
        let targets = shard.transfer(slot).into_iter().flat_map(|transfer| transfer.targets.iter());
        let replicas =
            replicas.chain(targets.map(|replica| info(replica, ReplicaStatus::Processing)));
        Ok(ObjectInfo {
            generation: object.generation,
            owner: shard.client(object),
            slices: object.slices(),
            replicas: replicas.collect(),
            file: object.file().status(),
            local_disks: object.local_disk_replicas(),
            lease: object.protection().lease_remaining(&self.terms, now),
            soft_pinned: object.protection().is_soft_pinned(&self.terms, now),
            idle: now - object.protection().last_touched(),
        })
    }

    /// Up to `limit` keys that begin with `prefix`, from `cursor` on. A key whose
    /// object is the same throughout is listed exactly once.
    pub fn list_keys(&self, prefix: &str, cursor: ListCursor, limit: usize) -> KeyPage {
        self.list(None, prefix, cursor, limit)
    }

    /// The keys of one tenant as it knows them, or all keys as they are stored.
    pub(crate) fn list(
        &self,
        tenant: Option<&TenantId>,
        prefix: &str,
        cursor: ListCursor,
        limit: usize,
    ) -> KeyPage {
        let mut keys = Vec::new();
        let next = self.walk(cursor, |shard, slot| {
            if keys.len() == limit {
                return ControlFlow::Break(());
            }
            if let Some(object) = shard.object(slot)
                && shard.replaced(slot).is_none()
                && let Some(key) = shard.key_for(slot, tenant)
                && key.as_str().starts_with(prefix)
            {
                keys.push(key_info(key.to_owned(), object));
            }
            ControlFlow::Continue(())
        });
        self.see_all();
        KeyPage { keys, next }
    }

    /// Calls `visit` with up to `limit` of the objects that are stored, from `cursor` on, and returns
    /// the position of the rest; `None` at the end. An object that stays throughout is visited
    /// exactly once. Objects whose nodes are away for a while are among them.
    ///
    /// The object's shard is locked during the visit, so the sinks receive no effect of the object
    /// between what `visit` sees and what it does. As for a [sink](crate::EffectSink), it must
    /// return quickly and not call the master.
    pub fn visit_objects(
        &self,
        cursor: ListCursor,
        limit: usize,
        mut visit: impl FnMut(&ObjectView<'_>),
    ) -> Option<ListCursor> {
        let mut visited = 0;
        self.walk(cursor, |shard, slot| {
            if visited == limit {
                return ControlFlow::Break(());
            }
            if let Some(object) = shard.object(slot)
                && object.readable_kinds() != ReplicaKinds::NONE
            {
                visited += 1;
                visit(&shard.view(slot));
            }
            ControlFlow::Continue(())
        })
    }

    /// The totals.
    #[must_use]
    pub fn report(&self) -> MasterReport {
        let segments: Vec<SegmentInfo> =
            self.segments.read().all().map(|segment| segment.info()).collect();
        let mut totals =
            Totals { soft_pinned: self.order.soft_pinned() as u64, ..Totals::default() };
        for shard in self.shards() {
            let shard = shard.lock();
            totals.add(shard.totals());
            let census = shard.census();
            totals.objects += shard.len() as u64;
            totals.key_bytes += shard.key_bytes();
            totals.processing += census.open_puts as u64;
            totals.transfers += census.transfers as u64;
            totals.tier_only_objects += census.on_disk as u64;
            totals.files_unfinished += census.open_files as u64;
        }
        for segment in segments.iter().filter(|segment| segment.status.is_readable()) {
            totals.used = totals.used.saturating_add(segment.used);
            totals.capacity = totals.capacity.saturating_add(segment.spec.size);
        }
        let tasks = self.tasks.lock().counts();
        totals.tasks_pending = tasks.pending as u64;
        totals.tasks_processing = tasks.processing as u64;
        totals.tasks_finished = tasks.finished as u64;
        totals.drain_jobs = self.drain_jobs.lock().at_work() as u64;
        totals.clients = self.clients.lock().present() as u64;
        let local_disks = {
            let book = self.local.book.lock();
            totals.add(&book.offloads.totals());
            totals.add(&book.promotions.totals());
            totals.promotions_pending = book.promotions.tasks() as u64;
            totals.promotion_candidates = book.promotions.candidates() as u64;
            book.infos()
        };
        totals.add(&self.suspicion.lock().totals());
        totals.add(&self.damage.lock().totals());
        totals.files_used = self.files.bytes.used();
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        totals.put_start_no_room = counted(&self.counters.put_start_no_room);
        totals.put_start_retries = counted(&self.counters.put_start_retries);
        totals.files_no_room = counted(&self.counters.files_no_room);
        totals.expired_clients = counted(&self.counters.expired_clients);
        let files_capacity = self.config.shared_tier.map_or(Some(0), |tier| tier.capacity);
        MasterReport { totals, segments, files_capacity, local_disks }
    }
}

fn key_info(key: ObjectKey, object: &Object) -> KeyInfo {
    KeyInfo { key, len: object.len(), replicas: object.count_readable() as u32 }
}
