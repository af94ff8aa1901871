//! Calls of those who say what each tenant may have.

use bytes::BytesMut;
use mc_meta::{PolicyError, TenantUsage};

use super::Turn;
use crate::error::Refusal;
use crate::reply;
use crate::request;

impl Turn<'_> {
    pub(super) fn set_tenant_quota(self) -> Result<(), Refusal> {
        let (tenant, requested) = request::parse_quota(self.payload)?;
        Ok(self.master.set_tenant_quota(self.now, &tenant, requested)?)
    }

    pub(super) fn replace_tenant_quotas(self) -> Result<(), Refusal> {
        let quotas = request::parse_quotas(self.payload)?;
        Ok(self.master.replace_tenant_quotas(self.now, &quotas)?)
    }

    pub(super) fn delete_tenant_quota(self) -> Result<(), Refusal> {
        let tenant = request::parse_tenant(self.payload)?;
        Ok(self.master.delete_tenant_quota(self.now, &tenant)?)
    }

    pub(super) fn get_tenant_quota(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let tenant = request::parse_tenant(self.payload)?;
        let usage = self.master.tenant_quota(&tenant).ok_or_else(|| {
            let on = self.master.tenant_quotas().is_some();
            if on { PolicyError::NotRegistered { tenant } } else { PolicyError::Off }
        })?;
        reply::write_tenant_usage(out, &usage);
        Ok(())
    }

    pub(super) fn list_tenant_quotas(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (after, limit) = request::parse_quota_page(self.payload)?;
        let report = self.master.tenant_quotas().ok_or(PolicyError::Off)?;
        // They are in the order of their names.
        let begun = |usage: &TenantUsage| !after.is_empty() && usage.tenant.as_str() <= after;
        let skipped = report.tenants.partition_point(begun);
        reply::write_quota_report(out, &report, skipped, limit, self.max_reply);
        Ok(())
    }
}
