//! The tenants' quotas.

use std::collections::BTreeMap;

use mc_meta::{
    MAX_TENANT_LEN, MAX_TENANTS, PolicyError, QuotaMode, TenantId, TenantUsage, TierQuotas,
    TierUsage,
};

use super::{
    BadField, CallContext, DEFAULT_PAGE, at_most, calls, count, message, missing, next_after,
    page_limit, page_of, reply, tenant,
};
use crate::answer::read_done;
use crate::proto;
use crate::refusal::Refusal;
use crate::request::MAX_PAGE;

/// Most bytes that the totals and the mark of an unfinished page take together.
const TOTALS_CEILING: usize = 64;

/// Most bytes that one tenant takes: its name, thirteen numbers, and their tags.
const USAGE_CEILING: usize = MAX_TENANT_LEN + 160;

/// The quotas and usage of all tenants, and a page of the tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantQuotas {
    /// Bytes that can be allocated.
    pub capacity: u64,
    /// Bytes that all quotas give, at most `u64::MAX`.
    pub requested: u64,
    /// Bytes that all tenants with a quota may have.
    pub effective: u64,
    /// Requests for space refused to tenants without a quota.
    pub unregistered: u64,
    /// Refunds of more than was charged; anything but zero is a defect of the master.
    pub mismatches: u64,
    /// The tenants of this page, by name.
    pub tenants: Vec<TenantUsage>,
    /// The tenant after which the next page begins; `None` at the end.
    pub next_after: Option<TenantId>,
}

calls! {
    /// Gives a tenant a quota of so many bytes, or another one.
    fn set_tenant_quota(&self, tenant: &TenantId, bytes: u64) -> () {
        SetTenantQuota "Refused with the codes of [`mc_meta::PolicyError`].",
        message(proto::SetTenantQuotaRequest {
            tenant_id: tenant.to_string(),
            requested: bytes,
            ..Default::default()
        }),
        read_done,
    }

    /// Sets all quotas of a tenant: of memory, where `None` is the default quota, and below memory. A
    /// master of an older version has no quotas below memory, and refuses what gives none of memory;
    /// the [usage](Self::tenant_quota) has those that are set.
    fn set_tenant_quotas(
        &self, tenant: &TenantId, memory: Option<u64>, mode: QuotaMode, below: TierQuotas
    ) -> () {
        SetTenantQuota "Refused with the codes of [`mc_meta::PolicyError`].",
        message(proto::SetTenantQuotaRequest {
            tenant_id: tenant.to_string(),
            requested: memory.unwrap_or(0),
            refuse: mode == QuotaMode::Refuse,
            disks: below.disks,
            files: below.files,
        }),
        read_done,
    }

    /// Takes the quota of a tenant away that has neither objects nor space.
    fn delete_tenant_quota(&self, tenant: &TenantId) -> () {
        DeleteTenantQuota "Refused with the codes of [`mc_meta::PolicyError`].",
        message(proto::DeleteTenantQuotaRequest { tenant_id: tenant.to_string() }),
        read_done,
    }

    /// Returns the quota and the use of one tenant.
    fn tenant_quota(&self, tenant: &TenantId) -> TenantUsage {
        GetTenantQuota
            "Refused with `TenantNotRegistered` when it has neither a quota nor objects, and with \
             `UnavailableInCurrentMode` by a master without tenants.",
        message(proto::GetTenantQuotaRequest { tenant_id: tenant.to_string() }),
        reply(|answer: &proto::GetTenantQuotaResponse| usage(answer.usage.as_ref().ok_or(missing("usage"))?)),
    }

    /// Returns the quotas and the use of all tenants, with up to `limit` of the tenants whose
    /// names come after that of `after`; 0 lets the master choose how many.
    fn tenant_quotas(&self, after: Option<&TenantId>, limit: usize) -> TenantQuotas {
        ListTenantQuotas
            "Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) tenants, and with \
             `UnavailableInCurrentMode` by a master without tenants.",
        message(proto::ListTenantQuotasRequest {
            after: after.map(TenantId::to_string).unwrap_or_default(),
            limit: count(limit),
        }),
        reply(TenantQuotas::from_proto),
    }
}

