//! When the soft pins of durations of their own end.

use std::collections::HashMap;

use mc_lease::{TimerKey, TimerWheel};
use mc_types::Time;

use crate::vocabulary::slot::ObjectSlot;

/// The ends of soft pins, by the slots of their objects. An access may have moved one since it was
/// noted.
#[derive(Debug, Default)]
pub(crate) struct PinEnds(Option<Box<Noted>>);

#[derive(Debug)]
struct Noted {
    wheel: TimerWheel<ObjectSlot>,
    keys: HashMap<ObjectSlot, TimerKey>,
}

impl PinEnds {
    /// Notes when the pin of the object in a slot ends.
    pub(crate) fn note(&mut self, slot: ObjectSlot, end: Time) {
        // Most shards never have one, and a wheel takes 10 kB.
        let noted = self.0.get_or_insert_with(|| {
            Box::new(Noted { wheel: TimerWheel::new(), keys: HashMap::new() })
        });
        let key = noted.wheel.schedule(end, slot);
        if let Some(before) = noted.keys.insert(slot, key) {
            noted.wheel.cancel(before);
        }
    }

    /// The object in a slot is under no such pin any more.
    pub(crate) fn forget(&mut self, slot: ObjectSlot) {
        if let Some(noted) = &mut self.0
            && let Some(key) = noted.keys.remove(&slot)
        {
            noted.wheel.cancel(key);
        }
    }

    /// Takes an object whose pin may have ended.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<ObjectSlot> {
        let noted = self.0.as_mut()?;
        let (_, slot) = noted.wheel.pop_due(now)?;
        noted.keys.remove(&slot);
        Some(slot)
    }
}
