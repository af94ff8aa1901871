//! The thread that alone gives copies to the driver, and sees them end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flight::Flight;
use super::forms::{Copy, Direction};
use super::queue::{After, Job, Ring, Shared, Work};
use crate::driver::{Driver, Handle};
use crate::error::CudaError;
use crate::numa::NearMemory;
use crate::pieces::Pieces;
use crate::pinned::pinned;

/// How long the thread asks for the end of a copy without a rest, and how long it rests then.
const SPIN: Duration = Duration::from_micros(20);
const REST: Duration = Duration::from_micros(50);

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// A copy that the driver has.
struct Running {
    event: Handle,
    flight: Arc<Flight>,
    /// The driver's answer to the copy; the parts that it did not refuse still run.
    outcome: Result<(), CudaError>,
    /// Both sides of the copy, kept alive.
    _work: Work,
}

/// A stream of the copier, and its copies in their order.
struct Lane {
    stream: Handle,
    running: VecDeque<Running>,
}

struct Worker {
    shared: Arc<Shared>,
    /// To the host, and to the GPU: these two use the bus in two directions.
    lanes: [Lane; 2],
}

/// Runs the worker until the copier is dropped.
pub(super) fn run(shared: Arc<Shared>) {
    let lane = || Lane { stream: Handle::NONE, running: VecDeque::new() };
    let mut worker = Worker { shared, lanes: [lane(), lane()] };
    if let Err(error) = worker.open() {
        worker.fail(&error);
    }
    worker.work();
    worker.close();
}

impl Worker {
    fn driver(&self) -> &Driver {
        &self.shared.context.driver
    }

    /// Makes the context current, and the streams.
    fn open(&mut self) -> Result<(), CudaError> {
        self.shared.context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: writes the numbers to where it is told.
        let code = unsafe {
            (self.driver().functions.stream_priorities)(&raw mut least, &raw mut greatest)
        };
        self.driver().check("cuCtxGetStreamPriorityRange", 0, code)?;
        for number in 0..self.lanes.len() {
            let mut stream = Handle::NONE;
            // SAFETY: writes the stream to where it is told.
            let code = unsafe {
                (self.driver().functions.stream_create)(&raw mut stream, NON_BLOCKING, greatest)
            };
            self.driver().check("cuStreamCreateWithPriority", 0, code)?;
            self.lanes[number].stream = stream;
        }
        Ok(())
    }

    fn work(&mut self) {
        let mut last = Instant::now();
        loop {
            let (jobs, wants_ring) = {
                let mut state = self.shared.state.lock();
                let is_idle = self.lanes.iter().all(|lane| lane.running.is_empty());
                loop {
                    let wants_ring = matches!(state.ring, Ring::Wanted);
                    if !state.jobs.is_empty() || wants_ring {
                        break (std::mem::take(&mut state.jobs), wants_ring);
                    }
                    if !is_idle {
                        if last.elapsed() >= SPIN {
                            self.shared.work.wait_for(&mut state, REST);
                        }
                        break (std::mem::take(&mut state.jobs), false);
                    }
                    if state.is_stopping {
                        return;
                    }
                    self.shared.work.wait(&mut state);
                }
            };
            if wants_ring {
                self.take_ring();
            }
            let mut is_busy = !jobs.is_empty();
            for job in jobs {
                self.start(job);
            }
            is_busy |= self.poll();
            if is_busy {
                last = Instant::now();
            }
        }
    }

    /// Pins the slots, near the GPU.
    fn take_ring(&self) {
        let options = &self.shared.options;
        let near = NearMemory::of(&self.shared.context);
        let ring = options
            .slot_len
            .checked_mul(options.slots)
            .ok_or(CudaError::OutOfMemory { call: "cuMemHostAlloc", len: usize::MAX })
            .and_then(|len| pinned(&self.shared.context, len));
        drop(near);
        self.shared.change(|state| match ring {
            Ok(ring) => {
                state.ring = Ring::There(ring);
                state.free = (0..options.slots).rev().collect();
            }
            Err(error) => state.ring = Ring::Failed(error),
        });
    }

    /// Gives a job to the driver.
    fn start(&mut self, job: Job) {
        let Job { work, after, flight } = job;
        if flight.is_over() {
            // Its time was over before the driver had it.
            drop(work);
            self.over(&flight, &Ok(()));
            self.give_back(&after);
            return;
        }
        let number = usize::from(!matches!(work, Work::Read { .. }));
        let stream = self.lanes[number].stream;
        let event = match self.shared.event() {
            Ok(event) => event,
            Err(error) => {
                self.give_back(&after);
                drop(work);
                return self.refuse(&flight, &error);
            }
        };
        let queued = self.wait_for(stream, &after).and_then(|()| self.queue(&work, stream));
        self.give_back(&after);
        // Also after a failure: what the driver took before it still runs.
        let recorded = self.record(event, stream);
        let outcome = match recorded {
            Ok(()) => queued.and_then(|()| self.signal(&work, event)),
            Err(error) => {
                self.shared.events.lock().push(event);
                drop(work);
                return self.refuse(&flight, queued.as_ref().err().unwrap_or(&error));
            }
        };
        if outcome.is_ok() {
            flight.queued();
        }
        let running = Running { event, flight, outcome, _work: work };
        self.lanes[number].running.push_back(running);
    }

