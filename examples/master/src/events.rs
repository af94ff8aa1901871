//! Publishing of KV events, from the command line.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::ArgAction;
use mc_cli::parse_duration;
use mc_events::{Encoding, EndpointConfig, EventSystem, PublisherConfig};

const ENCODINGS: &str = "choose s4, mooncake, vllm or vllm-positional";

/// The flags, with Mooncake's names and defaults as far as it has them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "KV events")]
pub(crate) struct EventArgs {
    /// Publish what becomes of objects over ZeroMQ, for routers.
    #[arg(
        long = "enable_kv_event_publish",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    enabled: bool,
    /// Where subscribers connect: tcp://HOST:PORT, tcp://*:PORT for every address of this host,
    /// or ipc://PATH. Every process that can connect can read the keys of all tenants.
    #[arg(
        long = "kv_event_publisher_endpoint",
        value_name = "ENDPOINT",
        default_value = "tcp://*:19997"
    )]
    endpoint: String,
    /// Where subscribers ask for messages that they missed, and for snapshots; empty for neither.
    #[arg(
        long = "kv_event_publisher_replay_endpoint",
        value_name = "ENDPOINT",
        default_value = ""
    )]
    replay_endpoint: String,
    /// The first frame of every message.
    #[arg(long = "kv_event_publisher_topic", value_name = "TEXT", default_value = "mooncake")]
    topic: String,
    /// Most messages that wait for one subscriber; it misses further ones.
    #[arg(long = "kv_event_publisher_hwm", value_name = "N", default_value = "100000")]
    hwm: NonZeroUsize,
    /// Time after a message in which events gather for the next.
    #[arg(
        long = "kv_event_publisher_send_interval_ms",
        value_name = "MS|DURATION",
        default_value = "0",
        value_parser = parse_interval
    )]
    send_interval: Duration,
    /// Most events in one message.
    #[arg(long = "kv_event_publisher_max_batch_size", value_name = "N", default_value = "50")]
    max_batch_size: NonZeroUsize,
    /// Take the next free port when the port is in use.
    #[arg(
        long = "kv_event_publisher_auto_port",
        default_value_t = true,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    auto_port: bool,
    /// Form of the messages: s4 (Mooncake's event manual), mooncake (its RFC 1527), vllm, or
    /// vllm-positional (vLLM before 0.24).
    #[arg(
        long = "kv_event_publisher_encoding",
        value_name = "NAME",
        default_value = "s4",
        value_parser = parse_encoding_name
    )]
    encoding: EncodingName,
    /// Name of this store in messages of the form mooncake.
    #[arg(long = "kv_event_publisher_backend_id", value_name = "NAME", default_value = "mc-store")]
    backend_id: String,
    /// Publish the events of this tenant alone.
    #[arg(long = "kv_event_publisher_tenant", value_name = "NAME")]
    tenant: Option<String>,
    /// Tell with each removal why the object is gone: one more element in messages of the form s4, the
    /// key removal_reason in those of mooncake and vllm. Strict readers of these forms may refuse it.
    #[arg(
        long = "kv_event_publisher_removal_reasons",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        action = ArgAction::Set
    )]
    removal_reasons: bool,
    /// One more endpoint, such as encoding=vllm,endpoint=tcp://*:5557,replay=tcp://*:5558,
    /// topic=kv-events,tenant=t,removal_reasons=true without spaces; may be given several times.
    #[arg(
        long = "kv_event_publisher_also",
        value_name = "KEY=VALUE,…",
        value_parser = parse_also
    )]
    also: Vec<Also>,
    /// Memory for what engines say of their blocks, which vLLM's forms need while an object
    /// lives; an object that finds no room is left out there.
    #[arg(
        long = "kv_event_publisher_info_memory",
        value_name = "SIZE",
        default_value = "256MB",
        value_parser = mc_cli::parse_positive_size
    )]
    info_memory: mc_types::ByteSize,
}

