//! Random histories that are right, and what becomes of them when they are changed.

use std::time::Duration;

use mc_testkit::Random;

use super::search::is_linearizable;
use super::{Rules, check};
use crate::{Action, Moment, Operation, Outcome, ValueId, Window};

const LATE: u64 = 4;

/// The settings of a random history.
struct Kind {
    rules: Rules,
    /// Whether there are operations that tell only whether there is an object.
    has_existence: bool,
}

fn one_in(random: &mut Random, count: usize) -> bool {
    random.below(count) == 0
}

fn window(random: &mut Random) -> Window {
    let from = random.below(20) as u64;
    let to = from + random.below(8) as u64;
    Window { from: Moment::from_nanos(from), to: Moment::from_nanos(to) }
}

impl Kind {
    fn any(random: &mut Random) -> Self {
        let mut rules = Rules {
            late: Duration::from_nanos(LATE),
            may_evict: one_in(random, 2),
            may_suspend: one_in(random, 2),
            may_repeat: one_in(random, 2),
            may_store_existing: one_in(random, 2),
            ..Rules::default()
        };
        if one_in(random, 2) {
            rules.losses = (0..1 + random.below(2)).map(|_| window(random)).collect();
        }
        if one_in(random, 3) {
            rules.undoable = vec![window(random)];
        }
        Self { rules, has_existence: true }
    }

    /// The rules that the [search](is_linearizable) knows.
    fn searchable(random: &mut Random) -> Self {
        let mut kind = Self::any(random);
        kind.rules.undoable.clear();
        (kind.rules.may_repeat, kind.rules.may_store_existing) = (false, false);
        kind
    }

    /// The histories for which the checker is complete.
    fn complete() -> Self {
        let late = Duration::from_nanos(LATE);
        let rules = Rules { late, may_evict: true, ..Rules::default() };
        Self { rules, has_existence: false }
    }
}

/// A register that operations change one after the other, each at a moment within its time.
struct Register<'a> {
    kind: &'a Kind,
    random: &'a mut Random,
    now: u64,
    state: Option<(ValueId, Moment)>,
    /// The states of an undoable time, one of which comes back at its end.
    saved: Vec<Option<(ValueId, Moment)>>,
    versions: u32,
    history: Vec<Operation>,
}

impl Register<'_> {
    fn run(mut self, operations: usize) -> Vec<Operation> {
        while self.history.len() < operations {
            self.pass();
            self.operate();
        }
        self.history
    }

    /// Lets time pass, and happen what happens by itself.
    fn pass(&mut self) {
        let before = self.now;
        self.now += self.random.below(4) as u64;
        for time in &self.kind.rules.undoable {
            let (from, to) = (time.from.as_nanos(), time.to.as_nanos());
            if from <= before && before <= to {
                self.saved.push(self.state);
            }
            if before <= to && to < self.now && !self.saved.is_empty() {
                self.state = self.saved[self.random.below(self.saved.len())];
                self.saved.clear();
            }
        }
        let Some((_, begin)) = self.state else { return };
        let may_be_lost = |loss: &Window| begin <= loss.to && loss.from.as_nanos() <= self.now;
        let may_vanish =
            self.kind.rules.may_evict || self.kind.rules.losses.iter().any(may_be_lost);
        if may_vanish && one_in(self.random, 4) {
            self.state = None;
        }
    }

    fn operate(&mut self) {
        let reach = 1 + self.random.below(6);
        let begin = self.now.saturating_sub(self.random.below(reach) as u64);
        let mut end = self.now + self.random.below(reach) as u64;
        self.versions += 1;
        let value = ValueId { writer: self.random.below(3) as u32, version: self.versions };
        let written = Some((value, Moment::from_nanos(begin)));
        let rules = &self.kind.rules;
        let random = &mut *self.random;
        let mut outcome = Outcome::Done;
        let kinds = if self.kind.has_existence { 100 } else { 80 };
        let action = match random.below(kinds) {
            0..15 => {
                let stored = self.state.is_none() || (rules.may_suspend && one_in(random, 4));
                if stored {
                    self.state = written;
                }
                if !stored || (rules.may_store_existing && one_in(random, 3)) {
                    outcome = Outcome::Existing;
                }
                if !self.kind.has_existence && !stored {
                    outcome = Outcome::Refused;
                }
                Action::Put(value)
            }
            15..30 => {
                if one_in(random, 6) {
                    outcome = Outcome::Refused;
                } else {
                    self.state = written;
                }
                Action::Upsert(value)
            }
            30..40 => {
                if one_in(random, 5) {
                    outcome = Outcome::Refused;
                    if rules.may_repeat && one_in(random, 2) {
                        self.state = None;
                    }
                } else if self.state.is_none() || (rules.may_repeat && one_in(random, 3)) {
                    outcome = Outcome::Absent;
                    self.state = None;
                } else {
                    self.state = None;
                }
                Action::Remove
            }
            40..80 => self.state.map_or(Action::Missed, |(value, _)| Action::Found(value)),
            _ => {
                let is_hidden = rules.may_suspend && one_in(random, 4);
                Action::Exist(self.state.is_some() && !is_hidden)
            }
        };
        if action.is_change() && outcome == Outcome::Done && one_in(random, 4) {
            outcome = Outcome::Unknown;
            end = begin.max((self.now + random.below(3) as u64).saturating_sub(LATE));
        }
        self.note(action, outcome, begin, end);
        if one_in(self.random, 8) {
            // One that never happens.
            self.versions += 1;
            let value = ValueId { writer: 4, version: self.versions };
            let actions = [Action::Put(value), Action::Upsert(value), Action::Remove];
            let action = actions[self.random.below(3)];
            self.note(action, Outcome::Unknown, begin, end);
        }
    }

    fn note(&mut self, action: Action, outcome: Outcome, begin: u64, end: u64) {
        let (begin, end) = (Moment::from_nanos(begin), Moment::from_nanos(end));
        self.history.push(Operation { client: 0, key: 0, action, outcome, begin, end });
    }
}

