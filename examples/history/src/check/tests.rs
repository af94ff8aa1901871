//! Histories that a checker which proves anything must refuse, and their neighbours that it must not.

use super::*;
use crate::{Action, Operation, Outcome, ValueId, ViolationKind};

fn ms(millis: u64) -> Moment {
    Moment::from(Duration::from_millis(millis))
}

fn value(version: u32) -> ValueId {
    ValueId { writer: 1, version }
}

fn operation(action: Action, begin: u64, end: u64) -> Operation {
    let outcome = Outcome::Done;
    Operation { client: 0, key: 0, action, outcome, begin: ms(begin), end: ms(end) }
}

fn write(version: u32, begin: u64, end: u64) -> Operation {
    operation(Action::Upsert(value(version)), begin, end)
}

fn put(version: u32, begin: u64, end: u64) -> Operation {
    operation(Action::Put(value(version)), begin, end)
}

fn with(outcome: Outcome, operation: Operation) -> Operation {
    Operation { outcome, ..operation }
}

fn unknown(operation: Operation) -> Operation {
    with(Outcome::Unknown, operation)
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

fn exist(exists: bool, begin: u64, end: u64) -> Operation {
    operation(Action::Exist(exists), begin, end)
}

/// Checks by these rules that the history has a violation of this kind, proven by its operations.
#[track_caller]
fn refused_by(rules: &Rules, history: &[Operation], kind: ViolationKind) {
    let violations = check(history, rules);
    let found = violations.iter().find(|violation| violation.kind == kind);
    let found = found.unwrap_or_else(|| panic!("not {kind}: {violations:?}"));
    assert!(!found.operations.is_empty());
    assert!(found.operations.iter().all(|operation| history.contains(operation)), "{found}");
}

#[track_caller]
fn refused(history: &[Operation], kind: ViolationKind) {
    refused_by(&Rules::default(), history, kind);
}

#[track_caller]
fn accepted_by(rules: &Rules, history: &[Operation]) {
    assert_eq!(check(history, rules), []);
}

#[track_caller]
fn accepted(history: &[Operation]) {
    accepted_by(&Rules::default(), history);
}

#[test]
fn stale_values_are_found() {
    use ViolationKind::{Stale, TwoValues};
    refused(&[write(1, 0, 1), write(2, 2, 3), found(1, 4, 5)], Stale);
    refused(&[write(1, 0, 1), remove(2, 3), found(1, 4, 5)], Stale);
    refused(&[write(1, 0, 1), with(Outcome::Absent, remove(2, 3)), found(1, 4, 5)], Stale);
    // A later change that overlaps the get hides nothing.
    refused(&[write(1, 0, 1), remove(2, 3), write(2, 4, 9), found(1, 5, 6)], Stale);
    // An early change that took long does not hide the one that counts.
    refused(&[write(1, 5, 6), remove(7, 8), write(2, 0, 9), found(1, 10, 11)], Stale);
    // New, then old: whatever the order of the writes was.
    let writes = [write(1, 0, 10), write(2, 0, 10)];
    let reads = [found(1, 1, 2), found(2, 3, 4), found(1, 5, 6)];
    refused(&[&writes[..], &reads].concat(), Stale);
    let reads = [found(1, 1, 2), found(2, 3, 4), found(1, 5, 6), found(2, 7, 8)];
    refused(&[&writes[..], &reads].concat(), TwoValues);
    // It was missed in between, so that it cannot have come back.
    let evict = Rules { may_evict: true, ..Rules::default() };
    refused_by(&evict, &[write(1, 0, 1), missed(2, 3), found(1, 4, 5)], Stale);
    // Unknown ones happen late, but not at any time.
    let late = LATE.as_millis() as u64;
    let history = |remove_at| {
        [unknown(write(1, 0, 1)), remove(remove_at, remove_at), found(1, 90_000, 90_001)]
    };
    refused(&history(late + 2), Stale);
    accepted(&history(late - 2));
    // One that was read has happened by then.
    let read = [unknown(write(1, 0, 1)), found(1, 2, 3), remove(4, 5), found(1, 6, 7)];
    refused(&read, Stale);
}

#[test]
fn values_that_may_be_current_are_accepted() {
    accepted(&[write(1, 0, 1), found(1, 4, 5)]);
    accepted(&[write(1, 0, 3), write(2, 2, 4), found(1, 5, 6)]);
    accepted(&[write(1, 0, 1), remove(2, 5), found(1, 4, 6)]);
    accepted(&[write(1, 0, 1), unknown(remove(2, 3)), found(1, 4, 5)]);
    accepted(&[write(1, 0, 1), unknown(write(2, 2, 3)), found(1, 4, 5), found(2, 6, 7)]);
    // It is being written.
    accepted(&[write(1, 0, 9), found(1, 1, 2)]);
    // They meet in one moment.
    accepted(&[write(1, 0, 1), write(2, 1, 2), found(1, 1, 1), found(2, 1, 1)]);
}

#[test]
fn an_unknown_write_that_was_seen_has_replaced_what_was_there() {
    let history = [write(1, 0, 1), unknown(write(2, 2, 3)), found(2, 4, 5), found(1, 6, 7)];
    refused(&history, ViolationKind::Stale);
}

#[test]
fn lost_values_are_found() {
    use ViolationKind::Lost;
    refused(&[write(1, 0, 1), missed(2, 3)], Lost);
    refused(&[remove(0, 1), write(1, 2, 3), missed(4, 5)], Lost);
    refused(&[write(1, 0, 1), missed(2, 3), remove(4, 5)], Lost);
    refused(&[write(1, 0, 1), remove(2, 3), write(2, 4, 5), missed(6, 7)], Lost);
    accepted(&[write(1, 0, 1), remove(2, 3), missed(4, 5)]);
    accepted(&[write(1, 0, 5), remove(2, 3), missed(6, 7)]);
    accepted(&[write(1, 0, 1), unknown(remove(2, 3)), missed(4, 5)]);
    accepted(&[unknown(write(1, 0, 1)), missed(2, 3)]);
    accepted(&[write(1, 0, 5), missed(2, 6)]);
    // Another one that is under way, has failed, or has found the object, takes nothing away.
    refused(&[write(1, 0, 1), write(2, 2, 9), missed(3, 4)], Lost);
    refused(&[write(1, 0, 1), unknown(write(2, 2, 3)), missed(5, 6)], Lost);
    let existing = with(Outcome::Existing, put(2, 2, 3));
    refused(&[write(1, 0, 1), existing, missed(5, 6)], Lost);
    // A removal may be late, but not before what was seen after it.
    let late = LATE.as_millis() as u64;
    let history =
        |at| [write(1, 0, 1), unknown(remove(2, 3)), found(1, at, at + 1), missed(at + 2, at + 3)];
    refused(&history(late + 4), Lost);
    accepted(&history(late - 4));
}

#[test]
fn what_vanishes_by_the_rules_is_not_lost() {
    let lost = [write(1, 0, 1), missed(20, 21)];
    let rules = |from, to| {
        let losses = vec![Window { from: ms(from), to: ms(to) }];
        Rules { losses, ..Rules::default() }
    };
    accepted_by(&Rules { may_evict: true, ..Rules::default() }, &lost);
    accepted_by(&rules(5, 6), &lost);
    refused_by(&rules(22, 23), &lost, ViolationKind::Lost);
    let after = [write(1, 7, 8), missed(20, 21)];
    refused_by(&rules(5, 6), &after, ViolationKind::Lost);
    // A write that began before the loss ends, and its value vanishes, long after it.
    accepted_by(&rules(5, 6), &[write(1, 4, 15), write(2, 8, 9), missed(20, 21)]);
    let hidden = [write(1, 0, 1), exist(false, 2, 3), found(1, 4, 5)];
    accepted_by(&Rules { may_suspend: true, ..Rules::default() }, &hidden);
    refused(&hidden, ViolationKind::Stale);
}

#[test]
fn puts_do_not_replace() {
    refused(&[put(1, 0, 1), put(2, 2, 3)], ViolationKind::Overwritten);
    let suspended = Rules { may_suspend: true, ..Rules::default() };
    accepted_by(&suspended, &[put(1, 0, 1), put(2, 2, 3)]);
    accepted(&[put(1, 0, 1), write(2, 2, 3)]);
    accepted(&[put(1, 0, 1), remove(2, 3), put(2, 4, 5)]);
    accepted(&[put(1, 0, 4), put(2, 2, 3), remove(1, 5)]);
    let existing = with(Outcome::Existing, put(2, 2, 3));
    accepted(&[put(1, 0, 1), existing, found(1, 4, 5)]);
    refused(&[put(1, 0, 1), existing, found(2, 4, 5)], ViolationKind::NotStored);
    refused(&[with(Outcome::Refused, put(1, 0, 1)), found(1, 4, 5)], ViolationKind::NotStored);
    let own = Rules { may_store_existing: true, ..Rules::default() };
    accepted_by(&own, &[existing, found(2, 4, 5)]);
}

#[test]
fn objects_that_cannot_exist_are_found() {
    use ViolationKind::Phantom;
    refused(&[exist(true, 0, 1)], Phantom);
    refused(&[exist(true, 0, 1), write(1, 2, 3)], Phantom);
    refused(&[write(1, 0, 1), remove(2, 3), exist(true, 4, 5)], Phantom);
    refused(&[with(Outcome::Existing, put(1, 0, 1))], Phantom);
    accepted(&[write(1, 0, 1), exist(true, 4, 5), remove(6, 7), exist(false, 8, 9)]);
    accepted(&[write(1, 0, 1), remove(2, 3), write(2, 2, 9), exist(true, 4, 5)]);
    accepted(&[unknown(write(1, 0, 1)), remove(2, 3), exist(true, 4, 5)]);
    refused(&[write(1, 0, 1), exist(true, 2, 3), missed(4, 5)], ViolationKind::Lost);
}

#[test]
fn refused_removals_remove_nothing_unless_they_were_repeated() {
    let history = [write(1, 0, 1), with(Outcome::Refused, remove(2, 3)), missed(4, 5)];
    refused(&history, ViolationKind::Lost);
    let repeated = Rules { may_repeat: true, ..Rules::default() };
    accepted_by(&repeated, &history);
    let absent = [write(1, 0, 1), with(Outcome::Absent, remove(2, 3))];
    refused(&absent, ViolationKind::Lost);
    accepted_by(&repeated, &absent);
}

#[test]
fn foreign_values_are_found() {
    use ViolationKind::{Future, NeverWritten, WrittenTwice, WrongBytes};
    refused(&[found(1, 0, 1)], NeverWritten);
    refused(&[found(1, 0, 1), write(1, 2, 3)], Future);
    refused(&[operation(Action::WrongBytes, 0, 1)], WrongBytes);
    refused(&[Operation { key: 7, ..write(1, 0, 1) }, found(1, 2, 3)], NeverWritten);
    let twice = [write(1, 0, 1), remove(2, 3), write(1, 4, 5), found(1, 6, 7), exist(true, 8, 9)];
    assert_eq!(check(&twice, &Rules::default()).len(), 1);
    refused(&twice, WrittenTwice);
}

#[test]
fn what_may_be_undone_is_excused_and_nothing_else() {
    let rules = Rules { undoable: vec![Window { from: ms(20), to: ms(30) }], ..Rules::default() };
    let lost = |end| [write(1, end - 1, end), missed(40, 41)];
    assert_eq!(check(&lost(25), &rules), []);
    assert_eq!(check(&lost(19), &rules).len(), 1);
    assert_eq!(check(&lost(32), &rules).len(), 1);
    accepted_by(&rules, &[write(1, 0, 1), remove(22, 23), found(1, 40, 41)]);
    // What had replaced a value is undone, and its space had another use by then.
    accepted_by(&rules, &[write(1, 0, 1), write(2, 22, 23), missed(40, 41)]);
    // A get saw what was undone.
    let seen = [write(1, 0, 1), write(2, 22, 23), found(2, 24, 25), found(1, 40, 41)];
    accepted_by(&rules, &seen);
    // What was replaced before is not seen, though.
    let stale = [write(1, 0, 1), write(2, 2, 3), found(1, 24, 25)];
    refused_by(&rules, &stale, ViolationKind::Stale);
    assert_eq!(check(&[operation(Action::WrongBytes, 24, 25)], &rules).len(), 1);
}

#[test]
fn what_is_undone_of_one_key_excuses_no_other() {
    let undone = BTreeMap::from([(0, vec![Window { from: ms(20), to: ms(30) }])]);
    let rules = Rules { undone, ..Rules::default() };
    let lost = [write(1, 24, 25), missed(40, 41)];
    accepted_by(&rules, &lost);
    let elsewhere = lost.map(|operation| Operation { key: 9, ..operation });
    refused_by(&rules, &elsewhere, ViolationKind::Lost);
    refused_by(&rules, &[write(1, 18, 19), missed(40, 41)], ViolationKind::Lost);
    let stale = [write(1, 0, 1), write(2, 2, 3), found(1, 24, 25)];
    refused_by(&rules, &stale, ViolationKind::Stale);
    refused_by(&rules, &[operation(Action::WrongBytes, 24, 25)], ViolationKind::WrongBytes);
}

#[test]
fn a_violation_is_told_with_its_operations() {
    let history = [write(1, 0, 1), remove(2, 3), found(1, 4, 5)];
    let violations = check(&history, &Rules::default());
    assert_eq!(violations.len(), 1);
    assert_eq!(
        violations[0].to_string(),
        "key 0: stale: the value of the first was removed, replaced or missed before; \
         client 0 got 1.1 [0.004000000 - 0.005000000]; \
         client 0 removed [0.002000000 - 0.003000000]; \
         client 0 upserted 1.1 [0.000000000 - 0.001000000]"
    );
}

#[test]
fn keys_are_checked_apart() {
    let elsewhere = |operation| Operation { key: 9, ..operation };
    accepted(&[write(1, 0, 1), elsewhere(remove(2, 3)), found(1, 4, 5)]);
    let violations = check(
        &[elsewhere(write(1, 0, 1)), write(1, 0, 1), missed(2, 3), elsewhere(missed(2, 3))],
        &Rules::default(),
    );
    assert_eq!(violations.iter().map(Violation::key).collect::<Vec<_>>(), [0, 9]);
}
