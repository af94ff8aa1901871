//! The requests of one link: those that wait, and the queue pairs that carry the others.
//!
//! A queue pair that fails takes all its requests with it, whichever of them was at fault. So a
//! failure is not the end of the link: the queue pair is destroyed, the peer is asked to destroy
//! its own, and the requests that were under way are posted again over a new pair. They are not
//! posted again before the peer has answered, because packets of the old pair may be on their way
//! until then.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mc_transport::TransferError;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::local::LocalMemory;
use super::poller::Poller;
use super::ports::Ports;
use super::transfer::{LocalSide, Slice};
use super::verbs::{
    CompletionQueue, Direction, Done, Local, SendQueue, Work, WorkError, WorkStatus,
};

/// How often a request is posted again after its queue pair was lost.
const MAX_LOST: u8 = 3;

/// How often a queue pair is replaced without having carried anything since.
const MAX_FAILURES: u8 = 3;

/// Requests posted by one call.
const POST_TOGETHER: usize = 32;

/// A lane: one queue pair after another, between the same two ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSpec {
    /// The pair of ports that it connects, by its place among those of the link.
    pub(super) pair: usize,
    /// This side's port, by its place in [`Ports::ports`].
    pub(super) port: usize,
    /// This side's device, by its place in [`Ports::devices`].
    pub(super) device: usize,
    /// The completion queue, by its place in [`Flow::queues`].
    pub(super) queue: usize,
    /// The peer's device.
    pub(super) peer_device: usize,
}

/// See the module.
pub(super) struct Flow {
    pub(super) ports: Arc<Ports>,
    pub(super) local: Arc<LocalMemory>,
    pub(super) poller: Arc<Poller>,
    /// For each device that is used: its place, and the number by which its channel tells.
    pub(super) queues: Vec<(Arc<CompletionQueue>, u64)>,
    pub(super) lanes: Vec<LaneSpec>,
    pub(super) stall_timeout: Duration,
    state: Mutex<State>,
    failure: OnceLock<TransferError>,
    /// Lanes that need a new queue pair.
    recoveries: UnboundedSender<usize>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Slice>,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    /// `None` while the lane is being set up, and when that has failed.
    queue: Option<SendQueue<Flight>>,
    /// Tells completions of an earlier queue pair apart.
    generation: u16,
    /// Bytes under way.
    bytes: u64,
    /// Set when no further attempt is made to set the lane up.
    is_dead: bool,
    /// Failures since a request was carried.
    failures: u8,
    /// Requests that were under way when the queue pair failed.
    lost: Vec<(Slice, Option<WorkError>)>,
    /// The last failure.
    cause: Option<Arc<io::Error>>,
}

/// A request under way.
pub(super) struct Flight {
    slice: Slice,
    since: Instant,
}

/// The result of preparing a slice for posting.
enum Made {
    Request(Work<Flight>),
    /// No staging memory is free for it.
    NoStaging(Slice),
    Failed(Slice, TransferError),
}

/// Requests that ended, and how.
type Ended = Vec<(Slice, Result<(), TransferError>)>;

impl Flow {
    pub(super) fn new(
        ports: Arc<Ports>,
        local: Arc<LocalMemory>,
        poller: Arc<Poller>,
        queues: Vec<(Arc<CompletionQueue>, u64)>,
        lanes: Vec<LaneSpec>,
        stall_timeout: Duration,
        recoveries: UnboundedSender<usize>,
    ) -> Arc<Self> {
        let state = State {
            waiting: VecDeque::new(),
            lanes: lanes.iter().map(|_| Lane::default()).collect(),
        };
        let (state, failure) = (Mutex::new(state), OnceLock::new());
        let flow =
            Self { ports, local, poller, queues, lanes, stall_timeout, state, failure, recoveries };
        let flow = Arc::new(flow);
        for (queue, (_, number)) in flow.queues.iter().enumerate() {
            flow.poller.watch(*number, &flow, queue);
            flow.arm(queue);
        }
        flow
    }