fn right_history(kind: &Kind, random: &mut Random, operations: usize) -> Vec<Operation> {
    let (now, state, saved, versions, history) = (5, None, Vec::new(), 0, Vec::new());
    Register { kind, random, now, state, saved, versions, history }.run(operations)
}

/// Changes one operation: a get returns another value or none, a moment moves.
fn change(history: &mut [Operation], random: &mut Random) {
    let values: Vec<ValueId> = history.iter().filter_map(|it| it.action.written()).collect();
    let at = random.below(history.len());
    let operation = &mut history[at];
    match (random.below(4), operation.action) {
        (0..3, Action::Found(_) | Action::Missed) => {
            operation.action = if values.is_empty() || one_in(random, 5) {
                Action::Missed
            } else {
                Action::Found(values[random.below(values.len())])
            };
        }
        (0, Action::Remove) => operation.outcome = Outcome::Done,
        (0, Action::Exist(exists)) => operation.action = Action::Exist(!exists),
        _ => {
            let time = Duration::from_nanos(random.below(12) as u64);
            let length = operation.end.since(operation.begin);
            operation.begin = if one_in(random, 2) {
                operation.begin + time
            } else {
                operation.begin.before(time)
            };
            operation.end = operation.begin + length;
        }
    }
}

#[test]
fn right_histories_are_never_refused() {
    let mut random = Random::seeded("HISTORY_SEED");
    for run in 0..60_000 {
        let kind = Kind::any(&mut random);
        let length = 4 + random.below(if run % 20 == 0 { 200 } else { 16 });
        let history = right_history(&kind, &mut random, length);
        let violations = check(&history, &kind.rules);
        assert!(violations.is_empty(), "{violations:#?} in {history:#?} by {:#?}", kind.rules);
    }
}

/// Quadratic work on one key would take hours.
#[test]
fn a_key_with_very_many_operations_is_checked() {
    let mut random = Random::seeded("HISTORY_SEED");
    let mut kind = Kind::any(&mut random);
    (kind.rules.may_evict, kind.rules.undoable) = (false, Vec::new());
    let history = right_history(&kind, &mut random, 500_000);
    assert_eq!(check(&history, &kind.rules), []);
}

#[test]
fn the_search_explains_right_histories() {
    let mut random = Random::seeded("HISTORY_SEED");
    for _ in 0..2_000 {
        let kind = Kind::searchable(&mut random);
        let history = right_history(&kind, &mut random, 9);
        assert!(is_linearizable(&history, &kind.rules), "{history:#?} by {:#?}", kind.rules);
    }
}

#[test]
fn what_is_refused_has_no_explanation() {
    let mut random = Random::seeded("HISTORY_SEED");
    let (mut wrong, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let kind = Kind::searchable(&mut random);
        let mut history = right_history(&kind, &mut random, 9);
        change(&mut history, &mut random);
        let violations = check(&history, &kind.rules);
        let is_right = is_linearizable(&history, &kind.rules);
        assert!(
            violations.is_empty() || !is_right,
            "{violations:#?} in {history:#?} by {:#?}",
            kind.rules
        );
        wrong += usize::from(!is_right);
        refused += usize::from(!violations.is_empty());
    }
    println!("{refused} of {wrong} wrong histories were refused");
    assert!(refused * 10 >= wrong * 9, "{refused} of {wrong}");
}

#[test]
fn writes_reads_and_removals_are_checked_completely() {
    let mut random = Random::seeded("HISTORY_SEED");
    let mut wrong = 0;
    for _ in 0..40_000 {
        let kind = Kind::complete();
        let mut history = right_history(&kind, &mut random, 9);
        change(&mut history, &mut random);
        let violations = check(&history, &kind.rules);
        let is_right = is_linearizable(&history, &kind.rules);
        assert_eq!(violations.is_empty(), is_right, "{violations:#?} in {history:#?}");
        wrong += usize::from(!is_right);
    }
    println!("{wrong} histories were wrong");
    assert!(wrong > 1000);
}
