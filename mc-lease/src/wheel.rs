//! Many deadlines, of which the next ones are wanted.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::fmt;

use mc_types::Time;

use crate::timers::{List, TimerKey, Timers};

/// Timers ordered by when they are due: a hierarchical timing wheel.
///
/// Ten levels of 128 slots each cover all of [`Time`]: a slot of the lowest
/// level is one millisecond, a slot of each other level as long as the whole
/// level below. A timer lies on the lowest level that tells its due time from the
/// time the wheel has reached, and moves down as that time comes near. After
/// scheme 7 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels",
/// SOSP 1987; a bitmap for each level stands in for the ticks, so a clock that
/// jumps over a year of empty slots costs no more than one that moves by a
/// millisecond.
///
/// Scheduling and cancelling take constant time. A timer moves down at most nine
/// times before it comes; apart from that, [`pop_due`](Self::pop_due) takes
/// constant time. One call may move all timers of a slot down at once.
///
/// The clock may stand still, jump, or go backwards: a timer comes when `now` is at
/// or after its due time, whatever `now` was before. Only a timer that is scheduled
/// before a time that the wheel has reached costs more, O(log n) in the number of
/// timers that were.
///
/// A timer takes 32 bytes with a token of four bytes and 40 with one of eight, the
/// wheel itself 10 kB. The memory of timers that are gone is reused, not returned.
///
/// ```
/// use mc_lease::TimerWheel;
/// use mc_types::Time;
///
/// let at = Time::from_millis;
/// let mut wheel = TimerWheel::new();
/// wheel.schedule(at(300), "lease of a");
/// let key = wheel.schedule(at(200), "lease of b");
/// wheel.schedule(at(86_400_000), "soft pin of a");
/// assert_eq!(wheel.cancel(key), Some("lease of b"));
/// assert_eq!(wheel.cancel(key), None);
/// assert_eq!(wheel.pop_due(at(299)), None);
/// assert_eq!(wheel.pop_due(at(1_000)), Some((at(300), "lease of a")));
/// assert_eq!(wheel.pop_due(at(1_000)), None);
/// assert_eq!(wheel.len(), 1);
/// ```
pub struct TimerWheel<T> {
    timers: Timers<T>,
    /// No timer in `slots` is due before this time, and none in `overdue` at or
    /// after it.
    reached: Time,
    /// The levels that have an occupied slot, one bit each.
    levels: u16,
    /// The occupied slots of each level, one bit each.
    occupied: [u128; LEVELS],
    slots: Box<[[List; SLOTS]; LEVELS]>,
    /// Timers that were scheduled for a time before `reached`.
    overdue: BTreeMap<Time, List>,
}

/// Bits of a due time that one level tells apart. With seven, a lease of five seconds
/// moves down once; with six, mostly twice, at a cache miss each.
const BITS: u32 = 7;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;

/// One slot of the wheel.
#[derive(Clone, Copy)]
struct Place {
    level: usize,
    slot: usize,
}

