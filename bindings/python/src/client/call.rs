//! Coroutines whose work runs on a client's runtime.

use super::completion_queue::{Completion, CompletionQueue, CompletionSender};
use super::failure::Outcome;
use super::work::Work;
use crate::fork::ProcessGuard;
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Starts a call.
pub(super) type Start = Box<dyn FnOnce() -> Outcome<Started> + Send>;

/// The state of a call after its start.
pub(super) enum Started {
    /// The call has ended with this result.
    Ended(Box<dyn Completion>),
    /// The call is to go on on the client's threads, which send the result.
    Pending(Box<dyn FnOnce(CompletionSender) -> Outcome<Work>>),
}

/// A call of the store as a coroutine, which can be awaited once.
///
/// The call begins when the coroutine is awaited or made a task. Cancelling the task that awaits
/// it ends the call: a get writes to the given buffers no more, except over RDMA, and a put or upsert
/// stores nothing, unless only the master's answer to its end is missing.
#[pyclass(frozen, subclass, weakref, module = "mc_store._native")]
pub(crate) struct Call {
    name: &'static str,
    state: Mutex<State>,
    process: ProcessGuard,
}

enum State {
    /// The call was not awaited yet.
    New(Start),
    /// The event loop has the call's future.
    Waiting(WaitingCall),
    /// The call has ended, or the coroutine was closed.
    Over,
}

struct WaitingCall {
    future: Py<PyAny>,
    queue: Py<CompletionQueue>,
    number: u64,
    work: Work,
}

impl WaitingCall {
    fn abandon(self) {
        if self.queue.get().is_inherited() {
            // The threads that do the work exist only in the parent; locks that they held at the
            // fork stay locked.
            std::mem::forget(self.work);
            return;
        }
        self.work.end();
        self.queue.get().forget(self.number);
    }
}

impl Call {
    pub(super) fn new(name: &'static str, start: Start) -> Self {
        Self { name, state: Mutex::new(State::New(start)), process: ProcessGuard::current() }
    }

    /// Takes the state out, so that no lock is held while Python code runs. Other threads see the
    /// call as over meanwhile.
    fn take(&self) -> State {
        std::mem::replace(&mut *self.state.lock(), State::Over)
    }

    /// Starts the call and returns the future that the event loop waits for.
    fn begin<'py>(&self, py: Python<'py>, start: Start) -> PyResult<Bound<'py, PyAny>> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?;
        let event_loop = running.call0()?;
        let go_on = match start()? {
            Started::Ended(result) => {
                let value = result.into_python(py)?;
                return Err(PyStopIteration::new_err((value,)));
            }
            Started::Pending(go_on) => go_on,
        };
        let queue = CompletionQueue::of(&event_loop)?;
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        let sender = queue.get().register(&future);
        let number = sender.number();
        let work = go_on(sender).inspect_err(|_| queue.get().forget(number))?;
        let waiting =
            WaitingCall { future: future.clone().unbind(), queue: queue.unbind(), number, work };
        *self.state.lock() = State::Waiting(waiting);
        // A future's own iterator sets this to tell the task that the future is awaited.
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
                        waiting.abandon();
                        Err(error)
                    }
                }
            }
            State::Over => Err(PyRuntimeError::new_err("cannot reuse already awaited coroutine")),
        }
    }

    /// Resumes the coroutine; ``value`` is always ``None``.
    fn send<'py>(&self, py: Python<'py>, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        drop(value);
        self.__next__(py)
    }

    /// Abandons the call and raises the exception.
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

    /// Abandons the call.
    fn close(&self) {
        if let State::Waiting(waiting) = self.take() {
            waiting.abandon();
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
        // A call whose lock is held is in use, not garbage.
        if let Some(state) = self.state.try_lock()
            && let State::Waiting(waiting) = &*state
        {
            visit.call(&waiting.future)?;
            visit.call(&waiting.queue)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self.close();
    }

    fn __repr__(&self) -> String {
        let state = match *self.state.lock() {
            State::New(_) => "not awaited",
            State::Waiting(_) => "pending",
            State::Over => "over",
        };
        format!("<coroutine {} {state}>", self.name)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        match std::mem::replace(self.state.get_mut(), State::Over) {
            // It may hold the last reference to a client of the parent.
            State::New(start) if self.process.is_inherited() => std::mem::forget(start),
            State::New(_) => warn(self.name),
            State::Waiting(waiting) => waiting.abandon(),
            State::Over => {}
        }
    }
}

/// Warns as Python does of coroutines that were not awaited.
fn warn(name: &str) {
    Python::try_attach(|py| {
        let text = format!("coroutine '{name}' was never awaited");
        let Ok(text) = std::ffi::CString::new(text) else { return };
        let category = py.get_type::<PyRuntimeWarning>();
        if let Err(error) = PyErr::warn(py, &category, &text, 1) {
            // Warnings are errors in this program, and a destructor cannot raise.
            error.write_unraisable(py, None);
        }
    });
}
