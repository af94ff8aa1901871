//! The order of effects, and the receipts that name a command's last one.

use core::cell::Cell;

use mc_types::{Sequence, Time};

use crate::journal::effect::{Effect, EffectSink};
use crate::lock::{Mutex, rank};
use crate::master::Master;

/// The result of commands, with the last effect that they had.
///
/// A reply must not leave a master whose journal is to survive it before the journal has made
/// everything durable up to this effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Receipt<T> {
    /// The result.
    pub value: T,
    /// The last effect; `None` when nothing changed that a sink wants to know of.
    pub sequence: Option<Sequence>,
}

thread_local! {
    /// The last effect of the commands that this thread executes for a receipt. A command runs on
    /// the thread that calls it, from its beginning to its end.
    static LAST: Cell<Option<Sequence>> = const { Cell::new(None) };
}

impl Master {
    /// Executes commands, and returns with their result the number of the last effect that they
    /// had. Without a sink there are no effects and no numbers, and this costs nothing.
    ///
    /// `commands` runs on this thread. Receipts may be nested: effects of the inner one belong to
    /// both. Commands of another master must not be among them.
    ///
    /// ```
    /// use mc_meta::{Effect, EffectSink, Master, MasterConfig};
    /// use mc_types::{Sequence, Time};
    ///
    /// struct Journal;
    ///
    /// impl EffectSink for Journal {
    ///     fn emit(&self, _: Sequence, _: Time, _: &Effect<'_>) {
    ///         // Appends a record to a queue, which another thread writes to a disk.
    ///     }
    /// }
    ///
    /// let master = Master::new(MasterConfig::default(), 1)?.with_sink(Journal);
    /// let removed = master.receipt(|master| master.remove_all(Time::ORIGIN, false));
    /// // There was nothing to remove.
    /// assert_eq!(removed.sequence, None);
    /// # Ok::<(), mc_meta::ConfigError>(())
    /// ```
    pub fn receipt<T>(&self, commands: impl FnOnce(&Self) -> T) -> Receipt<T> {
        if self.effects.is_none() {
            return Receipt { value: commands(self), sequence: None };
        }
        let outer = LAST.take();
        let value = commands(self);
        let sequence = LAST.get();
        LAST.set(sequence.or(outer));
        Receipt { value, sequence }
    }

    /// Returns the number of the last effect of all; 0 before the first one. Whatever a command
    /// has seen until now is the result of effects up to this one.
    #[must_use]
    pub fn last_sequence(&self) -> Sequence {
        self.effects.as_ref().map_or(Sequence::new(0), |effects| *effects.last.lock())
    }
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

    /// Whether a sink wants effects of objects: otherwise they need not be made.
    pub(crate) fn wants_objects(self) -> bool {
        self.effects.is_some_and(|effects| effects.wants_objects)
    }
}
