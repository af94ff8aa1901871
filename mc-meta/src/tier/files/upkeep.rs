//! Work that keeps the shared tier in step with the objects, for clients to do.
//!
//! The files of removed objects are handed to clients, which delete them. When too many wait, when
//! the master has just begun, and from time to time, one client compares all files with the objects
//! ([`report_files`](Master::report_files)): that finds files of writers that died, and files of
//! before a restart without a journal. Above the high watermark, one client deletes the oldest files.

use core::time::Duration;
use std::collections::VecDeque;

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::lock::{Mutex, rank};
use crate::master::Master;
use crate::tier::kinds::FileBytes;
use crate::tier::offload_queue::DiskJob;

/// Most deleted objects whose files wait to be deleted. More are found by a comparison.
const MAX_DEAD: usize = 1 << 16;

/// Most files that one call hands out.
pub(crate) const MAX_HANDED_FILES: usize = 1 << 13;

/// Time between two comparisons.
const COMPARE_EVERY: Duration = Duration::from_secs(3600);

/// Time after which another client gets the work of one that was not heard of.
const TURN: Duration = Duration::from_secs(60);

/// Work for the shared tier that a client is handed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileJobs {
    /// Objects whose files are to be deleted: the objects were removed.
    pub delete: Vec<DiskJob>,
    /// Whether to report all files with [`report_files`](Master::report_files).
    pub compare: bool,
    /// Whether to delete the oldest files until there is room, and to report them with
    /// [`batch_evict_disk_replica`](Master::batch_evict_disk_replica).
    pub evict: bool,
}

/// What a client says of the shared tier when it asks for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystemState {
    /// Whether it has compared all files since it was told to.
    pub is_compared: bool,
    /// Whether the file system is fuller than it should be.
    pub is_full: bool,
}

impl FileSystemState {
    /// The state after a comparison, or without one.
    #[must_use]
    pub const fn compared(self, yes: bool) -> Self {
        Self { is_compared: yes, ..self }
    }

    /// The state of a full file system, or of one with room.
    #[must_use]
    pub const fn full(self, yes: bool) -> Self {
        Self { is_full: yes, ..self }
    }
}

/// The shared tier of files: its bytes, and the work that is to be done.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) bytes: FileBytes,
    upkeep: Mutex<Upkeep, { rank::FILES }>,
}

#[derive(Debug, Default)]
struct Upkeep {
    dead: VecDeque<DiskJob>,
    /// When the next comparison is due.
    compare_at: Time,
    comparing: Option<Turn>,
    evicting: Option<Turn>,
}

/// Work that one client has, until another may take it.
#[derive(Clone, Copy, Debug)]
struct Turn {
    client: ClientId,
    until: Time,
}

impl Turn {
    /// Gives the work to a client, unless another one has it.
    fn take(turn: &mut Option<Self>, client: ClientId, now: Time) -> bool {
        let is_free = turn.is_none_or(|turn| turn.client == client || turn.until <= now);
        if is_free {
            *turn = Some(Self { client, until: now + TURN });
        }
        is_free
    }

    fn is_of(turn: Option<Self>, client: ClientId) -> bool {
        turn.is_some_and(|turn| turn.client == client)
    }
}

impl Files {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { bytes: FileBytes::new(capacity), upkeep: Mutex::default() }
    }

    /// Has the file of a removed object deleted.
    pub(crate) fn delete(&self, key: KeyRef<'_>, generation: Generation, len: u64) {
        let mut upkeep = self.upkeep.lock();
        if upkeep.dead.len() < MAX_DEAD {
            upkeep.dead.push_back(DiskJob { key: key.to_owned(), generation, len });
        } else {
            upkeep.compare_at = Time::ORIGIN;
        }
    }

    /// Notes that a client goes on with a comparison.
    pub(crate) fn comparing(&self, client: ClientId, now: Time) {
        let mut upkeep = self.upkeep.lock();
        if Turn::is_of(upkeep.comparing, client) {
            upkeep.comparing = Some(Turn { client, until: now + TURN });
        }
    }
}

impl Master {
    /// Hands a client work for the shared tier: at most `max` files to delete, each once. A
    /// comparison of all files and an eviction are handed to one client at a time, and to another
    /// one when that client was not heard of for a minute.
    pub fn file_jobs(
        &self,
        now: Time,
        client: ClientId,
        state: FileSystemState,
        max: usize,
    ) -> FileJobs {
        if self.config.disk.is_none() {
            return FileJobs::default();
        }
        let excess = self.watermark.excess(self.files.bytes.used(), self.files.bytes.capacity());
        let mut upkeep = self.files.upkeep.lock();
        if state.is_compared && Turn::is_of(upkeep.comparing, client) {
            upkeep.comparing = None;
            upkeep.compare_at = now + COMPARE_EVERY;
        }
        let count = upkeep.dead.len().min(max).min(MAX_HANDED_FILES);
        let delete: Vec<_> = upkeep.dead.drain(..count).collect();
        if !delete.is_empty() {
            // The objects are back without their files if their removal is undone.
            self.see_all();
        }
        let compare = upkeep.compare_at <= now && Turn::take(&mut upkeep.comparing, client, now);
        let is_full = excess > 0 || state.is_full;
        let evict = is_full && Turn::take(&mut upkeep.evicting, client, now);
        FileJobs { delete, compare, evict }
    }
}
