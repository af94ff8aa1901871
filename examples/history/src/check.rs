//! The verifier: what a history proves about the store.

mod key;
mod latest;
mod values;

#[cfg(test)]
mod random_histories;
#[cfg(test)]
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Moment, Operation, Outcome, Violation, Window};
use key::KeyCheck;

/// The default of [`Rules::late`].
pub const LATE: Duration = Duration::from_secs(15);

/// The promises that a history is held to, and what may go wrong in it without a violation.
///
/// The default is the strictest: nothing is ever lost, hidden, undone or repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// For so long after its end an operation with an unknown outcome may still take effect.
    ///
    /// It must be longer than any fault: a request that waits behind a cut connection or in a frozen
    /// process is executed when the fault ends.
    pub late: Duration,
    /// Times in which the memory of nodes was lost: values whose writes began before the end of
    /// such a time may vanish at any moment after its start. The store may notice the loss late.
    pub losses: Vec<Window>,
    /// Times in which acknowledged changes may have been undone: with `async` durability or
    /// replication a change of leaders may undo the last ones. Operations in such a time, also gets,
    /// prove little: the state that they saw may be one that was undone.
    pub undoable: Vec<Window>,
    /// The same of some keys only, by number: where it is known which changes were undone.
    pub undone: BTreeMap<u32, Vec<Window>>,
    /// Objects may vanish at any moment, because they are evicted or nodes are killed: a miss is
    /// no loss.
    pub may_evict: bool,
    /// Objects may be unreadable for a while, because their nodes are silent, and come back: `exist`
    /// answers "no" for them, and a put replaces them. Neither then proves that there is no
    /// object.
    pub may_suspend: bool,
    /// Clients repeat a removal whose answer was lost: one that is answered "refused" or "absent" may
    /// have removed the object before.
    pub may_repeat: bool,
    /// A put that is answered "existing" may have found its own value, stored by an attempt whose
    /// answer was lost.
    pub may_store_existing: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            late: LATE,
            losses: Vec::new(),
            undoable: Vec::new(),
            undone: BTreeMap::new(),
            may_evict: false,
            may_suspend: false,
            may_repeat: false,
            may_store_existing: false,
        }
    }
}

impl Rules {
    /// The last moment when an operation may take effect.
    fn settled(&self, operation: &Operation) -> Moment {
        let is_certain = operation.outcome != Outcome::Unknown && !self.is_undoable(operation);
        if is_certain { operation.end } else { operation.end + self.late }
    }

    /// Returns whether the state that the operation saw or made may have been undone.
    fn is_undoable(&self, operation: &Operation) -> bool {
        let overlaps = |time: &Window| operation.begin <= time.to && time.from <= operation.end;
        let of_key = self.undone.get(&operation.key).into_iter().flatten();
        self.undoable.iter().chain(of_key).any(overlaps)
    }

    /// Returns whether any change of this key may have been undone.
    fn undoes(&self, key: u32) -> bool {
        !self.undoable.is_empty() || self.undone.contains_key(&key)
    }
}

/// Checks a history, and returns the violations of all keys.
///
/// The history is right if, for each key, the operations can be put into an order that a register
/// explains and in which no operation comes before one that had ended when it began (linearizability).
/// The register holds one value or none. An object stays as it is until it is removed or replaced.
///
/// Values are unique, so reads tell which write they saw. All operations of a value span a
/// [zone](https://doi.org/10.1137/S0097539794279614): from the earliest end to the latest begin of one
/// that proves that the value was current. If the first is earlier, the value was current
/// in between, and nothing that excludes it may lie there: no other value's zone, removal or miss.
/// This is complete for writes, reads and acknowledged removals, where objects may vanish; a lost
/// object or a wrong `exist` is found when the operation alone proves it.
///
/// It never reports a violation for a history that the [rules](Rules) allow. Operations overlap when
/// one begins at the very moment when the other ends. The cost is O(n log n) for n operations, of which
/// the order does not matter.
///
/// ```
/// use mc_history::{Action, Moment, Operation, Outcome, Rules, ValueId, ViolationKind, check};
///
/// let operation = |action, begin, end| Operation {
///     client: 0,
///     key: 0,
///     action,
///     outcome: Outcome::Done,
///     begin: Moment::from_nanos(begin),
///     end: Moment::from_nanos(end),
/// };
/// let value = ValueId { writer: 0, version: 1 };
/// let history = [
///     operation(Action::Put(value), 0, 10),
///     operation(Action::Remove, 20, 30),
///     operation(Action::Found(value), 40, 50),
/// ];
/// let violations = check(&history, &Rules::default());
/// assert_eq!(violations[0].kind, ViolationKind::Stale);
/// ```
///
/// # Panics
/// When there are more than 2^32 operations.
#[must_use]
pub fn check(operations: &[Operation], rules: &Rules) -> Vec<Violation> {
    let count = u32::try_from(operations.len()).expect("at most 2^32 operations");
    let at = |index: u32| &operations[index as usize];
    let mut order: Vec<u32> = (0..count).collect();
    order.sort_by_key(|index| at(*index).key);
    let mut violations = Vec::new();
    for group in order.chunk_by(|one, next| at(*one).key == at(*next).key) {
        let mut of_key = KeyCheck::new(group.iter().map(|index| at(*index)).collect(), rules);
        of_key.run();
        violations.append(&mut of_key.violations);
    }
    violations
}
