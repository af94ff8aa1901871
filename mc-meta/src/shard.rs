//! One shard: the objects whose keys hash to it, and the tables that lead to them.
//!
//! Every change of an object's state happens here or in an `impl Shard` block of the command that
//! makes it; the order of eviction that an object is in is decided in [`eviction`](crate::eviction)
//! alone. The [`tables`](crate::tables) hold what each object costs; [`Retained`] is space that belongs
//! to no object any more. [`beside`]: the entries of objects in the [side tables](crate::side_tables).

mod below;
mod beside;
mod deadlines;
mod offload;
mod quota_below;
mod removal;
mod tell;
mod unfinished;

use core::time::Duration;
use std::sync::Arc;

use mc_alloc::Label;
use mc_evict::Item;
use mc_lease::Terms;
use mc_types::{ClientId, Generation, KeyRef, ObjectKey, StoreEventInfo, Time};

use crate::effect::Effect;
use crate::effect::emit::Emit;
use crate::effect::view::ObjectView;
use crate::eviction::Order;
use crate::eviction::choice::Eviction;
use crate::eviction::common::{Chain, CommonOrder, Fresh, Note};
use crate::eviction::room::Labels;
use crate::object::objects::Objects;
use crate::object::{Access, Object, PendingPut, Queue};
use crate::side_tables::SideTables;
use crate::side_tables::books::Books;
use crate::side_tables::history::History;
use crate::side_tables::readers::Readers;
use crate::side_tables::retained::Retained;
use crate::tables::index::{Index, tag_of};
use crate::tables::keys::KeyArena;
use crate::tables::open_puts::OpenPuts;
use crate::tables::owners::Owners;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::hash::{HashedKey, KeyHasher};
use crate::vocabulary::metrics::Totals;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

/// The numbers of objects in a shard that something is under way for, or that are kept specially.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Census {
    pub(crate) open_puts: usize,
    pub(crate) transfers: usize,
    pub(crate) open_files: usize,
    pub(crate) on_disk: usize,
}

/// The settings and shared parts of a shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardConfig {
    pub(crate) number: u32,
    pub(crate) labels: Labels,
    pub(crate) terms: Terms,
    pub(crate) hasher: KeyHasher,
    pub(crate) books: Books,
    pub(crate) ttl_after_get: Option<Duration>,
    /// The reads that may still be under way.
    pub(crate) readers: Arc<Readers>,
}

#[derive(Debug)]
pub(crate) struct Shard {
    totals: Totals,
    config: ShardConfig,
    index: Index,
    objects: Objects,
    keys: KeyArena,
    owners: Owners,
    order: Order,
    history: History,
    /// Unfinished puts, oldest first.
    open: OpenPuts,
    sides: SideTables,
    retained: Retained,
    /// The next slot to look at for replicas in segments that are gone.
    sweep: Option<u32>,
    /// The round of comparisons in which files were seen that are there; the sweep drops the others.
    files_seen_in: Option<bool>,
    /// Whether objects are written to disks when they are used for the first time.
    writes_at_use: bool,
    /// Whether victims are written to disks before they go.
    writes_at_eviction: bool,
}

/// The outcome for an object that was taken out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemovedObject {
    pub(crate) cause: Removal,
    /// Bytes given back in segments that take new objects.
    pub(crate) bytes: u64,
}

/// The outcome for an object that others may be reading.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retired {
    /// Its space is kept until then.
    Kept { until: Time },
    /// Its space is given back.
    Gone(RemovedObject),
}

impl Retired {
    /// Until when its space is kept.
    pub(crate) const fn kept_until(self) -> Option<Time> {
        match self {
            Self::Kept { until } => Some(until),
            Self::Gone(_) => None,
        }
    }
}

