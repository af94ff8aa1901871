//! The timing wheel against an ordered map of every timer.

use std::collections::BTreeMap;

use mc_lease::{TimerKey, TimerWheel};
use mc_types::Time;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Schedules for so long after now, or before.
    Schedule {
        offset: u64,
        ahead: bool,
    },
    /// Schedules for this very time.
    ScheduleAt {
        due: u64,
    },
    /// Cancels one of all timers there ever were.
    Cancel {
        which: prop::sample::Index,
    },
    Pop,
    /// Pops until nothing is due.
    PopAll,
    /// Lets time pass.
    Pass {
        millis: u64,
    },
    /// Sets the clock, forwards or backwards.
    Jump {
        to: u64,
    },
    /// Waits for the next timer as a caller with nothing else to do would.
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    // Durations of every magnitude, and several timers at the same time.
    let millis = || (0u32..64, 0u64..4).prop_map(|(bits, low)| (1u64 << bits) + low - 1);
    prop_oneof![
        8 => (millis(), prop::bool::weighted(0.9))
            .prop_map(|(offset, ahead)| Op::Schedule { offset, ahead }),
        1 => prop_oneof![Just(0), Just(u64::MAX), any::<u64>()]
            .prop_map(|due| Op::ScheduleAt { due }),
        3 => any::<prop::sample::Index>().prop_map(|which| Op::Cancel { which }),
        4 => Just(Op::Pop),
        2 => Just(Op::PopAll),
        6 => (0u64..200).prop_map(|millis| Op::Pass { millis }),
        2 => millis().prop_map(|millis| Op::Pass { millis }),
        1 => prop_oneof![2 => 0u64..10_000, 1 => Just(u64::MAX), 1 => any::<u64>()]
            .prop_map(|to| Op::Jump { to }),
        2 => Just(Op::Wait),
    ]
}

#[derive(Default)]
struct Pair {
    wheel: TimerWheel<usize>,
    /// The live timers, in the order in which they must expire.
    model: BTreeMap<(Time, usize), ()>,
    /// Every timer ever scheduled; its number is its token.
    keys: Vec<(TimerKey, Time)>,
    now: u64,
}

impl Pair {
    fn schedule(&mut self, due: u64) {
        let due = Time::from_millis(due);
        let token = self.keys.len();
        let key = self.wheel.schedule(due, token);
        self.keys.push((key, due));
        self.model.insert((due, token), ());
    }

    fn cancel(&mut self, which: prop::sample::Index) {
        if self.keys.is_empty() {
            return;
        }
        let token = which.index(self.keys.len());
        let (key, due) = self.keys[token];
        let expected = self.model.remove(&(due, token)).map(|()| token);
        assert_eq!(self.wheel.cancel(key), expected);
    }

    fn pop(&mut self) -> bool {
        let now = Time::from_millis(self.now);
        let first = self.model.first_key_value().map(|(&first, ())| first);
        let expected = first.filter(|&(due, _)| due <= now);
        if let Some(first) = expected {
            self.model.remove(&first);
        }
        assert_eq!(self.wheel.pop_due(now), expected);
        expected.is_some()
    }

    fn wait(&mut self) {
        for _ in 0..=10 {
            let Some(next) = self.wheel.next_due() else { return };
            self.now = self.now.max(next.as_millis());
            if self.pop() {
                return;
            }
        }
        panic!("the bound does not approach the next timer");
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Schedule { offset, ahead: true } => self.schedule(self.now.saturating_add(offset)),
            Op::Schedule { offset, ahead: false } => self.schedule(self.now.saturating_sub(offset)),
            Op::ScheduleAt { due } => self.schedule(due),
            Op::Cancel { which } => self.cancel(which),
            Op::Pop => drop(self.pop()),
            Op::PopAll => while self.pop() {},
            Op::Pass { millis } => self.now = self.now.saturating_add(millis),
            Op::Jump { to } => self.now = to,
            Op::Wait => self.wait(),
        }
        let first = self.model.first_key_value().map(|(&(due, _), ())| due);
        let bound = self.wheel.next_due();
        assert_eq!(bound.is_some(), first.is_some());
        assert!(bound <= first, "{bound:?} is later than {first:?}");
        assert_eq!(self.wheel.len(), self.model.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_wheel_hands_out_what_an_ordered_map_would(
        start in prop_oneof![Just(0), 0u64..1 << 45, any::<u64>()],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair { now: start, ..Pair::default() };
        for op in ops {
            pair.apply(op);
        }
        pair.now = u64::MAX;
        while pair.pop() {}
        assert!(pair.wheel.is_empty());
    }
}

#[test]
fn timers_of_one_millisecond_come_in_the_order_of_scheduling() {
    let mut wheel = TimerWheel::new();
    let due = Time::from_millis(1 << 20);
    // Each is scheduled from nearer by, so the wheel sees it on a lower level.
    for step in 0..=20 {
        let now = Time::from_millis((1 << 20) - ((1 << 20) >> step));
        wheel.schedule(now, 'w');
        assert_eq!(wheel.pop_due(now), Some((now, 'w')));
        wheel.schedule(due, char::from(b'a' + step));
    }
    let mut order = String::new();
    while let Some((at, token)) = wheel.pop_due(due) {
        assert_eq!(at, due);
        order.push(token);
    }
    assert_eq!(order, "abcdefghijklmnopqrstu");
}

#[test]
fn a_clock_set_back_after_a_jump_fires_nothing_early() {
    let at = Time::from_millis;
    let mut wheel = TimerWheel::new();
    wheel.schedule(at(5_000), 'a');
    wheel.schedule(at((1 << 50) + 9), 'z');
    // Past the first, and into the slot of the last.
    assert_eq!(wheel.pop_due(at((1 << 50) + 8)), Some((at(5_000), 'a')));
    assert_eq!(wheel.pop_due(at((1 << 50) + 8)), None);
    // Back where it belongs: what is scheduled now comes in its time.
    wheel.schedule(at(12_000), 'c');
    let b = wheel.schedule(at(11_000), 'b');
    assert_eq!(wheel.next_due(), Some(at(11_000)));
    assert_eq!(wheel.pop_due(at(10_999)), None);
    assert_eq!(wheel.cancel(b), Some('b'));
    assert_eq!(wheel.pop_due(at(11_999)), None);
    assert_eq!(wheel.pop_due(at(12_000)), Some((at(12_000), 'c')));
    assert_eq!(wheel.pop_due(at(12_000)), None);
    assert_eq!(wheel.pop_due(at(u64::MAX)), Some((at((1 << 50) + 9), 'z')));
}