    pub(super) fn failure(&self) -> Option<&TransferError> {
        self.failure.get()
    }

    /// Returns whether requests are under way or waiting.
    pub(super) fn is_at_work(&self) -> bool {
        let state = self.state.lock();
        let lanes = state.lanes.iter();
        !state.waiting.is_empty() || lanes.flat_map(|lane| &lane.queue).any(|queue| queue.len() > 0)
    }

    /// Lanes that carry requests now.
    pub(super) fn lanes_up(&self) -> usize {
        self.state.lock().lanes.iter().filter(|lane| lane.queue.is_some()).count()
    }

    /// The tag of the next queue pair of `lane`.
    pub(super) fn next_tag(&self, lane: usize) -> u32 {
        let mut state = self.state.lock();
        let one = &mut state.lanes[lane];
        one.generation = one.generation.wrapping_add(1);
        u32::try_from(lane).expect("lanes are few") << 16 | u32::from(one.generation)
    }

    /// Gives `lane` a queue pair that is connected on both sides, which means that the peer has
    /// destroyed the one before. Its lost requests are posted again.
    pub(super) fn install(self: &Arc<Self>, lane: usize, queue: SendQueue<Flight>) {
        let mut ended = Vec::new();
        {
            let mut state = self.state.lock();
            if let Some(failure) = self.failure.get() {
                let error = failure.clone();
                let lost = std::mem::take(&mut state.lanes[lane].lost);
                ended.extend(lost.into_iter().map(|(slice, _)| (slice, Err(error.clone()))));
            } else {
                let one = &mut state.lanes[lane];
                one.queue = Some(queue);
                one.is_dead = false;
                state.repost(lane, &mut ended);
            }
        }
        end_all(ended);
        self.pump();
    }

    /// Gives `lane` up. The peer has destroyed its queue pair, so that its requests can be posted
    /// over other lanes.
    pub(super) fn give_up(self: &Arc<Self>, lane: usize, cause: io::Error) {
        let mut ended = Vec::new();
        let is_last = {
            let mut state = self.state.lock();
            let one = &mut state.lanes[lane];
            one.is_dead = true;
            one.cause = Some(Arc::new(cause));
            state.repost(lane, &mut ended);
            state.lanes.iter().all(|lane| lane.is_dead)
        };
        end_all(ended);
        if is_last {
            let source = self.state.lock().lanes[lane].cause.clone();
            let source = source.unwrap_or_else(|| Arc::new(io::ErrorKind::NotConnected.into()));
            self.fail(&TransferError::LinkLost { source });
        } else {
            self.pump();
        }
    }

    /// Ends everything: what waits and what is under way fails with `reason`.
    pub(super) fn fail(&self, reason: &TransferError) {
        if self.failure.set(reason.clone()).is_err() {
            return;
        }
        let mut ended: Ended = Vec::new();
        let mut state = self.state.lock();
        ended.extend(state.waiting.drain(..).map(|slice| (slice, Err(reason.clone()))));
        let mut queues = Vec::new();
        for lane in &mut state.lanes {
            lane.is_dead = true;
            queues.extend(lane.queue.take());
            let lost = std::mem::take(&mut lane.lost);
            ended.extend(lost.into_iter().map(|(slice, _)| (slice, Err(reason.clone()))));
        }
        drop(state);
        // Destroying a queue pair takes a call of the system.
        for queue in queues {
            let flights = queue.take_all().into_iter();
            ended.extend(flights.map(|flight| (flight.slice, Err(reason.clone()))));
        }
        end_all(ended);
        for (_, number) in &self.queues {
            self.poller.forget(*number);
        }
    }

    /// Has requests carried out.
    pub(super) fn submit(self: &Arc<Self>, slices: Vec<Slice>) {
        if slices.is_empty() {
            return;
        }
        {
            let mut state = self.state.lock();
            if let Some(failure) = self.failure.get() {
                let error = failure.clone();
                drop(state);
                return end_all(slices.into_iter().map(|one| (one, Err(error.clone()))).collect());
            }
            state.waiting.extend(slices);
        }
        self.pump();
    }

