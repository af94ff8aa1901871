//! The hooks by which a side table learns of objects that go.

use mc_types::Time;
use smallvec::SmallVec;

use crate::object::Object;
use crate::side_tables::books::Books;
use crate::side_tables::retained::{GrantId, RetainedSpace};
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::slot::ObjectSlot;

/// An object that is being taken out of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    pub(crate) slot: ObjectSlot,
    pub(crate) object: &'a Object,
    /// The tenant that is charged for it.
    pub(crate) tenant: TenantSlot,
    pub(crate) books: &'a Books,
}

/// Space of a grant that has ended, which its client may still be writing to.
#[derive(Debug)]
pub(crate) struct Lingering {
    /// When no client writes there any more.
    pub(crate) until: Time,
    pub(crate) grant: GrantId,
    pub(crate) space: RetainedSpace,
}

/// A table of what only some objects have.
pub(crate) trait SideTable {
    /// Returns whether it has an entry of the object in this slot.
    fn has(&self, slot: ObjectSlot) -> bool;

    /// Ends what is under way for an object whose removal is told next. Space that is to be kept goes to `kept`.
    fn abandon(&mut self, leaving: Leaving<'_>, kept: &mut SmallVec<[Lingering; 2]>) {
        let _ = (leaving, kept);
    }

    /// Forgets an object that has gone, and gives back what its tenant was charged for.
    fn forget(&mut self, leaving: Leaving<'_>);
}
