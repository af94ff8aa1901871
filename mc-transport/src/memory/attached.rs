//! Values that live as long as a block of memory, such as its registrations with devices.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

/// The values of one block, by the number of the owner that attached them. They are dropped
/// before the memory is released: a device lets go of pages before they have another use.
#[derive(Default)]
pub(super) struct Attached(Mutex<Vec<(u64, Arc<dyn Any + Send + Sync>)>>);

impl Attached {
    /// Returns the value of `owner`; attaches a new one the first time.
    pub(super) fn of<T: Default + Send + Sync + 'static>(&self, owner: u64) -> Arc<T> {
        let mut attached = self.0.lock();
        let known = attached.iter().find(|(known, _)| *known == owner);
        if let Some(known) = known.and_then(|(_, value)| Arc::clone(value).downcast().ok()) {
            return known;
        }
        let new = Arc::<T>::default();
        attached.push((owner, Arc::clone(&new) as Arc<dyn Any + Send + Sync>));
        new
    }

    pub(super) fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}
