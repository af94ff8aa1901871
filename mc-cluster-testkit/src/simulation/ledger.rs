//! The owner of each byte of each segment, as the master's effects tell it.

mod changes;
mod state;
mod succession;
mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_ha::Position;
use mc_meta::{Effect, EffectSink, Location, ObjectRecord, Record, ReplicaStatus, SegmentStatus};
use mc_types::{Epoch, Extent, Generation, RemoteKey, SegmentId, Sequence, Time};

use super::clock::virtual_time;
pub use changes::{Beginning, Undone};
pub use state::{Life, Owner};
use state::{Range, Readable, SLACK, State, overlapping};

/// A mirror of the master's state that is made of its effects, and that checks them:
///
/// * no range of a segment has two owners;
/// * no write lands in a range that has another owner than when the write was submitted;
/// * no object is evicted, or removed without force, while a reader was told that it would stay;
/// * no range of a removed object is granted again while a reader was told that it would stay;
/// * no pinned object is evicted;
/// * no replica has other bytes than were put;
/// * at most one object of a key can be read;
/// * no key loses more objects to removals than removals were called;
/// * no segment goes whose client neither was silent nor gave it up.
///
/// A violation is kept, with the virtual time at which it was found.
pub struct Ledger {
    state: Mutex<State>,
    /// Receives a line for each effect.
    log: Option<Log>,
}

