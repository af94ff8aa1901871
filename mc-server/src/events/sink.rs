//! The sink that publishes effects.

use std::sync::Arc;

use mc_events::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Event, EventSystem, Medium,
    RemovalReason, RemoveAllEvent, Replica, StoreEventInfo,
};
use mc_meta::{
    Effect, EffectSink, ObjectView, Removal, ReplicaKind, ReplicaKinds, SegmentStatus, unscoped,
};
use mc_types::{KeyRef, Sequence, Time};
use parking_lot::Mutex;

use super::infos::Infos;
use super::removal::RemoveAll;

/// The information that the encodings of the endpoints need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Events with all replicas of an object.
    pub(super) updates: bool,
    /// Events for each kind of storage.
    pub(super) media: bool,
    /// The metadata of an object for the whole of its life.
    pub(super) infos: bool,
}

/// The state that the sink and the snapshots share.
#[derive(Debug)]
pub(super) struct Publishing {
    system: Arc<EventSystem>,
    wanted: Wanted,
    tenants_apart: bool,
    /// Locked within the master's locks; nothing is called meanwhile.
    removal: Mutex<RemoveAll>,
    infos: Mutex<Infos>,
}

impl Publishing {
    pub(super) fn new(
        system: Arc<EventSystem>,
        wanted: Wanted,
        tenants_apart: bool,
        infos: Infos,
    ) -> Self {
        let (removal, infos) = (Mutex::default(), Mutex::new(infos));
        Self { system, wanted, tenants_apart, removal, infos }
    }

    /// A snapshot is about to be read.
    pub(super) fn listing(&self) {
        self.removal.lock().listing();
    }

    /// The event that an object is there; the metadata is that of its put, if it is known.
    pub(super) fn store_event(
        &self,
        object: &ObjectView<'_>,
        info: Option<&StoreEventInfo>,
    ) -> BlockStoreEvent {
        let (tenant, key) = self.owned(object.key());
        let store_event_info = match info {
            Some(info) => info.clone(),
            None => self.info(object.key()).map(|info| (*info).clone()).unwrap_or_default(),
        };
        BlockStoreEvent {
            key: key.into(),
            replicas: replicas(object),
            store_event_info,
            tenant: tenant.into(),
            group: object.group().unwrap_or_default().into(),
        }
    }

    /// The tenant, empty for the default one, and the key as the tenant knows it.
    fn owned<'k>(&self, stored: KeyRef<'k>) -> (&'k str, &'k str) {
        if self.tenants_apart { unscoped(stored) } else { ("", stored.as_str()) }
    }

    fn info(&self, key: KeyRef<'_>) -> Option<Arc<StoreEventInfo>> {
        if self.wanted.infos { self.infos.lock().get(key.as_str()) } else { None }
    }

    fn publish(&self, event: impl Into<Event>) {
        // The outcome is not waited for: a dropped event is a gap that subscribers see.
        self.system.post(event);
    }

    fn stored(&self, object: &ObjectView<'_>, info: Option<&StoreEventInfo>) {
        self.removal.lock().publishes(object.key().as_str());
        let is_kept = match info {
            Some(info) if self.wanted.infos => {
                self.infos.lock().insert(object.key().as_str(), info)
            }
            _ => true,
        };
        // Without metadata in later events it must be unknown from the beginning.
        self.publish_store(self.store_event(object, info.filter(|_| is_kept)));
    }

    fn publish_store(&self, event: BlockStoreEvent) {
        let others: Vec<Event> =
            if self.wanted.media { event.on_other_media().collect() } else { Vec::new() };
        self.publish(event);
        others.into_iter().for_each(|event| self.publish(event));
    }

    /// Publishes an object as it is, whatever subscribers know of it.
    pub(super) fn publish_whole(&self, object: &ObjectView<'_>) {
        self.publish_store(self.store_event(object, None));
    }

    fn changed(&self, object: &ObjectView<'_>, before: ReplicaKinds) {
        let now = object.readable_kinds();
        if before == ReplicaKinds::NONE && now == ReplicaKinds::NONE {
            // Only its writer knows it.
            return;
        }
        if !self.removal.lock().publishes(object.key().as_str()) {
            return self.publish_whole(object);
        }
        let (tenant, key) = self.owned(object.key());
        if self.wanted.updates {
            let (key, tenant) = (key.into(), tenant.into());
            self.publish(BlockUpdateEvent { key, replicas: replicas(object), tenant });
        }
        if self.wanted.media {
            for kind in now.without(before) {
                let mut event = self.store_event(object, None);
                event.replicas.retain(|replica| replica.medium == medium(kind));
                self.publish(Event::MediumStored(event));
            }
            for kind in before.without(now) {
                let info = self.info(object.key());
                self.publish(Event::MediumRemoved(self.removed_event(
                    object,
                    kind,
                    info.as_deref(),
                )));
            }
        }
    }

    fn removed(&self, object: &ObjectView<'_>, cause: Removal, before: ReplicaKinds) {
        let key = object.key().as_str();
        let info = if self.wanted.infos { self.infos.lock().remove(key) } else { None };
        if !self.removal.lock().removes(key) {
            return;
        }
        for (nth, kind) in before.iter().enumerate() {
            let event = BlockRemovedEvent {
                reason: reason(cause),
                ..self.removed_event(object, kind, info.as_deref())
            };
            match nth {
                0 => self.publish(event),
                _ if self.wanted.media => self.publish(Event::MediumRemoved(event)),
                _ => {}
            }
        }
    }

    fn removed_event(
        &self,
        object: &ObjectView<'_>,
        kind: ReplicaKind,
        info: Option<&StoreEventInfo>,
    ) -> BlockRemovedEvent {
        let (tenant, key) = self.owned(object.key());
        BlockRemovedEvent {
            key: key.into(),
            medium: Some(medium(kind)),
            block_hash: info.map(|info| info.block_hash.clone()).unwrap_or_default(),
            tenant: tenant.into(),
            group: object.group().unwrap_or_default().into(),
            reason: None,
        }
    }
}

