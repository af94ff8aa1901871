//! Objects that clients find: on their local disks, and on the shared tier.
//!
//! Found objects outlast a master without a journal, and a disk that comes back brings its objects
//! along. Those that were removed or replaced in the meantime stay removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_lease::SoftPin;
use mc_types::{ClientId, ErrorCode, Extent, Generation, KeyRef, Time};
use thiserror::Error;

use crate::effect::emit::Emit;
use crate::master::Master;
use crate::object::PendingPut;
use crate::object::local_disk::OnLocalDisk;
use crate::shard::Shard;
use crate::space::replica::Replicas;
use crate::tenant::quota::Charge;
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::request::Slices;
use crate::vocabulary::slot::ObjectSlot;

/// More puts than one master lives to see.
const GENERATIONS: u64 = 1 << 52;

/// An object that a client has found on its disk or on the shared tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInTier<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put that it came from.
    pub generation: Generation,
    /// Its slices, with their checksums.
    pub slices: Slices,
    /// Where it begins in the disk's region; 0 on the shared tier.
    pub address: u64,
}

/// Why an object that a client found is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FoundError {
    /// The client has mounted no local disk.
    #[error("the client has no local disk mounted; mount it first")]
    NoDisk,
    /// The master has no shared tier.
    #[error("the master has no shared tier of files; start it with one")]
    NoSharedTier,
    /// The object was removed, or the key has another value now, or one is being written.
    #[error("the object was removed or replaced; delete what was found")]
    OtherObject,
    /// The object has another length.
    #[error("the object has another length; delete what was found")]
    WrongLength,
    /// The object's tenant may not write.
    #[error("no quota is set for the object's tenant")]
    NotRegistered,
    /// The disk has the most objects that it may have.
    #[error("as many objects are on this disk as may be; delete the oldest")]
    TooManyObjects,
}

impl FoundError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NoDisk | Self::NoSharedTier => ErrorCode::SegmentNotFound,
            Self::OtherObject => ErrorCode::ObjectAlreadyExists,
            Self::WrongLength => ErrorCode::InvalidParams,
            Self::NotRegistered => ErrorCode::TenantNotRegistered,
            Self::TooManyObjects => ErrorCode::OffloadQueueFull,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