impl EventArgs {
    /// The publisher's settings; `None` when nothing is published.
    pub(crate) fn config(&self) -> Option<PublisherConfig> {
        let more = |also: &Also| EndpointConfig {
            endpoint: also.endpoint.clone(),
            replay_endpoint: also.replay.clone(),
            topic: also.topic.clone(),
            encoding: self.encoding(also.encoding),
            tenant: also.tenant.clone(),
            removal_reasons: also.removal_reasons,
        };
        self.enabled.then(|| PublisherConfig {
            endpoint: self.endpoint.clone(),
            replay_endpoint: self.replay_endpoint.clone(),
            topic: self.topic.clone(),
            hwm: self.hwm.get(),
            send_interval: self.send_interval,
            max_batch_size: self.max_batch_size.get(),
            auto_port: self.auto_port,
            encoding: self.encoding(self.encoding),
            tenant: self.tenant.clone(),
            removal_reasons: self.removal_reasons,
            more_endpoints: self.also.iter().map(more).collect(),
            ..PublisherConfig::default()
        })
    }

    /// Bytes of metadata that are kept.
    pub(crate) fn info_bytes(&self) -> usize {
        usize::try_from(self.info_memory.as_u64()).unwrap_or(usize::MAX)
    }

    fn encoding(&self, name: EncodingName) -> Encoding {
        match name {
            EncodingName::S4 => Encoding::S4,
            EncodingName::Mooncake => Encoding::Mooncake { backend_id: self.backend_id.clone() },
            EncodingName::Vllm => Encoding::Vllm,
            EncodingName::VllmPositional => Encoding::VllmPositional,
        }
    }
}

/// A line for each endpoint, with the port that was free.
pub(crate) fn announcement(config: &PublisherConfig, system: &EventSystem) -> String {
    let lines = config.endpoints().into_iter().zip(system.endpoints()).map(|(config, bound)| {
        let replay = bound.replay_endpoint.as_ref();
        let replay = replay.map_or_else(String::new, |replay| format!(", replay at {replay}"));
        format!("KV events ({}) published at {}{replay}\n", config.encoding.name(), bound.endpoint)
    });
    lines.collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EncodingName {
    #[default]
    S4,
    Mooncake,
    Vllm,
    VllmPositional,
}

#[derive(Debug, thiserror::Error)]
#[error("{ENCODINGS}")]
struct UnknownEncoding;

fn parse_encoding_name(text: &str) -> Result<EncodingName, UnknownEncoding> {
    Ok(match text {
        "s4" => EncodingName::S4,
        "mooncake" => EncodingName::Mooncake,
        "vllm" => EncodingName::Vllm,
        "vllm-positional" => EncodingName::VllmPositional,
        _ => return Err(UnknownEncoding),
    })
}

/// The longest interval: subscribers take longer silence for a dead publisher.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
enum BadInterval {
    #[error(transparent)]
    Duration(#[from] mc_cli::ParseDurationError),
    #[error("choose at most 60s")]
    TooLong,
}

fn parse_interval(text: &str) -> Result<Duration, BadInterval> {
    let interval = parse_duration(text)?;
    if interval > MAX_INTERVAL { Err(BadInterval::TooLong) } else { Ok(interval) }
}

/// A further endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Also {
    endpoint: String,
    replay: String,
    topic: String,
    encoding: EncodingName,
    tenant: Option<String>,
    removal_reasons: bool,
}

#[derive(Debug, thiserror::Error)]
enum BadEndpoint {
    #[error(
        "expected KEY=VALUE, separated by commas, with encoding, endpoint, replay, topic, tenant or \
         removal_reasons (true or false) as KEY"
    )]
    Malformed,
    #[error("endpoint is missing; write endpoint=tcp://HOST:PORT")]
    NoEndpoint,
    #[error(transparent)]
    Encoding(#[from] UnknownEncoding),
}

