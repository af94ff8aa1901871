//! What the clients saw, and what that proves.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A moment, counted from the beginning of the run.
pub(crate) type Moment = Duration;

/// A value that was written: its writer and the writer's count. No two puts write the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ValueId {
    pub(crate) writer: u32,
    pub(crate) version: u32,
}

/// What an operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A put or an upsert of this value.
    Write(ValueId),
    /// A removal.
    Remove,
    /// A get that returned this value, whose bytes were right.
    Found(ValueId),
    /// A get that was told that there is no such object.
    Missed,
    /// A get that returned bytes of no put of its key.
    WrongBytes(String),
}

/// What the client knows of an operation that changes something. Gets are [`Done`](Self::Done).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was acknowledged.
    Done,
    /// A put found an object: another's, or its own of an attempt whose answer was lost.
    Existing,
    /// It may have happened, or may happen shortly.
    Unknown,
    /// It was acknowledged, and may have been undone since.
    Undoable,
}

/// One operation of a client.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    #[expect(dead_code, reason = "violations show it")]
    pub(crate) client: u32,
    pub(crate) key: u32,
    pub(crate) action: Action,
    pub(crate) outcome: Outcome,
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
}

/// For so long after its call has failed, an operation may still happen: what waits behind a cut is
/// delivered when it is mended, and no fault lasts longer.
pub(crate) const LATE: Duration = Duration::from_secs(15);

impl Operation {
    /// When it can happen no more.
    fn settled(&self) -> Moment {
        match self.outcome {
            Outcome::Done | Outcome::Existing => self.end,
            Outcome::Unknown | Outcome::Undoable => self.end + LATE,
        }
    }

    fn is_certain(&self) -> bool {
        self.outcome == Outcome::Done
    }
}

/// A proof that the store broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Times in which acknowledged changes may have been undone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undoable {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

/// Checks a history. Changes that were acknowledged within `undoable` may have been undone: with `async`
/// durability or replication a change of leaders may undo the last ones. With both `sync` and
/// `semi_sync` there are no such times.
///
/// What is proven for each key, whatever the order in which the clients' operations were executed:
/// 1. a get returns the bytes of a put that had begun, and that no acknowledged put, upsert or
///    removal has replaced which began after it was over and ended before the get began;
/// 2. a get is told that there is no object only if no value was acknowledged before it began, or
///    a removal, or a change that may have been undone, may have happened since.
///
/// Sound, not complete: operations that overlap excuse each other.
pub(crate) fn check(operations: &[Operation], undoable: &[Undoable]) -> Vec<Violation> {
    let mut keys: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        let mut operation = operation.clone();
        let may_be_undone =
            |time: &Undoable| time.from <= operation.end && operation.end <= time.to;
        let changes = matches!(operation.action, Action::Write(_) | Action::Remove);
        if changes && undoable.iter().any(may_be_undone) {
            operation.outcome = Outcome::Undoable;
        }
        keys.entry(operation.key).or_default().push(operation);
    }
    keys.into_values().flat_map(|operations| check_key(&operations)).collect()
}

fn check_key(operations: &[Operation]) -> Vec<Violation> {
    let writes: BTreeMap<ValueId, &Operation> = operations
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Write(id) => Some((id, operation)),
            _ => None,
        })
        .collect();
    let changes =
        || operations.iter().filter(|it| matches!(it.action, Action::Write(_) | Action::Remove));
    let certain = LatestOf::new(changes().filter(|it| it.is_certain()), |it| (it.end, it.begin));
    let certain_writes = changes().filter(|it| it.is_certain() && it.action != Action::Remove);
    let certain_writes = LatestOf::new(certain_writes, |it| (it.end, it.begin));
    let removals =
        changes().filter(|it| it.action == Action::Remove || it.outcome == Outcome::Undoable);
    let removals = LatestOf::new(removals, |it| (it.begin, it.settled()));
    let mut violations = Vec::new();
    for get in operations {
        let wrong = match &get.action {
            Action::Found(id) => match writes.get(id) {
                None => Some("returned a value that was never put".into()),
                Some(write) if write.begin > get.end => {
                    Some(format!("returned a value from the future: {write:?}"))
                }
                Some(write) => certain
                    .before(get.begin)
                    .filter(|(begin, _)| *begin > write.settled())
                    .map(|(_, newer)| format!("returned {write:?}, stale since {newer:?}")),
            },
            Action::Missed => certain_writes.before(get.begin).and_then(|(begin, write)| {
                let removal = removals.before(get.end).filter(|(settled, _)| *settled >= begin);
                removal.is_none().then(|| format!("found nothing, lost is {write:?}"))
            }),
            Action::WrongBytes(what) => Some(format!("returned wrong bytes: {what}")),
            Action::Write(_) | Action::Remove => None,
        };
        violations.extend(wrong.map(|wrong| Violation(format!("{get:?} {wrong}"))));
    }
    violations
}

