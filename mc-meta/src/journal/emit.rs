//! The order of effects: how a command tells the sinks.

use core::cell::Cell;

use mc_types::{Sequence, Time};

use crate::journal::effect::{Effect, EffectSink};
use crate::lock::{Mutex, rank};

thread_local! {
    /// The last effect of the commands that this thread executes for a receipt. A command runs on
    /// the thread that calls it, from its beginning to its end.
    static LAST: Cell<Option<Sequence>> = const { Cell::new(None) };
}

/// Executes commands on this thread, and returns their last effect too. May be nested: effects of
/// the inner commands belong to both.
pub(crate) fn last_of<T>(commands: impl FnOnce() -> T) -> (T, Option<Sequence>) {
    let outer = LAST.take();
    let value = commands();
    let sequence = LAST.get();
    LAST.set(sequence.or(outer));
    (value, sequence)
}

/// The sinks of a master, and the order of what it tells them.
pub(crate) struct Effects {
    sinks: Vec<Sink>,
    wants_objects: bool,
    /// Locked while the sinks are told, so that all of them receive the effects in this order.
    last: Mutex<Sequence, { rank::EFFECTS }>,
}

struct Sink {
    sink: Box<dyn EffectSink>,
    wants_objects: bool,
}

impl Effects {
    pub(crate) fn new() -> Self {
        Self { sinks: Vec::new(), wants_objects: false, last: Mutex::new(Sequence::new(0)) }
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

    fn tell(&self, now: Time, effect: &Effect<'_>) {
        let is_of_object = effect.is_of_object();
        if is_of_object && !self.wants_objects {
            return;
        }
        let mut last = self.last.lock();
        let sequence = Sequence::new(last.as_u64() + 1);
        *last = sequence;
        LAST.set(Some(sequence));
        for Sink { sink, wants_objects } in &self.sinks {
            if *wants_objects || !is_of_object {
                sink.emit(sequence, now, effect);
            }
        }
    }
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