fn parse_also(text: &str) -> Result<Also, BadEndpoint> {
    let mut also = Also::default();
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').ok_or(BadEndpoint::Malformed)?;
        match key.trim() {
            "endpoint" => also.endpoint = value.into(),
            "replay" => also.replay = value.into(),
            "topic" => also.topic = value.into(),
            "tenant" => also.tenant = Some(value.into()),
            "removal_reasons" => {
                also.removal_reasons = value.parse().map_err(|_| BadEndpoint::Malformed)?;
            }
            "encoding" => also.encoding = parse_encoding_name(value)?,
            _ => return Err(BadEndpoint::Malformed),
        }
    }
    if also.endpoint.is_empty() { Err(BadEndpoint::NoEndpoint) } else { Ok(also) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Args {
        #[command(flatten)]
        events: EventArgs,
    }

    fn args(flags: &[&str]) -> EventArgs {
        let parsed: Result<Args, _> = mc_cli::parse_from(
            std::iter::once("mc-master").chain(flags.iter().copied()).map(Into::into),
        );
        parsed.unwrap().events
    }

    #[test]
    fn the_defaults_are_those_of_the_manual() {
        assert!(args(&[]).config().is_none(), "off unless asked for");
        let config = args(&["--enable_kv_event_publish"]).config().unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", PublisherConfig::default()));
    }

    #[test]
    fn every_setting_reaches_the_publisher() {
        let config = args(&[
            "-enable_kv_event_publish=true",
            "-kv_event_publisher_endpoint=ipc:///run/events",
            "--kv-event-publisher-replay-endpoint=tcp://*:1",
            "--kv_event_publisher_topic=kv@pod@model",
            "-kv_event_publisher_hwm",
            "7",
            "--kv_event_publisher_send_interval_ms=5",
            "--kv_event_publisher_max_batch_size=9",
            "--kv_event_publisher_auto_port=false",
            "--kv_event_publisher_encoding=mooncake",
            "--kv_event_publisher_backend_id=store-7",
            "--kv_event_publisher_tenant=a",
            "--kv_event_publisher_also=encoding=vllm,endpoint=tcp://*:5557,replay=tcp://*:5558,topic=kv-events",
            "--kv_event_publisher_removal_reasons",
            "--kv_event_publisher_also=endpoint=tcp://*:5559,tenant=b,removal_reasons=true",
        ])
        .config()
        .unwrap();
        let expected = PublisherConfig {
            endpoint: "ipc:///run/events".into(),
            replay_endpoint: "tcp://*:1".into(),
            topic: "kv@pod@model".into(),
            hwm: 7,
            send_interval: Duration::from_millis(5),
            max_batch_size: 9,
            auto_port: false,
            encoding: Encoding::Mooncake { backend_id: "store-7".into() },
            tenant: Some("a".into()),
            removal_reasons: true,
            more_endpoints: vec![
                EndpointConfig {
                    endpoint: "tcp://*:5557".into(),
                    replay_endpoint: "tcp://*:5558".into(),
                    topic: "kv-events".into(),
                    encoding: Encoding::Vllm,
                    tenant: None,
                    removal_reasons: false,
                },
                EndpointConfig {
                    endpoint: "tcp://*:5559".into(),
                    tenant: Some("b".into()),
                    removal_reasons: true,
                    ..EndpointConfig::default()
                },
            ],
            ..PublisherConfig::default()
        };
        assert_eq!(format!("{config:?}"), format!("{expected:?}"));
    }

    #[test]
    fn further_endpoints_are_checked() {
        for text in [
            "",
            "endpoint",
            "endpoint=tcp://*:1,colour=red",
            "topic=x",
            "endpoint=",
            "endpoint=tcp://*:1,removal_reasons=maybe",
        ] {
            assert!(parse_also(text).is_err(), "{text}");
        }
        let refusal = parse_also("endpoint=tcp://*:1,encoding=json").unwrap_err().to_string();
        assert_eq!(refusal, ENCODINGS);
    }
}