impl Shard {
    pub(crate) fn new(config: ShardConfig, order: Arc<CommonOrder>) -> Self {
        Self {
            totals: Totals::default(),
            index: Index::new(),
            objects: Objects::new(),
            keys: KeyArena::new(),
            owners: Owners::new(config.hasher.state()),
            order: Order::new(order, config.number, config.terms, config.books.quotas.is_on()),
            history: History::default(),
            open: OpenPuts::new(),
            sides: SideTables::default(),
            retained: Retained::default(),
            sweep: None,
            files_seen_in: None,
            writes_at_use: config.books.local.writes_at_use(),
            writes_at_eviction: config.books.local.writes_at_eviction().is_some(),
            config,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Makes room in the index for so many objects.
    pub(crate) fn reserve(&mut self, objects: usize) {
        self.index.reserve(objects);
    }

    /// Gives memory back that was reserved for many more objects than there are.
    pub(crate) fn shrink_index(&mut self) {
        self.index.shrink_when_sparse();
    }

    pub(crate) const fn config(&self) -> &ShardConfig {
        &self.config
    }

    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the totals, to count what happens.
    pub(crate) const fn totals_mut(&mut self) -> &mut Totals {
        &mut self.totals
    }

    /// Counts the objects that something is under way for, or that are kept specially.
    pub(crate) fn census(&self) -> Census {
        Census {
            open_puts: self.open.len(),
            transfers: self.sides.transfers.len(),
            open_files: self.sides.files.len(),
            on_disk: self.order.on_disk(),
        }
    }

    /// Returns whether victims are written to disks before they go.
    pub(crate) const fn writes_at_eviction(&self) -> bool {
        self.writes_at_eviction
    }

    /// Returns the order of eviction with the objects that are in it.
    pub(crate) const fn eviction(&mut self) -> Eviction<'_> {
        Eviction::new(&mut self.order, &mut self.objects, &self.sides, &self.config.terms)
    }

    /// Returns whether objects that a client uses, or that go when they are on a disk, are waiting
    /// to become victims.
    pub(crate) fn any_leased(&self) -> bool {
        self.order.any_leased()
    }

    /// Takes an unfinished put up that a master before this one had begun.
    pub(crate) fn reopen_put(&mut self, slot: ObjectSlot, generation: Generation) {
        self.open.begin(generation, slot);
    }

    /// Takes an unfinished file up that a master before this one had planned: its writer has its
    /// whole time again.
    pub(crate) fn reopen_file(&mut self, slot: ObjectSlot, now: Time) {
        self.sides.files.begin(self.objects[slot].generation, now, slot);
    }

    /// Notes the tenant that is charged for the object in a slot.
    pub(crate) fn assign(&mut self, slot: ObjectSlot, tenant: TenantSlot) {
        self.order.assign(slot, tenant);
    }

    /// Notes that the put of an object has ended, or its memory is released.
    fn close_put(&mut self, generation: Generation) {
        self.open.ended(generation);
    }

    /// Notes that a file is written, or will not be.
    pub(crate) fn close_file(&mut self, generation: Generation) {
        self.sides.files.ended(generation);
    }

    /// Returns when the file that keeps an unreadable object was begun.
    pub(crate) fn file_begun_at(&self, slot: ObjectSlot) -> Option<Time> {
        self.sides.files.begun_at(self.object(slot)?.generation)
    }

    /// Returns the space that belongs to no object any more.
    pub(crate) const fn retained(&self) -> &Retained {
        &self.retained
    }

    /// Returns the label of the space of the object in a slot.
    pub(crate) fn label(&self, slot: ObjectSlot) -> Option<Label> {
        self.config.labels.of(self.config.number, slot)
    }

    /// Returns the label of the space of the next new object.
    pub(crate) fn next_label(&self) -> Option<Label> {
        self.label(self.objects.next_slot())
    }

    pub(crate) fn object(&self, slot: ObjectSlot) -> Option<&Object> {
        self.objects.get(slot)
    }

    pub(crate) fn end(&self) -> u32 {
        self.objects.end()
    }

    /// Returns the key of the object in a slot that was found under the same lock.
    pub(crate) fn key(&self, slot: ObjectSlot) -> KeyRef<'_> {
        // A replacement has the key of what it replaces.
        let named = self.replaced(slot).unwrap_or(slot);
        let tag = self.objects[slot].tag;
        let name = self.index.name(tag, |it| it == named).expect("every key is indexed");
        self.keys.text(name)
    }

    /// Returns the tenant that is charged for the object in a slot.
    pub(crate) fn tenant(&self, slot: ObjectSlot) -> TenantSlot {
        self.order.tenant(slot)
    }

    /// The object of a tenant that is below memory alone and was not used for the longest time.
    fn coldest_below(&self, tenant: TenantSlot) -> Option<ObjectSlot> {
        self.order.coldest_below(tenant)
    }

    /// Counts an object that is below memory alone as used.
    fn spare_below(&mut self, slot: ObjectSlot) {
        self.order.spare_below(slot);
    }

    pub(crate) fn client(&self, object: &Object) -> ClientId {
        self.owners.client(object.owner)
    }

