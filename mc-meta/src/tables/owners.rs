//! The clients that put the objects of a shard, each kept once for all of its objects.

use std::collections::HashMap;

use foldhash::quality::FixedState;
use mc_types::ClientId;

use crate::tables::slab::Slab;

/// Names a client within one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerSlot(u32);

/// The clients that own an object of one shard.
#[derive(Debug)]
pub(crate) struct Owners {
    /// Never walked, so the order of its entries decides nothing.
    slots: HashMap<ClientId, u32, FixedState>,
    owners: Slab<OwnerCount>,
}

#[derive(Debug)]
struct OwnerCount {
    pub(crate) client: ClientId,
    objects: u32,
}

impl Owners {
    pub(crate) fn new(hasher: FixedState) -> Self {
        Self { slots: HashMap::with_hasher(hasher), owners: Slab::new() }
    }

    /// Counts one more object of `client`.
    pub(crate) fn add(&mut self, client: ClientId) -> OwnerSlot {
        let owners = &mut self.owners;
        let new = || owners.insert(OwnerCount { client, objects: 0 });
        let slot = *self.slots.entry(client).or_insert_with(new);
        if let Some(owner) = self.owners.get_mut(slot) {
            owner.objects += 1;
        }
        OwnerSlot(slot)
    }

    /// Counts one object less. The slot may name another client afterwards.
    pub(crate) fn remove(&mut self, slot: OwnerSlot) {
        let Some(owner) = self.owners.get_mut(slot.0) else { return };
        owner.objects -= 1;
        if owner.objects == 0
            && let Some(owner) = self.owners.remove(slot.0)
        {
            self.slots.remove(&owner.client);
        }
    }

    /// The client of a slot that has objects.
    pub(crate) fn client(&self, slot: OwnerSlot) -> ClientId {
        self.owners.get(slot.0).expect("an owner is kept while it has objects").client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_kept_while_it_owns_something() {
        let mut owners = Owners::new(FixedState::with_seed(1));
        let clients = [1, 2, 3].map(ClientId::from_u128);
        let slots = clients.map(|client| owners.add(client));
        assert_eq!(owners.add(clients[1]), slots[1]);
        owners.remove(slots[1]);
        assert_eq!(owners.client(slots[1]), clients[1]);
        owners.remove(slots[1]);
        assert_eq!(owners.slots.len(), 2);
        assert_eq!(owners.add(ClientId::from_u128(9)), slots[1]);
        assert_eq!(owners.client(slots[1]), ClientId::from_u128(9));
        assert_eq!(owners.client(slots[2]), clients[2]);
    }
}
