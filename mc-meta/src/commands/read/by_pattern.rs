//! Reads of all objects whose keys match a pattern.

use core::ops::ControlFlow;

use mc_types::{ObjectKey, Time};

use crate::commands::reply::ReplicaList;
use crate::master::Master;
use crate::object::Access;
use crate::tenant::id::TenantId;
use crate::vocabulary::pattern::Pattern;
use crate::vocabulary::request::ListCursor;

/// Part of the objects whose keys match, in no order.
#[derive(Clone, Debug)]
pub struct ReplicaPage {
    /// The objects, each under a lease; may be empty although more follow.
    pub objects: Vec<(ObjectKey, ReplicaList)>,
    /// The position of the next page; `None` at the end.
    pub next: Option<ListCursor>,
}

impl Master {
    /// [`get_replica_list`](Self::get_replica_list) for up to `limit` objects whose keys
    /// the pattern matches, from `cursor` on. Those that cannot be read now are passed
    /// over. An object that stays throughout is found exactly once.
    ///
    /// One call looks at 16,384 objects at most, whether they match or not, and holds
    /// other commands up for some hundred of them at a time.
    pub fn get_replica_list_by_regex(
        &self,
        now: Time,
        pattern: &Pattern,
        cursor: ListCursor,
        limit: usize,
    ) -> ReplicaPage {
        self.read_matching(now, None, pattern, cursor, limit)
    }

    /// Reads objects of one tenant by their keys as it knows them, or all objects by
    /// their keys as they are stored.
    pub(crate) fn read_matching(
        &self,
        now: Time,
        tenant: Option<&TenantId>,
        pattern: &Pattern,
        cursor: ListCursor,
        limit: usize,
    ) -> ReplicaPage {
        let mut objects = Vec::new();
        let next = self.walk(cursor, |shard, slot| {
            if objects.len() == limit {
                return ControlFlow::Break(());
            }
            let found = shard
                .object(slot)
                .filter(|object| object.is_readable() && !shard.is_expired(slot, now))
                .and_then(|_| shard.key_for(slot, tenant))
                .filter(|key| pattern.is_match(key.as_str()))
                .map(|key| key.to_owned());
            if let Some(key) = found
                && let Some(list) = shard.read(slot, Access::Reads { tells: false }, now)
            {
                if let Some(due) = shard.was_read(slot, now) {
                    self.release_not_before(due);
                }
                objects.push((key, list));
            }
            ControlFlow::Continue(())
        });
        self.see_all();
        ReplicaPage { objects, next }
    }
}