    /// An object as sinks and administrators see it.
    pub(crate) fn view(&self, slot: ObjectSlot) -> ObjectView<'_> {
        let object = self.get(slot);
        ObjectView {
            key: self.key(slot),
            owner: self.client(object),
            object,
            transfer: self.transfer(slot),
            promotion: self.promotion(slot),
        }
    }

    /// Has the processor fetch what [`find`](Self::find) looks at first: many such calls one after
    /// the other wait for memory once. The number means nothing.
    pub(crate) fn touch(&self, hash: u64) -> u32 {
        self.index.touch(tag_of(hash))
    }

    /// Has the processor fetch what [`find`](Self::find) looks at then, and the object that it finds. The number
    /// means nothing.
    pub(crate) fn touch_found(&self, hash: u64) -> u32 {
        let Some((slot, name)) = self.index.likely(tag_of(hash)) else { return 0 };
        self.touch_object(slot) ^ u32::from(self.keys.bytes(name)[0])
    }

    /// [`touch`](Self::touch) for an object.
    pub(crate) fn touch_object(&self, slot: ObjectSlot) -> u32 {
        self.object(slot).map_or(0, Object::touch)
    }

    /// [`touch`](Self::touch) for an object that is there.
    pub(crate) fn touch_entry(&self, slot: ObjectSlot) -> u32 {
        self.object(slot).map_or(0, |object| self.index.touch(object.tag))
    }

    pub(crate) fn find(&self, key: HashedKey<'_>) -> Option<ObjectSlot> {
        let tag = tag_of(key.hash);
        let bytes = key.key.as_str().as_bytes();
        self.index.find(tag, |_, name| self.keys.bytes(name) == bytes)
    }

    /// The object with this key that still has anything. One that has lost its last
    /// segment, or whose group was condemned, is forgotten here, unless it is on a disk.
    pub(crate) fn find_live(
        &mut self,
        key: HashedKey<'_>,
        emit: Emit<'_>,
    ) -> Option<(ObjectSlot, &mut Object)> {
        loop {
            let slot = self.find(key)?;
            if self.is_live(slot, emit) {
                return Some((slot, self.get_mut(slot)));
            }
            // An unfinished replacement has the key then.
        }
    }

    /// Returns whether an object still has anything; one that has not is forgotten.
    pub(crate) fn is_live(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> bool {
        let object = &self.objects[slot];
        if object.is_beside() && self.sides.expiring.is_over(slot, emit.now) {
            self.expire(slot, emit);
            return false;
        }
        // Every command comes by here, and segments hardly ever go.
        object.is_whole() || self.lose_dead(slot, emit)
    }

    /// Returns the object in a slot that was found under the same lock.
    pub(crate) fn get(&self, slot: ObjectSlot) -> &Object {
        &self.objects[slot]
    }

    pub(crate) fn get_mut(&mut self, slot: ObjectSlot) -> &mut Object {
        &mut self.objects[slot]
    }

    /// Returns an object as the eviction policy knows it; unknown when the policy does not ask.
    pub(crate) fn item(&self, slot: ObjectSlot) -> Item {
        if !self.order.uses_items() {
            return Item::UNKNOWN;
        }
        self.known_item(slot)
    }

    /// Reports the use of an object that is on disks alone to the eviction policy, which learns from
    /// uses of evicted objects.
    pub(crate) fn used_below(&mut self, slot: ObjectSlot) {
        if self.order.uses_items() {
            let item = self.item(slot);
            self.order.used_below(&self.objects[slot], item);
        }
    }

    /// Returns an object as any eviction policy could know it. Looks its key up.
    pub(crate) fn known_item(&self, slot: ObjectSlot) -> Item {
        item_of(self.get(slot), self.config.hasher.hash(self.key(slot)))
    }

    /// Adds an object whose put begins.
    pub(crate) fn begin(
        &mut self,
        key: HashedKey<'_>,
        owner: ClientId,
        put: PendingPut,
        emit: Emit<'_>,
    ) {
        let (generation, file) = (put.generation, put.file);
        let slot = self.enter(key, owner, put, emit.now);
        self.open.begin(generation, slot);
        if file {
            self.sides.files.begin(generation, emit.now, slot);
        }
        self.totals.put_starts += 1;
        let object = &self.objects[slot];
        if let Some(membership) = object.membership() {
            membership.settle(slot);
        }
        if emit.wants_objects() {
            emit.effect(&Effect::Began { object: self.view(slot) });
        }
    }

    /// Gives an object a slot and makes its key lead to it, or to what it replaces.
    pub(crate) fn enter(
        &mut self,
        key: HashedKey<'_>,
        owner: ClientId,
        put: PendingPut,
        now: Time,
    ) -> ObjectSlot {
        let tag = tag_of(key.hash);
        let owner = self.owners.add(owner);
        let (replaces, tenant) = (put.replaces, put.tenant);
        let slot = self.objects.insert(Object::begun(now, tag, owner, put));
        self.order.assign(slot, tenant);
        match replaces {
            Some(old) => self.replace(old, slot),
            None => {
                let name = self.keys.insert(key.key);
                self.index.insert(tag, slot, name);
            }
        }
        slot
    }

    /// Gives a slot to an object that is to be replaced by one that is there already.
    pub(crate) fn enter_before(
        &mut self,
        replacement: ObjectSlot,
        owner: ClientId,
        put: PendingPut,
        now: Time,
    ) -> ObjectSlot {
        let tag = self.get_mut(replacement).tag;
        let owner = self.owners.add(owner);
        let tenant = put.tenant;
        let slot = self.objects.insert(Object::begun(now, tag, owner, put));
        self.order.assign(slot, tenant);
        if let Some(name) = self.index.remove(tag, replacement) {
            self.index.insert(tag, slot, name);
        }
        self.replace(slot, replacement);
        slot
    }

    /// Makes the memory of an object readable. `hash` is that of its key. What it returns is to
    /// enter the orders.
    pub(crate) fn complete(
        &mut self,
        slot: ObjectSlot,
        hash: u64,
        event_info: Option<&StoreEventInfo>,
        emit: Emit<'_>,
    ) -> Option<(Fresh, Chain)> {
        let object = &mut self.objects[slot];
        let stored = object.is_stored();
        // Readers of its file were promised a lease.
        object.complete(emit.now, stored);
        object.release_group();
        self.open.ended(object.generation);
        self.totals.put_ends += 1;
        if stored {
            self.emit_changed(slot, emit);
        } else {
            self.emit_stored(slot, event_info, emit);
        }
        let item = item_of(&self.objects[slot], hash);
        let fresh = self.order.admit(slot, &mut self.objects[slot], item);
        if self.writes_at_use {
            self.totals.offload_filtered += 1;
        } else if self.config.books.local.writes_at_put() {
            // One that no client can write stays in memory alone, and that is counted.
            let _ = self.queue_offload(slot, emit);
        }
        fresh.map(|fresh| (fresh, self.chain_of(item, event_info)))
    }

    /// The names of an object in chains: its key with the parent that its put named, and the hashes
    /// that its engine gave.
    fn chain_of(&self, item: Item, event_info: Option<&StoreEventInfo>) -> Chain {
        let mut chain = Chain { own: [item.hash, 0], parent: item.parent };
        let Some(info) = event_info else { return chain };
        let name = |block: &str| match block {
            "" => 0,
            block => self.config.hasher.hash_of_block(&info.model_name, block),
        };
        chain.own[1] = name(&info.block_hash);
        if chain.parent == 0 {
            chain.parent = name(&info.parent_block_hash);
        }
        chain
    }

    /// Grants a lease and makes the object one of those used last. False if its group was
    /// condemned a moment ago.
    pub(crate) fn access(&mut self, slot: ObjectSlot, access: Access, now: Time) -> bool {
        let terms = &self.config.terms;
        let object = &mut self.objects[slot];
        if let Some(group) = object.group()
            && !group.access(now + terms.lease)
        {
            return false;
        }
        // The time of an unfinished put is that of its beginning. What can be read of it
        // is on a disk, and is leased when the put ends.
        if !object.is_complete() {
            return true;
        }
        let is_first = self.writes_at_use && !object.protection().is_accessed();
        object.access(access, now);
        self.order.access(slot, object, now);
        if is_first {
            self.write_used(slot, now);
        }
        true
    }

    /// Notes accesses until they are [taken](Self::take_note), for a command that tells the orders
    /// of them itself.
    pub(crate) fn collect_notes(&mut self, is_collecting: bool) {
        self.order.collect(is_collecting);
    }

    /// Counts an ordinary object as used, without a lease; returns what the orders are to be told.
    /// Those that were put with a soft pin stay where they are: in the order in which the pins lapse.
    pub(crate) fn count_as_used(&mut self, slot: ObjectSlot) -> Option<Note> {
        let object = &self.objects[slot];
        if object.queue() != Queue::Main {
            return None;
        }
        self.order.note(slot, object)
    }

    /// Takes what was noted last.
    pub(crate) fn take_note(&mut self) -> Option<Note> {
        self.order.take_note()
    }

    /// An owned copy of an object's key.
    pub(crate) fn owned_key(&self, slot: ObjectSlot) -> ObjectKey {
        self.key(slot).to_owned()
    }

    /// Bytes that the texts of the keys take.
    pub(crate) const fn key_bytes(&self) -> u64 {
        self.keys.held_bytes()
    }
}

/// Returns an object, whose key has this hash, as the eviction policy knows it.
fn item_of(object: &Object, hash: u64) -> Item {
    Item::new(hash).with_parent(object.parent().map_or(0, core::num::NonZeroU64::get))
}
