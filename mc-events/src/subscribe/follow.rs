//! The protocol of a subscriber, without its sockets.

use std::collections::VecDeque;
use std::io;

use super::decode::{Info, Page, decode_batch, number_of};
use crate::error::{Malformed, SubscribeError};
use crate::event::Event;
use crate::replay::{END_OF_REPLAY, ReplayRequest};

/// Memory of a waiting message beside its payload.
const MESSAGE_SIZE: usize = 64;

/// A change that a subscriber learns of.
#[derive(Debug)]
#[non_exhaustive]
pub enum Update {
    /// Forget all objects: the list of all of them follows.
    Reset,
    /// Objects and changes, in order. An object is as its latest event says; the same event may come
    /// twice.
    Events(Vec<Event>),
    /// The received state is the publisher's, up to the message before this number.
    Current {
        /// The number of the next message.
        next: u64,
    },
    /// The connection ended; the subscriber connects again, and asks for what it misses.
    Lost(io::Error),
}

/// The next step after an input.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Wait for more input.
    Wait,
    /// Send this frame to the replay socket, alone or after an empty frame.
    Ask(Vec<u8>),
    /// Close both connections and open them again, then call [`Follower::connected`].
    Reconnect(io::Error),
}

/// Turns messages and answers into [updates](Update), and decides what to ask for.
///
/// A list of the objects takes as long as it takes, however few messages the publisher keeps: before
/// each page is taken, the messages are applied that were published before the page was read, and no
/// others. So a page is never older than what was applied, and the publisher's messages have to reach
/// back to the page before only. A list that a lost connection cut off continues from where it was.
///
/// It follows one publisher over two connections. Inputs are the frames of each, in the order in which they
/// arrive, answers without the empty frame before them. There is at most one request under way.
/// Updates gather until [`updates`](Self::updates) takes them.
#[derive(Debug)]
pub struct Follower {
    /// The incarnation of the objects that were received; none before their list is complete.
    incarnation: Option<u64>,
    /// The list that is not complete.
    listing: Option<Listing>,
    /// The number of the message that comes next.
    next: u64,
    /// Whether the publisher sends no more messages again than it is asked for.
    has_ranges: bool,
    phase: Phase,
    /// The number of this connection's latest message.
    latest: Option<u64>,
    /// Messages received out of order, which wait for earlier ones.
    waiting: VecDeque<(u64, Vec<u8>)>,
    waiting_bytes: usize,
    max_waiting_bytes: usize,
    updates: Vec<Update>,
}

#[derive(Debug)]
enum Phase {
    /// Waits for the answer to `INFO`.
    Asking {
        routine: bool,
    },
    /// Waits for a page.
    Listing,
    /// Waits for messages that were published before this page was read.
    Holding(Page),
    /// Waits for messages, which there must be up to a number.
    Replaying {
        until: u64,
    },
    Current,
}

/// A list of which at least one page was received.
#[derive(Debug)]
struct Listing {
    incarnation: u64,
    /// Where the next page begins.
    cursor: Vec<u8>,
}

impl Follower {
    /// Holds at most so many bytes of messages that wait for those ahead of them. Beyond it the
    /// oldest go, and are asked for again.
    #[must_use]
    pub const fn new(max_waiting_bytes: usize) -> Self {
        Self {
            incarnation: None,
            listing: None,
            next: 0,
            has_ranges: false,
            phase: Phase::Asking { routine: false },
            latest: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            max_waiting_bytes,
            updates: Vec::new(),
        }
    }

    /// Begins with new connections. The subscription must have been sent.
    pub fn connected(&mut self) -> Action {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.latest = None;
        self.ask(false)
    }

    /// Call it when no message has come for a while. Only the answer to `INFO` shows that the last
    /// messages before a silence are missing.
    pub fn silence(&mut self) -> Action {
        if self.is_current() { self.ask(true) } else { Action::Wait }
    }

