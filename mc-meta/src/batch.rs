//! Many commands in one call; those that only read are in `read`.
//!
//! Each form answers for every item, in order, as the single calls one after the
//! other would: a key that comes twice meets what its first appearance did. One
//! item's failure is that item's alone. Between two items other threads'
//! commands may take effect; a batch is no transaction.

use core::cmp::Reverse;

use mc_types::{ClientId, KeyRef, Time};

use crate::command::{PutEnd, PutGrant, PutRevoke, PutStart};
use crate::error::{PutFinishError, PutStartError, RemoveError};
use crate::master::Master;

impl Master {
    /// [`put_start`](Self::put_start) for each of `puts`.
    pub fn batch_put_start(
        &self,
        now: Time,
        client: ClientId,
        puts: &[PutStart<'_>],
    ) -> Vec<Result<PutGrant, PutStartError>> {
        puts.iter().map(|put| self.put_start(now, client, put)).collect()
    }

    /// [`put_end`](Self::put_end) for each of `puts`. The first count as used last: where the
    /// list is the blocks of a prompt, each of them is of no use without those before it.
    pub fn batch_put_end(
        &self,
        now: Time,
        client: ClientId,
        puts: &[PutEnd<'_>],
    ) -> Vec<Result<(), PutFinishError>> {
        let shards = self.shards().len();
        let mut fresh = Vec::with_capacity(puts.len());
        let mut end = |(at, put): (usize, &PutEnd<'_>)| {
            let key = self.hashed(put.key);
            let ended = self.end_in(&mut self.shard_of(key), key, now, client, put)?;
            fresh.extend(ended.map(|object| (key.shard(shards), Reverse(at), object)));
            Ok(())
        };
        let ends = puts.iter().enumerate().map(&mut end).collect();
        fresh.sort_unstable_by_key(|(shard, at, _)| (*shard, *at));
        for run in fresh.chunk_by(|a, b| a.0 == b.0) {
            let mut shard = self.shards()[run[0].0].lock();
            run.iter().for_each(|(_, _, object)| shard.enter_order(*object));
        }
        ends
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
