//! Differences between a rebuilt master and its records.

use core::time::Duration;

use mc_types::{Generation, ObjectKey, SegmentId};

use crate::record::record_ref::RecordRef;
use crate::record::{Location, ObjectRecord};

/// Records that bring the records which a master was rebuilt from to the state that it has.
///
/// A journal that holds several lives of a master has to hold these after the records of one life
/// and before the first effect of the next: some of what a rebuild decides depends on all records
/// together, on the settings and on the moment at which they end. Few are needed, unless records
/// were damaged. When they get lost and nothing comes after them, the next rebuild decides the
/// same again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections {
    pub(crate) next_generation: Option<Generation>,
    /// Segments that are not there, although objects name them.
    pub(crate) gone: Vec<SegmentId>,
    /// Objects that cannot be.
    pub(crate) removed: Vec<(ObjectKey, Generation)>,
    /// Space that was to be kept, and that objects have.
    pub(crate) freed: Vec<Location>,
    /// Space that was reserved for what no client can end any more.
    pub(crate) kept: Vec<(Location, Duration)>,
    /// Objects for which that space was reserved.
    pub(crate) objects: Vec<ObjectRecord>,
}

impl Corrections {
    /// The records, in the order in which they are to be kept.
    pub fn records(&self) -> impl Iterator<Item = RecordRef<'_>> {
        let next = self.next_generation.map(|next| RecordRef::Generations { next });
        let gone = self.gone.iter().map(|&id| RecordRef::SegmentGone { id });
        let removed = self.removed.iter().map(|(key, generation)| RecordRef::Removed {
            key: key.as_ref(),
            generation: *generation,
        });
        let freed = self.freed.iter();
        let freed = freed.map(|at| RecordRef::SpaceFreed { space: [*at].into_iter().collect() });
        let kept = self.kept.iter().map(|(at, left)| RecordRef::SpaceKept {
            space: [*at].into_iter().collect(),
            left: *left,
        });
        let objects = self.objects.iter().map(|object| RecordRef::Object(object.as_ref()));
        next.into_iter().chain(gone).chain(removed).chain(freed).chain(kept).chain(objects)
    }
}
