//! Work that keeps the shared tier in step with the objects, for clients to do.
//!
//! The files of removed objects are handed to clients, which delete them. When too many wait, when
//! the master has just begun, and from time to time, one client compares all files with the objects
//! ([`report_files`](crate::Master::report_files)): that finds files of writers that died, and files of
//! before a restart without a journal, and it settles: files that were there before it began and that it
//! has not found are gone, if it has found most. Above the high watermark, one client deletes the oldest files.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mc_types::{ClientId, Generation, KeyRef, LocalDiskId, Time};

use crate::side_tables::offload_queue::TierJob;
use crate::vocabulary::lock::{Mutex, rank};

/// Most deleted objects whose files wait to be deleted. More are found by a comparison.
const MAX_DEAD: usize = 1 << 16;

/// Most files that one call hands out.
const MAX_HANDED_FILES: usize = 1 << 13;

/// Time between two comparisons.
const COMPARE_EVERY: Duration = Duration::from_secs(3600);

/// Time after which another client gets the work of one that was not heard of.
const TURN: Duration = Duration::from_secs(60);

/// Time for which no files are deleted for the sake of the file system after that was in vain: the first, and
/// the longest, of doubling ones.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Most clients that are remembered as too slow with a comparison.
const MAX_OVERTAKEN: usize = 16;

/// Most clients that are remembered with the file system that they have found: these speak for the others.
const MAX_FOUND: usize = 4096;

/// Time between two counts of the clients that have found a file system.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Work for the shared tier that a client is handed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileJobs {
    /// Objects whose files are to be deleted: the objects were removed.
    pub delete: Vec<TierJob>,
    /// Whether to report all files with [`report_files`](crate::Master::report_files).
    pub compare: bool,
    /// Whether to delete the oldest files until there is room, and to report them with
    /// [`evict_from_tier`](crate::Master::evict_from_tier).
    pub evict: bool,
    /// Whether a client that takes longer says so ([`FileSystemState::busy`]), so that no other one is handed
    /// the same.
    pub renews: bool,
    /// The file system that the files are on: that of the most clients, or else the older one.
    pub storage: Option<LocalDiskId>,
}

/// The state of the shared tier as a client reports it when it asks for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileSystemState {
    /// Whether it has compared all files since it was told to.
    pub is_compared: bool,
    /// Whether it knew the object of each file of that comparison, so that a file that it has not
    /// reported is not there.
    pub is_whole: bool,
    /// Whether the file system is fuller than it should be.
    pub is_full: bool,
    /// Whether it did not get emptier when files were deleted.
    pub is_vain: bool,
    /// Whether the client is still doing what it was handed.
    pub is_busy: bool,
    /// Whether all files are deleted that it was handed last; `None` of a client that never says.
    pub has_deleted: Option<bool>,
    /// The id that the client has found there; `None` of a client that knows none.
    pub storage: Option<LocalDiskId>,
}

impl FileSystemState {
    /// The state after a comparison, or without one.
    #[must_use]
    pub const fn compared(self, yes: bool) -> Self {
        Self { is_compared: yes, ..self }
    }

    /// The state after a comparison that has left no file out.
    #[must_use]
    pub const fn whole(self, yes: bool) -> Self {
        Self { is_whole: yes, ..self }
    }

    /// The state of a client that says whether all files are deleted that it was handed last. It is
    /// handed them again when they are not, and another one is when it was not heard of for a minute.
    #[must_use]
    pub const fn deleted(self, yes: bool) -> Self {
        Self { has_deleted: Some(yes), ..self }
    }

    /// The state of a file system that does not get emptier when files are deleted: for a minute or more, no
    /// client is to delete any for its sake.
    #[must_use]
    pub const fn in_vain(self, yes: bool) -> Self {
        Self { is_vain: yes, ..self }
    }