impl CallContext<'_> {
    pub(crate) fn set_tenant_quota(
        self,
        request: &proto::SetTenantQuotaRequest,
    ) -> Result<(), Refusal> {
        let tenant = full_name(&request.tenant_id)?;
        let (mode, below) =
            (mode(request.refuse), TierQuotas { disks: request.disks, files: request.files });
        let memory = match (request.requested, below) {
            (0, TierQuotas { disks: None, files: None }) => Some(0),
            (bytes, _) => Some(bytes).filter(|bytes| *bytes > 0),
        };
        Ok(self.master.set_tenant_quotas(self.now, &tenant, memory, mode, below)?)
    }

    pub(crate) fn replace_tenant_quotas(
        self,
        request: &proto::ReplaceTenantQuotasRequest,
    ) -> Result<(), Refusal> {
        at_most(&request.quotas, MAX_TENANTS, "quotas")?;
        let mut quotas = BTreeMap::new();
        for quota in &request.quotas {
            let tenant = full_name(&quota.tenant_id)?;
            if quotas.insert(tenant.clone(), quota.requested).is_some() {
                return Err(Refusal::invalid(format!("quotas names the tenant {tenant} twice")));
            }
        }
        Ok(self.master.replace_tenant_quotas(self.now, &quotas)?)
    }

    pub(crate) fn delete_tenant_quota(
        self,
        request: &proto::DeleteTenantQuotaRequest,
    ) -> Result<(), Refusal> {
        let tenant = full_name(&request.tenant_id)?;
        Ok(self.master.delete_tenant_quota(self.now, &tenant)?)
    }

    pub(crate) fn get_tenant_quota(
        self,
        request: &proto::GetTenantQuotaRequest,
    ) -> Result<proto::GetTenantQuotaResponse, Refusal> {
        let tenant = full_name(&request.tenant_id)?;
        let usage = self.master.tenant_quota(&tenant).ok_or_else(|| {
            let on = self.master.tenant_quotas().is_some();
            if on { PolicyError::NotRegistered { tenant } } else { PolicyError::Off }
        })?;
        let usage = Some(to_proto(&usage));
        Ok(proto::GetTenantQuotaResponse { usage, ..Default::default() })
    }

    pub(crate) fn list_tenant_quotas(
        self,
        &proto::ListTenantQuotasRequest { ref after, limit }: &proto::ListTenantQuotasRequest,
    ) -> Result<proto::ListTenantQuotasResponse, Refusal> {
        if after.len() > MAX_TENANT_LEN {
            return Err(Refusal::invalid(format!(
                "after has {} bytes; no tenant's name is longer than {MAX_TENANT_LEN}",
                after.len()
            )));
        }
        let limit = page_limit(limit, DEFAULT_PAGE)?;
        let report = self.master.tenant_quotas().ok_or(PolicyError::Off)?;
        // They are in the order of their names.
        let told =
            |usage: &TenantUsage| !after.is_empty() && usage.tenant.as_str() <= after.as_str();
        let fit = self.max_reply.saturating_sub(TOTALS_CEILING) / USAGE_CEILING;
        let (page, more) = page_of(&report.tenants, told, (limit, fit));
        Ok(proto::ListTenantQuotasResponse {
            capacity: report.capacity,
            requested: report.requested,
            effective: report.effective,
            unregistered: report.unregistered,
            mismatches: report.mismatches,
            tenants: page.iter().map(to_proto).collect(),
            more,
            ..Default::default()
        })
    }
}

/// A tenant's full name: none is taken for another one's.
fn full_name(name: &str) -> Result<TenantId, BadField> {
    if name.is_empty() {
        let problem = "is missing; the default tenant is named \"default\"";
        return Err(BadField::new("tenant_id", problem));
    }
    tenant(name)
}

const fn mode(refuses: bool) -> QuotaMode {
    if refuses { QuotaMode::Refuse } else { QuotaMode::Evict }
}

fn to_proto(usage: &TenantUsage) -> proto::TenantUsage {
    proto::TenantUsage {
        tenant_id: usage.tenant.to_string(),
        requested: usage.requested,
        effective: usage.effective,
        charged: usage.charged,
        objects: usage.objects,
        rejected: usage.rejected,
        evicted_bytes: usage.evicted_bytes,
        refuses: usage.mode == QuotaMode::Refuse,
        disks: Some(tier_to_proto(usage.disks)),
        files: Some(tier_to_proto(usage.files)),
        found: usage.found,
        missed: usage.missed,
    }
}

const fn tier_to_proto(TierUsage { limit, bytes, refused }: TierUsage) -> proto::TierUsage {
    proto::TierUsage { limit, bytes, refused }
}

/// That of a master of an older version is absent: it has no limit there, and counts nothing.
fn tier(usage: Option<proto::TierUsage>) -> TierUsage {
    usage.map_or(TierUsage::NONE, |proto::TierUsage { limit, bytes, refused }| TierUsage {
        limit,
        bytes,
        refused,
    })
}

fn usage(usage: &proto::TenantUsage) -> Result<TenantUsage, BadField> {
    Ok(TenantUsage {
        tenant: tenant(&usage.tenant_id)?,
        requested: usage.requested,
        mode: mode(usage.refuses),
        effective: usage.effective,
        charged: usage.charged,
        objects: usage.objects,
        rejected: usage.rejected,
        evicted_bytes: usage.evicted_bytes,
        disks: tier(usage.disks),
        files: tier(usage.files),
        found: usage.found,
        missed: usage.missed,
    })
}

impl TenantQuotas {
    fn from_proto(answer: &proto::ListTenantQuotasResponse) -> Result<Self, BadField> {
        at_most(&answer.tenants, MAX_PAGE, "tenants")?;
        let tenants: Vec<_> = answer.tenants.iter().map(usage).collect::<Result<_, _>>()?;
        let next_after =
            next_after(&tenants, answer.more, |usage| usage.tenant.clone(), "tenants")?;
        Ok(Self {
            capacity: answer.capacity,
            requested: answer.requested,
            effective: answer.effective,
            unregistered: answer.unregistered,
            mismatches: answer.mismatches,
            tenants,
            next_after,
        })
    }
}
