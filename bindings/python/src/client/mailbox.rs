//! How the ends of calls reach an event loop: one mailbox for each loop.
//!
//! A thread of a client's runtime never waits for the interpreter. It puts what a call came
//! to into the mailbox of the loop that waits for it and rings the mailbox's [`Bell`], whose
//! descriptor the loop watches. The loop then calls the mailbox, on its own thread, which
//! sets the results of the futures that its coroutines wait for. Many ends that come together
//! cost one ring and one turn of the loop.

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

use super::bell::Bell;
use super::failure::{Done, Failure, Outcome};
use super::value;
use crate::fork::Home;

/// What a call came to, not yet an object of Python.
pub(super) trait Answer: Send {
    fn into_python(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl<T> Answer for Outcome<T>
where
    T: for<'py> IntoPyObject<'py> + Send,
{
    fn into_python(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        (*self)?.into_py_any(py)
    }
}

/// The part of a mailbox that runtimes see.
#[derive(Debug)]
struct Slot {
    bell: Bell,
    arrived: Mutex<Vec<(u64, Box<dyn Answer>)>>,
}

impl std::fmt::Debug for dyn Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// Sends the end of one call. When it is dropped without one, because the runtime of the
/// client has ended, the call ends with `Closed`.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    slot: Arc<Slot>,
    sent: bool,
}

impl Ticket {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The call is over.
    pub(super) fn send(mut self, answer: Box<dyn Answer>) {
        self.sent = true;
        self.post(answer);
    }

    fn post(&self, answer: Box<dyn Answer>) {
        let mut arrived = self.slot.arrived.lock();
        let is_first = arrived.is_empty();
        arrived.push((self.number, answer));
        drop(arrived);
        // Whoever put something in before has rung for this as well: all is taken out at once.
        if is_first {
            self.slot.bell.ring();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.sent {
            let closed = Failure::closed("the client was closed before the call ended");
            self.post(Box::new(Outcome::<Done>::Err(closed)));
        }
    }
}

/// The mailbox of one event loop.
#[pyclass(frozen, weakref, module = "mc_store._native")]
#[derive(Debug)]
pub(crate) struct Mailbox {
    slot: Arc<Slot>,
    /// The loop's futures, by the numbers of their calls. Touched on the loop's thread, and
    /// on the one that drops the mailbox.
    waiting: Mutex<HashMap<u64, Py<PyAny>>>,
    next: AtomicU64,
    home: Home,
}

impl Mailbox {
    /// The mailbox of a loop that is running on this thread.
    pub(super) fn of<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        /// From loops to their mailboxes. Neither is kept alive: a loop keeps its mailbox,
        /// by watching the bell, and so do calls that are under way.
        static MAILBOXES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = event_loop.py();
        let mailboxes = MAILBOXES
            .get_or_try_init(py, || {
                let weak = py.import("weakref")?.getattr("WeakKeyDictionary")?;
                weak.call0().map(Bound::unbind)
            })?
            .bind(py);
        let known = mailboxes.call_method1(intern!(py, "get"), (event_loop,))?;
        if let Ok(known) = known.cast_into::<PyWeakrefReference>()
            && let Some(mailbox) = known.upgrade_as_exact::<Self>()?
            && !mailbox.get().home.was_left()
        {
            return Ok(mailbox);
        }
        let bell = Bell::new()?;
        let fd = bell.fd();
        let slot = Arc::new(Slot { bell, arrived: Mutex::default() });
        let (waiting, next, home) = (Mutex::default(), AtomicU64::new(0), Home::here());
        let mailbox = Bound::new(py, Self { slot, waiting, next, home })?;
        event_loop.call_method1(intern!(py, "add_reader"), (fd, &mailbox))?;
        mailboxes.set_item(event_loop, PyWeakrefReference::new(&mailbox)?)?;
        Ok(mailbox)
    }

    /// A ticket for the call that `future` waits for.
    pub(super) fn expect(&self, future: &Bound<'_, PyAny>) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().insert(number, future.clone().unbind());
        Ticket { number, slot: Arc::clone(&self.slot), sent: false }
    }

    /// Whether this process was forked from the one that the mailbox belongs to.
    pub(super) fn was_left(&self) -> bool {
        self.home.was_left()
    }

    /// Nobody waits for the end of this call any more.
    pub(super) fn forget(&self, number: u64) {
        let future = self.waiting.lock().remove(&number);
        // Not under the lock: what drops a future may run any code.
        drop(future);
    }
}

#[pymethods]
impl Mailbox {
    /// Sets the results of the futures whose calls have ended.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.was_left() {
            // The rings are for the parent.
            return Ok(());
        }
        // Silenced first: what arrives from now on rings again.
        self.slot.bell.silence();
        let arrived = std::mem::take(&mut *self.slot.arrived.lock());
        let mut failed = None;
        for (number, answer) in arrived {
            let Some(future) = self.waiting.lock().remove(&number) else { continue };
            if let Err(error) = settle(future.bind(py), answer) {
                failed = Some(error);
            }
        }
        value::release_unused(py);
        // The loop reports it. One future that cannot be settled hinders no other.
        failed.map_or(Ok(()), Err)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock is not garbage.
        if let Some(waiting) = self.waiting.try_lock() {
            waiting.values().try_for_each(|future| visit.call(future))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        // Not under the lock: what drops a future may run any code.
        drop(waiting);
    }
}

fn settle(future: &Bound<'_, PyAny>, answer: Box<dyn Answer>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        // Cancelled, and the coroutine that waits for it has not run since.
        return Ok(());
    }
    match answer.into_python(py) {
        Ok(value) => future.call_method1(intern!(py, "set_result"), (value,))?,
        Err(error) => future.call_method1(intern!(py, "set_exception"), (error,))?,
    };
    Ok(())
}
