//! Parts of a master's reports in JSON, the same from `mc-ctl --json` and from the master's pages.

use mc_meta::{QuotaMode, TenantUsage, TierUsage, UNLIMITED};
use mc_rpc::{ConnectionReport, Minute};
use serde_json::{Map, Value, json};

/// A connection of a master.
#[must_use]
pub fn connection_json(open: &ConnectionReport) -> Value {
    json!({
        "peer": open.peer,
        "software": open.software,
        "caller": open.caller,
        "role": open.role.map(|role| role.as_str()),
        "tenant": open.tenant,
        "kind": open.kind.as_str(),
        "age_ms": open.age.as_millis() as u64,
    })
}

/// A minute of the last hour.
#[must_use]
pub fn minute_json(minute: &Minute) -> Value {
    let totals: Map<String, Value> =
        minute.totals.values().map(|(it, value)| (it.name.to_owned(), value.into())).collect();
    json!({
        "ago_ms": minute.ago.as_millis() as u64,
        "lasted_ms": minute.lasted.as_millis() as u64,
        "totals": totals,
    })
}

/// The quota and the usage of a tenant.
#[must_use]
pub fn tenant_json(usage: &TenantUsage) -> Value {
    let below = |usage: TierUsage| json!({ "quota": usage.quota(), "used": usage.bytes, "refused": usage.refused });
    json!({
        "tenant": usage.tenant.as_str(),
        "quota": usage.requested,
        "limit": Some(usage.effective).filter(|bytes| *bytes != UNLIMITED),
        "refuses": usage.mode == QuotaMode::Refuse,
        "used": usage.charged,
        "objects": usage.objects,
        "refused": usage.rejected,
        "evicted_bytes": usage.evicted_bytes,
        "found": usage.found,
        "missed": usage.missed,
        "disks": below(usage.disks),
        "files": below(usage.files),
    })
}