    /// The state of the file system with this id.
    #[must_use]
    pub const fn on(self, storage: Option<LocalDiskId>) -> Self {
        Self { storage, ..self }
    }

    /// The state while the client works on the files it was handed: no more are handed out, and it
    /// has a minute more for each. To be said at least twice a minute.
    #[must_use]
    pub const fn busy(self, yes: bool) -> Self {
        Self { is_busy: yes, ..self }
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
    /// The round of comparisons: alternates with each that settles. Objects remember in which their
    /// file was seen. One that was recovered has been seen in none, which is `false`.
    round: AtomicBool,
    /// Bytes of the files that were reported since the comparison began.
    found: AtomicU64,
    /// Shards whose files of the last comparison are still being looked through.
    pub(crate) settling: AtomicUsize,
    upkeep: Mutex<Upkeep, { rank::FILES }>,
}

#[derive(Debug)]
struct Upkeep {
    dead: VecDeque<TierJob>,
    /// The file systems that clients have found, and when they reported it last.
    found: BTreeMap<ClientId, (LocalDiskId, Time)>,
    /// When they are counted again, if none has found another one before.
    count_at: Time,
    /// The file system that the files are on.
    storage: Option<LocalDiskId>,
    /// The deletions handed to clients that report their end, with the time until which they have to.
    handed: BTreeMap<ClientId, (Time, Vec<TierJob>)>,
    /// Whether files that were not seen in this round have been looked for.
    is_settled: bool,
    /// When the next comparison is due.
    compare_at: Time,
    comparing: Option<Turn>,
    /// Clients that were too slow with a comparison for which another one has the turn now. Theirs counts,
    /// too.
    overtaken: VecDeque<ClientId>,
    evicting: Option<Turn>,
    /// Until when nothing is deleted for the sake of the file system, since that was in vain.
    vain_until: Time,
    /// How long that is; zero since there was room.
    vain_rest: Duration,
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            dead: VecDeque::new(),
            found: BTreeMap::new(),
            count_at: Time::ORIGIN,
            storage: None,
            handed: BTreeMap::new(),
            // The first round is `true`, which no recovered file was seen in.
            is_settled: false,
            compare_at: Time::ORIGIN,
            comparing: None,
            overtaken: VecDeque::new(),
            evicting: None,
            vain_until: Time::ORIGIN,
            vain_rest: Duration::ZERO,
        }
    }
}

impl Upkeep {
    /// Gives a client that is still doing what it was handed more time for it.
    fn renew(&mut self, client: ClientId, now: Time) {
        let until = now + TURN;
        for turn in [&mut self.comparing, &mut self.evicting].into_iter().flatten() {
            if turn.client == client {
                turn.until = until;
            }
        }
        if let Some((handed_until, _)) = self.handed.get_mut(&client) {
            *handed_until = until;
        }
    }

    /// Gives a client the comparison of all files when it is due, unless another one is at it.
    fn take_comparison(&mut self, client: ClientId, now: Time) -> bool {
        let before = self.comparing.filter(|turn| turn.client != client);
        let is_given = self.compare_at <= now && Turn::take(&mut self.comparing, client, now);
        if let Some(before) = before.filter(|_| is_given) {
            if self.overtaken.len() == MAX_OVERTAKEN {
                self.overtaken.pop_front();
            }
            self.overtaken.push_back(before.client);
        }
        is_given
    }

    /// Notes that a client has compared all files. Returns whether it was its turn.
    fn has_compared(&mut self, client: ClientId, now: Time) -> bool {
        let is_turn = Turn::is_of(self.comparing, client);
        let was_overtaken = self.overtaken.contains(&client);
        if is_turn {
            self.comparing = None;
            self.overtaken.clear();
        }
        if is_turn || was_overtaken {
            self.overtaken.retain(|other| *other != client);
            self.compare_at = now + COMPARE_EVERY;
        }
        is_turn
    }

