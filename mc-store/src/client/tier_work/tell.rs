//! Reports to the master about the objects on a tier.

use mc_meta::{ReplicaKind, TenantId};
use mc_rpc::{FoundItem, Refusal, RpcError, TenantKey, TierEviction};
use mc_tier::{ObjectId, StoredObject};
use mc_types::ErrorCode;

use crate::client::master_link::MasterLink;
use crate::client::tiers::{Untold, slices_of};

/// Objects that one deletion takes, and one call about them.
pub(super) const DELETIONS: usize = 1024;

/// Tells the master of objects that were evicted. What it could not be told waits for the next time.
pub(super) async fn tell_untold(
    link: &MasterLink,
    untold: &Untold,
    kind: ReplicaKind,
) -> Result<(), RpcError> {
    loop {
        let part = untold.take(DELETIONS);
        if part.is_empty() {
            return Ok(());
        }
        if let Err(error) = tell_evicted(link, &part, kind).await {
            untold.put_back(part);
            return Err(error);
        }
    }
}

/// Tells the master of objects that were deleted to make room.
async fn tell_evicted(
    link: &MasterLink,
    ids: &[ObjectId],
    kind: ReplicaKind,
) -> Result<(), RpcError> {
    for part in ids.chunks(DELETIONS) {
        let part = with_tenants(part, |id| id);
        let items = part.iter().map(|(tenant, id)| TierEviction {
            object: TenantKey::of(tenant, id.key().as_ref()),
            generation: Some(id.generation()),
        });
        let items: Vec<TierEviction<'_>> = items.collect();
        link.master.batch_evict_from_tier(link.id, &items, kind).await?;
    }
    Ok(())
}

/// Objects with their tenants, without those of tenants that no master has.
pub(super) fn with_tenants<T>(objects: &[T], id: impl Fn(&T) -> &ObjectId) -> Vec<(TenantId, &T)> {
    let with_tenant = |object| Some((TenantId::new(id(object).tenant()).ok()?, object));
    objects.iter().filter_map(with_tenant).collect()
}

/// Makes the report to the master of objects that were found; `address` gives the beginning of
/// each.
pub(super) fn found_items<'a>(
    found: &'a [(TenantId, &StoredObject)],
    address: impl Fn(&StoredObject) -> u64,
) -> Vec<FoundItem<'a>> {
    let item = |(tenant, object): &'a (TenantId, &StoredObject)| FoundItem {
        object: TenantKey::of(tenant, object.id().key().as_ref()),
        generation: object.id().generation(),
        slices: slices_of(object),
        address: address(object),
    };
    found.iter().map(item).collect()
}

/// Returns whether what was found is to be deleted. Other reasons to refuse it may pass: the tenant may get
/// a quota, and the disk room in the master's books.
pub(super) fn is_useless(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::ObjectAlreadyExists | ErrorCode::InvalidParams)
}
