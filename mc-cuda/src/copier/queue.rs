//! The state that the callers of a copier, its worker and its time limit share.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use mc_memory::{Memory, MemorySlice};
use parking_lot::{Condvar, Mutex};

use super::flight::{Flight, Pending};
use super::options::CopierOptions;
use crate::context::Context;
use crate::driver::Handle;
use crate::error::CudaError;
use crate::order::{EngineStream, Order};
use crate::pieces::Pieces;

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;

/// A copy or a fill that the worker is given.
pub(super) enum Work {
    Read { pieces: Pieces, into: MemorySlice },
    Write { from: MemorySlice, pieces: Pieces, signals: Option<EngineStream> },
    Fill { pieces: Pieces, byte: u8 },
}

/// An event that the stream of a copy waits for.
pub(super) enum After {
    Nothing,
    /// One of the copier's, recorded when the copy was ordered.
    Ours(Handle),
    Engine(Handle),
}

pub(super) struct Job {
    pub(super) work: Work,
    pub(super) after: After,
    pub(super) flight: Arc<Flight>,
}

/// The pinned slots.
pub(super) enum Ring {
    Missing,
    /// The worker takes them.
    Wanted,
    There(Memory),
    Failed(CudaError),
}

pub(super) struct State {
    pub(super) jobs: VecDeque<Job>,
    pub(super) deadlines: VecDeque<(Instant, Arc<Flight>)>,
    pub(super) ring: Ring,
    pub(super) free: Vec<usize>,
    slot_wakers: Vec<Waker>,
    /// Whether the time limit waits without a deadline.
    pub(super) is_limit_idle: bool,
    /// Copies that have not ended in time, nor since.
    pub(super) hung: usize,
    /// Why no copy succeeds any more.
    pub(super) broken: Option<CudaError>,
    pub(super) is_stopping: bool,
    /// Whether the worker has ended.
    pub(super) is_ended: bool,
}

pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) options: CopierOptions,
    pub(super) state: Mutex<State>,
    /// For the worker.
    pub(super) work: Condvar,
    /// For the time limit.
    pub(super) limit: Condvar,
    /// For those that wait for a slot, or for the end of the worker.
    pub(super) changed: Condvar,
    /// Events for the next copies.
    pub(super) events: Mutex<Vec<Handle>>,
}

