//! Where objects are in the disk's region.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use mc_tier::ObjectId;
use parking_lot::RwLock;

/// The alignment of addresses, so that a read never touches two objects.
const ALIGNMENT: u64 = 4096;

/// The addresses of objects. An address is never given twice, so that a reader who comes late finds the
/// object that it was told of, or none.
#[derive(Debug, Default)]
pub(in crate::client) struct Places(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    by_address: BTreeMap<u64, (Arc<ObjectId>, u64)>,
    by_id: HashMap<Arc<ObjectId>, u64>,
}

impl Places {
    /// The address of an object of `len` bytes, which it keeps until it is removed.
    pub(in crate::client) fn address(&self, id: &ObjectId, len: u64) -> u64 {
        let mut state = self.0.write();
        if let Some(address) = state.by_id.get(id) {
            return *address;
        }
        let address = state.next;
        state.next += len.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let id = Arc::new(id.clone());
        state.by_address.insert(address, (Arc::clone(&id), len));
        state.by_id.insert(id, address);
        address
    }

    /// The object at an address, and which of its bytes are there; `None` when there is none, or it ends
    /// before.
    pub(in crate::client) fn find(
        &self,
        address: u64,
        len: u64,
    ) -> Option<(Arc<ObjectId>, Range<u64>)> {
        let state = self.0.read();
        let (begin, (id, object_len)) = state.by_address.range(..=address).next_back()?;
        let range = address - begin..(address - begin).checked_add(len)?;
        (range.end <= *object_len).then(|| (Arc::clone(id), range))
    }

    /// Forgets an object.
    pub(in crate::client) fn remove(&self, id: &ObjectId) {
        let mut state = self.0.write();
        if let Some(address) = state.by_id.remove(id) {
            state.by_address.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use mc_types::{Generation, ObjectKey};

    use super::*;

    fn id(number: u64) -> ObjectId {
        ObjectId::new("t", ObjectKey::new("k").unwrap(), Generation::new(number)).unwrap()
    }

    #[test]
    fn an_address_leads_to_one_object_and_is_never_given_again() {
        let places = Places::default();
        let (a, b) = (places.address(&id(1), 5000), places.address(&id(2), 1));
        assert_eq!((a, b), (0, 8192));
        assert_eq!(places.address(&id(1), 5000), a);
        assert_eq!(places.find(4999, 1), Some((Arc::new(id(1)), 4999..5000)));
        assert_eq!(places.find(0, 5000).unwrap().1, 0..5000);
        for (address, len) in
            [(0, 5001), (5000, 1), (8191, 2), (8193, 1), (u64::MAX, 1), (0, u64::MAX)]
        {
            assert_eq!(places.find(address, len), None, "{address} {len}");
        }
        places.remove(&id(1));
        assert_eq!(places.find(0, 1), None);
        assert_eq!(places.address(&id(1), 5000), 8192 + 4096);
    }
}