    /// Notes which file system a client has found. That of the most clients counts, or else the older one, which
    /// has the smaller id: a client that starts where the file system is not mounted may have marked another
    /// one just then.
    fn note_storage(&mut self, client: ClientId, found: LocalDiskId, now: Time) {
        if self.found.len() >= MAX_FOUND && !self.found.contains_key(&client) && now < self.count_at
        {
            return;
        }
        let before = self.found.insert(client, (found, now));
        if before.is_some_and(|(id, _)| id == found) && now < self.count_at {
            return;
        }
        self.count_at = now + COUNT_EVERY;
        self.found.retain(|_, (_, said)| now - *said < TURN);
        let mut clients = BTreeMap::new();
        self.found.values().for_each(|(id, _)| *clients.entry(*id).or_insert(0) += 1);
        let most = clients
            .into_iter()
            .min_by_key(|(id, clients): &(LocalDiskId, usize)| (core::cmp::Reverse(*clients), *id));
        self.storage = most.map(|(id, _)| id).or(self.storage);
    }

    /// Notes what a client says of the room in the file system.
    fn note_room(&mut self, state: FileSystemState, now: Time) {
        if state.is_vain && self.vain_until <= now {
            self.vain_rest = (self.vain_rest * 2).clamp(FIRST_REST, LONGEST_REST);
            self.vain_until = now + self.vain_rest;
        } else if !state.is_vain && !state.is_full {
            self.vain_rest = Duration::ZERO;
        }
    }

    /// Files that are to be deleted, those included that clients were handed and may not have deleted.
    fn undeleted(&self) -> usize {
        self.dead.len() + self.handed.values().map(|(_, jobs)| jobs.len()).sum::<usize>()
    }

