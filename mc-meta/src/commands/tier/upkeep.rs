//! Work for the shared tier that clients are handed.

use mc_types::{ClientId, LocalDiskId, Time};

use crate::master::Master;
use crate::side_tables::files::{FileJobs, FileSystemState};

impl Master {
    /// The id of the file system that the files are on, as far as clients have reported it.
    #[must_use]
    pub fn storage_id(&self) -> Option<LocalDiskId> {
        self.files.storage()
    }

    /// Hands a client work for the shared tier: at most `max` files to delete, each once unless the client
    /// [says](FileSystemState::deleted) when they are deleted. A
    /// comparison of all files and an eviction are handed to one client at a time, and to another
    /// one when that client was not heard of for a minute.
    pub fn file_jobs(
        &self,
        now: Time,
        client: ClientId,
        state: FileSystemState,
        max: usize,
    ) -> FileJobs {
        if self.config.shared_tier.is_none() {
            return FileJobs::default();
        }
        let excess =
            self.watermark.get().excess(self.files.bytes.used(), self.files.bytes.capacity());
        let (jobs, settles) = self.files.hand_out(client, state, max, excess > 0, now);
        if !jobs.delete.is_empty() {
            // The objects are back without their files if their removal is undone.
            self.see_all();
        }
        if settles {
            let round = self.files.round();
            for shard in self.shards() {
                shard.lock().start_settling_files(round);
            }
        }
        jobs
    }
}