    /// Whether no answer is waited for.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        matches!(self.phase, Phase::Current)
    }

    /// Takes the updates.
    pub fn updates(&mut self) -> Vec<Update> {
        std::mem::take(&mut self.updates)
    }

    /// Takes the frames of a message from the PUB socket.
    ///
    /// # Errors
    /// They are not as documented. The follower is of no use then.
    pub fn message<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<Action, SubscribeError> {
        let malformed =
            Malformed { what: "a message of other frames than topic, number and batch" };
        let [_, number, payload] = frames else { return Err(malformed.into()) };
        let number = number_of(number.as_ref()).filter(|number| *number != END_OF_REPLAY);
        let number = number.ok_or(malformed)?;
        if self.latest.is_some_and(|latest| number <= latest) {
            return Ok(Action::Reconnect(io::Error::other("the numbers of messages began anew")));
        }
        self.latest = Some(number);
        if self.is_current() && number == self.next {
            self.apply(number, payload.as_ref())?;
            self.updates.push(Update::Current { next: self.next });
        } else if !self.is_current() || number > self.next {
            self.wait(number, payload.as_ref());
            if self.is_current() {
                return Ok(self.replay(number + 1));
            }
        }
        Ok(Action::Wait)
    }

    /// Takes the frames of an answer from the replay socket.
    ///
    /// # Errors
    /// They are not as documented, or the endpoint cannot be followed: it has another encoding, or no
    /// snapshots. The follower is of no use then.
    pub fn answer<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> Result<Action, SubscribeError> {
        match self.phase {
            Phase::Asking { routine } => self.info(Info::decode(frames)?, routine),
            Phase::Listing => self.page(Page::decode(frames)?),
            Phase::Holding(ref page) => self.replayed(frames, page.number),
            Phase::Replaying { until } => self.replayed(frames, until),
            Phase::Current => Err(Malformed { what: "an answer without a request" }.into()),
        }
    }

    fn info(&mut self, info: Info, routine: bool) -> Result<Action, SubscribeError> {
        if info.encoding != "s4" {
            return Err(SubscribeError::Encoding { encoding: info.encoding });
        }
        if !info.snapshot {
            return Err(SubscribeError::NoSnapshot);
        }
        self.has_ranges = info.ranges;
        if let Some(listing) = &self.listing {
            let goes_on = listing.incarnation == info.incarnation && info.oldest <= self.next;
            return Ok(if goes_on { self.ask_page() } else { self.list() });
        }
        if self.incarnation != Some(info.incarnation) {
            return Ok(self.list());
        }
        self.apply_waiting(u64::MAX)?;
        if routine && self.waiting.is_empty() && self.next < info.next {
            let problem = "messages were published that did not arrive";
            return Ok(Action::Reconnect(io::Error::other(problem)));
        }
        self.catch_up(info.next)
    }

    fn page(&mut self, page: Page) -> Result<Action, SubscribeError> {
        let Page { incarnation, number, .. } = page;
        match &self.listing {
            Some(listing) if listing.incarnation != incarnation => return Ok(self.list()),
            // An old page: what was published since is applied once more.
            Some(_) => self.next = self.next.min(number),
            None => {
                self.next = number;
                self.listing = Some(Listing { incarnation, cursor: Vec::new() });
            }
        }
        self.apply_waiting(number)?;
        if self.next < number {
            self.phase = Phase::Holding(page);
            // A subscriber that is behind would get all messages up to now again with each page.
            return Ok(ask_for(match self.has_ranges {
                true => ReplayRequest::Between(self.next, number),
                false => ReplayRequest::From(self.next),
            }));
        }
        self.take(page)
    }

    /// Takes a page, the messages before it being applied.
    fn take(&mut self, page: Page) -> Result<Action, SubscribeError> {
        self.updates.push(Update::Events(page.objects));
        if page.cursor.is_empty() {
            self.listing = None;
            self.incarnation = Some(page.incarnation);
            return self.catch_up(0);
        }
        let incarnation = page.incarnation;
        self.listing = Some(Listing { incarnation, cursor: page.cursor });
        Ok(self.ask_page())
    }

    fn replayed<F: AsRef<[u8]>>(
        &mut self,
        frames: &[F],
        until: u64,
    ) -> Result<Action, SubscribeError> {
        let malformed = Malformed { what: "a wrong answer to a request for messages" };
        let [number, payload] = frames else { return Err(malformed.into()) };
        let number = number_of(number.as_ref()).ok_or(malformed)?;
        let is_holding = matches!(self.phase, Phase::Holding(_));
        let limit = if is_holding { until } else { u64::MAX };
        self.apply_waiting(limit)?;
        if number == END_OF_REPLAY {
            if self.next < until {
                return Ok(self.list());
            }
            return match std::mem::replace(&mut self.phase, Phase::Current) {
                Phase::Holding(page) => self.take(page),
                _ => self.catch_up(0),
            };
        }
        if number >= limit {
            return Ok(Action::Wait);
        }
        if number > self.next {
            // The rest of the answer is of no use.
            (self.incarnation, self.listing) = (None, None);
            let problem = format!("messages from {} on are no longer kept", self.next);
            return Ok(Action::Reconnect(io::Error::other(problem)));
        }
        if number == self.next {
            self.apply(number, payload.as_ref())?;
        }
        Ok(Action::Wait)
    }

    /// Asks for messages that exist and have not come, if there are any.
    fn catch_up(&mut self, published: u64) -> Result<Action, SubscribeError> {
        self.apply_waiting(u64::MAX)?;
        let arrived = self.waiting.back().map_or(0, |(number, _)| number + 1);
        let until = published.max(arrived);
        if self.next < until {
            return Ok(self.replay(until));
        }
        self.phase = Phase::Current;
        self.updates.push(Update::Current { next: self.next });
        Ok(Action::Wait)
    }

    fn ask(&mut self, routine: bool) -> Action {
        self.phase = Phase::Asking { routine };
        ask_for(ReplayRequest::Info)
    }

    fn list(&mut self) -> Action {
        (self.incarnation, self.listing) = (None, None);
        self.updates.push(Update::Reset);
        self.ask_page()
    }

    /// Asks for the next page of the list, or for the first.
    fn ask_page(&mut self) -> Action {
        self.phase = Phase::Listing;
        let cursor = self.listing.as_ref().map_or(&b""[..], |listing| &listing.cursor);
        ask_for(ReplayRequest::Snapshot { cursor })
    }

    fn replay(&mut self, until: u64) -> Action {
        self.phase = Phase::Replaying { until };
        ask_for(ReplayRequest::From(self.next))
    }

    fn wait(&mut self, number: u64, payload: &[u8]) {
        self.waiting_bytes += MESSAGE_SIZE + payload.len();
        self.waiting.push_back((number, payload.into()));
        while self.waiting_bytes > self.max_waiting_bytes && self.pop_waiting().is_some() {}
    }

    fn pop_waiting(&mut self) -> Option<(u64, Vec<u8>)> {
        let (number, payload) = self.waiting.pop_front()?;
        self.waiting_bytes -= MESSAGE_SIZE + payload.len();
        Some((number, payload))
    }

    /// Applies those that are next, up to the one before `end`, and drops those that were applied.
    fn apply_waiting(&mut self, end: u64) -> Result<(), Malformed> {
        let is_due = |next, number| number < next || number == next && number < end;
        while self.waiting.front().is_some_and(|(number, _)| is_due(self.next, *number)) {
            let Some((number, payload)) = self.pop_waiting() else { break };
            if number == self.next {
                self.apply(number, &payload)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, number: u64, payload: &[u8]) -> Result<(), Malformed> {
        self.updates.push(Update::Events(decode_batch(payload)?));
        self.next = number + 1;
        Ok(())
    }
}

fn ask_for(request: ReplayRequest<'_>) -> Action {
    Action::Ask(request.to_bytes())
}
