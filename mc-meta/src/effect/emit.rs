//! The order of effects: how a command tells the sinks.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};

use mc_types::{SegmentId, Sequence, Time};

use crate::effect::{Effect, EffectSink};
use crate::vocabulary::hash::mix;
use crate::vocabulary::lock::{Mutex, rank};

/// Entries of the table of recent effects, a power of two. Objects and segments share them. A journal
/// that flushes a thousand times a second has some hundred changes to make durable at a time.
const RECENT: usize = 4096;

thread_local! {
    /// The last effect of the commands that this thread executes for a receipt. A command runs on
    /// the thread that calls it, from its beginning to its end.
    static LAST: Cell<Option<Sequence>> = const { Cell::new(None) };
    /// The last effect that these commands have seen the result of, theirs or another's.
    static SEEN: Cell<Option<Sequence>> = const { Cell::new(None) };
}

/// The effects that commands depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dependencies {
    /// The last one of their own.
    pub(crate) last: Option<Sequence>,
    /// The last one that they have seen the result of.
    pub(crate) seen: Option<Sequence>,
}

/// Executes commands on this thread, and returns what they depend on too. May be nested: effects of
/// the inner commands belong to both.
pub(crate) fn dependencies_of<T>(commands: impl FnOnce() -> T) -> (T, Dependencies) {
    let (outer_last, outer_seen) = (LAST.take(), SEEN.take());
    let value = commands();
    let (last, seen) = (LAST.get(), SEEN.get());
    LAST.set(last.or(outer_last));
    SEEN.set(seen.max(outer_seen));
    (value, Dependencies { last, seen })
}

/// Executes commands that do not show in the reply what they see.
pub(crate) fn unseen<T>(commands: impl FnOnce() -> T) -> T {
    let seen = SEEN.get();
    let value = commands();
    SEEN.set(seen);
    value
}

fn see(sequence: u64) {
    // No effect has the number 0.
    if sequence > 0 {
        SEEN.set(SEEN.get().max(Some(Sequence::new(sequence))));
    }
}

/// The sinks of a master, and the order of what it tells them.
pub(crate) struct Effects {
    sinks: Vec<Sink>,
    wants_objects: bool,
    /// Locked while the sinks are told, so that all of them receive the effects in this order.
    last: Mutex<Sequence, { rank::EFFECTS }>,
    /// The last effect that changed what replies say of the objects and segments of each entry; 0 before
    /// the first. Numbers only grow, so that an entry that is shared names an effect that is too late,
    /// and never one that is too early. Written before
    /// the lock of the changed object or segment is released, and read under that lock.
    recent: Box<[AtomicU64]>,
    /// Where the last list of leases began, or was withdrawn; 0 before the first. Written before the
    /// shards are looked at, and read under their locks.
    leases: AtomicU64,
}

struct Sink {
    sink: Box<dyn EffectSink>,
    wants_objects: bool,
}

impl Effects {
    pub(crate) fn new() -> Self {
        Self {
            sinks: Vec::new(),
            wants_objects: false,
            last: Mutex::new(Sequence::new(0)),
            recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect(),
            leases: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&mut self, sink: Box<dyn EffectSink>) {
        let wants_objects = sink.wants_objects();
        self.wants_objects |= wants_objects;
        self.sinks.push(Sink { sink, wants_objects });
    }

    /// Returns the last effect of all.
    pub(crate) fn last(&self) -> Sequence {
        *self.last.lock()
    }

    /// Tells the sinks that commands have ended whose last effect this is.
    pub(crate) fn executed(&self, last: Sequence) {
        self.sinks.iter().for_each(|Sink { sink, .. }| sink.executed(last));
    }

    /// Notes that the command of this thread sees what has become of the objects whose keys have this
    /// tag. Their shard is locked.
    pub(crate) fn see_key(&self, tag: u32) {
        see(self.recent[entry_of_key(tag)].load(Ordering::Relaxed));
        // It may grant a lease that the list lacks.
        see(self.leases.load(Ordering::Relaxed));
    }

    /// Notes that the command of this thread sees what has become of a segment. The segments are locked.
    pub(crate) fn see_segment(&self, id: SegmentId) {
        see(self.recent[entry_of_segment(id)].load(Ordering::Relaxed));
    }

    /// Notes that the command of this thread has seen any objects. Called when it has.
    pub(crate) fn see_all(&self) {
        see(self.last().as_u64());
    }

    /// Begins a list of leases, without an object so far. One that has no end is none.
    pub(crate) fn begin_leases(&self, now: Time) {
        self.tell(now, &Effect::Leased { before: 0, objects: &[], is_last: false });
        self.leases.store(self.last().as_u64(), Ordering::Relaxed);
    }

    pub(crate) fn tell(&self, now: Time, effect: &Effect<'_>) {
        let is_of_object = effect.is_of_object();
        if is_of_object && !self.wants_objects {
            return;
        }
        let entry = entry_of(effect);
        let mut last = self.last.lock();
        let sequence = Sequence::new(last.as_u64() + 1);
        *last = sequence;
        LAST.set(Some(sequence));
        if let Some(entry) = entry {
            self.recent[entry].store(sequence.as_u64(), Ordering::Relaxed);
        }
        for Sink { sink, wants_objects } in &self.sinks {
            if *wants_objects || !is_of_object {
                sink.emit(sequence, now, effect);
            }
        }
    }
}

/// The entry of the object or segment about which replies say something else from this effect on.
fn entry_of(effect: &Effect<'_>) -> Option<usize> {
    match effect {
        Effect::Stored { object, .. }
        | Effect::Changed { object, .. }
        | Effect::Removed { object, .. } => Some(entry_of_key(object.object.tag)),
        Effect::SegmentMounted { segment }
        | Effect::SegmentGone { segment }
        | Effect::SegmentChanged { segment, .. } => Some(entry_of_segment(segment.spec().id)),
        // A put, copy or move that begins or fails changes nothing that can be read: what the key
        // had before stays, and its readers need not wait. A call that finds it in its way is refused, to
        // be made again, which is no promise. Other effects are not in a journal, or belong to no key.
        _ => None,
    }
}

const fn entry_of_key(tag: u32) -> usize {
    tag as usize % RECENT
}

fn entry_of_segment(id: SegmentId) -> usize {
    let id = id.as_u128();
    mix(id as u64 ^ mix((id >> 64) as u64)) as usize % RECENT
}

/// Tells the sinks of changes, if there are any.
#[derive(Clone, Copy)]
pub(crate) struct Emit<'a> {
    pub(crate) now: Time,
    pub(crate) effects: Option<&'a Effects>,
}

impl Emit<'_> {
    pub(crate) fn effect(self, effect: &Effect<'_>) {
        if let Some(effects) = self.effects {
            effects.tell(self.now, effect);
        }
    }

    /// Returns whether a sink wants effects of objects: otherwise they need not be made.
    pub(crate) fn wants_objects(self) -> bool {
        self.effects.is_some_and(|effects| effects.wants_objects)
    }
}
