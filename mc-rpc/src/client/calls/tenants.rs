//! Calls of those who say what each tenant may have.

use std::collections::BTreeMap;

use bytes::BytesMut;
use mc_meta::{TenantId, TenantUsage};

use super::calls;
use crate::answer::{self, TenantQuotas};
use crate::request;

calls! {
    /// Gives a tenant a quota of so many bytes, or another one.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PolicyError`]; or any other
    /// [`RpcError`].
    fn set_tenant_quota(&self, tenant: &TenantId, bytes: u64) -> () {
        SetTenantQuota,
        |out: &mut BytesMut| request::write_quota(out, tenant, bytes),
        answer::read_done,
    }

    /// Makes these the only quotas. A tenant that loses its own keeps its objects, and can
    /// put no more.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PolicyError`]; or any other
    /// [`RpcError`].
    fn replace_tenant_quotas(&self, quotas: &BTreeMap<TenantId, u64>) -> () {
        ReplaceTenantQuotas,
        |out: &mut BytesMut| request::write_quotas(out, quotas),
        answer::read_done,
    }

    /// Takes the quota of a tenant away that has neither objects nor space.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PolicyError`]; or any other
    /// [`RpcError`].
    fn delete_tenant_quota(&self, tenant: &TenantId) -> () {
        DeleteTenantQuota,
        |out: &mut BytesMut| request::write_tenant(out, tenant),
        answer::read_done,
    }

    /// What one tenant may have and has.
    ///
    /// # Errors
    /// Refused with `TenantNotRegistered` when it has neither a quota nor objects, and
    /// with `UnavailableInCurrentMode` by a master without tenants; or any other
    /// [`RpcError`].
    fn tenant_quota(&self, tenant: &TenantId) -> TenantUsage {
        GetTenantQuota,
        |out: &mut BytesMut| request::write_tenant(out, tenant),
        answer::read_tenant_usage,
    }

    /// What all tenants may have and have, with up to `limit` of the tenants whose names
    /// come after that of `after`; 0 lets the master choose how many.
    ///
    /// # Errors
    /// Refused with `InvalidParams` beyond [`MAX_PAGE`](crate::MAX_PAGE) tenants, and with
    /// `UnavailableInCurrentMode` by a master without tenants; or any other
    /// [`RpcError`].
    fn tenant_quotas(&self, after: Option<&TenantId>, limit: usize) -> TenantQuotas {
        ListTenantQuotas,
        |out: &mut BytesMut| request::write_quota_page(out, after, limit),
        answer::read_quota_report,
    }
}
