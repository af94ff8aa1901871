//! Space that belongs to no object any more, and that somebody may still be writing to or
//! reading from.

use mc_types::{ClientId, Generation, Time, TransferId};

use crate::command::LateWrites;
use crate::journal::effect::Effect;
use crate::journal::emit::Emit;
use crate::object::replica::Replicas;
use crate::object::view::SpaceView;
use crate::shard::Shard;
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
pub(crate) struct Kept {
    /// Who is still charged for it; `None` for what was kept before the master began.
    pub(crate) tenant: Option<TenantSlot>,
    pub(crate) replicas: Replicas,
    /// The client that can give it back before its time, because it alone may still be
    /// writing there.
    pub(crate) writer: Option<ClientId>,
}

impl Shard {
    /// Keeps the space of a grant until then. To be called before its object is reported as
    /// gone or changed.
    pub(crate) fn keep_until(
        &mut self,
        until: Time,
        grant: impl Into<GrantId>,
        space: Kept,
        emit: Emit<'_>,
    ) {
        let grant = grant.into();
        if !space.replicas.is_empty() {
            let (left, view) = (until - emit.now, SpaceView { replicas: &space.replicas });
            emit.effect(&Effect::SpaceKept { space: view, left });
            let kept = self.discarded.entry((until, grant)).or_default();
            kept.tenant = space.tenant;
            kept.writer = space.writer;
            kept.replicas.extend(space.replicas);
            if space.writer.is_some() {
                self.late.insert(grant, until);
            }
        }
    }

    /// Notes that a client which has given up a put or transfer writes no more, or that it
    /// still may; returns false when none of its space is kept. The caller has seen proof
    /// that the client began it.
    pub(crate) fn revoked_again(
        &mut self,
        client: ClientId,
        grant: impl Into<GrantId>,
        late: LateWrites,
        emit: Emit<'_>,
    ) -> bool {
        let grant = grant.into();
        let Some(until) = self.late.get(&grant).copied() else { return false };
        let entry = (until, grant);
        if self.discarded.get(&entry).is_none_or(|kept| kept.writer != Some(client)) {
            return false;
        }
        if late == LateWrites::Impossible
            && let Some(kept) = self.discarded.remove(&entry)
        {
            self.free_kept(grant, kept, emit);
        }
        true
    }

    /// Whether space is kept that only readers may still be using.
    pub(crate) fn keeps_for_readers(&self) -> bool {
        // All other space that is kept has a writer.
        self.discarded.len() > self.late.len()
    }

    /// Gives space back that was kept.
    pub(crate) fn free_kept(&mut self, grant: GrantId, kept: Kept, emit: Emit<'_>) {
        let Kept { tenant, replicas, writer } = kept;
        if writer.is_some() {
            self.late.remove(&grant);
        }
        emit.effect(&Effect::SpaceFreed { space: SpaceView { replicas: &replicas } });
        match tenant {
            Some(tenant) => self.give_back(tenant, replicas),
            None => replicas.release_uncharged(),
        };
    }
}
