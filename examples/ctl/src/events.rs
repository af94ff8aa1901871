//! `events`: what the master publishes, event by event.

use std::process::ExitCode;

use mc_cli::visible;
use mc_events::subscribe::{EventBatch, EventTail, SubscribeError, SubscriberConfig};
use mc_events::{Event, Replica};
use serde_json::{Value, json};

use crate::args;
use crate::error::CtlError;
use crate::text::print_while_read;

/// The ports of a master without flags for them.
const PORTS: (u16, u16) = (19997, 19998);

/// Prints events until there are enough, their reader is gone, or Ctrl-C.
pub(crate) async fn events(master: &str, events: &args::Events) -> Result<ExitCode, CtlError> {
    let config = SubscriberConfig {
        endpoint: endpoint(events.endpoint.as_ref(), master, PORTS.0)?,
        // Only for a replay.
        replay_endpoint: match events.from {
            None => String::new(),
            Some(_) => endpoint(events.replay_endpoint.as_ref(), master, PORTS.1)?,
        },
        topic: events.topic.clone(),
        ..SubscriberConfig::default()
    };
    tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => {}
        outcome = follow(config, events) => outcome?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow(config: SubscriberConfig, events: &args::Events) -> Result<(), CtlError> {
    let connected = EventTail::connect(config, events.from).await;
    let mut tail = connected.map_err(|error| match error {
        SubscribeError::Connect { .. } => CtlError::NoEvents(error),
        error => CtlError::Events(error),
    })?;
    let mut left = events.count.unwrap_or(u64::MAX);
    while left > 0 {
        let batch = tail.next().await.map_err(CtlError::Events)?;
        let text = lines(&batch, left, events.json);
        left = left.saturating_sub(batch.events.len() as u64);
        if !print_while_read(text.as_bytes())? {
            break;
        }
    }
    Ok(())
}

/// The endpoint that is named, or else the one with this port on the master's host.
fn endpoint(named: Option<&String>, master: &str, port: u16) -> Result<String, CtlError> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let host = if master.starts_with("unix:") {
        Some("127.0.0.1")
    } else if master.contains([';', ',', '/']) {
        None
    } else {
        master.rsplit_once(':').map(|(host, _)| host)
    };
    let host = host.ok_or_else(|| CtlError::WhichEndpoint { master: master.into() })?;
    Ok(format!("tcp://{host}:{port}"))
}

/// The first `most` events of a message, a line for each, and one for messages that are missing before it.
fn lines(batch: &EventBatch, most: u64, as_json: bool) -> String {
    let number = batch.number;
    let mut text = String::new();
    if batch.missed > 0 {
        text += &match as_json {
            true => json!({ "message": number, "event": "missed", "messages": batch.missed })
                .to_string(),
            false => format!("{number:>8}  missed    {} messages before this one", batch.missed),
        };
        text.push('\n');
    }
    for event in batch.events.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let Some(seen) = Seen::of(event) else { continue };
        text += &match as_json {
            true => seen.json(number).to_string(),
            false => seen.line(number),
        };
        text.push('\n');
    }
    text
}

/// The content of a line.
struct Seen<'a> {
    event: &'static str,
    key: &'a str,
    replicas: &'a [Replica],
    reason: Option<&'static str>,
}

impl<'a> Seen<'a> {
    /// `None` for events of later versions.
    fn of(event: &'a Event) -> Option<Self> {
        let seen = |event, key, replicas| Self { event, key, replicas, reason: None };
        Some(match event {
            Event::Store(it) | Event::MediumStored(it) => seen("stored", &it.key, &it.replicas),
            Event::Update(it) if it.replicas.is_empty() => seen("removed", &it.key, &[]),
            Event::Update(it) => seen("changed", &it.key, &it.replicas),
            Event::Removed(it) | Event::MediumRemoved(it) => Self {
                reason: it.reason.map(|reason| reason.name()),
                ..seen("removed", &it.key, &[])
            },
            Event::RemoveAll(_) => seen("cleared", "", &[]),
            _ => return None,
        })
    }

    fn line(&self, number: u64) -> String {
        let mut line = format!("{number:>8}  {:<8}  {}", self.event, visible(self.key));
        for replica in self.replicas {
            line += &format!("  {}", replica.medium.kind());
            if !replica.location.is_empty() {
                line += &format!("={}", visible(&replica.location));
            }
        }
        if let Some(reason) = self.reason {
            line += &format!("  {reason}");
        }
        line.trim_end().into()
    }

    fn json(&self, number: u64) -> Value {
        let replica = |replica: &Replica| json!({ "medium": replica.medium.kind(), "endpoint": replica.location });
        json!({
            "message": number,
            "event": self.event,
            "key": self.key,
            "replicas": self.replicas.iter().map(replica).collect::<Vec<_>>(),
            "reason": self.reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_looked_for_on_the_master_s_host() {
        let of = |master| endpoint(None, master, 19997);
        assert_eq!(of("h:50051").unwrap(), "tcp://h:19997");
        assert_eq!(of("[::1]:50051").unwrap(), "tcp://[::1]:19997");
        assert_eq!(of("unix:/run/mc").unwrap(), "tcp://127.0.0.1:19997");
        for several in ["a:1;b:1", "a:1,b:1", "etcd://h:2379/c", "h"] {
            assert!(of(several).unwrap_err().to_string().contains("--endpoint"), "{several}");
        }
        let named = "ipc:///run/events".to_owned();
        assert_eq!(endpoint(Some(&named), "a:1;b:1", 19997).unwrap(), named);
    }
}