    /// Posts what there is room for.
    fn pump(self: &Arc<Self>) {
        let mut ended = Vec::new();
        let mut broken = Vec::new();
        {
            let mut state = self.state.lock();
            while state.has_work() {
                let count = self.assign(&mut state, &mut ended, &mut broken);
                if count == 0 {
                    break;
                }
            }
        }
        self.poller.stir();
        end_all(ended);
        for (lane, cause) in broken {
            self.recover(lane, cause);
        }
    }

    /// Posts one batch on each lane that has room; returns how many requests left the queue.
    fn assign(
        self: &Arc<Self>,
        state: &mut State,
        ended: &mut Ended,
        broken: &mut Vec<(usize, io::Error)>,
    ) -> usize {
        let mut batches: Vec<Vec<Work<Flight>>> = state.lanes.iter().map(|_| Vec::new()).collect();
        let mut count = 0;
        while let Some(lane) = state.best_lane(&batches) {
            let Some(slice) = state.waiting.pop_front() else { break };
            if let Err(error) = slice.transfer.check() {
                count += 1;
                ended.push((slice, Err(error)));
                continue;
            }
            match self.work(lane, state, slice) {
                Made::Request(work) => {
                    count += 1;
                    state.lanes[lane].bytes += work.value.slice.len;
                    batches[lane].push(work);
                }
                Made::NoStaging(slice) => {
                    // No staging memory is free; the one who frees some pumps.
                    state.waiting.push_front(slice);
                    break;
                }
                Made::Failed(slice, error) => {
                    count += 1;
                    ended.push((slice, Err(error)));
                }
            }
        }
        for (lane, batch) in batches.into_iter().enumerate() {
            if batch.is_empty() {
                continue;
            }
            let queue = state.lanes[lane].queue.as_mut().expect("a lane with room has a queue");
            if let Err(error) = queue.post(batch) {
                state.lose(lane, None);
                broken.push((lane, io::Error::other(error)));
            }
        }
        count
    }

    /// Makes the request of a slice for a lane.
    fn work(self: &Arc<Self>, lane: usize, state: &State, mut slice: Slice) -> Made {
        let spec = self.lanes[lane];
        let region = &slice.transfer.region;
        let Some(remote_key) = region.remote_key(spec.peer_device, slice.offset) else {
            return Made::Failed(slice, TransferError::KeyRefused);
        };
        let remote = region.address(slice.offset);
        let direction = slice.transfer.direction;
        let max_inline = state.lanes[lane].queue.as_ref().map_or(0, SendQueue::max_inline);
        let local = match &mut slice.local {
            LocalSide::Direct(pieces) => {
                let pieces = pieces.iter().map(|piece| {
                    (Arc::clone(&piece.chunk.regions[spec.device]), piece.slice.clone())
                });
                Local::Pieces(pieces.collect())
            }
            LocalSide::Staged { parts, .. }
                if direction == Direction::Write && slice.len <= max_inline as u64 =>
            {
                Local::Inline(Slice::gathered(parts, slice.len))
            }
            LocalSide::Staged { parts, slot } => {
                if slot.is_none() {
                    let flow = Arc::downgrade(self);
                    let when_free = move || {
                        if let Some(flow) = flow.upgrade() {
                            flow.poller.wake();
                        }
                    };
                    match self.local.slot(when_free) {
                        Ok(Some(free)) => *slot = Some(free),
                        Ok(None) => return Made::NoStaging(slice),
                        Err(error) => {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(error, "no staging memory");
                            let what = "RDMA from memory that cannot be locked (see ulimit -l)";
                            return Made::Failed(slice, TransferError::Unsupported { what });
                        }
                    }
                }
                let slot = slot.as_ref().expect("taken above");
                if direction == Direction::Write {
                    Slice::copy_out(parts, &slot.piece.slice);
                }
                let len = usize::try_from(slice.len).expect("cut to the size of a slot");
                let part = slot.piece.slice.part(0, len).expect("cut to the size of a slot");
                Local::Pieces(vec![(Arc::clone(&slot.piece.chunk.regions[spec.device]), part)])
            }
        };
        let value = Flight { slice, since: Instant::now() };
        Made::Request(Work { direction, local, remote, remote_key, value })
    }

