//! `explain`: why a key is as it is.

use std::process::ExitCode;

use mc_cli::{became, duration, kept_because, table, visible};
use mc_meta::{EvictionBlocker, KeyEvent};
use mc_rpc::{ObjectDescription, ObjectExplanation};
use mc_store::Client;
use mc_types::{ByteSize, KeyRef};
use serde_json::{Value, json};

use crate::args;
use crate::error::CtlError;
use crate::stat::object_json;
use crate::text::print;

pub(crate) async fn explain(
    client: &Client,
    explain: &args::Explain,
) -> Result<ExitCode, CtlError> {
    let key = KeyRef::new(&explain.key)
        .map_err(|source| CtlError::BadKey { key: explain.key.clone(), source })?;
    let found = client.master().explain(key).await?;
    let text = if explain.json {
        json(&explain.key, &found).to_string() + "\n"
    } else {
        human(&explain.key, &found)
    };
    print(text.as_bytes())?;
    Ok(match found.object {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn human(key: &str, found: &ObjectExplanation) -> String {
    let key = visible(key);
    let mut text = match &found.object {
        None => format!("{key} is not there{}\n", why_not(&found.history)),
        Some(object) => format!("{key} is there: {}\n{}", place(object), kept(&found.kept_by)),
    };
    if !found.history.is_empty() {
        let rows: Vec<[String; 2]> = found
            .history
            .iter()
            .map(|event| [format!("{} ago", duration(event.ago)), became(&event.kind)])
            .collect();
        text.push('\n');
        text += &table([">WHEN", "EVENT OF THE KEY"], &rows);
    }
    text
}

/// The size of an object and where it is.
fn place(object: &ObjectDescription) -> String {
    let mut places: Vec<String> = object
        .replicas
        .iter()
        .map(|replica| format!("in the memory of {}", visible(&replica.segment_name)))
        .collect();
    places.extend(object.file.map(|_| "in a file of the shared tier".to_owned()));
    places
        .extend(object.local_disks.iter().map(|disk| format!("on the disk at {}", disk.endpoint)));
    let size = ByteSize::bytes(object.slices.total_len());
    format!("{size}, {}, not used for {}", places.join(", "), duration(object.idle))
}

/// Why an object stays, each reason on a line.
fn kept(reasons: &[EvictionBlocker]) -> String {
    if reasons.is_empty() {
        return "nothing keeps it: it goes when room is needed and it is its turn\n".into();
    }
    reasons.iter().map(|reason| format!("kept: {}\n", kept_because(reason))).collect()
}

/// The end of the sentence that a key is not there.
fn why_not(history: &[KeyEvent]) -> String {
    match history.first() {
        None => {
            ", and the master remembers nothing of it: it was never put, or that is long ago".into()
        }
        Some(event) => format!(": {}, {} ago", became(&event.kind), duration(event.ago)),
    }
}

fn json(key: &str, found: &ObjectExplanation) -> Value {
    let history: Vec<Value> = found
        .history
        .iter()
        .map(
            |event| json!({ "ago_ms": event.ago.as_millis() as u64, "event": became(&event.kind) }),
        )
        .collect();
    let kept_by: Vec<String> = found.kept_by.iter().map(kept_because).collect();
    let object = found.object.as_ref().map(|object| object_json(key, object));
    json!({ "key": key, "object": object, "kept_by": kept_by, "history": history })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mc_meta::{KeyEventKind, Removal};
    use mc_types::{ErrorCode, Generation};

    use super::*;

    fn gone(history: Vec<KeyEvent>) -> ObjectExplanation {
        ObjectExplanation { object: None, kept_by: Vec::new(), history }
    }

    #[test]
    fn what_is_not_there_has_a_reason() {
        let never = human("a\n", &gone(Vec::new()));
        assert!(
            never.starts_with("a\\n is not there, and the master remembers nothing"),
            "{never}"
        );
        let event = |secs, kind| KeyEvent { ago: Duration::from_secs(secs), kind };
        let generation = Generation::new(3);
        let history = vec![
            event(2, KeyEventKind::Refused { code: ErrorCode::Full }),
            event(60, KeyEventKind::Removed { generation, cause: Removal::Evicted }),
        ];
        let text = human("a", &gone(history.clone()));
        assert!(text.starts_with("a is not there: a put of it was refused ("), "{text}");
        assert!(text.contains("60.00 s ago  it was evicted to make room\n"), "{text}");
        let json = json("a", &gone(history));
        assert_eq!(json["history"][1]["ago_ms"], 60_000);
        assert_eq!(json["object"], Value::Null);
    }

    #[test]
    fn what_keeps_an_object_is_told_line_by_line() {
        assert!(kept(&[]).starts_with("nothing keeps it"));
        let remaining = Duration::from_millis(1500);
        let text = kept(&[EvictionBlocker::HardPin, EvictionBlocker::Lease { remaining }]);
        assert_eq!(text, "kept: pinned until it is removed\nkept: under lease for 1.50 s more\n");
    }
}
