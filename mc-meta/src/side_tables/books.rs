//! The books that all shards share.

use std::sync::Arc;

use mc_types::KeyRef;

use crate::object::Object;
use crate::object::local_disk::OnLocalDisk;
use crate::side_tables::files::Files;
use crate::side_tables::local_disk::LocalDisks;
use crate::tenant::quota::Quotas;
use crate::vocabulary::kinds::FileState;

/// The books that all shards share.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    /// Room and work on the shared tier of files.
    pub(crate) files: Arc<Files>,
    /// The clients' local disks.
    pub(crate) local: Arc<LocalDisks>,
    pub(crate) quotas: Arc<Quotas>,
}

impl Books {
    /// Has what is left of an object below memory deleted: it was removed.
    pub(crate) fn delete_below(&self, key: KeyRef<'_>, object: &Object) {
        if object.file() == FileState::Persisted {
            self.files.delete(key, object.generation, object.len());
        }
        for client in object.local_disks().iter().filter_map(OnLocalDisk::client) {
            self.local.book.lock().delete(client, key, object);
        }
    }
}
