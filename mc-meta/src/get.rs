//! Reads: replica lists, existence, prefixes.

use mc_types::{KeyRef, Time};

use crate::command::ReplicaList;
use crate::error::GetError;
use crate::master::Master;
use crate::shard::Shard;

impl Master {
    /// The readable replicas of an object, under a lease: until it ends the
    /// object is neither evicted nor removed without force. What is on a disk may go all
    /// the same, when whoever owns the disk deletes it. Where the settings say so
    /// ([`ttl_after_get`](crate::MasterConfig::ttl_after_get)), the first such read begins
    /// the object's end; its memory stays until the lease ends all the same.
    ///
    /// # Errors
    /// [`GetError`] when there is no object, its put is not finished, or every client
    /// that holds it is silent.
    pub fn get_replica_list(&self, now: Time, key: KeyRef<'_>) -> Result<ReplicaList, GetError> {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        let slot = match shard.find_live(key, self.emit(now)) {
            Some((slot, object)) if object.is_readable() => slot,
            unreadable => {
                let error = unreadable.map_or(GetError::NotFound, |_| GetError::NotReady);
                shard.totals.get_misses += 1;
                return Err(error);
            }
        };
        match shard.read(slot, now) {
            Some(list) => {
                if let Some(due) = shard.was_read(slot, now) {
                    self.release_not_before(due);
                }
                Ok(list)
            }
            None => {
                shard.totals.get_misses += 1;
                Err(GetError::NotFound)
            }
        }
    }

    /// Whether an object can be read. A yes grants a lease, so that a read that
    /// follows finds it.
    pub fn exist(&self, now: Time, key: KeyRef<'_>) -> bool {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        match shard.find_live(key, self.emit(now)) {
            Some((slot, object)) if object.is_readable() => shard.access(slot, now),
            _ => false,
        }
    }

    /// How many of the leading keys can be read. Looks no further than the first
    /// that cannot, grants no lease and changes no order of eviction.
    pub fn longest_prefix<'a>(
        &self,
        now: Time,
        keys: impl IntoIterator<Item = KeyRef<'a>>,
    ) -> usize {
        let emit = self.emit(now);
        let readable = |key: &KeyRef<'a>| {
            let key = self.hashed(*key);
            self.shard_of(key).find_live(key, emit).is_some_and(|(_, object)| object.is_readable())
        };
        keys.into_iter().take_while(readable).count()
    }
}

impl Shard {
    /// What a reader needs of an object that can be read, under a lease. None when it was
    /// given up with its group a moment ago.
    pub(crate) fn read(&mut self, slot: u32, now: Time) -> Option<ReplicaList> {
        if !self.access(slot, now) {
            return None;
        }
        self.totals.get_hits += 1;
        let lease = self.config.terms.lease;
        let object = self.object(slot)?;
        Some(ReplicaList {
            generation: object.generation,
            slices: object.slices(),
            placements: object.placements(),
            disk: object.disk_replica(),
            local_disks: object.local_disk_replicas(),
            lease,
        })
    }
}