/// The reason that subscribers are told; `None` for a cause that events have no name for.
const fn reason(cause: Removal) -> Option<RemovalReason> {
    Some(match cause {
        Removal::Requested => RemovalReason::Removed,
        Removal::Evicted => RemovalReason::Evicted,
        Removal::SegmentLost => RemovalReason::SegmentLost,
        Removal::Replaced => RemovalReason::Replaced,
        Removal::DiskLost => RemovalReason::DiskLost,
        Removal::Expired => RemovalReason::Expired,
        Removal::Damaged => RemovalReason::Damaged,
        _ => return None,
    })
}

const fn medium(kind: ReplicaKind) -> Medium {
    match kind {
        ReplicaKind::Memory => Medium::Memory,
        ReplicaKind::SharedFile => Medium::SharedFile,
        ReplicaKind::LocalDisk => Medium::LocalDisk,
    }
}

/// The replicas that can be read, those of nodes that are away for a while included. The shared tier's location is empty: every node has it at a path
/// of its own, and the file's name follows from the key.
fn replicas(object: &ObjectView<'_>) -> Vec<Replica> {
    let kinds = object.readable_kinds();
    let mut replicas = Vec::new();
    if kinds.contains(ReplicaKind::Memory) {
        let placements = object.placements();
        let segments = placements.iter().map(|placement| &placement.segment);
        let there = segments.filter(|segment| segment.status() != SegmentStatus::Unmounted);
        replicas.extend(there.map(|segment| Replica {
            medium: Medium::Memory,
            location: segment.spec().endpoint.as_str().into(),
        }));
    }
    if kinds.contains(ReplicaKind::SharedFile) {
        replicas.push(Replica { medium: Medium::SharedFile, location: String::new() });
    }
    if kinds.contains(ReplicaKind::LocalDisk) {
        replicas.extend(object.local_disks().into_iter().map(|disk| Replica {
            medium: Medium::LocalDisk,
            location: disk.endpoint.as_str().into(),
        }));
    }
    replicas
}

/// Publishes the effects of a master.
#[derive(Debug)]
pub(crate) struct EventSink(pub(super) Arc<Publishing>);

impl EffectSink for EventSink {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let publishing = &*self.0;
        match effect {
            Effect::Stored { object, event_info } => publishing.stored(object, *event_info),
            Effect::Changed { object, before } => publishing.changed(object, *before),
            Effect::Removed { object, cause, before, .. } => {
                publishing.removed(object, *cause, *before);
            }
            Effect::RemoveAllBegan => {
                publishing.removal.lock().began();
                publishing.publish(RemoveAllEvent);
            }
            Effect::Spared { object }
                if !publishing.removal.lock().publishes(object.key().as_str()) =>
            {
                publishing.publish_whole(object);
            }
            Effect::RemoveAllEnded => publishing.removal.lock().ended(),
            _ => {}
        }
    }
}
