//! Commands of clients that write and delete files.

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::commands::error::{PutFinishError, TierEvictError};
use crate::commands::put::PutPart;
use crate::effect::emit::Emit;
use crate::master::Master;
use crate::shard::Shard;
use crate::vocabulary::kinds::{FileState, ReplicaKind};
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::{LateWrites, PutHandle};
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// Notes that the file of an object is written and can be read from now on; also
    /// before [`put_end`](Self::put_end), and also when the memory has gone meanwhile. A
    /// value that was to be replaced is, as soon as the file of the new one is written.
    /// Saying it twice is harmless.
    ///
    /// # Errors
    /// [`PutFinishError`] when no file is expected from this client. A client that wrote one
    /// deletes it.
    pub fn file_put_end(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
    ) -> Result<(), PutFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, _) = shard.find_put(key, self.putter(client, handle), emit)?;
        match shard.get_mut(slot).file() {
            FileState::Writing => {
                // One that is to replace another is written, as by the end of its put.
                if let Some(until) = shard.supersede(slot, emit) {
                    self.release_not_before(until);
                }
                shard.persist(slot, emit);
                Ok(())
            }
            FileState::Persisted => Ok(()),
            FileState::None => Err(PutFinishError::NotOpen),
        }
    }

    /// Notes that the file of an object will not be written. The object stays if it has
    /// anything else.
    ///
    /// # Errors
    /// [`PutFinishError`] when no file is expected from this client.
    pub fn file_put_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
    ) -> Result<(), PutFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, _) = shard.find_put(key, self.putter(client, handle), emit)?;
        if shard.get_mut(slot).file() != FileState::Writing {
            return Err(PutFinishError::NotOpen);
        }
        shard.give_up_file(slot, emit);
        Ok(())
    }

    /// Gives up the memory of a put, and not the file: the object can be read when that
    /// is written. The space comes back as by [`put_revoke`](Self::put_revoke), and calling
    /// it again when no write can arrive any more gives kept space back, too.
    ///
    /// # Errors
    /// [`PutFinishError`] when the put is not open, or not this client's.
    pub fn memory_put_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
        late: LateWrites,
    ) -> Result<(), PutFinishError> {
        self.revoke_part(now, (client, key, handle), late, PutPart::Memory)
    }

    /// Notes that a client has deleted the file of an object, or the object from its
    /// local disk, to make room there. `generation` is what was deleted; `None` is
    /// whatever there is.
    ///
    /// # Errors
    /// [`TierEvictError`] when there is no such replica.
    pub fn evict_from_tier(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Option<Generation>,
        kind: ReplicaKind,
    ) -> Result<(), TierEvictError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(TierEvictError::NotFound)?;
        if generation.is_some_and(|generation| generation != object.generation) {
            return Err(TierEvictError::NoReplica);
        }
        match kind {
            ReplicaKind::Memory => return Err(TierEvictError::NotATier),
            ReplicaKind::SharedFile => match object.file() {
                FileState::None => return Err(TierEvictError::NoReplica),
                FileState::Writing => return Err(TierEvictError::NotReady),
                FileState::Persisted => shard.drop_file(slot),
            },
            ReplicaKind::LocalDisk => {
                if !object.local_disks().iter().any(|disk| disk.client() == Some(client)) {
                    return Err(TierEvictError::NoReplica);
                }
                shard.leave_disk_of(slot, client);
            }
        }
        shard.totals_mut().tier_evictions += 1;
        shard.lost_from_disk(slot, Removal::DiskLost, emit);
        Ok(())
    }
}

impl Shard {
    /// Makes the file of an object readable.
    fn persist(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        let round = self.config().books.files.round();
        let object = self.get_mut(slot);
        let stored = object.is_stored();
        object.persist_file(round);
        let (generation, over) = (object.generation, object.is_complete());
        let without_memory = !object.has_memory();
        self.close_file(generation);
        self.totals_mut().files_written += 1;
        if without_memory && !over {
            self.end_without_memory(slot, emit.now);
        }
        if stored {
            self.emit_changed(slot, emit);
        } else {
            self.emit_stored(slot, None, emit);
        }
    }
}
