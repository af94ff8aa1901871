//! Answers about the tenants' quotas.

use bytes::BytesMut;
use mc_meta::{MAX_TENANT_LEN, QuotaReport, TenantUsage};

use crate::wire::{put_bytes, put_message, put_present_u64, put_u64};

/// Most bytes that the totals and the mark of an unfinished page take together.
const TOTALS_CEILING: usize = 64;

/// Most bytes that one tenant takes: its name, six numbers, and their tags.
const USAGE_CEILING: usize = MAX_TENANT_LEN + 80;

/// `GetTenantQuotaResponse`.
pub(crate) fn write_tenant_usage(out: &mut BytesMut, usage: &TenantUsage) {
    put_usage(out, 2, usage);
}

fn put_usage(out: &mut BytesMut, number: u32, usage: &TenantUsage) {
    put_message(out, number, |out| {
        put_bytes(out, 1, usage.tenant.as_str().as_bytes());
        if let Some(requested) = usage.requested {
            put_present_u64(out, 2, requested);
        }
        put_u64(out, 3, usage.effective);
        put_u64(out, 4, usage.charged);
        put_u64(out, 5, usage.objects);
        put_u64(out, 6, usage.rejected);
        put_u64(out, 7, usage.evicted_bytes);
    });
}

/// `ListTenantQuotasResponse`: up to `limit` tenants after the first `skipped`, fewer when
/// no more fit.
pub(crate) fn write_quota_report(
    out: &mut BytesMut,
    report: &QuotaReport,
    skipped: usize,
    limit: usize,
    max_reply: usize,
) {
    put_u64(out, 2, report.capacity);
    put_u64(out, 3, report.requested);
    put_u64(out, 4, report.effective);
    put_u64(out, 5, report.unregistered);
    put_u64(out, 6, report.mismatches);
    let fit = max_reply.saturating_sub(TOTALS_CEILING) / USAGE_CEILING;
    let rest = report.tenants.get(skipped..).unwrap_or_default();
    let page = &rest[..rest.len().min(limit).min(fit)];
    for usage in page {
        put_usage(out, 7, usage);
    }
    put_u64(out, 8, u64::from(page.len() < rest.len()));
}
