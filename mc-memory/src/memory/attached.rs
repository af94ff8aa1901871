//! Values that live as long as a block of memory, such as its registrations with devices.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

/// The values of one block, by the number of the owner that attached them. They are dropped
/// before the memory is released: a device lets go of pages before they have another use.
#[derive(Default)]
pub(super) struct Attached(Mutex<Vec<Value>>);

/// A value with the number of its owner.
type Value = (u64, Arc<dyn Any + Send + Sync>);

impl Attached {
    /// Returns the value of `owner`.
    pub(super) fn find<T: Send + Sync + 'static>(&self, owner: u64) -> Option<Arc<T>> {
        find(&self.0.lock(), owner)
    }

    /// Returns the value of `owner`; attaches a new one the first time.
    pub(super) fn of<T: Default + Send + Sync + 'static>(&self, owner: u64) -> Arc<T> {
        let mut attached = self.0.lock();
        if let Some(known) = find(&attached, owner) {
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

fn find<T: Send + Sync + 'static>(attached: &[Value], owner: u64) -> Option<Arc<T>> {
    let (_, value) = attached.iter().find(|(known, _)| *known == owner)?;
    Arc::clone(value).downcast().ok()
}
