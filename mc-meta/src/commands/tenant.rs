//! Tenants of the master: whose a key is, what each may have, and room within that.
//!
//! Commands take keys as they are stored, which say whose they are; a server makes them
//! with [`Master::scoped`]. Space is charged where it is taken (here, and for copies and
//! moves), and refunded where it goes back to its segment, whatever became of the object
//! meanwhile: what was discarded or replaced stays charged until it can be given out.

use std::collections::BTreeMap;

use mc_types::{KeyRef, Time};

use crate::commands::read::by_pattern::ReplicaPage;
use crate::commands::remove::RemovalCounts;
use crate::effect::Effect;
use crate::master::Master;
use crate::shard::Shard;
use crate::tenant::below::TierQuotas;
use crate::tenant::id::{ScopeError, ScopedKey, TenantId};
use crate::tenant::quota::{PolicyError, QuotaMode, QuotaReport, TenantUsage};
use crate::vocabulary::pattern::Pattern;
use crate::vocabulary::request::{KeyPage, ListCursor};
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// The key that an object of `tenant` is stored under, which every command takes, and
    /// [`ReplicateConfig::parent`](crate::ReplicateConfig::parent) too. A service that takes keys
    /// from requests asks this for each of them, even when the master runs without tenants: it then
    /// says the key of the default tenant, for every caller.
    ///
    /// Copies nothing for a key of the default tenant, but one that begins with NUL.
    /// Names of groups need none of this: they are told apart by the tenant of the key.
    ///
    /// # Errors
    /// [`ScopeError`] when the tenant's name leaves too little room for the key.
    pub fn scoped<'k>(
        &self,
        tenant: &TenantId,
        key: KeyRef<'k>,
    ) -> Result<ScopedKey<'k>, ScopeError> {
        self.quotas.acting(tenant).scoped(key)
    }

    /// Gives a tenant a quota of `bytes`, or another one. What it may have can be less:
    /// when all quotas together exceed the bytes of all mounted segments, suspended ones
    /// included, each counts for the same part. When a tenant has more than it may,
    /// nothing of it goes for that alone; it cannot put before it has less, and when room
    /// is needed its excess goes first.
    ///
    /// Puts beyond the quota evict objects of the tenant ([`QuotaMode::Evict`]).
    ///
    /// Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_tenant_quota(
        &self,
        now: Time,
        tenant: &TenantId,
        bytes: u64,
    ) -> Result<(), PolicyError> {
        self.set_tenant_quota_with(now, tenant, bytes, QuotaMode::Evict)
    }

    /// [`set_tenant_quota`](Self::set_tenant_quota), and what becomes of puts beyond it.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_tenant_quota_with(
        &self,
        now: Time,
        tenant: &TenantId,
        bytes: u64,
        mode: QuotaMode,
    ) -> Result<(), PolicyError> {
        self.set_tenant_quotas(now, tenant, Some(bytes), mode, TierQuotas::NONE)
    }

    /// Sets all quotas of a tenant: of memory, where `None` is the default quota, and below memory. It
    /// must have one of these.
    ///
    /// No put is refused for a quota below memory. An object that would exceed its tenant's quota of
    /// disks is not written to a disk, and is evicted as if there were none; a put that would exceed the
    /// quota of files is planned without a file. In the mode that evicts, objects of the tenant that
    /// are nowhere else make room before, those first that were not used for the longest time.
    /// Objects that are there already stay, also those that a client finds after a restart.
    ///
    /// Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn set_tenant_quotas(
        &self,
        now: Time,
        tenant: &TenantId,
        memory: Option<u64>,
        mode: QuotaMode,
        below: TierQuotas,
    ) -> Result<(), PolicyError> {
        let _changing = self.policies.lock();
        self.quotas.set_policy_below(tenant, memory, mode, below)?;
        self.emit(now).effect(&Effect::TenantPolicy { tenant, requested: memory, mode, below });
        Ok(())
    }

    /// Makes these the only quotas, as a server does that keeps them in a file. A tenant
    /// that loses its own keeps its objects, and has the default quota from then on; one that has a
    /// quota still keeps its [mode](QuotaMode) and its quotas below memory.
    ///
    /// Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn replace_tenant_quotas(
        &self,
        now: Time,
        quotas: &BTreeMap<TenantId, u64>,
    ) -> Result<(), PolicyError> {
        let _changing = self.policies.lock();
        let before = self.tenant_quotas().map_or_else(Vec::new, |report| report.tenants);
        self.quotas.replace_policies(quotas)?;
        let emit = self.emit(now);
        let lost = before.iter().filter(|row| row.has_policy());
        for TenantUsage { tenant, .. } in lost.filter(|row| !quotas.contains_key(&row.tenant)) {
            emit.effect(&Effect::no_policy(tenant));
        }
        for (tenant, requested) in quotas {
            let slot = self.quotas.slot(tenant);
            let mode = slot.map_or(QuotaMode::Evict, |it| self.quotas.mode(it));
            let below = self.quotas.usage(tenant).map_or(TierQuotas::NONE, |row| row.below());
            let requested = Some(*requested);
            emit.effect(&Effect::TenantPolicy { tenant, requested, mode, below });
        }
        Ok(())
    }

    /// Takes a tenant's quota away; it has the default one afterwards. Where there is none
    /// ([`DefaultQuota::Denied`](crate::DefaultQuota::Denied)) it can put no more, and must
    /// have neither objects nor space that is kept for those who may still be using it.
    ///
    /// Takes time in the number of tenants.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing is changed then.
    pub fn delete_tenant_quota(&self, now: Time, tenant: &TenantId) -> Result<(), PolicyError> {
        let _changing = self.policies.lock();
        self.quotas.delete_policy(tenant)?;
        self.emit(now).effect(&Effect::no_policy(tenant));
        Ok(())
    }

    /// Counts objects that a tenant asked for, in its [usage](Self::tenant_quota): those that could be read and
    /// those that could not. A tenant without an object or a quota is not counted, and nothing is without tenants.
    pub fn note_lookups(&self, tenant: &TenantId, found: u64, missed: u64) {
        self.quotas.looked_up(tenant, found, missed);
    }

    /// The quota and usage of one tenant; `None` when the master runs without tenants, or
    /// without a default quota and the tenant has neither a quota nor objects.
    #[must_use]
    pub fn tenant_quota(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.quotas.usage(tenant)
    }

    /// The quotas and usage of all tenants, by name; `None` when the master runs without
    /// tenants. Takes time in the number of tenants.
    #[must_use]
    pub fn tenant_quotas(&self) -> Option<QuotaReport> {
        self.quotas.report()
    }

    /// [`list_keys`](Self::list_keys) of one tenant: the keys as it knows them, of which
    /// the prefix is one.
    pub fn list_tenant_keys(
        &self,
        tenant: &TenantId,
        prefix: &str,
        cursor: ListCursor,
        limit: usize,
    ) -> KeyPage {
        self.list(Some(self.quotas.acting(tenant)), prefix, cursor, limit)
    }

    /// [`get_replica_list_by_regex`](Self::get_replica_list_by_regex) among the objects of
    /// one tenant, whose keys are matched and told as it knows them.
    pub fn get_tenant_replica_list_by_regex(
        &self,
        now: Time,
        tenant: &TenantId,
        pattern: &Pattern,
        cursor: ListCursor,
        limit: usize,
    ) -> ReplicaPage {
        self.read_matching(now, Some(self.quotas.acting(tenant)), pattern, cursor, limit)
    }

    /// [`remove_all`](Self::remove_all) of one tenant's objects; without tenants, of
    /// everything. Counts what it left, too.
    pub fn remove_all_of(&self, now: Time, tenant: &TenantId, force: bool) -> RemovalCounts {
        if !self.quotas.is_on() {
            return self.remove_all_counted(now, force);
        }
        self.remove_matching(now, Some(self.quotas.acting(tenant)), None, force)
    }

    /// [`remove_by_regex`](Self::remove_by_regex) among the objects of one tenant, whose
    /// keys are matched as it knows them.
    pub fn remove_by_regex_of(
        &self,
        now: Time,
        tenant: &TenantId,
        pattern: &Pattern,
        force: bool,
    ) -> u64 {
        let acting = Some(self.quotas.acting(tenant));
        self.remove_matching(now, acting, Some(pattern), force).removed
    }
}

impl Shard {
    /// An object's key as a tenant knows it, if it is that tenant's; without a tenant, as
    /// it is stored.
    pub(crate) fn key_for(
        &self,
        slot: ObjectSlot,
        tenant: Option<&TenantId>,
    ) -> Option<KeyRef<'_>> {
        let stored = self.key(slot);
        match tenant {
            None => Some(stored),
            Some(tenant) => KeyRef::new(tenant.owned(stored)?).ok(),
        }
    }
}

#[cfg(test)]
mod tests;
