//! Space that belongs to no object any more, and that a client may still be writing to or
//! reading from.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

use mc_types::{ClientId, Generation, Time, TransferId};

use crate::side_tables::readers::Quiet;
use crate::space::replica::Replicas;
use crate::tenant::ledger::TenantSlot;

/// A put or a transfer. Their numbers come from one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GrantId(u64);

impl GrantId {
    pub(crate) const fn as_u64(self) -> u64 {
        self.0
    }
}

impl From<Generation> for GrantId {
    fn from(put: Generation) -> Self {
        Self(put.as_u64())
    }
}

impl From<TransferId> for GrantId {
    fn from(transfer: TransferId) -> Self {
        Self(transfer.as_u64())
    }
}

/// Space that belongs to no object any more.
#[derive(Debug, Default)]
pub(crate) struct RetainedSpace {
    /// The tenant that is still charged for it; `None` for what was kept before the master began.
    pub(crate) tenant: Option<TenantSlot>,
    pub(crate) replicas: Replicas,
    /// The client that can give it back before its time, because it alone may still be
    /// writing there.
    pub(crate) writer: Option<ClientId>,
    /// When it was last read, and its number among those that are kept for readers, when all of
    /// these say when they are done.
    pub(crate) read_at: Option<(Time, u64)>,
}

/// The last read of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRead {
    /// Until when its reader may use the memory, and all others.
    pub(crate) until: Time,
    /// When it began, if all of them say when they are done.
    pub(crate) told: Option<Time>,
}

/// The retained space of one shard, by when it can be given back.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    spaces: BTreeMap<(Time, GrantId), RetainedSpace>,
    /// When space is released whose writers revoked their grants while writes
    /// were possible.
    late: BTreeMap<GrantId, Time>,
    /// Spaces that are kept for readers who report the end of their reads, by the time of the last read.
    read: BTreeSet<(Time, u64, Time, GrantId)>,
}

impl Retained {
    /// Adds the space of a grant, which may have some here already.
    pub(crate) fn add(&mut self, until: Time, grant: GrantId, space: RetainedSpace) {
        if space.writer.is_some() {
            self.late.insert(grant, until);
        }
        let mut all = space;
        if let Some(before) = self.spaces.remove(&(until, grant)) {
            self.forget_read((until, grant), &before);
            // Together they wait for the readers of both, and until the end for silent ones.
            let (read_at, before_at) = (all.read_at, before.read_at);
            all.read_at = read_at.and(before_at).and(read_at.max(before_at));
            all.replicas.extend(before.replicas);
        }
        if let Some((read, number)) = all.read_at {
            self.read.insert((read, number, until, grant));
        }
        self.spaces.insert((until, grant), all);
    }

    fn forget_read(&mut self, (until, grant): (Time, GrantId), space: &RetainedSpace) {
        if let Some((read, number)) = space.read_at {
            self.read.remove(&(read, number, until, grant));
        }
    }

    /// Takes out space that has no reader.
    pub(crate) fn pop_quiet(&mut self, quiet: Quiet) -> Option<RetainedSpace> {
        let is_quiet =
            |(read, number, ..): &&(Time, u64, Time, GrantId)| quiet.includes(*number, *read);
        let found =
            *self.read.iter().take_while(|(read, ..)| quiet.reaches(*read)).find(is_quiet)?;
        self.read.remove(&found);
        let (.., until, grant) = found;
        self.spaces.remove(&(until, grant))
    }

    /// When the object was last read whose space is kept for readers who say when they are done, and
    /// whose last read is the longest ago.
    pub(crate) fn oldest_read(&self) -> Option<Time> {
        self.read.first().map(|(read, ..)| *read)
    }

    /// Returns whether this client may still be writing to the space of a grant.
    pub(crate) fn is_written_by(&self, client: ClientId, grant: GrantId) -> bool {
        let space = self.late.get(&grant).and_then(|until| self.spaces.get(&(*until, grant)));
        space.is_some_and(|space| space.writer == Some(client))
    }

    /// Takes the space out that a client was writing to.
    pub(crate) fn take(&mut self, grant: GrantId) -> Option<RetainedSpace> {
        let until = self.late.remove(&grant)?;
        self.spaces.remove(&(until, grant))
    }

    /// Takes out the space that was due first, if that is so now.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<RetainedSpace> {
        let entry = self.spaces.first_entry().filter(|entry| entry.key().0 <= now)?;
        let (key, space) = entry.remove_entry();
        if space.writer.is_some() {
            self.late.remove(&key.1);
        }
        self.forget_read(key, &space);
        Some(space)
    }

    /// Returns when the next space is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.spaces.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns whether there is space that only readers may still be using.
    pub(crate) fn has_for_readers(&self) -> bool {
        // All other space has a writer.
        self.spaces.len() > self.late.len()
    }

    /// Returns the space with these keys, in their order.
    pub(crate) fn range(
        &self,
        keys: impl RangeBounds<(Time, GrantId)>,
    ) -> impl Iterator<Item = (&(Time, GrantId), &RetainedSpace)> {
        self.spaces.range(keys)
    }
}
