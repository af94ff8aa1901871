//! The findings of a check, in words or as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use mc_history::{Action, History, Operation, Outcome, Violation};
use serde_json::json;

use crate::args::Check;

/// The most violations that are printed in words.
const MOST: usize = 20;

/// Prints counts and violations.
pub(crate) fn print(check: &Check, history: &History, violations: &[Violation]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if check.json {
        let report = as_json(history, violations);
        return writeln!(out, "{report}");
    }
    let operations = &history.operations;
    let clients: BTreeSet<u32> = operations.iter().map(|operation| operation.client).collect();
    let keys: BTreeSet<u32> = operations.iter().map(|operation| operation.key).collect();
    writeln!(
        out,
        "{} operations by {} clients on {} keys; {} reads failed, {} losses, {} logs cut off",
        operations.len(),
        clients.len(),
        keys.len(),
        history.failed_reads,
        history.losses.len(),
        history.cut_off,
    )?;
    for (kind, count) in kinds(operations) {
        writeln!(out, "{count:9} {kind}")?;
    }
    for violation in violations.iter().take(MOST) {
        let name = history.names.get(&violation.key()).map_or("", |name| name);
        writeln!(out, "violation: {violation} {name:?}")?;
    }
    if violations.len() > MOST {
        writeln!(out, "{} more; --json prints all", violations.len() - MOST)?;
    }
    writeln!(out, "violations: {}", violations.len())
}

fn as_json(history: &History, violations: &[Violation]) -> serde_json::Value {
    let violations: Vec<_> = violations
        .iter()
        .map(|violation| {
            let operations: Vec<String> =
                violation.operations.iter().map(ToString::to_string).collect();
            json!({
                "kind": violation.kind.as_str(),
                "key": violation.key(),
                "name": history.names.get(&violation.key()),
                "operations": operations,
            })
        })
        .collect();
    json!({
        "operations": history.operations.len(),
        "kinds": kinds(&history.operations),
        "failed_reads": history.failed_reads,
        "losses": history.losses.len(),
        "cut_off": history.cut_off,
        "violations": violations,
    })
}

/// How many operations there are of each kind.
fn kinds(operations: &[Operation]) -> BTreeMap<&'static str, u64> {
    let mut kinds = BTreeMap::new();
    for operation in operations {
        *kinds.entry(kind(operation)).or_default() += 1;
    }
    kinds
}

fn kind(operation: &Operation) -> &'static str {
    match (operation.action, operation.outcome) {
        (Action::Put(_), Outcome::Done) => "put: stored",
        (Action::Put(_), Outcome::Existing) => "put: existing",
        (Action::Put(_), Outcome::Unknown) => "put: unknown",
        (Action::Put(_), _) => "put: refused",
        (Action::Upsert(_), Outcome::Done) => "upsert: stored",
        (Action::Upsert(_), Outcome::Unknown) => "upsert: unknown",
        (Action::Upsert(_), _) => "upsert: refused",
        (Action::Remove, Outcome::Done) => "remove: removed",
        (Action::Remove, Outcome::Absent) => "remove: absent",
        (Action::Remove, Outcome::Unknown) => "remove: unknown",
        (Action::Remove, _) => "remove: refused",
        (Action::Found(_), _) => "get: found",
        (Action::Missed, _) => "get: missed",
        (Action::WrongBytes, _) => "get: wrong bytes",
        (Action::Exist(true), _) => "exist: yes",
        (Action::Exist(false), _) => "exist: no",
    }
}
