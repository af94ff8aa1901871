//! Work on a tier, and what the master is told of it.

use mc_meta::{ReplicaKind, Slice, Slices, TenantId};
use mc_rpc::{FoundItem, Refusal, RpcError, TenantKey, TierEviction};
use mc_tier::{ObjectId, StoredObject, TierError};
use mc_types::ErrorCode;

use super::untold::Untold;
use crate::client::core::Core;

/// Objects that one deletion takes, and one call about them.
pub(super) const DELETIONS: usize = 1024;

/// Why work on a tier is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(transparent)]
    Tier(#[from] TierError),
    #[error("the client ends")]
    Ended,
}

impl WorkError {
    /// The master's reason, if it has refused the work.
    pub(super) const fn refused(&self) -> Option<ErrorCode> {
        match self {
            Self::Rpc(RpcError::Refused(refusal)) => Some(refusal.code),
            _ => None,
        }
    }
}

impl Core {
    /// Tells the master of objects that were evicted. What it could not be told waits for the next time.
    pub(super) async fn tell_untold(
        &self,
        untold: &Untold,
        kind: ReplicaKind,
    ) -> Result<(), RpcError> {
        loop {
            let part = untold.take(DELETIONS);
            if part.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.tell_evicted(&part, kind).await {
                untold.put_back(part);
                return Err(error);
            }
        }
    }

    /// Tells the master of objects that were deleted to make room.
    async fn tell_evicted(&self, ids: &[ObjectId], kind: ReplicaKind) -> Result<(), RpcError> {
        for part in ids.chunks(DELETIONS) {
            let part = with_tenants(part, |id| id);
            let items = part.iter().map(|(tenant, id)| TierEviction {
                object: TenantKey::of(tenant, id.key().as_ref()),
                generation: Some(id.generation()),
            });
            let items: Vec<TierEviction<'_>> = items.collect();
            self.link.master.batch_evict_from_tier(self.link.id, &items, kind).await?;
        }
        Ok(())
    }
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

/// The slices of a stored object, as the master knows them.
pub(super) fn slices_of(object: &StoredObject) -> Slices {
    let are_known = object.has_checksums();
    let slice = |info: &mc_tier::SliceInfo| {
        let checksum = are_known.then_some(info.checksum);
        Slice { len: info.len, checksum }
    };
    match object.slices() {
        [only] => Slices::One(slice(only)),
        many => Slices::Many(many.iter().map(slice).collect()),
    }
}
