//! The messages about the cluster.

mod disks;
mod drains;
mod tenants;
mod transfers;

use mc_meta::{DefaultQuota, TenantId};

use super::*;
use crate::Role;

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// A service whose master has tenants: the default one and `blue`.
fn service_of_tenants() -> MasterService<Still> {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    config.default_tenant_quota = DefaultQuota::Denied;
    let service = service_with(config);
    for tenant in [TenantId::DEFAULT, tenant("blue")] {
        service.master().set_tenant_quota(Still.now(), &tenant, 1 << 20).unwrap();
    }
    service
}

/// Puts an object of this tenant into the first segment.
fn put(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> Generation {
    let (master, now) = (service.master(), Still.now());
    let key = master.scoped(tenant, key(text)).unwrap();
    let config = ReplicateConfig::default().prefer("node-1");
    let start = PutStart { key: key.as_ref(), slice_lengths: &[100, 200], config: &config };
    let handle = master.put_start(now, ME, &start).unwrap().handle;
    let end = PutEnd { key: key.as_ref(), handle, checksums: &[], prefixes: &[] };
    master.put_end(now, ME, &end).unwrap();
    handle.generation
}

/// What a call is refused with whose answer does not matter.
fn refused(service: &impl Service, method: Method, request: &impl Message) -> (ErrorCode, String) {
    let refusal = call::<()>(service, method, request).unwrap_err();
    (refusal.code, refusal.message.into())
}

fn blue(role: Role) -> Caller {
    Caller::new("somebody", role).of_tenant(tenant("blue"))
}