/// Of operations that are ordered by one moment, the greatest of another up to each.
struct LatestOf<'a>(Vec<(Moment, Moment, &'a Operation)>);

impl<'a> LatestOf<'a> {
    fn new(
        operations: impl Iterator<Item = &'a Operation>,
        moments: impl Fn(&Operation) -> (Moment, Moment),
    ) -> Self {
        let with_moments = |operation| {
            let (order, greatest) = moments(operation);
            (order, greatest, operation)
        };
        let mut all: Vec<_> = operations.map(with_moments).collect();
        all.sort_by_key(|(order, ..)| *order);
        for at in 1..all.len() {
            if all[at - 1].1 > all[at].1 {
                (all[at].1, all[at].2) = (all[at - 1].1, all[at - 1].2);
            }
        }
        Self(all)
    }

    /// The greatest of those that come before this moment.
    fn before(&self, moment: Moment) -> Option<(Moment, &'a Operation)> {
        let count = self.0.partition_point(|(order, ..)| *order < moment);
        self.0[..count].last().map(|(_, greatest, operation)| (*greatest, *operation))
    }
}

/// The longest time without an acknowledged write, between the first and the last operation.
pub(crate) fn longest_outage(operations: &[Operation]) -> Duration {
    let is_write = |it: &&Operation| matches!(it.action, Action::Write(_)) && it.is_certain();
    let mut ends: Vec<Moment> = operations.iter().filter(is_write).map(|it| it.end).collect();
    ends.extend(operations.iter().map(|it| it.end).max());
    ends.sort_unstable();
    let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// Histories that a checker which proves anything must refuse, and their neighbours that it must not.
mod tests {
    use super::*;

    fn ms(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    fn value(version: u32) -> ValueId {
        ValueId { writer: 1, version }
    }

    fn operation(action: Action, begin: u64, end: u64) -> Operation {
        let outcome = Outcome::Done;
        Operation { client: 0, key: 0, action, outcome, begin: ms(begin), end: ms(end) }
    }

    fn write(version: u32, begin: u64, end: u64) -> Operation {
        operation(Action::Write(value(version)), begin, end)
    }

    fn unknown(operation: Operation) -> Operation {
        Operation { outcome: Outcome::Unknown, ..operation }
    }

    fn remove(begin: u64, end: u64) -> Operation {
        operation(Action::Remove, begin, end)
    }

    fn found(version: u32, begin: u64, end: u64) -> Operation {
        operation(Action::Found(value(version)), begin, end)
    }

    fn missed(begin: u64, end: u64) -> Operation {
        operation(Action::Missed, begin, end)
    }

    #[track_caller]
    fn refused(history: &[Operation], why: &str) {
        let violations = check(history, &[]);
        assert!(violations.iter().any(|it| it.0.contains(why)), "{why:?} not in {violations:?}");
    }

    #[track_caller]
    fn accepted(history: &[Operation]) {
        assert_eq!(check(history, &[]), []);
    }

    #[test]
    fn stale_values_are_found() {
        refused(&[write(1, 0, 1), write(2, 2, 3), found(1, 4, 5)], "stale");
        refused(&[write(1, 0, 1), remove(2, 3), found(1, 4, 5)], "stale");
        // A later change that overlaps the get hides nothing.
        refused(&[write(1, 0, 1), remove(2, 3), write(2, 4, 9), found(1, 5, 6)], "stale");
        // An early change that took long does not hide the one that counts.
        refused(&[write(1, 5, 6), remove(7, 8), write(2, 0, 9), found(1, 10, 11)], "stale");
        // Unknown ones happen late, but not at any time.
        let late = LATE.as_millis() as u64;
        let history = |remove_at| {
            [unknown(write(1, 0, 1)), remove(remove_at, remove_at), found(1, 90_000, 90_001)]
        };
        refused(&history(late + 2), "stale");
        accepted(&history(late - 2));
    }

    #[test]
    fn values_that_may_be_current_are_accepted() {
        accepted(&[write(1, 0, 1), found(1, 4, 5)]);
        accepted(&[write(1, 0, 3), write(2, 2, 4), found(1, 5, 6)]);
        accepted(&[write(1, 0, 1), remove(2, 5), found(1, 4, 6)]);
        accepted(&[write(1, 0, 1), unknown(remove(2, 3)), found(1, 4, 5)]);
        accepted(&[write(1, 0, 1), unknown(write(2, 2, 3)), found(2, 4, 5), found(1, 6, 7)]);
        // It is being written.
        accepted(&[write(1, 0, 9), found(1, 1, 2)]);
    }

    #[test]
    fn lost_values_are_found() {
        refused(&[write(1, 0, 1), missed(2, 3)], "lost");
        refused(&[remove(0, 1), write(1, 2, 3), missed(4, 5)], "lost");
        refused(&[write(1, 0, 1), missed(2, 3), remove(4, 5)], "lost");
        refused(&[write(1, 0, 1), remove(2, 3), write(2, 4, 5), missed(6, 7)], "lost");
        accepted(&[write(1, 0, 1), remove(2, 3), missed(4, 5)]);
        accepted(&[write(1, 0, 5), remove(2, 3), missed(6, 7)]);
        accepted(&[write(1, 0, 1), unknown(remove(2, 3)), missed(4, 5)]);
        accepted(&[unknown(write(1, 0, 1)), missed(2, 3)]);
        accepted(&[write(1, 0, 5), missed(2, 6)]);
        // Another one that is under way, has failed, or has found the object, takes nothing away.
        refused(&[write(1, 0, 1), write(2, 2, 9), missed(3, 4)], "lost");
        refused(&[write(1, 0, 1), unknown(write(2, 2, 3)), missed(5, 6)], "lost");
        let existing = Operation { outcome: Outcome::Existing, ..write(2, 2, 3) };
        refused(&[write(1, 0, 1), existing.clone(), missed(5, 6)], "lost");
        accepted(&[existing, found(2, 4, 5)]);
    }

    #[test]
    fn foreign_values_are_found() {
        refused(&[found(1, 0, 1)], "never put");
        refused(&[found(1, 0, 1), write(1, 2, 3)], "future");
        refused(&[operation(Action::WrongBytes("x".into()), 0, 1)], "wrong bytes");
        let elsewhere = Operation { key: 7, ..write(1, 0, 1) };
        refused(&[elsewhere, found(1, 2, 3)], "never put");
    }

    #[test]
    fn what_may_be_undone_is_excused_and_nothing_else() {
        let undoable = [Undoable { from: ms(20), to: ms(30) }];
        let lost = |end| [write(1, end - 1, end), missed(40, 41)];
        assert_eq!(check(&lost(25), &undoable), []);
        assert_eq!(check(&lost(19), &undoable).len(), 1);
        assert_eq!(check(&lost(31), &undoable).len(), 1);
        let undone = [write(1, 0, 1), remove(22, 23), found(1, 40, 41)];
        assert_eq!(check(&undone, &undoable), []);
        // What had replaced a value is undone, and its space had another use by then.
        assert_eq!(check(&[write(1, 0, 1), write(2, 22, 23), missed(40, 41)], &undoable), []);
        let wrong = [operation(Action::WrongBytes("x".into()), 24, 25)];
        assert_eq!(check(&wrong, &undoable).len(), 1);
    }

    #[test]
    fn an_outage_lasts_from_one_acknowledged_write_to_the_next() {
        let history = [write(1, 0, 1), unknown(write(2, 2, 3)), write(3, 9, 10), missed(11, 12)];
        assert_eq!(longest_outage(&history), ms(9));
    }
}
