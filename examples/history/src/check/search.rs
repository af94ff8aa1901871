//! The slow truth: a search for an order that explains a small history.

use std::collections::HashSet;

use super::Rules;
use crate::{Action, Moment, Operation, Outcome, ValueId};

/// Returns whether the operations, all of one key, can be given moments within their times so that
/// a register explains them. Knows nothing of undoable times and repeated calls.
pub(super) fn is_linearizable(history: &[Operation], rules: &Rules) -> bool {
    assert!(
        history.len() < 32
            && rules.undoable.is_empty()
            && rules.undone.is_empty()
            && !rules.may_repeat
    );
    let mut search = Search { history, rules, seen: HashSet::new() };
    search.goes_on(0, None, Moment::ZERO)
}

struct Search<'a> {
    history: &'a [Operation],
    rules: &'a Rules,
    /// Operations that happened, the value that was current then, and the moment.
    seen: HashSet<(u32, Option<ValueId>, Moment)>,
}

impl Search<'_> {
    fn goes_on(&mut self, happened: u32, state: Option<ValueId>, now: Moment) -> bool {
        let all = self.history.iter().enumerate();
        let mut left =
            all.filter(|(nth, it)| happened & 1 << nth == 0 && it.outcome != Outcome::Unknown);
        if left.next().is_none() {
            return true;
        }
        if !self.seen.insert((happened, state, now)) {
            return false;
        }
        for (nth, operation) in self.history.iter().enumerate() {
            let then = now.max(operation.begin);
            if happened & 1 << nth != 0 || then > self.rules.settled(operation) {
                continue;
            }
            let next = self.apply(operation, state);
            if next.is_some_and(|next| self.goes_on(happened | 1 << nth, next, then)) {
                return true;
            }
        }
        let Some(value) = state else { return false };
        if self.rules.may_evict && self.goes_on(happened, None, now) {
            return true;
        }
        let begin =
            self.history.iter().find(|it| it.action.written() == Some(value)).unwrap().begin;
        let losses = self.rules.losses.clone();
        losses
            .iter()
            .any(|loss| begin <= loss.to && self.goes_on(happened, None, now.max(loss.from)))
    }

    /// The state after the operation, if it can happen in this one.
    fn apply(&self, operation: &Operation, state: Option<ValueId>) -> Option<Option<ValueId>> {
        let (next, can_happen) = match (operation.action, operation.outcome) {
            (Action::Put(value), Outcome::Done) => {
                (Some(value), state.is_none() || self.rules.may_suspend)
            }
            (Action::Put(value), Outcome::Unknown) => (Some(value), true),
            (Action::Put(_), Outcome::Existing) => (state, state.is_some()),
            (Action::Upsert(value), Outcome::Done | Outcome::Unknown) => (Some(value), true),
            (Action::Put(_) | Action::Upsert(_) | Action::Remove, Outcome::Refused) => {
                (state, true)
            }
            (Action::Remove, Outcome::Done | Outcome::Unknown) => (None, true),
            (Action::Remove, Outcome::Absent) | (Action::Missed, _) => (state, state.is_none()),
            (Action::Found(value), _) => (state, state == Some(value)),
            (Action::Exist(true), _) => (state, state.is_some()),
            (Action::Exist(false), _) => (state, state.is_none() || self.rules.may_suspend),
            _ => (state, false),
        };
        can_happen.then_some(next)
    }
}
