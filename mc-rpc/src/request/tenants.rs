//! The requests about the tenants' quotas.

use std::collections::BTreeMap;

use bytes::BytesMut;
use mc_meta::{MAX_TENANT_LEN, MAX_TENANTS, TenantId};

use super::page_limit;
use super::tenant_key::tenant;
use crate::error::Refusal;
use crate::wire::{Field, Fields, put_bytes, put_message, put_u64};

/// A tenant's full name: none is taken for another one's.
fn full_name(field: Field<'_>) -> Result<Option<TenantId>, Refusal> {
    let name = field.text()?;
    if name.is_empty() { Ok(None) } else { tenant(name).map(Some) }
}

fn no_tenant() -> Refusal {
    Refusal::invalid("tenant_id is missing; the default tenant is named \"default\"")
}

/// `GetTenantQuotaRequest` and `DeleteTenantQuotaRequest`.
pub(crate) fn parse_tenant(payload: &[u8]) -> Result<TenantId, Refusal> {
    parse_quota(payload).map(|(tenant, _)| tenant)
}

pub(crate) fn write_tenant(out: &mut BytesMut, tenant: &TenantId) {
    put_bytes(out, 1, tenant.as_str().as_bytes());
}

/// `SetTenantQuotaRequest` and `TenantQuota`.
pub(crate) fn parse_quota(message: &[u8]) -> Result<(TenantId, u64), Refusal> {
    let (mut fields, mut tenant, mut requested) = (Fields::new(message), None, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => tenant = full_name(field)?,
            2 => requested = field.u64()?,
            _ => {}
        }
    }
    Ok((tenant.ok_or_else(no_tenant)?, requested))
}

pub(crate) fn write_quota(out: &mut BytesMut, tenant: &TenantId, requested: u64) {
    write_tenant(out, tenant);
    put_u64(out, 2, requested);
}

/// `ReplaceTenantQuotasRequest`.
pub(crate) fn parse_quotas(payload: &[u8]) -> Result<BTreeMap<TenantId, u64>, Refusal> {
    let (mut fields, mut quotas) = (Fields::new(payload), BTreeMap::new());
    while let Some(field) = fields.next()? {
        if field.number != 1 {
            continue;
        }
        if quotas.len() == MAX_TENANTS {
            return Err(Refusal::invalid(format!("quotas has more than {MAX_TENANTS} tenants")));
        }
        let (tenant, requested) = parse_quota(field.bytes()?)?;
        let twice = quotas.insert(tenant.clone(), requested).is_some();
        if twice {
            return Err(Refusal::invalid(format!("quotas names the tenant {tenant} twice")));
        }
    }
    Ok(quotas)
}

pub(crate) fn write_quotas(out: &mut BytesMut, quotas: &BTreeMap<TenantId, u64>) {
    for (tenant, requested) in quotas {
        put_message(out, 1, |out| write_quota(out, tenant, *requested));
    }
}

/// `ListTenantQuotasRequest`: the name after which to begin, and how many at most.
pub(crate) fn parse_quota_page(payload: &[u8]) -> Result<(&str, usize), Refusal> {
    let (mut fields, mut after, mut limit) = (Fields::new(payload), "", 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => after = field.text()?,
            2 => limit = field.u32()?,
            _ => {}
        }
    }
    if after.len() > MAX_TENANT_LEN {
        return Err(Refusal::invalid(format!(
            "after has {} bytes; no tenant's name is longer than {MAX_TENANT_LEN}",
            after.len()
        )));
    }
    Ok((after, page_limit(limit)?))
}

pub(crate) fn write_quota_page(out: &mut BytesMut, after: Option<&TenantId>, limit: usize) {
    put_bytes(out, 1, after.map_or("", TenantId::as_str).as_bytes());
    put_u64(out, 2, u32::try_from(limit).unwrap_or(u32::MAX).into());
}