impl Shared {
    pub(super) fn new(context: Arc<Context>, options: CopierOptions) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            deadlines: VecDeque::new(),
            ring: Ring::Missing,
            free: Vec::new(),
            slot_wakers: Vec::new(),
            is_limit_idle: false,
            hung: 0,
            broken: None,
            is_stopping: false,
            is_ended: false,
        };
        Self {
            context,
            options,
            state: Mutex::new(state),
            work: Condvar::new(),
            limit: Condvar::new(),
            changed: Condvar::new(),
            events: Mutex::default(),
        }
    }

    pub(super) fn hung(&self) -> CudaError {
        CudaError::Hung { device: self.context.ordinal, limit: self.options.limit }
    }

    /// Orders a copy.
    pub(super) fn submit(&self, work: Work, order: Order) -> Pending {
        let flight = Arc::new(Flight::default());
        if let Err(error) = self.try_submit(work, order, &flight) {
            flight.complete(Err(error));
        }
        Pending::new(flight)
    }

    fn try_submit(&self, work: Work, order: Order, flight: &Arc<Flight>) -> Result<(), CudaError> {
        self.context.driver.check_fork()?;
        self.check_health(&self.state.lock())?;
        let after = match order {
            Order::Now => After::Nothing,
            Order::AfterEvent(event) => After::Engine(Handle::of(event.0)),
            // Here, not by the worker: what the stream is given after this call is not waited for.
            Order::After(stream) => After::Ours(self.record(Handle::of(stream.0))?),
        };
        let deadline = Instant::now() + self.options.limit;
        let mut state = self.state.lock();
        if let Err(error) = self.check_health(&state) {
            if let After::Ours(event) = after {
                self.events.lock().push(event);
            }
            return Err(error);
        }
        let job = Job { work, after, flight: Arc::clone(flight) };
        state.jobs.push_back(job);
        // The time limit looks at them when the first is due: those that are over do not pile up until then.
        while state.deadlines.front().is_some_and(|(_, flight)| flight.is_over()) {
            state.deadlines.pop_front();
        }
        state.deadlines.push_back((deadline, Arc::clone(flight)));
        if std::mem::take(&mut state.is_limit_idle) {
            self.limit.notify_one();
        }
        self.work.notify_one();
        Ok(())
    }

    /// Fails while a copy hangs, and after the context was lost.
    fn check_health(&self, state: &State) -> Result<(), CudaError> {
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if state.hung > 0 { Err(self.hung()) } else { Ok(()) }
    }

    /// Takes an event, and records it on a stream.
    fn record(&self, stream: Handle) -> Result<Handle, CudaError> {
        let event = self.event()?;
        let recorded = self.context.call("cuEventRecord", 0, |functions| {
            // SAFETY: the event is ours, and the stream its maker's promise.
            unsafe { (functions.event_record)(event, stream) }
        });
        if recorded.is_err() {
            self.events.lock().push(event);
        }
        recorded.map(|()| event)
    }

    /// Takes an event that no copy uses.
    pub(super) fn event(&self) -> Result<Handle, CudaError> {
        if let Some(event) = self.events.lock().pop() {
            return Ok(event);
        }
        let mut event = Handle::NONE;
        self.context.call("cuEventCreate", 0, |functions| {
            // SAFETY: writes the event to where it is told.
            unsafe { (functions.event_create)(&raw mut event, WITHOUT_TIME) }
        })?;
        Ok(event)
    }

    /// Takes a slot, or notes whom to wake when there is one.
    pub(super) fn poll_slot(self: &Arc<Self>, waker: &Waker) -> Poll<Result<Memory, CudaError>> {
        let mut state = self.state.lock();
        let taken = self.take_slot(&mut state);
        if matches!(taken, Ok(None)) {
            if !state.slot_wakers.iter().any(|known| known.will_wake(waker)) {
                state.slot_wakers.push(waker.clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(taken.map(|slot| slot.expect("it is there, as was found above")))
    }

    /// Blocks until there is a slot.
    pub(super) fn wait_slot(self: &Arc<Self>) -> Result<Memory, CudaError> {
        let mut state = self.state.lock();
        loop {
            if let Some(slot) = self.take_slot(&mut state)? {
                return Ok(slot);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Takes a slot, if there is one.
    pub(super) fn try_slot(self: &Arc<Self>) -> Result<Option<Memory>, CudaError> {
        self.take_slot(&mut self.state.lock())
    }

    fn take_slot(self: &Arc<Self>, state: &mut State) -> Result<Option<Memory>, CudaError> {
        self.context.driver.check_fork()?;
        if let Some(slot) = state.free.pop() {
            let Ring::There(ring) = &state.ring else { return Ok(None) };
            let len = self.options.slot_len;
            let part = ring.slice(slot * len, len);
            let part = part.expect("the ring has room for all slots");
            let base = NonNull::new(part.address()).expect("pinned memory has an address");
            let owner = Slot { shared: Arc::clone(self), number: slot, _ring: part };
            // SAFETY: the bytes are this slot's, which nothing else has until it is given back when
            // the owner is dropped, and the owner keeps the ring.
            return Ok(Some(unsafe { Memory::from_raw(base, len, owner) }));
        }
        self.check_health(state)?;
        match &state.ring {
            Ring::Missing => {
                state.ring = Ring::Wanted;
                self.work.notify_one();
            }
            Ring::Failed(error) => {
                let error = error.clone();
                state.ring = Ring::Missing;
                return Err(error);
            }
            Ring::Wanted | Ring::There(_) => {}
        }
        Ok(None)
    }

    /// Changes the state, and wakes those that wait for a slot.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, wakers) = {
            let mut state = self.state.lock();
            let changed = change(&mut state);
            (changed, std::mem::take(&mut state.slot_wakers))
        };
        self.changed.notify_all();
        // Without the lock: a task that is gone may drop a slot when it is woken.
        wakers.into_iter().for_each(Waker::wake);
        changed
    }

    /// Returns whether the bytes are those of a slot, without asking the driver.
    pub(super) fn is_slot(&self, slice: &MemorySlice) -> bool {
        let state = self.state.lock();
        let Ring::There(ring) = &state.ring else { return false };
        let at = slice.address().addr().wrapping_sub(ring.whole().address().addr());
        at.checked_add(slice.len()).is_some_and(|end| end <= ring.len())
    }
}

/// The owner of a slot's memory; gives it back.
struct Slot {
    shared: Arc<Shared>,
    number: usize,
    _ring: MemorySlice,
}

impl Drop for Slot {
    fn drop(&mut self) {
        // After a fork, a thread that is not there may hold the lock.
        if self.shared.context.driver.check_fork().is_ok() {
            self.shared.change(|state| state.free.push(self.number));
        }
    }
}