    /// Arms a completion queue, whose channel then reports the next completion.
    pub(super) fn arm(&self, queue: usize) {
        if let Err(error) = self.queues[queue].0.arm() {
            self.fail(&TransferError::LinkLost { source: Arc::new(io::Error::other(error)) });
        }
    }

    /// Takes completions; returns whether there were any.
    pub(super) fn reap(self: &Arc<Self>, queue: usize) -> bool {
        let mut done = Vec::new();
        match self.queues[queue].0.take(&mut done) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.fail(&TransferError::LinkLost { source: Arc::new(io::Error::other(error)) });
                return false;
            }
        }
        let mut ended = Vec::new();
        let mut broken = Vec::new();
        {
            let mut state = self.state.lock();
            for Done { number, result } in done {
                let lane = (number >> 48) as usize;
                let Some(one) = state.lanes.get_mut(lane) else { continue };
                let Some(queue) = &mut one.queue else { continue };
                let mut flights = queue.complete(number);
                if flights.is_empty() {
                    continue;
                }
                let failed = result.err().and_then(|error| Some((flights.pop()?, error)));
                for flight in flights {
                    one.bytes -= flight.slice.len;
                    one.failures = 0;
                    ended.push((flight.slice, Ok(())));
                }
                if let Some((flight, error)) = failed {
                    let cause = io::Error::other(error.clone());
                    // The path carried the refusal: the next queue pair is as good as this one was.
                    if error.status.blames_the_request() {
                        one.failures = 0;
                    }
                    state.lose(lane, Some((flight, error)));
                    broken.push((lane, cause));
                }
            }
        }
        end_all(ended);
        for (lane, cause) in broken {
            self.recover(lane, cause);
        }
        self.pump();
        true
    }

    /// Gives up queue pairs whose requests take too long or must not arrive any more.
    pub(super) fn tick(self: &Arc<Self>, now: Instant) {
        let (mut ended, mut broken) = (Vec::new(), Vec::new());
        {
            let mut state = self.state.lock();
            for lane in 0..state.lanes.len() {
                let Some(queue) = &state.lanes[lane].queue else { continue };
                let first = queue.values().next();
                let stalled = first.is_some_and(|first| now - first.since > self.stall_timeout);
                let is_over = |flight: &Flight| flight.slice.transfer.span.check_time().is_err();
                let is_over = queue.values().any(is_over);
                if stalled || is_over {
                    state.lose(lane, None);
                    broken.push((lane, io::Error::from(io::ErrorKind::TimedOut)));
                }
            }
            // Those that wait are looked at when they are posted, which needs a lane.
            if state.lanes.iter().all(|lane| lane.queue.is_none()) {
                for slice in std::mem::take(&mut state.waiting) {
                    match slice.transfer.check() {
                        Ok(()) => state.waiting.push_back(slice),
                        Err(error) => ended.push((slice, Err(error))),
                    }
                }
            }
        }
        end_all(ended);
        for (lane, cause) in broken {
            self.recover(lane, cause);
        }
        self.pump();
    }

    /// Gives up the queue pairs of ports that carry no data any more.
    pub(super) fn lose_ports(self: &Arc<Self>, ports: &[usize]) {
        let mut lost = Vec::new();
        {
            let mut state = self.state.lock();
            for (lane, spec) in self.lanes.iter().enumerate() {
                if ports.contains(&spec.port) && state.lanes[lane].queue.is_some() {
                    state.lose(lane, None);
                    lost.push(lane);
                }
            }
        }
        for lane in lost {
            self.recover(lane, io::Error::other("the RDMA port is down"));
        }
    }

    /// Tries failed lanes again, because a port came back.
    pub(super) fn revive(self: &Arc<Self>) {
        let mut dead = Vec::new();
        let mut state = self.state.lock();
        for (lane, spec) in self.lanes.iter().enumerate() {
            let is_usable = self.ports.is_usable(&self.ports.ports[spec.port]);
            if state.lanes[lane].is_dead && is_usable && self.failure.get().is_none() {
                state.lanes[lane].is_dead = false;
                state.lanes[lane].failures = 0;
                dead.push(lane);
            }
        }
        drop(state);
        for lane in dead {
            let _ = self.recoveries.send(lane);
        }
    }

    /// Has a lane that lost its queue pair set up again, unless that failed too often.
    fn recover(self: &Arc<Self>, lane: usize, cause: io::Error) {
        let failures = {
            let mut state = self.state.lock();
            let one = &mut state.lanes[lane];
            one.failures = one.failures.saturating_add(1);
            one.cause = Some(Arc::new(cause));
            one.failures
        };
        let spec = self.lanes[lane];
        let open = &self.ports.devices[spec.device];
        tracing::debug!(device = %open.device.name(), lane, failures, "queue pair lost");
        if failures > MAX_FAILURES || self.recoveries.send(lane).is_err() {
            let source = self.state.lock().lanes[lane].cause.clone();
            let source = source.unwrap_or_else(|| Arc::new(io::ErrorKind::NotConnected.into()));
            self.fail(&TransferError::LinkLost { source });
        }
    }
}

