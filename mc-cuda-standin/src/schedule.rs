//! The thread that does the queued work of all streams, in their order.

use std::time::{Duration, Instant};

use crate::arguments::HostFunction;
use crate::state::State;
use crate::stream::{Action, StreamKind, fill, transfer};

/// How often the events of other processes are looked at.
const SHARED_EVENTS: Duration = Duration::from_micros(100);

/// The next step of the thread.
pub(crate) enum Step {
    /// Something was done, and there may be more.
    Did,
    /// Call this function of the program, and then [`State::called`].
    Call {
        function: HostFunction,
        data: u64,
        stream: u64,
    },
    /// Nothing is due before.
    Until(Instant),
    Idle,
}

impl State {
    /// Does one piece of work, if one is due.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        let busy = self.streams.iter().filter(|(_, stream)| !stream.queue.is_empty());
        let busy: Vec<u64> = busy.map(|(key, _)| *key).collect();
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        for key in busy {
            let stream = &self.streams[&key];
            if self.devices[stream.device].lost.is_some() {
                self.drop_queue(key);
                return Step::Did;
            }
            if stream.is_calling || self.is_held_up(key) {
                continue;
            }
            let resumed = self.settings.resumed;
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            let Some(op) = stream.queue.front_mut() else { continue };
            if op.hangs && !resumed {
                continue;
            }
            if let Action::Wait { event, generation } = &op.action
                && !event.is_complete(*generation)
            {
                if event.page.is_some() {
                    sooner(now + SHARED_EVENTS);
                }
                continue;
            }
            let due = *op.due.get_or_insert(now + op.latency);
            if due > now {
                sooner(due);
                continue;
            }
            return self.execute(key);
        }
        next.map_or(Step::Idle, Step::Until)
    }

    /// Whether the order between the legacy stream and the others holds up the next work of a stream.
    fn is_held_up(&self, key: u64) -> bool {
        let stream = &self.streams[&key];
        let Some(op) = stream.queue.front() else { return true };
        match stream.kind {
            StreamKind::NonBlocking => false,
            StreamKind::Blocking => {
                self.streams[&self.devices[stream.device].legacy].is_before(op.seq)
            }
            StreamKind::Legacy => self.streams.values().any(|other| {
                other.device == stream.device
                    && other.kind == StreamKind::Blocking
                    && other.is_before(op.seq)
            }),
        }
    }

    fn execute(&mut self, key: u64) -> Step {
        let Some(stream) = self.streams.get_mut(&key) else { return Step::Did };
        let device = stream.device;
        let Some(op) = stream.queue.front() else { return Step::Did };
        if let Action::Call { function, data } = op.action {
            stream.is_calling = true;
            return Step::Call { function, data, stream: key };
        }
        let is_all_there = op.uses.iter().all(|id| self.used.contains_key(id));
        match &op.action {
            Action::Copy(_) if self.settings.lost.is_some() => {
                self.devices[device].lost = self.settings.lost.take();
            }
            Action::Copy(transfers) if is_all_there => {
                for part in transfers {
                    transfer(&part.from, &part.to, part.len);
                }
            }
            Action::Fill { to, byte, len } if is_all_there => fill(to, *byte, *len),
            Action::Record { event, generation } => event.complete(*generation),
            _ => {}
        }
        self.end_first(key);
        Step::Did
    }

    /// Ends the host function of a stream.
    pub(crate) fn called(&mut self, key: u64) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.is_calling = false;
        }
        self.end_first(key);
    }

    fn end_first(&mut self, key: u64) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let Some(op) = stream.queue.pop_front() else { return };
        stream.done += 1;
        if stream.is_destroyed && stream.queue.is_empty() {
            self.streams.remove(&key);
        }
        for id in op.uses {
            if let Some(pending) = self.used.get_mut(&id) {
                *pending = pending.saturating_sub(1);
            }
        }
    }

    fn drop_queue(&mut self, key: u64) {
        while self.streams.get(&key).is_some_and(|stream| !stream.queue.is_empty()) {
            self.end_first(key);
        }
    }
}
