//! The check of one key.

use super::Rules;
use super::latest::Latest;
use super::values::{Value, Values};
use crate::{Action, Moment, Operation, Outcome, Violation, ViolationKind};

/// The operations of one key, and what they prove.
pub(super) struct KeyCheck<'a> {
    operations: Vec<&'a Operation>,
    rules: &'a Rules,
    values: Values<'a>,
    pub(super) violations: Vec<Violation>,
}

impl<'a> KeyCheck<'a> {
    pub(super) fn new(operations: Vec<&'a Operation>, rules: &'a Rules) -> Self {
        let mut violations = Vec::new();
        let values = Values::collect(&operations, rules, &mut violations);
        Self { operations, rules, values, violations }
    }

    pub(super) fn run(&mut self) {
        for operation in &self.operations {
            if operation.action == Action::WrongBytes {
                self.violations.push(Violation::new(ViolationKind::WrongBytes, [operation]));
            }
        }
        self.check_zones();
        if self.operations.first().is_some_and(|it| self.rules.undoes(it.key)) {
            self.check_undoable_reads();
        }
        self.check_existence();
        if !self.rules.may_evict {
            self.check_losses();
        }
    }

    /// The operations whose state was not undone later.
    fn lasting(&self) -> impl Iterator<Item = &'a Operation> {
        self.operations.iter().copied().filter(|operation| !self.rules.is_undoable(operation))
    }

    /// Returns whether the operation proves that there was no object at a moment of its time.
    fn proves_absence(&self, operation: &Operation) -> bool {
        match operation.action {
            Action::Missed => true,
            Action::Exist(false) => !self.rules.may_suspend,
            Action::Remove => matches!(operation.outcome, Outcome::Done | Outcome::Absent),
            _ => false,
        }
    }

    /// Returns whether the operation proves that there was an object at a moment of its time.
    fn proves_presence(operation: &Operation) -> bool {
        match operation.action {
            Action::Exist(exists) => exists,
            Action::Put(_) => operation.outcome == Outcome::Existing,
            _ => false,
        }
    }

    /// While a value was current for certain, no other value was, and the key was not empty.
    fn check_zones(&mut self) {
        let mut zones: Vec<&Value<'a>> =
            self.values.iter().filter(|value| value.is_forward()).collect();
        zones.sort_by_key(|zone| (zone.low, zone.high));
        let mut found = Vec::new();
        // For each zone the one that lasts longest of it and those before.
        let mut longest: Vec<&Value<'a>> = Vec::with_capacity(zones.len());
        for zone in &zones {
            let before = longest.last().copied();
            if let Some(before) = before.filter(|before| before.high > zone.low) {
                let proof = [zone.low_proof, zone.high_proof, before.low_proof, before.high_proof];
                found.push(Violation::new(ViolationKind::TwoValues, proof));
            }
            longest.push(before.filter(|before| before.high > zone.high).unwrap_or(zone));
        }
        let mut check = |begin: Moment, end: Moment, what: &'a Operation| {
            let count = zones.partition_point(|zone| zone.low < begin);
            if let Some(zone) = longest[..count].last().filter(|zone| zone.high > end) {
                let proof = [zone.high_proof, what, zone.low_proof];
                found.push(Violation::new(ViolationKind::Stale, proof));
            }
        };
        for value in self.values.iter().filter(|value| value.is_backward()) {
            check(value.high, value.low, value.low_proof);
        }
        for operation in self.lasting().filter(|operation| self.proves_absence(operation)) {
            check(operation.begin, operation.end, operation);
        }
        self.violations.append(&mut found);
    }

    /// A get whose state may have been undone has still not seen what had been replaced for
    /// certain before it began.
    fn check_undoable_reads(&mut self) {
        let absences = self.lasting().filter(|operation| self.proves_absence(operation));
        let mut changes: Vec<_> =
            absences.map(|operation| (operation.end, operation.begin, operation)).collect();
        let certain = self.values.iter().filter(|value| value.is_certain && !value.is_ambiguous);
        changes.extend(certain.map(|value| (value.low, value.write.begin, value.write)));
        let changes = Latest::new(changes);
        let mut found = Vec::new();
        for read in &self.operations {
            let Action::Found(id) = read.action else { continue };
            if !self.rules.is_undoable(read) {
                continue;
            }
            let Some(value) = self.values.get(id) else { continue };
            let newer = changes.before(read.begin).filter(|(begin, _)| *begin > value.low);
            if let Some((_, newer)) = newer {
                let proof = [read, newer, value.low_proof];
                found.push(Violation::new(ViolationKind::Stale, proof));
            }
        }
        self.violations.append(&mut found);
    }

    /// An object that is said to exist is one of a value that had not been gone for certain.
    fn check_existence(&mut self) {
        let absences = self.lasting().filter(|operation| self.proves_absence(operation));
        let absences = Latest::new(absences.map(|it| (it.end, it.begin, it)).collect());
        let possible = self.values.iter().filter(|value| value.may_be_stored);
        let until = |value: &Value<'a>| (value.write.begin, value.low, value.write);
        let possible = Latest::new(possible.map(until).collect());
        let mut found = Vec::new();
        for seen in self.operations.iter().filter(|operation| Self::proves_presence(operation)) {
            let Some((until, _)) = possible.up_to(seen.end) else {
                found.push(Violation::new(ViolationKind::Phantom, [seen]));
                continue;
            };
            let absence = absences.before(seen.begin).filter(|(begin, _)| *begin > until);
            if let Some((_, absence)) = absence {
                found.push(Violation::new(ViolationKind::Phantom, [seen, absence]));
            }
        }
        self.violations.append(&mut found);
    }

    /// A key that had an object is empty only if a removal or a loss may have happened since.
    fn check_losses(&mut self) {
        let presences = self.lasting().filter(|operation| match operation.action {
            Action::Put(_) | Action::Upsert(_) => {
                matches!(operation.outcome, Outcome::Done | Outcome::Existing)
            }
            Action::Found(id) => {
                self.values.get(id).is_some_and(|value| value.write.begin <= operation.end)
            }
            Action::Exist(exists) => exists,
            _ => false,
        });
        let presences = Latest::new(presences.map(|it| (it.end, it.begin, it)).collect());
        let removals = self.operations.iter().filter(|operation| match operation.action {
            Action::Remove => match operation.outcome {
                Outcome::Done | Outcome::Unknown | Outcome::Existing => true,
                Outcome::Absent | Outcome::Refused => self.rules.may_repeat,
            },
            // What it had replaced is not always there when it was undone.
            Action::Put(_) | Action::Upsert(_) => self.rules.is_undoable(operation),
            _ => false,
        });
        let removals =
            Latest::new(removals.map(|it| (it.begin, self.rules.settled(it), *it)).collect());
        let writes = self.values.iter().filter(|value| value.is_certain);
        let writes = Latest::new(writes.map(|it| (it.low, it.write.begin, it.write)).collect());
        let losses = self.losses();
        let mut found = Vec::new();
        for miss in &self.operations {
            let is_miss = match miss.action {
                Action::Missed => true,
                Action::Exist(false) => !self.rules.may_suspend,
                Action::Remove => miss.outcome == Outcome::Absent && !self.rules.may_repeat,
                // It was stored, so there was none.
                Action::Put(_) => {
                    miss.outcome == Outcome::Done
                        && !self.rules.may_suspend
                        && !self.rules.is_undoable(miss)
                }
                _ => false,
            };
            let Some((since, object)) = presences.before(miss.begin).filter(|_| is_miss) else {
                continue;
            };
            let removal = removals.up_to(miss.end).filter(|(settled, _)| *settled >= since);
            // The object that vanished was written no earlier than the last for certain.
            let written = writes.before(miss.begin).map_or(Moment::ZERO, |(begin, _)| begin);
            let is_lost = losses.iter().any(|(from, until)| *from <= miss.end && *until >= written);
            if removal.is_none() && !is_lost {
                let kind = match miss.action {
                    Action::Put(_) => ViolationKind::Overwritten,
                    _ => ViolationKind::Lost,
                };
                found.push(Violation::new(kind, [miss, object]));
            }
        }
        self.violations.append(&mut found);
    }

    /// For each loss, from when objects may be gone, and the last moment when one of them may have
    /// been written.
    fn losses(&self) -> Vec<(Moment, Moment)> {
        if self.rules.losses.is_empty() {
            return Vec::new();
        }
        let possible = self.values.iter().filter(|value| value.may_be_stored);
        let writes = possible.map(|value| (value.write.begin, value.settled, value.write));
        let writes = Latest::new(writes.collect());
        let losses = self.rules.losses.iter();
        // A write that began before the loss may end after it, and its value be lost.
        let until = |to| writes.up_to(to).map_or(to, |(settled, _)| settled.max(to));
        losses.map(|loss| (loss.from, until(loss.to))).collect()
    }
}
