//! Many commands in one call; those that only read are in `read`.
//!
//! Each form answers for every item, in order, as the single calls one after the
//! other would: a key that comes twice meets what its first appearance did. One
//! item's failure is that item's alone. Between two items other threads'
//! commands may take effect; a batch is no transaction.

use core::fmt;

use mc_types::{ClientId, KeyRef, Time};
use smallvec::SmallVec;

use crate::commands::error::{PutFinishError, PutStartError, RemoveError};
use crate::commands::reply::PutGrant;
use crate::eviction::common::{Chain, Fresh, Note};
use crate::master::{Attempt, Master};
use crate::vocabulary::request::{PutEnd, PutRevoke, PutStart};

/// Puts that begin or end in one call. Each is done at once, but for its place in the order of
/// eviction, which all get when this is dropped: the first of them count as used last. The keys of a
/// call are mostly those of the blocks of a prompt, in which each is of no use without those before it.
///
/// ```
/// # use mc_meta::{Master, MasterConfig, PutEnd, PutStart, PutFinishError};
/// # use mc_types::{ClientId, Time};
/// fn end_all(
///     master: &Master,
///     now: Time,
///     client: ClientId,
///     puts: &[PutEnd<'_>],
/// ) -> Vec<Result<(), PutFinishError>> {
///     let mut batch = master.batch();
///     puts.iter().map(|put| batch.put_end(now, client, put)).collect()
/// }
/// # let master = Master::new(MasterConfig::default(), 1)?;
/// # assert!(end_all(&master, Time::ORIGIN, ClientId::from_u128(1), &[]).is_empty());
/// # Ok::<(), mc_meta::ConfigError>(())
/// ```
pub struct Batch<'a> {
    master: &'a Master,
    fresh: SmallVec<[(Fresh, Chain); 1]>,
    used: SmallVec<[Note; 1]>,
}

impl Batch<'_> {
    /// Returns the master, for its other commands.
    #[must_use]
    pub const fn master(&self) -> &Master {
        self.master
    }

    /// [`Master::put_start`].
    ///
    /// # Errors
    /// As there.
    pub fn put_start(
        &mut self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.put_start_as(now, client, put, Attempt::First)
    }

    /// [`Master::put_start_again`].
    ///
    /// # Errors
    /// As there.
    pub fn put_start_again(
        &mut self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.put_start_as(now, client, put, Attempt::Further)
    }

    /// [`Master::put_start_anew`].
    ///
    /// # Errors
    /// As there.
    pub fn put_start_anew(
        &mut self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.put_start_as(now, client, put, Attempt::Anew)
    }

    fn put_start_as(
        &mut self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
        attempt: Attempt,
    ) -> Result<PutGrant, PutStartError> {
        let answer = self.master.put_start_as(now, client, put, attempt);
        if matches!(answer, Err(PutStartError::AlreadyExists)) {
            let key = self.master.hashed(put.key);
            let mut shard = self.master.shard_of(key);
            self.used.extend(shard.find(key).and_then(|slot| shard.count_as_used(slot)));
        }
        answer
    }

    /// [`Master::put_end`].
    ///
    /// # Errors
    /// As there.
    pub fn put_end(
        &mut self,
        now: Time,
        client: ClientId,
        put: &PutEnd<'_>,
    ) -> Result<(), PutFinishError> {
        let key = self.master.hashed(put.key);
        let mut shard = self.master.shard_of(key);
        if let Some((fresh, chain)) = self.master.end_in(&mut shard, key, now, client, put)? {
            self.fresh.push(self.continued(fresh, chain));
        }
        Ok(())
    }

    /// Completes what is known of an object's chain: one that names no parent continues the object
    /// before it in the call, and a chain in this call goes before the parent of its first object.
    fn continued(&self, mut fresh: Fresh, mut chain: Chain) -> (Fresh, Chain) {
        if let Some((_, before)) = self.fresh.last() {
            if chain.parent == 0 {
                chain.parent = before.own[0];
                fresh.item = fresh.item.with_parent(chain.parent);
            }
            if before.own.contains(&chain.parent) {
                chain.parent = before.parent;
            }
        }
        (fresh, chain)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // A call that begins puts has none to enter, and one that ends some has seldom another use to tell.
        if !self.used.is_empty() {
            self.used.reverse();
            self.master.order.access(&self.used);
        }
        if !self.fresh.is_empty() {
            self.fresh.reverse();
            self.master.order.enter_put(&self.fresh);
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Master {
    /// Begins a call with several puts.
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        Batch { master: self, fresh: SmallVec::new(), used: SmallVec::new() }
    }

    /// [`put_start`](Self::put_start) for each of `puts`, in a [`Batch`].
    pub fn batch_put_start(
        &self,
        now: Time,
        client: ClientId,
        puts: &[PutStart<'_>],
    ) -> Vec<Result<PutGrant, PutStartError>> {
        let mut batch = self.batch();
        puts.iter().map(|put| batch.put_start(now, client, put)).collect()
    }

    /// [`put_end`](Self::put_end) for each of `puts`, in a [`Batch`].
    pub fn batch_put_end(
        &self,
        now: Time,
        client: ClientId,
        puts: &[PutEnd<'_>],
    ) -> Vec<Result<(), PutFinishError>> {
        let mut batch = self.batch();
        puts.iter().map(|put| batch.put_end(now, client, put)).collect()
    }

    /// [`put_revoke`](Self::put_revoke) for each of `puts`.
    pub fn batch_put_revoke(
        &self,
        now: Time,
        client: ClientId,
        puts: &[PutRevoke<'_>],
    ) -> Vec<Result<(), PutFinishError>> {
        let revoke = |&PutRevoke { key, handle, late }: &PutRevoke<'_>| {
            self.put_revoke(now, client, key, handle, late)
        };
        puts.iter().map(revoke).collect()
    }

    /// [`remove`](Self::remove) for each of `keys`.
    pub fn batch_remove(
        &self,
        now: Time,
        keys: &[KeyRef<'_>],
        force: bool,
    ) -> Vec<Result<(), RemoveError>> {
        keys.iter().map(|key| self.remove(now, *key, force)).collect()
    }
}
