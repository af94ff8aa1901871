//! Settings.

use std::time::Duration;

use crate::encoding::Encoding;
use crate::error::StartError;

/// Length limit of a topic.
pub const MAX_TOPIC: usize = 255;

/// Settings of the publisher. The first seven are Mooncake's (there `kv_event_publisher_endpoint` and so
/// on), with its defaults; its switch `enable_kv_event_publish` is whether you start an
/// [`EventSystem`](crate::EventSystem).
#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Where subscribers connect: `tcp://HOST:PORT`, `tcp://*:PORT` for all addresses of the host,
    /// `ipc://PATH`. Port 0 takes a free one.
    pub endpoint: String,
    /// Where subscribers ask for messages again; empty for no replay.
    pub replay_endpoint: String,
    /// The first frame of every message; may be empty. At most [`MAX_TOPIC`] bytes, without control
    /// characters.
    pub topic: String,
    /// The most messages that wait for one subscriber. Further ones are not sent to it.
    pub hwm: usize,
    /// The pause after a message, in which events gather; a full batch does not wait for it.
    /// With zero an event is sent at once, unless it follows others closely: then messages that are
    /// not full are a millisecond apart.
    pub send_interval: Duration,
    /// The most events in one message.
    pub max_batch_size: usize,
    /// Whether the next free port is taken when the port is in use;
    /// [`EventSystem::endpoints`](crate::EventSystem::endpoints) returns it.
    pub auto_port: bool,
    /// The form of the messages.
    pub encoding: Encoding,
    /// The only tenant whose events are published; all of them without one.
    pub tenant: Option<String>,
    /// Whether removals tell their [reasons](crate::RemovalReason), in a field that the formats of
    /// Mooncake and vLLM do not have. Not in the encoding
    /// [`VllmPositional`](Encoding::VllmPositional).
    pub removal_reasons: bool,
    /// Endpoints beside the first, each with numbers of its own.
    pub more_endpoints: Vec<EndpointConfig>,
    /// Limits of memory and connections.
    pub limits: Limits,
}

impl Default for PublisherConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:19997".into(),
            replay_endpoint: String::new(),
            topic: "mooncake".into(),
            hwm: 100_000,
            send_interval: Duration::ZERO,
            max_batch_size: 50,
            auto_port: true,
            encoding: Encoding::S4,
            tenant: None,
            removal_reasons: false,
            more_endpoints: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Settings of one endpoint; the fields are those of [`PublisherConfig`].
#[derive(Clone, Debug, Default)]
pub struct EndpointConfig {
    /// Where subscribers connect.
    pub endpoint: String,
    /// Where subscribers ask for messages again; empty for no replay.
    pub replay_endpoint: String,
    /// The first frame of every message.
    pub topic: String,
    /// The form of the messages.
    pub encoding: Encoding,
    /// The only tenant whose events are published; all of them without one.
    pub tenant: Option<String>,
    /// Whether removals tell their reasons.
    pub removal_reasons: bool,
}

/// Limits of memory and connections.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most events in the queue. An event that finds it full is dropped.
    pub queue_events: usize,
    /// The most bytes of events in the queue.
    pub queue_bytes: usize,
    /// The most bytes of messages that wait for the subscribers of an endpoint, in equal shares. One
    /// message may wait for a subscriber whatever its size.
    pub subscriber_bytes: usize,
    /// The most connections of an endpoint, and of its replay endpoint.
    pub connections: usize,
    /// The most messages of an endpoint that are kept for replay.
    pub replay_messages: usize,
    /// The most bytes of messages of an endpoint that are kept for replay.
    pub replay_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_events: 65_536,
            queue_bytes: 64 << 20,
            subscriber_bytes: 256 << 20,
            connections: 256,
            replay_messages: 10_000,
            replay_bytes: 64 << 20,
        }
    }
}

impl PublisherConfig {
    /// The settings of all endpoints.
    #[must_use]
    pub fn endpoints(&self) -> Vec<EndpointConfig> {
        let first = EndpointConfig {
            endpoint: self.endpoint.clone(),
            replay_endpoint: self.replay_endpoint.clone(),
            topic: self.topic.clone(),
            encoding: self.encoding.clone(),
            tenant: self.tenant.clone(),
            removal_reasons: self.removal_reasons,
        };
        std::iter::once(first).chain(self.more_endpoints.iter().cloned()).collect()
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        let Limits { queue_events, queue_bytes, subscriber_bytes, connections, .. } = self.limits;
        let at_least_one = [
            ("hwm", self.hwm),
            ("max_batch_size", self.max_batch_size),
            ("queue_events", queue_events),
            ("queue_bytes", queue_bytes),
            ("subscriber_bytes", subscriber_bytes),
            ("connections", connections),
        ];
        if let Some((setting, _)) = at_least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(StartError::Zero { setting });
        }
        for EndpointConfig { topic, encoding, removal_reasons, .. } in self.endpoints() {
            if removal_reasons && encoding == Encoding::VllmPositional {
                return Err(StartError::NoRemovalReasons);
            }
            if topic.len() > MAX_TOPIC || topic.contains(char::is_control) {
                return Err(StartError::Topic { topic });
            }
        }
        Ok(())
    }
}