    /// Lets a stream wait for the event of an order.
    fn wait_for(&self, stream: Handle, after: &After) -> Result<(), CudaError> {
        let (After::Ours(event) | After::Engine(event)) = *after else { return Ok(()) };
        // SAFETY: the event is ours, or its maker's promise.
        let code = unsafe { (self.driver().functions.stream_wait_event)(stream, event, 0) };
        self.driver().check("cuStreamWaitEvent", 0, code)
    }

    /// The driver remembers what it was to wait for: the event can be recorded anew.
    fn give_back(&self, after: &After) {
        if let After::Ours(event) = *after {
            self.shared.events.lock().push(event);
        }
    }

    fn queue(&self, work: &Work, stream: Handle) -> Result<(), CudaError> {
        let copy = |pieces: &Pieces, host, direction| {
            let (driver, options) = (self.driver(), &self.shared.options);
            let copy = Copy { driver, options, stream, direction, host, pieces: &pieces.merged };
            // SAFETY: this thread has made the context current. The job keeps the host's bytes and
            // the pieces' owner until the event after the copies is over; that they are equally many
            // was checked when it was ordered.
            unsafe { copy.queue() }
        };
        match work {
            Work::Read { pieces, into } => copy(pieces, into.address(), Direction::ToHost),
            Work::Write { from, pieces, .. } => copy(pieces, from.address(), Direction::ToDevice),
            Work::Fill { pieces, byte } => pieces.merged.iter().try_for_each(|piece| {
                let fill = self.driver().functions.fill;
                // SAFETY: the piece is memory of this GPU, which the job keeps.
                let code = unsafe { fill(piece.address, *byte, piece.len, stream) };
                self.driver().check("cuMemsetD8Async", piece.len, code)
            }),
        }
    }

    fn record(&self, event: Handle, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: both are ours.
        let code = unsafe { (self.driver().functions.event_record)(event, stream) };
        self.driver().check("cuEventRecord", 0, code)
    }

    /// Lets the engine's stream wait for the copy.
    fn signal(&self, work: &Work, event: Handle) -> Result<(), CudaError> {
        let Work::Write { signals: Some(stream), .. } = work else { return Ok(()) };
        let stream = Handle::of(stream.0);
        // SAFETY: the event is ours, and the stream its maker's promise.
        let code = unsafe { (self.driver().functions.stream_wait_event)(stream, event, 0) };
        self.driver().check("cuStreamWaitEvent", 0, code)
    }

    /// Ends the copies that are over. Returns whether there were any.
    fn poll(&mut self) -> bool {
        let mut found = false;
        for number in 0..self.lanes.len() {
            while let Some(running) = self.lanes[number].running.front() {
                // SAFETY: the event is ours.
                let code = unsafe { (self.driver().functions.event_query)(running.event) };
                if code == NOT_READY {
                    break;
                }
                found = true;
                if let Err(error) = self.driver().check("cuEventQuery", 0, code) {
                    self.fail(&error);
                    break;
                }
                let Some(ended) = self.lanes[number].running.pop_front() else { break };
                self.shared.events.lock().push(ended.event);
                // The slot is free when its copy is seen to have ended.
                let Running { flight, outcome, _work: work, .. } = ended;
                drop(work);
                self.over(&flight, &outcome);
            }
        }
        found
    }

    /// Ends a copy, whose memory has been let go of: for those that wait, or for the time limit, which has told them already.
    fn over(&self, flight: &Flight, outcome: &Result<(), CudaError>) {
        if !flight.complete(outcome.clone()) {
            self.shared.change(|state| state.hung = state.hung.saturating_sub(1));
        }
    }

    /// Ends a copy that the driver does not have.
    fn refuse(&self, flight: &Flight, error: &CudaError) {
        self.over(flight, &Err(error.clone()));
        if matches!(error, CudaError::Lost { .. }) {
            self.shared.state.lock().broken = Some(error.clone());
        }
    }

    /// Ends everything: the context is dead, and the GPU touches nothing any more.
    fn fail(&mut self, error: &CudaError) {
        tracing::error!("copies of GPU {} fail: {error}", self.shared.context.ordinal);
        let jobs = self.shared.change(|state| {
            state.broken = Some(error.clone());
            std::mem::take(&mut state.jobs)
        });
        for Job { work, after, flight } in jobs {
            self.give_back(&after);
            drop(work);
            self.over(&flight, &Err(error.clone()));
        }
        for number in 0..self.lanes.len() {
            while let Some(running) = self.lanes[number].running.pop_front() {
                let Running { event, flight, _work: work, .. } = running;
                self.shared.events.lock().push(event);
                drop(work);
                self.over(&flight, &Err(error.clone()));
            }
        }
    }

    /// Gives everything back to the driver.
    fn close(&mut self) {
        let functions = &self.driver().functions;
        for event in std::mem::take(&mut *self.shared.events.lock()) {
            // SAFETY: the event is ours, and no copy uses it.
            let _ = unsafe { (functions.event_destroy)(event) };
        }
        for lane in self.lanes.iter().filter(|lane| lane.stream != Handle::NONE) {
            // SAFETY: the stream is ours, and has no work left.
            let _ = unsafe { (functions.stream_destroy)(lane.stream) };
        }
        let mut state = self.shared.state.lock();
        state.is_ended = true;
        self.shared.changed.notify_all();
        self.shared.limit.notify_all();
    }
}