impl Master {
    /// Reports objects on a client's disk that it has just mounted: objects that the master
    /// knows are readable there, and those that it has never known are objects from now on
    /// that lie on this disk alone. An object that was removed while its client was away stays
    /// removed. After the last one comes [`local_disk_reported`](Self::local_disk_reported).
    ///
    /// # Errors
    /// For each one a [`FoundError`]; the client deletes what is of no use.
    pub fn report_local_disk(
        &self,
        now: Time,
        client: ClientId,
        found: &[FoundInTier<'_>],
    ) -> Vec<Result<(), FoundError>> {
        found.iter().map(|found| self.adopt_from_disk(now, client, found)).collect()
    }

    /// Notes that a client has reported everything on its disk: objects that it has not reported
    /// since it mounted the disk are not there any more.
    ///
    /// # Errors
    /// [`FoundError::NoDisk`].
    pub fn local_disk_reported(&self, client: ClientId) -> Result<(), FoundError> {
        if !self.local.book.lock().settle(client) {
            return Err(FoundError::NoDisk);
        }
        self.start_sweep();
        Ok(())
    }

    /// Reports files on the shared tier: objects that the master knows are readable there, and
    /// those that it has never known are objects from now on. Reporting a file twice is harmless.
    /// When a client says that it has reported all ([`FileSystemState::whole`](crate::FileSystemState::whole)), files that were
    /// written before it began and that no client has reported are lost, unless they are the majority.
    ///
    /// # Errors
    /// For each one a [`FoundError`]; the client deletes the file.
    pub fn report_files(
        &self,
        now: Time,
        client: ClientId,
        found: &[FoundInTier<'_>],
    ) -> Vec<Result<(), FoundError>> {
        self.files.comparing(client, now);
        found.iter().map(|found| self.adopt_file(now, client, found)).collect()
    }

    fn adopt_from_disk(
        &self,
        now: Time,
        client: ClientId,
        found: &FoundInTier<'_>,
    ) -> Result<(), FoundError> {
        let len = self.check_found(found)?;
        let key = self.hashed(found.key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let known = shard.find_live(key, emit).map(|(slot, object)| {
            let same = object.generation == found.generation && object.is_complete();
            (slot, same, object.len() == len)
        });
        match known {
            Some((_, false, _)) => return Err(FoundError::OtherObject),
            Some((_, true, false)) => return Err(FoundError::WrongLength),
            None if self.was_given(found.generation) => return Err(FoundError::OtherObject),
            _ => {}
        }
        let extent = Extent::new(found.address, len).ok_or(FoundError::WrongLength)?;
        // It takes no memory, and its tenant must be one all the same.
        let tenant = match known {
            Some(_) => Charge::free(),
            None => self.owner_of(found)?,
        };
        let place = {
            let book = self.local.book.lock();
            let disk = book.disk(client).ok_or(FoundError::NoDisk)?;
            if disk.objects() >= self.local.max_objects() {
                return Err(FoundError::TooManyObjects);
            }
            let owner = known.map_or_else(|| tenant.slot(), |(slot, ..)| shard.tenant(slot));
            OnLocalDisk::new(Arc::clone(disk), extent, owner)
        };
        match known {
            Some((slot, ..)) => {
                shard.get_mut(slot).add_local_disk(place);
                shard.emit_changed(slot, emit);
            }
            None => {
                let slot = shard.enter(key, client, PendingPut::found(found, tenant), now);
                shard.get_mut(slot).add_local_disk(place);
                shard.adopted(slot, emit);
            }
        }
        Ok(())
    }

    fn adopt_file(
        &self,
        now: Time,
        client: ClientId,
        found: &FoundInTier<'_>,
    ) -> Result<(), FoundError> {
        let len = self.check_found(found)?;
        let key = self.hashed(found.key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        if let Some(slot) = shard.find_of_generation(key, found.generation, emit) {
            let object = shard.get_mut(slot);
            if object.len() != len {
                return Err(FoundError::WrongLength);
            }
            match object.file() {
                FileState::Persisted => object.persist_file(self.files.round()),
                FileState::None if object.is_complete() => {
                    self.take_file(len)?;
                    object.persist_file(self.files.round());
                    shard.charge_file(slot);
                    shard.emit_changed(slot, emit);
                }
                // A file that is being written is reported by its writer.
                FileState::None | FileState::Writing => {}
            }
            self.files.found(len);
            return Ok(());
        }
        if shard.find_live(key, emit).is_some() || self.was_given(found.generation) {
            return Err(FoundError::OtherObject);
        }
        let tenant = self.owner_of(found)?;
        self.take_file(len)?;
        let slot = shard.enter(key, client, PendingPut::found(found, tenant), now);
        shard.get_mut(slot).persist_file(self.files.round());
        shard.charge_file(slot);
        shard.adopted(slot, emit);
        self.files.found(len);
        Ok(())
    }

    /// Checks what was found, and returns its length.
    fn check_found(&self, found: &FoundInTier<'_>) -> Result<u64, FoundError> {
        let lengths = found.slices.as_slice().iter().map(|slice| slice.len);
        let len = lengths.fold(0, u64::saturating_add);
        if len == 0 || len > i64::MAX as u64 || found.slices.as_slice().len() > crate::MAX_SLICES {
            return Err(FoundError::WrongLength);
        }
        if self.may_be_given(found.generation) {
            return Err(FoundError::OtherObject);
        }
        Ok(len)
    }

    /// Takes room for a file that is there already.
    fn take_file(&self, len: u64) -> Result<(), FoundError> {
        self.files.bytes.take_anyway(len).then_some(()).ok_or(FoundError::NoSharedTier)
    }

    fn owner_of(&self, found: &FoundInTier<'_>) -> Result<Charge<'_>, FoundError> {
        self.quotas.charge_owner(found.key, 0).map_err(|_| FoundError::NotRegistered)
    }

    /// Returns whether a put to come could be named like this one.
    fn may_be_given(&self, generation: Generation) -> bool {
        let next = self.generations.load(Ordering::Relaxed);
        (next..next.saturating_add(GENERATIONS)).contains(&generation.as_u64())
    }

    /// Returns whether a put of this master, or of one whose journal it continues, was named so. The
    /// numbers of others begin elsewhere, at random.
    fn was_given(&self, generation: Generation) -> bool {
        let next = self.generations.load(Ordering::Relaxed);
        (next.saturating_sub(GENERATIONS)..next).contains(&generation.as_u64())
    }
}

impl PendingPut {
    /// An object without memory.
    fn found(found: &FoundInTier<'_>, owner: Charge<'_>) -> Self {
        Self {
            generation: found.generation,
            slices: found.slices.clone(),
            replicas: Replicas::default(),
            soft_pin: SoftPin::NONE,
            hard_pin: false,
            group: None,
            parent: None,
            replaces: None,
            file: false,
            tenant: owner.keep(),
        }
    }
}

impl Shard {
    /// The object of this key and put: the one that can be read, or the one that is to replace it.
    fn find_of_generation(
        &mut self,
        key: HashedKey<'_>,
        generation: Generation,
        emit: Emit<'_>,
    ) -> Option<ObjectSlot> {
        let (slot, object) = self.find_live(key, emit)?;
        if object.generation == generation {
            return Some(slot);
        }
        let replacement = self.replacement(slot)?;
        (self.object(replacement)?.generation == generation).then_some(replacement)
    }

    /// An object that its client has found is readable.
    fn adopted(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        self.get_mut(slot).complete_as_found();
        self.eviction().leave_memory(slot);
        self.emit_stored(slot, None, emit);
    }
}
