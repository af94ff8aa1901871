//! The list of leased objects that a master leaves to its successor, as a rebuild reads it.

use mc_types::Generation;

/// Objects of one effect.
pub(crate) const AT_A_TIME: usize = 4096;

/// Objects that are listed, at most. Where more are leased the successor counts all as leased.
pub(crate) const MAX_LISTED: usize = 1 << 20;

/// The objects that a former master has listed as leased, as a rebuild reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeasedObjects {
    objects: Vec<Generation>,
    is_complete: bool,
}

impl LeasedObjects {
    /// Takes the next part of a list. One that does not continue the list makes it worthless.
    pub(crate) fn add(&mut self, before: u64, objects: &[Generation], is_last: bool) {
        if before == 0 {
            self.forget();
        }
        let continues = before == self.objects.len() as u64 && !self.is_complete;
        if !continues || self.objects.len() + objects.len() > MAX_LISTED + AT_A_TIME {
            self.forget();
            return;
        }
        self.objects.extend_from_slice(objects);
        self.is_complete = is_last;
    }

    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the objects, sorted, if they are all.
    pub(crate) fn take(&mut self) -> Option<Vec<Generation>> {
        let Self { mut objects, is_complete } = core::mem::take(self);
        objects.sort_unstable();
        is_complete.then_some(objects)
    }
}
