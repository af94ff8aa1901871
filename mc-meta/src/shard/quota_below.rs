//! Room within a tenant's quota below memory: what it has there alone and has not used for the longest
//! time goes first.
//!
//! Only objects of the same shard are looked at, whose lock is held anyway: keys are spread over the
//! shards evenly, so the oldest there are among the oldest of all.

use mc_types::ClientId;

use crate::effect::emit::Emit;
use crate::object::local_disk::OnLocalDisk;
use crate::shard::Shard;
use crate::tenant::below::TierBelow;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

/// Most objects that are looked at to make room for one.
const MOST_LOOKED_AT: usize = 16;

impl Shard {
    /// Makes room for `len` bytes within a tenant's quota of a tier, if it has one and that evicts, as
    /// far as a few of its objects that are below memory alone make room. These may go as a whole.
    pub(crate) fn make_room_below(
        &mut self,
        tier: TierBelow,
        tenant: TenantSlot,
        len: u64,
        emit: Emit<'_>,
    ) {
        if self.config().books.quotas.mode(tenant) == QuotaMode::Refuse {
            return;
        }
        for _ in 0..MOST_LOOKED_AT {
            if !self.config().books.quotas.lacks_below(tier, tenant, len) {
                return;
            }
            let Some(slot) = self.coldest_below(tenant) else { return };
            if !self.drop_from(tier, slot, emit) {
                self.spare_below(slot);
            }
        }
    }

    /// Drops an unused object from a tier; false when it is not there or stays.
    fn drop_from(&mut self, tier: TierBelow, slot: ObjectSlot, emit: Emit<'_>) -> bool {
        let object = self.get(slot);
        let is_busy = self.transfer(slot).is_some()
            || self.promotion(slot).is_some()
            || self.replacement(slot).is_some()
            || !object.is_complete();
        if is_busy || self.is_in_use(slot, emit.now) {
            return false;
        }
        let (file, has_disks) = (object.file(), !object.local_disks().is_empty());
        match (tier, file, has_disks) {
            (TierBelow::Disks, _, false) | (TierBelow::Files, FileState::None, _) => return false,
            (_, FileState::Writing, _) => return false,
            (TierBelow::Disks, FileState::None, true)
            | (TierBelow::Files, FileState::Persisted, false) => {
                // The clients that have it are told to delete it.
                self.remove(slot, Removal::DiskLost, emit);
            }
            (TierBelow::Disks, FileState::Persisted, true) => {
                let clients = object.local_disks().iter().filter_map(OnLocalDisk::client);
                let clients: Vec<ClientId> = clients.collect();
                let (key, object) = (self.key(slot), self.get(slot));
                let mut book = self.config().books.local.book.lock();
                clients.into_iter().for_each(|client| book.delete(client, key, object));
                drop(book);
                self.get_mut(slot).leave_disks();
                self.emit_changed(slot, emit);
            }
            (TierBelow::Files, FileState::Persisted, true) => {
                let (key, generation, len) = (self.key(slot), object.generation, object.len());
                self.config().books.files.delete(key, generation, len);
                self.drop_file(slot);
                self.emit_changed(slot, emit);
            }
        }
        self.totals_mut().tier_evictions += 1;
        true
    }
}
