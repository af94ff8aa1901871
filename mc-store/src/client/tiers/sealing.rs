//! Encryption of what lies below memory.

use std::sync::Arc;

use mc_tier::{ObjectId, Tier};
#[cfg(feature = "encryption")]
use mc_tier::{SealedTier, TierKeys};

/// Seals tiers with the keys of tenants.
#[derive(Clone, Debug, Default)]
pub(in crate::client) struct Sealing {
    #[cfg(feature = "encryption")]
    pub(in crate::client) keys: Option<Arc<TierKeys>>,
}

impl Sealing {
    /// Returns whether this client has keys.
    pub(super) const fn is_on(&self) -> bool {
        #[cfg(feature = "encryption")]
        return self.keys.is_some();
        #[cfg(not(feature = "encryption"))]
        false
    }

    /// The id that an object has on the medium.
    pub(in crate::client) fn stored_id(&self, id: ObjectId) -> ObjectId {
        #[cfg(feature = "encryption")]
        if let Some(keys) = &self.keys {
            return keys.stored_id(id);
        }
        id
    }

    /// The tier with what is put into it sealed. A client without keys finds, reports and deletes what others
    /// have sealed.
    #[cfg(feature = "encryption")]
    pub(super) fn around(&self, tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
        Arc::new(SealedTier::new(tier, self.keys.clone().unwrap_or_default()))
    }

    /// The tier as it is.
    #[cfg(not(feature = "encryption"))]
    pub(super) fn around(&self, tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
        tier
    }
}
