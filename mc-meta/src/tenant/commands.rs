//! Tenants of the master: whose a key is, what each may have, and room within that.
//!
//! Commands take keys as they are stored, which say whose they are; a server makes them
//! with [`Master::scoped`]. Space is charged where it is taken (here, and for copies and
//! moves), and refunded where it goes back to its segment, whatever became of the object
//! meanwhile: what was discarded or replaced stays charged until it can be given out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mc_alloc::Label;
use mc_types::{ClientId, KeyRef, Time};

use crate::command::{KeyPage, ListCursor, ReplicateConfig};
use crate::error::PutStartError;
use crate::evict::order::Evicted;
use crate::journal::effect::Effect;
use crate::master::Master;
use crate::object::{Object, Replicas};
use crate::put::Pressure;
use crate::read::by_pattern::ReplicaPage;
use crate::read::pattern::Pattern;
use crate::shard::Shard;
use crate::space::place::NoRoom;
use crate::tenant::id::{ScopeError, ScopedKey, TenantId, unscoped};
use crate::tenant::quota::{Charge, PolicyError, QuotaError, QuotaReport, TenantUsage};

impl Master {
    /// The key that an object of `tenant` is stored under, which every command takes, and
    /// [`ReplicateConfig::parent`] too. Whoever takes keys from requests asks this for
    /// each of them, even when the master runs without tenants: it then says the key of
    /// the default tenant, whoever asks.
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
        let _changing = self.policies.lock();
        self.quotas.set_policy(tenant, bytes)?;
        self.emit(now).effect(&Effect::TenantPolicy { tenant, requested: Some(bytes) });
        Ok(())
    }

    /// Makes these the only quotas, as a server does that keeps them in a file. A tenant
    /// that loses its own keeps its objects, and has the default quota from then on.
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
        let lost = before.iter().filter(|row| row.requested.is_some());
        for TenantUsage { tenant, .. } in lost.filter(|row| !quotas.contains_key(&row.tenant)) {
            emit.effect(&Effect::TenantPolicy { tenant, requested: None });
        }
        for (tenant, requested) in quotas {
            emit.effect(&Effect::TenantPolicy { tenant, requested: Some(*requested) });
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
        self.emit(now).effect(&Effect::TenantPolicy { tenant, requested: None });
        Ok(())
    }

    /// What one tenant may have and has; `None` when the master runs without tenants, or
    /// without a default quota and the tenant has neither a quota nor objects.
    #[must_use]
    pub fn tenant_quota(&self, tenant: &TenantId) -> Option<TenantUsage> {
        self.quotas.usage(tenant)
    }

    /// What all tenants may have and have, by name; `None` when the master runs without
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
    /// everything.
    pub fn remove_all_of(&self, now: Time, tenant: &TenantId, force: bool) -> u64 {
        if !self.quotas.is_on() {
            return self.remove_all(now, force);
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
        self.remove_matching(now, Some(self.quotas.acting(tenant)), Some(pattern), force)
    }

    /// Takes space as [`place`](Self::place) does, and charges the owner of the key for
    /// it. As many replicas must be within the quota as are asked for and could be
    /// placed, though fewer may find room.
    ///
    /// # Errors
    /// [`NoRoom`] when there is no room for a single replica. That the object could not
    /// even be placed in empty segments goes before the quota, which no segments make
    /// zero.
    pub(crate) fn place_charged(
        &self,
        key: KeyRef<'_>,
        len: u64,
        config: &ReplicateConfig,
        writer: ClientId,
        label: Option<Label>,
    ) -> Result<(Replicas, Charge<'_>), NoRoom> {
        let mut charge = if self.quotas.is_on() {
            let table = self.segments.read();
            table.could_place(len, config)?;
            let replicas = u64::from(config.replica_num).min(table.segments().len() as u64);
            drop(table);
            let charge = self.quotas.charge_owner(key, len.saturating_mul(replicas));
            charge.map_err(NoRoom::Quota)?
        } else {
            Charge::free()
        };
        let replicas = self.place(len, config, writer, label)?;
        charge.shrink_to(replicas.bytes());
        Ok((replicas, charge))
    }

    /// Takes space back from a tenant whose quota stands in the way of a put; an error
    /// when that does not help.
    pub(crate) fn make_room_within(
        &self,
        refused: QuotaError,
        pressure: &mut Pressure,
        now: Time,
    ) -> Option<PutStartError> {
        let (tenant, missing) = match &refused {
            QuotaError::Exceeded { tenant, charged, effective, wanted, .. }
                if wanted <= effective =>
            {
                (tenant, charged.saturating_add(*wanted).saturating_sub(*effective))
            }
            _ => return Some(refused.into()),
        };
        // What nobody can use goes before what somebody may want.
        if self.reclaim_unfinished(now).0 > 0 {
            return None;
        }
        // What goes is the tenant's own, and no more than what its quota lacks.
        let may = pressure.is_bearable();
        let evicted = match self.quotas.slot(tenant) {
            Some(slot) if may => self.evict_of(slot, now, missing),
            _ => Evicted::default(),
        };
        pressure.count();
        (evicted.objects == 0).then(|| refused.into())
    }

    /// The name under which a group of the key's tenant is kept, so that two tenants'
    /// groups of one name are two groups.
    pub(crate) fn scoped_group<'n>(&self, key: KeyRef<'_>, name: &'n str) -> Cow<'n, str> {
        if !self.quotas.is_on() {
            return Cow::Borrowed(name);
        }
        let tenant = TenantId::new(unscoped(key).0).unwrap_or_default();
        // A group's name is a key's text, too, and shorter than any limit of keys.
        let scoped = KeyRef::new(name).ok().and_then(|name| tenant.scoped(name).ok());
        scoped.map_or(Cow::Borrowed(name), |name| name.as_ref().as_str().to_owned().into())
    }
}

impl Shard {
    /// An object's key as a tenant knows it, if it is that tenant's; without a tenant, as
    /// it is stored.
    pub(crate) fn key_for<'s>(
        &'s self,
        object: &Object,
        tenant: Option<&TenantId>,
    ) -> Option<KeyRef<'s>> {
        let stored = self.key(object);
        match tenant {
            None => Some(stored),
            Some(tenant) => KeyRef::new(tenant.owned(stored)?).ok(),
        }
    }
}

#[cfg(test)]
mod tests;
