//! Completion queues: each event loop has one, which brings the results of calls to the loop.
//!
//! A thread of a client's runtime never waits for the interpreter. It appends a call's result to
//! the completion queue of the event loop that awaits the call, and signals the queue's
//! [`WakeUp`], whose descriptor the loop watches. The loop then calls the queue on the loop's own
//! thread, and the queue sets the results of the futures that the coroutines await. Calls that
//! end together cost one signal and one iteration of the loop.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::IntoPyObjectExt as _;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyWeakrefReference;

use super::failure::{Done, Failure, Outcome};
use super::value;
use super::wakeup::WakeUp;
use crate::fork::ProcessGuard;

/// The result of a call, before it is converted to a Python object.
pub(super) trait Completion: Send {
    fn into_python(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl<T> Completion for Outcome<T>
where
    T: for<'py> IntoPyObject<'py> + Send,
{
    fn into_python(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        (*self)?.into_py_any(py)
    }
}

/// The part of a completion queue that the runtimes' threads share.
#[derive(Debug)]
struct Inbox {
    wakeup: WakeUp,
    arrived: Mutex<Vec<(u64, Box<dyn Completion>)>>,
}

impl std::fmt::Debug for dyn Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}

/// Sends the result of one call to the completion queue. Dropped without a result, because the
/// client's runtime has ended, it ends the call with `Closed`.
#[derive(Debug)]
pub(super) struct CompletionSender {
    number: u64,
    inbox: Arc<Inbox>,
    sent: bool,
}

impl CompletionSender {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Sends the call's result.
    pub(super) fn send(mut self, result: Box<dyn Completion>) {
        self.sent = true;
        self.post(result);
    }

    fn post(&self, result: Box<dyn Completion>) {
        let mut arrived = self.inbox.arrived.lock();
        let is_first = arrived.is_empty();
        arrived.push((self.number, result));
        drop(arrived);
        // The loop takes all results out at once: the first result's signal is enough.
        if is_first {
            self.inbox.wakeup.signal();
        }
    }
}

impl Drop for CompletionSender {
    fn drop(&mut self) {
        if !self.sent {
            let closed = Failure::closed("the client was closed before the call ended");
            self.post(Box::new(Outcome::<Done>::Err(closed)));
        }
    }
}

/// The completion queue of one event loop.
#[pyclass(frozen, weakref, module = "mc_store._native")]
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    inbox: Arc<Inbox>,
    /// The loop's futures by call number. Only the loop's thread and the thread that drops the
    /// queue use it.
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
    process: ProcessGuard,
}

impl CompletionQueue {
    /// Returns the completion queue of the event loop that runs on this thread.
    pub(super) fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        /// Event loops and their queues, both by weak references: a loop keeps its queue alive
        /// by watching the descriptor, and so do pending calls.
        static QUEUES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let queues = QUEUES
            .get_or_try_init(py, || {
                let weak = py.import("weakref")?.getattr("WeakKeyDictionary")?;
                weak.call0().map(Bound::unbind)
            })?
            .bind(py);
        let known = queues.call_method1(intern!(py, "get"), (event_loop,))?;
        if let Ok(known) = known.cast_into::<PyWeakrefReference>()
            && let Some(queue) = known.upgrade_as_exact::<Self>()?
            && !queue.get().process.is_inherited()
        {
            return Ok(queue);
        }
        let wakeup = WakeUp::new()?;
        let fd = wakeup.fd();
        let inbox = Arc::new(Inbox { wakeup, arrived: Mutex::default() });
        let (waiting, next) = (Mutex::default(), AtomicU64::new(0));
        let process = ProcessGuard::current();
        let queue = Bound::new(py, Self { inbox, waiting, next, process })?;
        event_loop.call_method1(intern!(py, "add_reader"), (fd, &queue))?;
        queues.set_item(event_loop, PyWeakrefReference::new(&queue)?)?;
        Ok(queue)
    }

    /// Registers `future`; the returned sender sets its result.
    pub(super) fn register(&self, future: &Bound<'_, PyAny>) -> CompletionSender {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().insert(number, future.clone().unbind());
        CompletionSender { number, inbox: Arc::clone(&self.inbox), sent: false }
    }

    /// Returns whether the queue belongs to a parent process.
    pub(super) fn is_inherited(&self) -> bool {
        self.process.is_inherited()
    }

    /// Drops the future of a call whose result is no longer awaited.
    pub(super) fn forget(&self, number: u64) {
        let future = self.waiting.lock().remove(&number);
        // Not under the lock: dropping a future may run any code.
        drop(future);
    }
}

#[pymethods]
impl CompletionQueue {
    /// Sets the results of the futures whose calls have ended.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        if self.process.is_inherited() {
            // The signals are for the parent.
            return Ok(());
        }
        // Cleared first: results that arrive from now on signal again.
        self.inbox.wakeup.clear();
        let arrived = std::mem::take(&mut *self.inbox.arrived.lock());
        let mut failed = None;
        for (number, result) in arrived {
            let Some(future) = self.waiting.lock().remove(&number) else { continue };
            if let Err(error) = settle(future.bind(py), result) {
                failed = Some(error);
            }
        }
        value::release_unused(py);
        // The loop reports the error. A future that cannot be settled does not stop the others.
        failed.map_or(Ok(()), Err)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A queue whose lock is held is in use, not garbage.
        if let Some(waiting) = self.waiting.try_lock() {
            waiting.values().try_for_each(|future| visit.call(future))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        // Not under the lock: dropping a future may run any code.
        drop(waiting);
    }
}

fn settle(future: &Bound<'_, PyAny>, result: Box<dyn Completion>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        // Cancelled; the coroutine that awaits the future has not run since.
        return Ok(());
    }
    match result.into_python(py) {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,))?,
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error,))?,
    };
    Ok(())
}
