//! The metrics of tenants, under Mooncake's names where it has them.

use std::cmp::Reverse;

use mc_http::MetricKind::{self, Counter, Gauge};
use mc_http::MetricsText;
use mc_meta::{QuotaReport, TenantUsage};

use super::metric;

/// Most tenants with metrics of their own: those that have most.
const MAX_SHOWN: usize = 1_000;

/// Name, kind, help, and value.
type Row = (&'static str, MetricKind, &'static str, fn(&TenantUsage) -> u64);

const ROWS: &[Row] = &[
    (
        "mooncake_tenant_quota_requested_bytes",
        Gauge,
        "Bytes that the tenant's quota gives it; 0 without one",
        |tenant| tenant.requested.unwrap_or(0),
    ),
    (
        "mooncake_tenant_quota_effective_bytes",
        Gauge,
        "Bytes that the tenant may have, given what the others were promised",
        |tenant| tenant.effective,
    ),
    ("mooncake_tenant_quota_charged_bytes", Gauge, "Bytes that the tenant has", |tenant| {
        tenant.charged
    }),
    (
        "mooncake_tenant_quota_over_quota",
        Gauge,
        "1 if the tenant has more than it may, else 0",
        |tenant| (tenant.charged > tenant.effective).into(),
    ),
    (
        "mooncake_tenant_quota_explicit_policy",
        Gauge,
        "1 if the tenant has a quota of its own, else 0",
        |tenant| tenant.requested.is_some().into(),
    ),
    ("mc_tenant_objects", Gauge, "Objects that the tenant has", |tenant| tenant.objects),
    (
        "mc_tenant_refused_total",
        Counter,
        "Requests of the tenant for space that were refused",
        |tenant| tenant.rejected,
    ),
    ("mooncake_tenant_evict_bytes_total", Counter, "Bytes of the tenant evicted", |tenant| {
        tenant.evicted_bytes
    }),
];

/// Appends what the tenants have, and their hit rates.
pub(crate) fn tenants(text: &mut MetricsText, mut report: QuotaReport) {
    for (name, help, value) in [
        (
            "mooncake_tenant_quota_allocatable_capacity_bytes",
            "Bytes that tenants can have together",
            report.capacity,
        ),
        (
            "mooncake_tenant_quota_requested_bytes_sum",
            "Bytes that all quotas give",
            report.requested,
        ),
        (
            "mooncake_tenant_quota_effective_bytes_sum",
            "Bytes that all tenants with a quota may have",
            report.effective,
        ),
    ] {
        metric(text, name, Gauge, help);
        text.sample(name, &[], value);
    }
    report.tenants.sort_by_key(|tenant| Reverse(tenant.charged));
    report.tenants.truncate(MAX_SHOWN);
    for (name, kind, help, value) in ROWS {
        metric(text, name, *kind, help);
        for tenant in &report.tenants {
            text.sample(name, &[("tenant_id", tenant.tenant.as_str())], value(tenant));
        }
    }
    let name = "mc_tenant_lookups_total";
    metric(text, name, Counter, "Objects that the tenant asked for, by whether they could be read");
    for tenant in &report.tenants {
        for (result, value) in [("found", tenant.found), ("missed", tenant.missed)] {
            let labels = [("tenant_id", tenant.tenant.as_str()), ("result", result)];
            text.sample(name, &labels, value);
        }
    }
}
