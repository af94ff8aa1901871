//! Coroutines whose work is done by the runtime of a client.

use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::task::AbortHandle;

use super::failure::Outcome;
use super::mailbox::{Answer, Mailbox, Ticket};
use crate::fork::Home;

/// Begins the work of a call.
pub(super) type Start = Box<dyn FnOnce() -> Outcome<Begun> + Send>;

/// How far the beginning of a call has brought it.
pub(super) enum Begun {
    /// To its end.
    Ended(Box<dyn Answer>),
    /// It goes on elsewhere, sends its end with a ticket, and can be given up.
    Pending(Box<dyn FnOnce(Ticket) -> Outcome<AbortHandle>>),
}

/// A call of the store under way: a coroutine, to be awaited once.
///
/// Nothing is done before it is awaited, or made a task. When the task that awaits it is
/// cancelled, the call is given up, except for a put or upsert that has begun, which is brought
/// to its end without its caller.
#[pyclass(frozen, subclass, weakref, module = "mc_store._native")]
pub(crate) struct Call {
    name: &'static str,
    state: Mutex<State>,
    home: Home,
}

enum State {
    /// Not awaited yet.
    New(Start),
    /// Its future was handed to the event loop.
    Waiting(Waiting),
    /// It has ended, or was closed.
    Over,
}

struct Waiting {
    future: Py<PyAny>,
    mailbox: Py<Mailbox>,
    number: u64,
    work: AbortHandle,
}

impl Waiting {
    fn give_up(self) {
        if self.mailbox.get().was_left() {
            // The threads that do the work stayed in the parent, and locks that they held when
            // it was forked stay locked.
            std::mem::forget(self.work);
            return;
        }
        self.work.abort();
        self.mailbox.get().forget(self.number);
    }
}

impl Call {
    pub(super) fn new(name: &'static str, start: Start) -> Self {
        Self { name, state: Mutex::new(State::New(start)), home: Home::here() }
    }

    /// Takes the state out, so that no lock is held while Python runs. Meanwhile the call is
    /// over for whoever else looks.
    fn take(&self) -> State {
        std::mem::replace(&mut *self.state.lock(), State::Over)
    }

    /// Begins the work, and hands the loop what it is to wait for.
    fn begin<'py>(&self, py: Python<'py>, start: Start) -> PyResult<Bound<'py, PyAny>> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?;
        let event_loop = running.call0()?;
        let go_on = match start()? {
            Begun::Ended(answer) => {
                let value = answer.into_python(py)?;
                return Err(PyStopIteration::new_err((value,)));
            }
            Begun::Pending(go_on) => go_on,
        };
        let mailbox = Mailbox::of(&event_loop)?;
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        let ticket = mailbox.get().expect(&future);
        let number = ticket.number();
        let work = go_on(ticket).inspect_err(|_| mailbox.get().forget(number))?;
        let waiting =
            Waiting { future: future.clone().unbind(), mailbox: mailbox.unbind(), number, work };
        *self.state.lock() = State::Waiting(waiting);
        // What a future's own iterator does to tell a task that it was awaited.
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        Ok(future)
    }
}

#[pymethods]
impl Call {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.take() {
            State::New(start) => self.begin(py, start),
            State::Waiting(waiting) => {
                let result = waiting.future.bind(py).call_method0(intern!(py, "result"));
                match result {
                    Ok(value) => Err(PyStopIteration::new_err((value.unbind(),))),
                    Err(error) => {
                        waiting.give_up();
                        Err(error)
                    }
                }
            }
            State::Over => Err(PyRuntimeError::new_err("cannot reuse already awaited coroutine")),
        }
    }

    /// Goes on with the call; ``value`` is always ``None``.
    fn send<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        drop(value);
        self.__next__(py)
    }

    /// Gives the call up and raises the exception.
    #[pyo3(signature = (kind, value=None, traceback=None, /))]
    fn throw(
        &self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.close();
        let exception = value.filter(|value| !value.is_none()).unwrap_or(kind);
        let error = PyErr::from_value(exception);
        if let Some(traceback) = traceback.and_then(|traceback| traceback.cast_into().ok()) {
            error.set_traceback(traceback.py(), Some(traceback));
        }
        Err(error)
    }

    /// Gives the call up.
    fn close(&self) {
        if let State::Waiting(waiting) = self.take() {
            waiting.give_up();
        }
    }

    #[getter]
    fn __name__(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    #[getter]
    fn __qualname__(&self) -> &'static str {
        self.name
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock is not garbage.
        if let Some(state) = self.state.try_lock()
            && let State::Waiting(waiting) = &*state
        {
            visit.call(&waiting.future)?;
            visit.call(&waiting.mailbox)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let state = match *self.state.lock() {
            State::New(_) => "not awaited",
            State::Waiting(_) => "under way",
            State::Over => "over",
        };
        format!("<coroutine {} {state}>", self.name)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match std::mem::replace(self.state.get_mut(), State::Over) {
            // It may be the last that has a client of the parent.
            State::New(start) if self.home.was_left() => std::mem::forget(start),
            State::New(_) => warn(self.name),
            State::Waiting(waiting) => waiting.give_up(),
            State::Over => {}
        }
    }
}

/// As Python warns of coroutines that are forgotten.
fn warn(name: &str) {
    Python::try_attach(|py| {
        let text = format!("coroutine '{name}' was never awaited");
        let Ok(text) = std::ffi::CString::new(text) else { return };
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &text, 1) {
            // Warnings are errors here, and nobody is there to catch this one.
            error.write_unraisable(py, None);
        }
    });
}
