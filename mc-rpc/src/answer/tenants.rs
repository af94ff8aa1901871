//! What the client hands out about the tenants' quotas.

use mc_meta::{TenantId, TenantUsage};

use super::read::{Answer, Status, problem};
use super::tasks::tenant;
use crate::error::MalformedReply;
use crate::request::MAX_PAGE;
use crate::wire::Fields;

/// What all tenants may have and have, and a page of the tenants.
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

/// `TenantUsage`.
fn read_usage(message: &[u8]) -> Result<TenantUsage, MalformedReply> {
    let (mut fields, mut whose, mut requested) = (Fields::new(message), None, None);
    let [mut effective, mut charged, mut objects, mut rejected, mut evicted_bytes] = [0; 5];
    while let Some(field) = fields.next()? {
        match field.number {
            1 => whose = Some(tenant(field)?),
            2 => requested = Some(field.u64()?),
            3 => effective = field.u64()?,
            4 => charged = field.u64()?,
            5 => objects = field.u64()?,
            6 => rejected = field.u64()?,
            7 => evicted_bytes = field.u64()?,
            _ => {}
        }
    }
    let tenant = whose.ok_or(problem("tenant_id", "is missing"))?;
    Ok(TenantUsage { tenant, requested, effective, charged, objects, rejected, evicted_bytes })
}

/// `GetTenantQuotaResponse`.
pub(crate) fn read_tenant_usage(message: &[u8]) -> Answer<TenantUsage> {
    let (mut fields, mut status, mut usage) = (Fields::new(message), Status::default(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => usage = Some(read_usage(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| usage.ok_or(problem("usage", "is missing")))
}

/// `ListTenantQuotasResponse`.
pub(crate) fn read_quota_report(message: &[u8]) -> Answer<TenantQuotas> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut report, mut more) = (TenantQuotas::default(), false);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => report.capacity = field.u64()?,
            3 => report.requested = field.u64()?,
            4 => report.effective = field.u64()?,
            5 => report.unregistered = field.u64()?,
            6 => report.mismatches = field.u64()?,
            7 if report.tenants.len() == MAX_PAGE => {
                return Err(problem("tenants", "has too many tenants"));
            }
            7 => report.tenants.push(read_usage(field.bytes()?)?),
            8 => more = field.bool()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if more {
            // Without one the next page would be this one again, for ever.
            let last = report.tenants.last().ok_or(problem("tenants", "is missing"))?;
            report.next_after = Some(last.tenant.clone());
        }
        Ok(report)
    })
}
