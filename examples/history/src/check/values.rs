//! The values of a key, with the operations that prove when they were current.

use crate::{Action, Moment, Operation, Outcome, Rules, ValueId, Violation, ViolationKind};

/// A value, and the zone in which it was current.
pub(super) struct Value<'a> {
    id: ValueId,
    pub(super) write: &'a Operation,
    /// The last moment when the write may have taken effect.
    pub(super) settled: Moment,
    /// Whether it may ever be current.
    pub(super) may_be_stored: bool,
    /// Whether it was current at some moment for certain.
    pub(super) is_certain: bool,
    /// Whether two writes wrote it, so that nothing is known of it.
    pub(super) is_ambiguous: bool,
    /// The earliest moment at which it had been current for certain, if it ever was.
    pub(super) low: Moment,
    pub(super) low_proof: &'a Operation,
    /// The latest moment at which it was current or was to be for certain, if it ever was.
    pub(super) high: Moment,
    pub(super) high_proof: &'a Operation,
}

impl<'a> Value<'a> {
    fn new(id: ValueId, write: &'a Operation, rules: &Rules) -> Self {
        let may_be_stored = match write.outcome {
            Outcome::Done | Outcome::Unknown => true,
            Outcome::Existing => rules.may_store_existing,
            Outcome::Absent | Outcome::Refused => false,
        };
        Self {
            id,
            write,
            settled: rules.settled(write),
            may_be_stored,
            is_certain: write.outcome == Outcome::Done && !rules.is_undoable(write),
            is_ambiguous: false,
            low: rules.settled(write),
            low_proof: write,
            high: write.begin,
            high_proof: write,
        }
    }

    /// Takes a read of this value as a proof that it was current.
    fn prove(&mut self, read: &'a Operation) {
        self.is_certain = true;
        if read.end < self.low {
            (self.low, self.low_proof) = (read.end, read);
        }
        if read.begin > self.high {
            (self.high, self.high_proof) = (read.begin, read);
        }
    }

    /// Returns whether it was current in all of a time of some length.
    pub(super) fn is_forward(&self) -> bool {
        self.is_certain && !self.is_ambiguous && self.low < self.high
    }

    /// Returns whether it was current at a moment at least, from `high` to `low`.
    pub(super) fn is_backward(&self) -> bool {
        self.is_certain && !self.is_ambiguous && self.high <= self.low
    }
}

/// The values of a key, in the order of their ids.
pub(super) struct Values<'a>(Vec<Value<'a>>);

impl<'a> Values<'a> {
    /// Collects the values that the operations write and read. Pushes the faults that a read and
    /// the write of its value prove.
    pub(super) fn collect(
        operations: &[&'a Operation],
        rules: &Rules,
        violations: &mut Vec<Violation>,
    ) -> Self {
        let value = |operation: &&'a Operation| {
            operation.action.written().map(|id| Value::new(id, operation, rules))
        };
        let mut values: Vec<Value<'a>> = operations.iter().filter_map(value).collect();
        values.sort_by_key(|value| value.id);
        values.dedup_by(|second, first| {
            let is_twice = second.id == first.id;
            if is_twice {
                let proof = [second.write, first.write];
                violations.push(Violation::new(ViolationKind::WrittenTwice, proof));
                first.is_ambiguous = true;
                (first.settled, first.low) = (Moment::NEVER, Moment::NEVER);
                if second.write.begin < first.write.begin {
                    first.write = second.write;
                }
            }
            is_twice
        });
        let mut values = Self(values);
        for operation in operations {
            if let Action::Found(id) = operation.action {
                violations.extend(values.read(id, operation, rules));
            }
        }
        values
    }

    fn read(&mut self, id: ValueId, read: &'a Operation, rules: &Rules) -> Option<Violation> {
        let Ok(at) = self.0.binary_search_by_key(&id, |value| value.id) else {
            return Some(Violation::new(ViolationKind::NeverWritten, [read]));
        };
        let value = &mut self.0[at];
        if value.is_ambiguous {
            return None;
        }
        if !value.may_be_stored {
            return Some(Violation::new(ViolationKind::NotStored, [read, value.write]));
        }
        if read.end < value.write.begin {
            return Some(Violation::new(ViolationKind::Future, [read, value.write]));
        }
        if !rules.is_undoable(read) {
            value.prove(read);
        }
        None
    }

    /// The value of this id, if reads of it can be judged.
    pub(super) fn get(&self, id: ValueId) -> Option<&Value<'a>> {
        let at = self.0.binary_search_by_key(&id, |value| value.id).ok()?;
        let value = &self.0[at];
        (value.may_be_stored && !value.is_ambiguous).then_some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Value<'a>> {
        self.0.iter()
    }
}
