//! Metadata of live objects, for the events about them that come later.

use std::collections::HashMap;
use std::sync::Arc;

use mc_events::StoreEventInfo;
use tracing::warn;

/// Memory of an entry beside its strings and tokens.
const ENTRY_BYTES: usize = 256;

/// The metadata of the live objects by their stored keys, bounded in bytes.
#[derive(Debug)]
pub(super) struct Infos {
    by_key: HashMap<Box<str>, Arc<StoreEventInfo>>,
    bytes: usize,
    max_bytes: usize,
    was_full: bool,
}

impl Infos {
    /// Keeps nothing with a limit of zero.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { by_key: HashMap::new(), bytes: 0, max_bytes, was_full: false }
    }

    /// Keeps the metadata of an object that became readable. Returns false when there is no room.
    pub(super) fn insert(&mut self, key: &str, info: &StoreEventInfo) -> bool {
        self.remove(key);
        let size = size(key, info);
        if size > self.max_bytes - self.bytes {
            if !self.was_full {
                warn!(
                    bytes = self.max_bytes,
                    "the metadata for events fills its memory; vLLM's encodings leave out new objects"
                );
            }
            self.was_full = true;
            return false;
        }
        self.bytes += size;
        self.by_key.insert(key.into(), Arc::new(info.clone()));
        true
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<StoreEventInfo>> {
        self.by_key.get(key).map(Arc::clone)
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Arc<StoreEventInfo>> {
        let info = self.by_key.remove(key)?;
        self.bytes -= size(key, &info);
        Some(info)
    }
}

fn size(key: &str, info: &StoreEventInfo) -> usize {
    let strings = [&info.model_name, &info.block_hash, &info.parent_block_hash];
    let strings: usize = strings.iter().map(|text| text.len()).sum();
    ENTRY_BYTES + key.len() + strings + 4 * info.token_ids.len()
}
