//! The messages of a publisher, one after the other.

use std::io::ErrorKind;
use std::time::Duration;

use mc_types::BoxFuture;
use tokio::time::timeout;

use super::client::SubscriberConfig;
use super::decode::{decode_batch, number_of};
use crate::error::{Malformed, SubscribeError};
use crate::event::Event;
use crate::replay::{END_OF_REPLAY, ReplayRequest};
use crate::zmq::PeerSocket;

/// Time limit for each message of a replay.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A message of a publisher.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventBatch {
    /// Its number.
    pub number: u64,
    /// Messages that are missing before it: they did not arrive, or are no longer kept.
    pub missed: u64,
    /// Its events.
    pub events: Vec<Event>,
}

/// Receives what a publisher publishes from now on, and before that the messages that it still keeps.
///
/// It needs no snapshot, closes no gaps, and ends with its connection:
/// [`EventSubscriber`](super::EventSubscriber) is for programs that have to know every object. A caller that
/// takes messages too slowly misses some.
pub struct EventTail {
    endpoint: String,
    messages: PeerSocket,
    replay: Option<Replay>,
    /// The number that comes next; none before the first message.
    next: Option<u64>,
}

/// A replay that has not ended.
struct Replay {
    endpoint: String,
    answers: PeerSocket,
}

impl EventTail {
    /// Connects to the publisher. With `from`, the replay endpoint is asked for the messages of that number
    /// and later ones; without, it is not used.
    ///
    /// # Errors
    /// An endpoint is wrong, or no publisher answers there.
    pub fn connect(
        config: SubscriberConfig,
        from: Option<u64>,
    ) -> BoxFuture<'static, Result<Self, SubscribeError>> {
        Box::pin(async move {
            let SubscriberConfig { endpoint, replay_endpoint, topic, max_message_bytes, .. } =
                config;
            let messages = PeerSocket::subscribe(&endpoint, &topic, max_message_bytes).await?;
            let replay = match from {
                None => None,
                Some(number) => {
                    let mut answers =
                        PeerSocket::dealer(&replay_endpoint, max_message_bytes).await?;
                    let request = ReplayRequest::From(number).to_bytes();
                    let sent = answers.sender.send(&request).await;
                    sent.map_err(|source| lost(&replay_endpoint, source))?;
                    Some(Replay { endpoint: replay_endpoint, answers })
                }
            };
            // The publisher's first message is 0: all before the oldest one that is kept are missed.
            Ok(Self { endpoint, messages, replay, next: from })
        })
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection ended, or the publisher sent something else.
    ///
    /// # Cancellation
    /// The tail is of no use after the future was dropped.
    pub async fn next(&mut self) -> Result<EventBatch, SubscribeError> {
        while let Some(replay) = &mut self.replay {
            let frames = match timeout(ANSWER_TIMEOUT, replay.answers.messages.next()).await {
                Ok(frames) => frames.map_err(|source| lost(&replay.endpoint, source))?,
                Err(late) => return Err(lost(&replay.endpoint, late.into())),
            };
            let [number, payload] = frames.as_slice() else {
                return Err(Malformed { what: "a wrong answer to a request for messages" }.into());
            };
            match number_of(number) {
                Some(END_OF_REPLAY) => self.replay = None,
                number => {
                    if let Some(batch) = self.batch(number, payload)? {
                        return Ok(batch);
                    }
                }
            }
        }
        loop {
            let frames = self.messages.messages.next().await;
            let frames = frames.map_err(|source| lost(&self.endpoint, source))?;
            let [_, number, payload] = frames.as_slice() else {
                let what = "a message of other frames than topic, number and batch";
                return Err(Malformed { what }.into());
            };
            if let Some(batch) = self.batch(number_of(number), payload)? {
                return Ok(batch);
            }
        }
    }

    /// A message, unless it has come before.
    fn batch(
        &mut self,
        number: Option<u64>,
        payload: &[u8],
    ) -> Result<Option<EventBatch>, SubscribeError> {
        let malformed = Malformed { what: "a message without a number" };
        let number = number.filter(|number| *number != END_OF_REPLAY).ok_or(malformed)?;
        let Some(missed) = number.checked_sub(self.next.unwrap_or(number)) else {
            return Ok(None);
        };
        let events = decode_batch(payload)?;
        self.next = Some(number + 1);
        Ok(Some(EventBatch { number, missed, events }))
    }
}

fn lost(endpoint: &str, source: std::io::Error) -> SubscribeError {
    match source.kind() {
        ErrorKind::InvalidData => SubscribeError::Protocol { source },
        _ => SubscribeError::Lost { endpoint: endpoint.into(), source },
    }
}
