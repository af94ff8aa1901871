//! How a shard tells the sinks what became of its objects, and what it remembers of it itself.

use mc_types::{StoreEventInfo, Time};

use crate::effect::Effect;
use crate::effect::emit::Emit;
use crate::object::Object;
use crate::shard::Shard;
use crate::side_tables::history::{KeyEvent, KeyEventKind};
use crate::tables::index::tag_of;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    pub(super) fn emit_removed(&mut self, slot: ObjectSlot, cause: Removal, emit: Emit<'_>) {
        let object = &self.objects[slot];
        if object.is_complete() {
            let what = KeyEventKind::Removed { generation: object.generation, cause };
            self.history.add(object.tag, emit.now, what);
        }
        if emit.wants_objects() {
            let before = self.objects[slot].tell_kinds();
            let object = &self.objects[slot];
            let (key, generation) = (self.key(slot), object.generation);
            let stored = object.is_stored();
            let object = self.view(slot);
            emit.effect(&if stored {
                Effect::Removed { key, generation, cause, before, object }
            } else {
                Effect::Abandoned { key, generation, object }
            });
        }
        // A client that is to delete them waits until the removal is durable, so that has a number before.
        let object = &self.objects[slot];
        if !object.is_plain() {
            self.config.books.delete_below(self.key(slot), object);
        }
    }

    /// Tells of an object that became readable.
    pub(crate) fn emit_stored(
        &mut self,
        slot: ObjectSlot,
        event_info: Option<&StoreEventInfo>,
        emit: Emit<'_>,
    ) {
        if emit.wants_objects() {
            self.get_mut(slot).tell_kinds();
            emit.effect(&Effect::Stored { object: self.view(slot), event_info });
        }
    }

    /// Tells of a copy, a move or a promotion that began or came to nothing.
    pub(crate) fn emit_transfer(&self, slot: ObjectSlot, emit: Emit<'_>) {
        if emit.wants_objects() && self.object(slot).is_some_and(Object::is_stored) {
            emit.effect(&Effect::Transferring { object: self.view(slot) });
        }
    }

    /// Tells of another pin than before.
    pub(crate) fn emit_pinned(&self, slot: ObjectSlot, emit: Emit<'_>) {
        if emit.wants_objects() {
            emit.effect(&Effect::Pinned { object: self.view(slot) });
        }
    }

    /// Tells of other replicas than before. What an unfinished object loses with its segments is
    /// not told one by one.
    pub(crate) fn emit_changed(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        if self.object(slot).is_some_and(Object::is_stored) {
            self.emit_given_up(slot, emit);
        }
    }

    /// Emits the loss of memory or a file, of an unfinished object too.
    pub(crate) fn emit_given_up(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        if emit.wants_objects() && self.object(slot).is_some() {
            let before = self.get_mut(slot).tell_kinds();
            emit.effect(&Effect::Changed { object: self.view(slot), before });
        }
    }

    /// Remembers an event of the key with this hash.
    pub(crate) fn remember(&mut self, hash: u64, now: Time, event: KeyEventKind) {
        self.history.add(tag_of(hash), now, event);
    }

    /// Returns the latest events of the key with this hash, the last one first.
    pub(crate) fn events(&self, hash: u64, now: Time) -> Vec<KeyEvent> {
        self.history.of(tag_of(hash), now)
    }
}