impl State {
    fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The lane with the fewest bytes under way, of those with room behind `batches`.
    fn best_lane(&self, batches: &[Vec<Work<Flight>>]) -> Option<usize> {
        let with_room = (0..self.lanes.len()).filter(|&lane| {
            let queue = self.lanes[lane].queue.as_ref();
            let taken = batches[lane].len();
            queue.is_some_and(|queue| queue.room() > taken) && taken < POST_TOGETHER
        });
        with_room.min_by_key(|&lane| self.lanes[lane].bytes)
    }

    /// Destroys the queue pair of a lane, and keeps its requests; `failed` is the one that failed.
    fn lose(&mut self, lane: usize, failed: Option<(Flight, WorkError)>) {
        let one = &mut self.lanes[lane];
        one.bytes = 0;
        if let Some((flight, error)) = failed {
            one.lost.push((flight.slice, Some(error)));
        }
        if let Some(queue) = one.queue.take() {
            one.lost.extend(queue.take_all().into_iter().map(|flight| (flight.slice, None)));
        }
    }

    /// Puts the requests that a lane lost to the front of those that wait.
    fn repost(&mut self, lane: usize, ended: &mut Ended) {
        let lost = std::mem::take(&mut self.lanes[lane].lost);
        let errors = || lost.iter().filter_map(|(_, error)| error.as_ref());
        let is_one_refused = errors().any(|error| error.status.blames_the_request());
        for (mut slice, error) in lost.into_iter().rev() {
            let blamed = error.filter(|error| error.status.blames_the_request());
            // Requests behind one that was refused are posted again as often as it takes: one that is
            // refused ends after its second try.
            if blamed.is_some() || !is_one_refused {
                slice.lost += 1;
            }
            match blamed {
                // The peer may have withdrawn the region, of which it has told by now.
                Some(error) if slice.lost > 1 || error.status != WorkStatus::RemoteAccess => {
                    let result = slice.transfer.check();
                    let refused = result.and(Err(TransferError::WorkFailed(Arc::new(error))));
                    ended.push((slice, refused));
                }
                _ if slice.lost > MAX_LOST => {
                    let source = self.lanes[lane].cause.clone();
                    let source = source.unwrap_or_else(|| Arc::new(io::ErrorKind::TimedOut.into()));
                    ended.push((slice, Err(TransferError::LinkLost { source })));
                }
                _ => self.waiting.push_front(slice),
            }
        }
    }
}

fn end_all(ended: Ended) {
    for (slice, result) in ended {
        slice.end(result);
    }
}
