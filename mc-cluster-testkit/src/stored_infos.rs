//! The event infos that a master receives.

use std::sync::{Arc, Mutex, PoisonError};

use mc_meta::{Effect, EffectSink};
use mc_store::StoreEventInfo;
use mc_types::{Sequence, Time};

/// A key that was stored, and the event info of its put.
type Stored = (String, Option<StoreEventInfo>);

/// A sink that records the keys of stored objects with their event infos. Clones share the record.
#[derive(Clone, Debug, Default)]
pub struct StoredInfos(Arc<Mutex<Vec<Stored>>>);

impl StoredInfos {
    /// Returns what was stored since the last call, in order.
    #[must_use]
    pub fn take(&self) -> Vec<Stored> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl EffectSink for StoredInfos {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        if let Effect::Stored { object, event_info } = effect {
            let stored = (object.key().as_str().to_owned(), event_info.cloned());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stored);
        }
    }
}