type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Mutex::default(), log: None }
    }

    /// Writes a line for each effect.
    #[must_use]
    pub fn with_log(self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        Self { log: Some(Box::new(log)), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sink for a master. The ledger follows its effects once it [leads](Self::leads).
    #[must_use]
    pub fn sink(self: &Arc<Self>) -> LedgerSink {
        let mut state = self.state();
        state.sinks += 1;
        LedgerSink { ledger: Arc::clone(self), life: Life(state.sinks) }
    }

    /// Follows the master with the sink of this life from now on, which begins with the state that
    /// `records` describe. It must be that of the masters before it, but for the changes that its journal
    /// has not got; and of these no more may have been acknowledged than `beginning` allows. Returns the
    /// keys of those changes where it allows any.
    pub fn leads<'a>(
        &self,
        life: Life,
        beginning: Beginning,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Vec<Undone> {
        let mut state = self.state();
        (state.life, state.changed) = (life, virtual_time());
        let (old, lost) = state.begin_with(records);
        match beginning {
            Beginning::Journal { term, from, may_lack } => {
                state.goes_on((&old, lost), (term, from), may_lack)
            }
            Beginning::Empty => {
                state.changes.clear();
                state.leases_since = virtual_time();
                Vec::new()
            }
        }
    }

    /// Learns that a term began with a journal that ended at `from`, of a master that may not come to
    /// [lead](Self::leads).
    pub fn begins(&self, term: Epoch, from: Position) {
        self.state().changes.begins(term, from);
    }

    /// Returns how many changes that were acknowledged new masters did not know of, and were allowed to.
    #[must_use]
    pub fn undone(&self) -> u64 {
        self.state().undone
    }

    /// Returns whether this key's object, at `since` or later, was one whose removal was undone when its
    /// space had been granted to others, or its files were gone: it may have lost its bytes.
    #[must_use]
    pub fn is_spoiled(&self, key: &str, since: Duration) -> bool {
        let spoiled = self.state().spoiled.get(key).copied();
        spoiled.is_some_and(|(_, gone)| gone.is_none_or(|gone| gone >= since))
    }

    /// Returns whether any key [was spoiled](Self::is_spoiled).
    #[must_use]
    pub fn has_spoiled(&self) -> bool {
        !self.state().spoiled.is_empty()
    }

    /// Learns that a put or upsert of this key was acknowledged that was called at `begin`.
    pub fn acknowledged(&self, key: &str, begin: Duration) {
        if let Some(readable) = self.state().readable.get_mut(key)
            // With another value stored meanwhile it is not known which one was acknowledged.
            && begin < readable.stored
            && readable.stored_before < begin
        {
            readable.acknowledged = Some(begin);
        }
    }

    /// Takes the violations that were found.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        let mut state = self.state();
        let lost = state.lost.take().map(|lost| lost.violation);
        std::mem::take(&mut state.violations).into_iter().chain(lost).collect()
    }

    /// Returns whether a violation was found.
    #[must_use]
    pub fn has_violations(&self) -> bool {
        !self.state().violations.is_empty()
    }

    /// Returns the owner of this range, of the region that `key` opens; `None` when no object has
    /// all of it.
    #[must_use]
    pub fn owner(&self, key: RemoteKey, extent: Extent) -> Option<Owner> {
        self.state().owner(key, extent)
    }

    /// Learns that bytes were written to this range which was `before`'s when they were sent.
    pub fn written(&self, key: RemoteKey, extent: Extent, before: Option<Owner>) {
        let mut state = self.state();
        let Some(segment) = state.by_key.get(&key).copied() else { return };
        let Some(ranges) = state.segments.get(&segment).map(|segment| &segment.ranges) else {
            return;
        };
        let is_foreign = |range: &Range| {
            let is_its_own = |before: Owner| before.generation == range.owner.generation;
            let is_spoiled = || state.overwritten.contains(&range.owner.generation);
            // Space is kept for late writes. Those that the master before granted the space to go on until
            // its node has met the next one.
            !range.owner.is_kept && !before.is_some_and(is_its_own) && !is_spoiled()
        };
        let foreign =
            overlapping(ranges, extent.offset(), extent.end()).find(|(_, range)| is_foreign(range));
        if let Some((offset, Range { end, owner, .. })) = foreign {
            let sent = before.map(|before| before.generation);
            state.violates(format_args!(
                "a write to {}..{} of segment {segment} that was sent as part of {sent:?} landed \
                 in {offset}..{end} of {owner:?}",
                extent.offset(),
                extent.end()
            ));
        }
    }

    /// Learns that a client was told at `begin` or later that the key's object stays for `lease`.
    pub fn protect(&self, key: &str, begin: Duration, lease: Duration) {
        let mut state = self.state();
        if let Some(readable) = state.readable.get_mut(key).filter(|it| it.stored < begin) {
            readable.protected_at = readable.protected_at.max(begin);
            readable.protected_until = readable.protected_until.max(begin + lease);
        }
    }

    /// Learns that a client was told at `begin` or later where the key's object is, and that it may
    /// read there for `lease`, for which the object [stays](Self::protect).
    pub fn reads(&self, key: &str, begin: Duration, lease: Duration) {
        self.protect(key, begin, lease);
        let mut state = self.state();
        if let Some(readable) = state.readable.get_mut(key).filter(|it| it.stored < begin) {
            readable.read_at = readable.read_at.max(begin);
            readable.read_until = readable.read_until.max(begin + lease);
        }
    }

    /// Learns that a client is about to call a removal of this key. Returns the put that is protected
    /// against it unless it is forced, and until when.
    #[must_use]
    pub fn removes(&self, key: &str) -> Option<(Generation, Duration)> {
        let mut state = self.state();
        *state.removals.entry(key.to_owned()).or_default() += 1;
        state.readable.get(key).map(|it| (it.generation, it.protected_until))
    }

    /// Learns that a removal was acknowledged that was called at `begin`, when `protected` was
    /// protected against removals without force.
    pub fn removed(
        &self,
        key: &str,
        begin: Duration,
        force: bool,
        protected: Option<(Generation, Duration)>,
    ) {
        let mut state = self.state();
        let removed = state.last_removed.get(key).copied();
        let Some((generation, _)) = removed.filter(|(_, at)| *at >= begin) else { return };
        state.gone.insert(key.to_owned(), (generation, begin));
        let Some((protected, until)) = protected else { return };
        let is_known = state.leases_since <= begin;
        if !force && is_known && until > virtual_time() + SLACK && protected == generation {
            state.violates(format_args!(
                "{key} ({generation:?}) was removed without force, and is leased until {until:?}"
            ));
        }
    }

    /// Learns that all objects may be removed from now on.
    pub fn removes_all(&self) {
        self.state().removes_all = true;
    }

    /// Learns that a disk may have lost some of what was written to it.
    pub fn damages_disk(&self) {
        self.state().disks_are_damaged = true;
    }

    /// Learns that the file system of objects' files may return other bytes than were written.
    pub fn damages_files(&self) {
        self.state().files_are_damaged = true;
    }

    /// Returns whether a disk may have lost some of what was written to it.
    #[must_use]
    pub fn has_damaged_disks(&self) -> bool {
        self.state().disks_are_damaged
    }

    /// Learns that a client is about to mount a segment under this name, and to keep it.
    pub fn joins(&self, segment: &str) {
        self.state().leaving.remove(segment);
    }

    /// Learns that the client of the segment with this name may give it up from now on, and those that
    /// it mounts under this name until it [joins](Self::joins) again.
    pub fn leaves(&self, segment: &str) {
        let mut state = self.state();
        let named = state.segments.values_mut().filter(|it| &*it.name == segment);
        named.for_each(|it| it.may_go = true);
        state.leaving.insert(segment.to_owned());
    }

    /// Learns that a client knows that it has mounted a segment under this name, and that it keeps it.
    pub fn keeps(&self, segment: &str) {
        let mut state = self.state();
        let named = state.segments.values_mut().filter(|it| &*it.name == segment);
        named.for_each(|it| it.may_go = false);
        state.leaving.remove(segment);
    }

    /// Compares the master's objects with those of its effects.
    pub fn compare<'a>(&self, objects: impl IntoIterator<Item = &'a ObjectRecord>) {
        let state = &mut *self.state();
        let mut readable = BTreeSet::new();
        for object in objects {
            let (key, generation) = (object.key.as_str(), object.generation);
            // A file is readable as soon as it is written: when the end of its put was undone, before that.
            if object.complete || object.file == Some(ReplicaStatus::Complete) {
                readable.insert(key);
                if state.readable.get(key).is_none_or(|it| it.generation != generation) {
                    state.violates(format_args!("no effect told of {key} {generation:?}"));
                }
            }
            let owner = Owner { generation, is_kept: false };
            for Location { segment, extent } in &object.replicas {
                let ranges = state.segments.get(segment).map(|segment| &segment.ranges);
                let Some(ranges) = ranges else {
                    state.violates(format_args!(
                        "{key} {generation:?} is in segment {segment}, which is gone"
                    ));
                    continue;
                };
                let range = ranges.get(&extent.offset());
                if range.map(|it| (it.end, it.owner)) != Some((extent.end(), owner)) {
                    state.violates(format_args!(
                        "{key} {generation:?} is at {extent:?} of segment {segment}, and no \
                         effect told so"
                    ));
                }
            }
        }
        // The master may not have looked yet at what was in a segment that went a moment ago.
        let is_unlisted = |(key, it): &(&String, &Readable)| {
            !readable.contains(key.as_str()) && state.has_place(it.generation)
        };
        let unlisted = state.readable.iter().find(is_unlisted);
        if let Some((key, Readable { generation, .. })) = unlisted {
            let (key, generation) = (key.clone(), *generation);
            state
                .violates(format_args!("effects told of {key} {generation:?}, which is not there"));
        }
    }

    /// Compares the keys that a subscriber of events knows with the objects that can be read, if nothing
    /// has changed for a second. Objects whose nodes are away may be missing.
    pub fn compare_known<'a>(&self, known: impl IntoIterator<Item = &'a str>) {
        let state = &mut *self.state();
        if virtual_time() < state.changed + Duration::from_secs(1) {
            return;
        }
        let known: BTreeSet<&str> = known.into_iter().collect();
        let mut wrong = Vec::new();
        for key in &known {
            if !state.readable.contains_key(*key) {
                wrong.push(format!("a subscriber knows {key}, which is gone"));
            }
        }
        let is_here = |(id, start): &(SegmentId, u64)| {
            state.segments.get(id).is_some_and(|it| {
                it.status.is_none_or(|status| status == SegmentStatus::Ok)
                    && it.ranges.get(start).is_some_and(|range| range.readable_since.is_some())
            })
        };
        for (key, readable) in &state.readable {
            let ranges = state.ranges_of.get(&readable.generation);
            if !known.contains(key.as_str()) && ranges.is_some_and(|all| all.iter().any(is_here)) {
                wrong.push(format!("no subscriber was told of {key}"));
            }
        }
        wrong.into_iter().for_each(|wrong| state.violates(wrong));
    }

    /// Returns the ranges of a segment that belong to puts.
    #[must_use]
    pub fn ranges(&self, segment: SegmentId) -> Vec<(u64, u64, Owner)> {
        let state = self.state();
        let ranges = state.segments.get(&segment).map(|segment| &segment.ranges);
        let range = |(start, range): (&u64, &Range)| (*start, range.end, range.owner);
        ranges.into_iter().flatten().map(range).collect()
    }
}

/// Passes the effects of a master on to its [`Ledger`].
#[derive(Debug)]
pub struct LedgerSink {
    ledger: Arc<Ledger>,
    life: Life,
}

impl LedgerSink {
    /// The master's life.
    #[must_use]
    pub fn life(&self) -> Life {
        self.life
    }
}

impl EffectSink for LedgerSink {
    fn emit(&self, sequence: Sequence, _: Time, effect: &Effect<'_>) {
        let mut state = self.ledger.state();
        if state.life != self.life {
            return;
        }
        if let Some(log) = &self.ledger.log {
            log(format_args!("{}", summary::Summary(effect)));
        }
        state.follow(sequence, effect);
    }
}