impl<T> TimerWheel<T> {
    /// A wheel without timers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            timers: Timers::new(),
            reached: Time::ORIGIN,
            levels: 0,
            occupied: [0; LEVELS],
            slots: Box::new([[List::EMPTY; SLOTS]; LEVELS]),
            overdue: BTreeMap::new(),
        }
    }

    /// Timers that have neither come nor been cancelled.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.timers.len()
    }

    /// Returns whether no timer is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands `token` out again from `due` on. A `due` in the past makes it due at
    /// once.
    ///
    /// # Panics
    /// With 2^32 − 1 timers, which take more than 100 GB.
    pub fn schedule(&mut self, due: Time, token: T) -> TimerKey {
        if self.is_empty() {
            self.reached = self.reached.min(due);
        }
        let (index, key) = self.timers.insert(due, token);
        if due < self.reached {
            let list = self.overdue.entry(due).or_insert(List::EMPTY);
            self.timers.push_back(list, index);
        } else {
            self.link(due, index);
        }
        key
    }

    /// Takes a timer back before it comes. `None` when it has come already or was
    /// cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let (index, due) = self.timers.find(key)?;
        let taken = if due < self.reached {
            self.take_overdue(due, index)
        } else {
            self.take(place(self.reached, due), index)
        };
        taken.map(|(_, token)| token)
    }

    /// Takes the earliest timer that is due by `now`, with its due time; of those
    /// due at the same time, the one scheduled first. `None` when no timer is due.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        // Everything overdue is due before everything in the slots.
        if let Some((&due, list)) = self.overdue.first_key_value() {
            let first = list.first().filter(|_| due <= now)?;
            return self.take_overdue(due, first);
        }
        while let Some(next) = self.first_place() {
            let start = start_of(next, self.reached);
            if start > now {
                return None;
            }
            // Nothing lies between the time reached and the first occupied slot.
            self.reached = start;
            if next.level == 0 {
                let first = self.slots[0][next.slot].first()?;
                return self.take(next, first);
            }
            self.move_down(next);
        }
        // Without timers any time may be the one reached; from this one the next
        // timers have the shortest way down.
        self.reached = now;
        None
    }

    /// A time before which no timer is due: the time of the next one when it lies
    /// within the 128 ms that the wheel has reached, and otherwise the beginning of
    /// its slot. Before that time [`pop_due`](Self::pop_due) has nothing to hand
    /// out; at that time it does, or makes the bound tighter, which happens at most
    /// nine times for one timer. `None` without timers.
    ///
    /// Takes constant time.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        let overdue = self.overdue.first_key_value().map(|(&due, _)| due);
        overdue.or_else(|| self.first_place().map(|place| start_of(place, self.reached)))
    }

    fn first_place(&self) -> Option<Place> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        Some(Place { level, slot: self.occupied[level].trailing_zeros() as usize })
    }

    /// Moves the timers of a slot whose time has come to the levels below, in
    /// their order.
    fn move_down(&mut self, Place { level, slot }: Place) {
        let list = core::mem::replace(&mut self.slots[level][slot], List::EMPTY);
        self.vacate(Place { level, slot });
        let mut rest = list.first();
        while let Some(index) = rest {
            rest = self.timers.next(index);
            self.link(self.timers.due(index), index);
        }
    }

    fn link(&mut self, due: Time, index: u32) {
        let Place { level, slot } = place(self.reached, due);
        self.timers.push_back(&mut self.slots[level][slot], index);
        self.occupied[level] |= 1 << slot;
        self.levels |= 1 << level;
    }

    fn take(&mut self, place: Place, index: u32) -> Option<(Time, T)> {
        let list = &mut self.slots[place.level][place.slot];
        let taken = self.timers.remove(list, index);
        if list.is_empty() {
            self.vacate(place);
        }
        taken
    }

    fn take_overdue(&mut self, due: Time, index: u32) -> Option<(Time, T)> {
        let list = self.overdue.get_mut(&due)?;
        let taken = self.timers.remove(list, index);
        if list.is_empty() {
            self.overdue.remove(&due);
        }
        taken
    }

    /// Notes that a slot is empty.
    fn vacate(&mut self, Place { level, slot }: Place) {
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }
}

impl<T> Default for TimerWheel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for TimerWheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerWheel")
            .field("len", &self.len())
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}

/// Where a timer due at `due`, not before `reached`, lies: on the level of the
/// highest digit in which the two times differ.
fn place(reached: Time, due: Time) -> Place {
    let (reached, due) = (reached.as_millis(), due.as_millis());
    let highest = (reached ^ due).checked_ilog2().unwrap_or(0);
    let level = highest / BITS;
    Place { level: level as usize, slot: (due >> (level * BITS)) as usize % SLOTS }
}

/// When the time of a slot begins, that lies ahead of `reached` or holds it.
fn start_of(place: Place, reached: Time) -> Time {
    let shift = place.level as u32 * BITS;
    let slots_start = reached.as_millis() >> shift >> BITS << BITS << shift;
    Time::from_millis(slots_start | (place.slot as u64) << shift)
}
