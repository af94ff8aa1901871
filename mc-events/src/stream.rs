//! The numbered messages of one endpoint, and the latest of them.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use crate::encoding::{Encoding, Stamp};
use crate::event::{BlockStoreEvent, Event, MAX_EVENT_BYTES};
use crate::pack::Packer;

/// A message as subscribers get it: topic, number, payload.
///
/// Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    number: u64,
    topic: Bytes,
    payload: Bytes,
}

impl Message {
    /// The first frame.
    #[must_use]
    pub const fn topic(&self) -> &Bytes {
        &self.topic
    }

    /// The second frame, as a number; on the wire it is 8 bytes, big-endian.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The third frame: a batch in MessagePack.
    #[must_use]
    pub const fn payload(&self) -> &Bytes {
        &self.payload
    }
}

/// Numbers, encodes and keeps the messages of one endpoint.
///
/// Numbers are consecutive but for gaps, by which a subscriber sees that events are missing.
#[derive(Debug)]
pub(crate) struct Stream {
    encoding: Encoding,
    topic: Bytes,
    /// The only tenant whose events are published.
    tenant: Option<String>,
    removal_reasons: bool,
    next: u64,
    /// The number behind the latest that was left out.
    whole_since: u64,
    next_event: u64,
    ring: Ring,
    /// The events of the batch at hand; kept for its memory.
    scratch: Vec<u8>,
}

/// The result of [`Stream::batch`].
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Nothing, if no event of the batch is published here.
    pub(crate) message: Option<Message>,
    /// Events that were left out because they are too large when packed.
    pub(crate) too_large: u64,
}

impl Stream {
    pub(crate) fn new(
        encoding: Encoding,
        topic: Bytes,
        tenant: Option<String>,
        ring: Ring,
    ) -> Self {
        let next = encoding.first_number();
        Self {
            encoding,
            topic,
            tenant,
            removal_reasons: false,
            next,
            whole_since: next,
            next_event: 1,
            ring,
            scratch: Vec::new(),
        }
    }

    /// Sets whether removals tell their reasons.
    pub(crate) const fn removal_reasons(mut self, are_told: bool) -> Self {
        self.removal_reasons = are_told;
        self
    }

    pub(crate) const fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// The number that the next message gets.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Leaves out a number, because events are missing here.
    pub(crate) const fn skip_number(&mut self) {
        self.next += 1;
        self.whole_since = self.next;
    }

    /// The number from which on all messages are kept.
    pub(crate) fn complete_since(&self) -> u64 {
        self.oldest().max(self.whole_since)
    }

    /// Makes a message of those events that this endpoint publishes. Without one, no number is used.
    pub(crate) fn batch<'a>(
        &mut self,
        micros: u64,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> Batch {
        let mut clears = false;
        let events =
            events.into_iter().inspect(|event| clears |= matches!(event, Event::RemoveAll(_)));
        let first_event = self.next_event;
        let (payload, count, too_large) = self.encode(micros, first_event, events);
        self.next_event += count;
        let mut batch = Batch { message: None, too_large };
        if count > 0 {
            // Dynamo does not know the event, but forgets all objects at a gap.
            if clears && matches!(self.encoding, Encoding::Mooncake { .. }) {
                self.skip_number();
            }
            let message = Message { number: self.next, topic: self.topic.clone(), payload };
            self.next += 1;
            self.ring.push(message.clone());
            batch.message = Some(message);
        }
        if too_large > 0 {
            self.skip_number();
        }
        batch
    }

    /// Encodes objects for a late joiner, without a number.
    pub(crate) fn snapshot(&mut self, micros: u64, objects: Vec<BlockStoreEvent>) -> Bytes {
        let mut events = Vec::with_capacity(objects.len());
        for object in objects {
            let others: Vec<Event> = object.on_other_media().collect();
            events.push(Event::Store(object));
            events.extend(others);
        }
        self.encode(micros, 0, &events).0
    }

    fn encode<'a>(
        &mut self,
        micros: u64,
        first_event: u64,
        events: impl IntoIterator<Item = &'a Event>,
    ) -> (Bytes, u64, u64) {
        self.scratch.clear();
        let (mut count, mut too_large) = (0, 0);
        for event in events {
            if self.tenant.as_ref().is_some_and(|tenant| !event.concerns(tenant)) {
                continue;
            }
            let start = self.scratch.len();
            let event_id = first_event + count;
            let stamp = Stamp { micros, event_id, removal_reasons: self.removal_reasons };
            if !self.encoding.pack(event, stamp, &mut Packer::new(&mut self.scratch)) {
                continue;
            }
            if self.scratch.len() - start > MAX_EVENT_BYTES {
                self.scratch.truncate(start);
                too_large += 1;
            } else {
                count += 1;
            }
        }
        let mut payload = Vec::with_capacity(self.scratch.len() + 24);
        let events = usize::try_from(count).expect("counted in memory");
        self.encoding.pack_head(micros, events, &mut Packer::new(&mut payload));
        payload.extend_from_slice(&self.scratch);
        self.encoding.pack_tail(&mut Packer::new(&mut payload));
        (payload.into(), count, too_large)
    }

    /// The oldest kept message whose number is in the range.
    pub(crate) fn first_in(&self, numbers: Range<u64>) -> Option<Message> {
        self.ring.first_in(numbers)
    }

    /// The number of the oldest kept message, or the next one's if none is kept.
    pub(crate) fn oldest(&self) -> u64 {
        self.ring.messages.front().map_or(self.next, |message| message.number)
    }
}

/// The latest messages, as many as fit.
#[derive(Debug)]
pub(crate) struct Ring {
    messages: VecDeque<Message>,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl Ring {
    pub(crate) const fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { messages: VecDeque::new(), bytes: 0, max_messages, max_bytes }
    }

    fn push(&mut self, message: Message) {
        self.bytes += message.payload.len();
        self.messages.push_back(message);
        while self.messages.len() > self.max_messages || self.bytes > self.max_bytes {
            let Some(oldest) = self.messages.pop_front() else { return };
            self.bytes -= oldest.payload.len();
        }
    }

    fn first_in(&self, numbers: Range<u64>) -> Option<Message> {
        let at = self.messages.partition_point(|message| message.number < numbers.start);
        self.messages.get(at).filter(|message| numbers.contains(&message.number)).cloned()
    }
}
