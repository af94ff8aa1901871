//! Walks over all objects, a page at a time.

use core::ops::ControlFlow;

use crate::master::Master;
use crate::shard::Shard;
use crate::vocabulary::request::ListCursor;
use crate::vocabulary::slot::ObjectSlot;

/// Slots that one call looks at.
const MAX_SCAN: u32 = 16_384;

/// Slots looked at while a shard stays locked. With patterns and the longest keys that is a
/// millisecond.
const BATCH: u32 = 256;

impl Master {
    /// Visits the slots from `cursor` on until `visit` breaks off, before that slot, or the call has
    /// looked at enough of them. Returns the position of the rest; `None` at the end.
    pub(crate) fn walk(
        &self,
        cursor: ListCursor,
        mut visit: impl FnMut(&mut Shard, ObjectSlot) -> ControlFlow<()>,
    ) -> Option<ListCursor> {
        let mut at = cursor;
        let mut scanned = 0;
        while let Some(shard) = self.shards().get(at.shard as usize) {
            let mut shard = shard.lock();
            let to = shard.end().min(at.slot.saturating_add(BATCH));
            while at.slot < to {
                if scanned == MAX_SCAN || visit(&mut shard, ObjectSlot::new(at.slot)).is_break() {
                    return Some(at);
                }
                at.slot += 1;
                scanned += 1;
            }
            if to >= shard.end() {
                at = ListCursor { shard: at.shard + 1, slot: 0 };
            }
        }
        None
    }
}