    /// Takes back what a client was handed and says is not done, or has not spoken of in time.
    fn take_back(&mut self, client: ClientId, state: FileSystemState, now: Time) {
        if state.has_deleted == Some(true) {
            self.handed.remove(&client);
        }
        let late = |(who, (until, _)): (&ClientId, &(Time, Vec<TierJob>))| {
            (*who == client || *until <= now).then_some(*who)
        };
        let late: Vec<ClientId> = self.handed.iter().filter_map(late).collect();
        for who in late {
            let (_, jobs) = self.handed.remove(&who).expect("it was found");
            jobs.into_iter().rev().for_each(|job| self.dead.push_front(job));
        }
    }
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
        let round = AtomicBool::new(true);
        Self {
            bytes: FileBytes::new(capacity),
            round,
            found: AtomicU64::new(0),
            settling: AtomicUsize::new(0),
            upkeep: Mutex::default(),
        }
    }

    /// Notes that a client has reported a file that is an object's.
    pub(crate) fn found(&self, len: u64) {
        self.found.fetch_add(len, Ordering::Relaxed);
    }

    /// Returns whether the comparison has found so much that what it has not found is taken to be gone. A client
    /// that has another directory, since the file system is not mounted on its host, finds little.
    fn has_found_most(&self) -> bool {
        self.found.load(Ordering::Relaxed) >= self.bytes.used() / 2
    }

    /// The round of comparisons in which a file is seen now.
    pub(crate) fn round(&self) -> bool {
        self.round.load(Ordering::Relaxed)
    }

    /// Has the file of a removed object deleted.
    pub(crate) fn delete(&self, key: KeyRef<'_>, generation: Generation, len: u64) {
        let mut upkeep = self.upkeep.lock();
        if upkeep.undeleted() < MAX_DEAD {
            upkeep.dead.push_back(TierJob { key: key.to_owned(), generation, len });
        } else {
            upkeep.compare_at = Time::ORIGIN;
        }
    }

    /// The id of the file system that most clients have found.
    pub(crate) fn storage(&self) -> Option<LocalDiskId> {
        self.upkeep.lock().storage
    }

    /// Hands a client at most `max` files to delete, the comparison and the eviction, as far as they are due.
    /// True when files that the last comparison has not found are to be dropped.
    pub(crate) fn hand_out(
        &self,
        client: ClientId,
        state: FileSystemState,
        max: usize,
        is_above_watermark: bool,
        now: Time,
    ) -> (FileJobs, bool) {
        let is_settling = self.settling.load(Ordering::Relaxed) > 0;
        let mut upkeep = self.upkeep.lock();
        if let Some(found) = state.storage {
            upkeep.note_storage(client, found, now);
        }
        let known = FileJobs { renews: true, storage: upkeep.storage, ..FileJobs::default() };
        if state.is_busy {
            upkeep.renew(client, now);
            return (known, false);
        }
        if state.storage.is_some() && state.storage != upkeep.storage {
            // What it does elsewhere is of no use.
            return (known, false);
        }
        let mut settles = false;
        if state.is_compared && upkeep.has_compared(client, now) {
            settles = state.is_whole && !upkeep.is_settled && self.has_found_most();
            upkeep.is_settled |= settles;
        }
        upkeep.take_back(client, state, now);
        let count = upkeep.dead.len().min(max).min(MAX_HANDED_FILES);
        let delete: Vec<_> = upkeep.dead.drain(..count).collect();
        if state.has_deleted.is_some() && !delete.is_empty() {
            upkeep.handed.insert(client, (now + TURN, delete.clone()));
        }
        let compare = upkeep.take_comparison(client, now);
        if compare {
            self.found.store(0, Ordering::Relaxed);
        }
        if compare && upkeep.is_settled && !is_settling {
            // What is written from now on, or reported, is seen in the new round.
            self.round.fetch_xor(true, Ordering::Relaxed);
            upkeep.is_settled = false;
        }
        upkeep.note_room(state, now);
        let is_full = is_above_watermark || state.is_full && upkeep.vain_until <= now;
        let evict = is_full && Turn::take(&mut upkeep.evicting, client, now);
        (FileJobs { delete, compare, evict, ..known }, settles)
    }

    /// Notes that a client continues a comparison.
    pub(crate) fn comparing(&self, client: ClientId, now: Time) {
        let mut upkeep = self.upkeep.lock();
        if Turn::is_of(upkeep.comparing, client) {
            upkeep.comparing = Some(Turn { client, until: now + TURN });
        }
    }
}

/// Bytes of the files on the shared tier, those being written included.
#[derive(Debug)]
pub(crate) struct FileBytes {
    used: AtomicU64,
    /// Zero when puts plan no files.
    capacity: u64,
}

impl FileBytes {
    const fn new(capacity: u64) -> Self {
        Self { used: AtomicU64::new(0), capacity }
    }

    /// Takes room for a file; false when there is none.
    pub(crate) fn take(&self, len: u64) -> bool {
        let more = |used: u64| used.checked_add(len).filter(|sum| *sum <= self.capacity);
        self.capacity > 0
            && self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Takes room for a file that is there already, however much there is; false when
    /// there are no files.
    pub(crate) fn take_anyway(&self, len: u64) -> bool {
        let more = |used: u64| used.checked_add(len);
        self.capacity > 0
            && self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives room back that was taken.
    pub(crate) fn give_back(&self, len: u64) {
        let before = self.used.fetch_sub(len, Ordering::Relaxed);
        debug_assert!(before >= len, "files give back what they took");
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_up_to_the_capacity_and_given_back() {
        let bytes = FileBytes::new(10);
        assert!(bytes.take(4) && bytes.take(6));
        assert!(!bytes.take(1) && !bytes.take(u64::MAX));
        bytes.give_back(4);
        assert!(bytes.take(3));
        assert_eq!(bytes.used(), 9);
        assert!(!FileBytes::new(0).take(0));
        let unlimited = FileBytes::new(u64::MAX);
        assert!(unlimited.take(u64::MAX) && !unlimited.take(1));
    }
}
