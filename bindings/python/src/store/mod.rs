//! Mooncake's interface: `MooncakeDistributedStore`.
//!
//! Methods return Mooncake's numbers: 0 or a count, and the negative number of
//! [`ErrorCode::reference_code`](mc_types::ErrorCode::reference_code) for a failure. The log has
//! the failure's text.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 makes the arguments for each call")]

pub(crate) mod arguments;
mod backend;
mod buffers;
mod config;
mod descriptors;
pub(crate) mod enumerations;
mod events;
pub(crate) mod exit;
mod get;
pub(crate) mod handle;
mod host_memory;
mod in_place;
mod keys;
mod lifecycle;
mod numa;
mod ports;
mod put;
mod ranges;
mod records;
mod segments;
mod session;
mod settings;
mod tasks;
mod uuid;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use self::arguments::Texts;
pub(crate) use self::config::ReplicateConfig;
pub(crate) use self::descriptors::{
    Descriptor, DiskDescriptor, MemoryDescriptor, ReplicaDescriptor,
};
pub(crate) use self::enumerations::{
    ObjectDataType, ReplicaStatus, SoftPinAction, TaskStatus, TaskType,
};
pub(crate) use self::events::StoreEventInfo;
pub(crate) use self::handle::BufferHandle;
pub(crate) use self::host_memory::MooncakeHostMemAllocator;
pub(crate) use self::numa::bind_to_numa_node;
use self::session::Session;
pub(crate) use self::tasks::QueryTaskResponse;
use crate::error::{Failure, code_of, count_of};
use crate::fork::ProcessGuard;
use crate::interrupt::detached;

/// The base class of `MooncakeDistributedStore`: everything but tensors.
///
/// Threads may share a store and call it concurrently: a waiting call releases the interpreter.
/// Methods that return a number return 0 or a count, and a negative number for a failure: -600
/// for invalid arguments and before `setup`, -704 for a key without an object, -200 for lack of
/// space. The log on standard error has the cause; `MC_LOG=debug` logs more.
///
/// A store does not survive a fork: in a child process every method except `close` raises
/// RuntimeError. After `close` the child can set the store up again.
#[pyclass(frozen, subclass, module = "mc_store._native")]
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Locked briefly, only by threads that hold the interpreter: so it is never locked when the
    /// process forks.
    state: Mutex<State>,
    /// The lock of threads that wait until `state` is no longer `Changing`.
    waiting: Mutex<()>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    /// A thread sets the store up or closes it.
    Changing(ProcessGuard),
    Open(ProcessGuard, Arc<Session>),
}

impl State {
    /// Returns whether the session belongs to a parent process.
    fn is_inherited(&self) -> bool {
        match self {
            Self::Closed => false,
            Self::Changing(process) | Self::Open(process, _) => process.is_inherited(),
        }
    }
}

impl Store {
    /// Returns the session; `None` before `setup`.
    ///
    /// # Errors
    /// RuntimeError in a process that was forked from the one that set the store up.
    fn session(&self) -> PyResult<Option<Arc<Session>>> {
        let state = self.state.lock();
        if state.is_inherited() {
            return Err(PyRuntimeError::new_err(
                "this store was set up in a parent process and does not survive a fork; call \
                 close() and setup() here, or start processes with the method 'spawn'",
            ));
        }
        Ok(match &*state {
            State::Open(_, session) => Some(Arc::clone(session)),
            State::Closed | State::Changing(_) => None,
        })
    }

    /// Calls the session with the interpreter released.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Session) -> Result<T, Failure> + Send,
    ) -> PyResult<Result<T, Failure>> {
        match self.session()? {
            Some(session) => detached(py, || call(&session)),
            None => Ok(Err(NOT_SET_UP)),
        }
    }

    /// Calls the session and returns 0, or the number of the failure.
    fn code(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Session) -> Result<(), Failure> + Send,
    ) -> PyResult<i32> {
        self.with(py, call).map(code_of)
    }

    /// Calls the session and returns a count, or the number of the failure.
    fn count(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Session) -> Result<u64, Failure> + Send,
    ) -> PyResult<i64> {
        self.with(py, call).map(count_of)
    }

    /// Calls the session with the interpreter released; the call has an outcome for each key.
    fn with_each<T: Clone + Send>(
        &self,
        py: Python<'_>,
        keys: &Texts,
        call: impl FnOnce(&Session, &[&str]) -> Vec<Result<T, Failure>> + Send,
    ) -> PyResult<Vec<Result<T, Failure>>> {
        let Some(session) = self.session()? else { return Ok(vec![Err(NOT_SET_UP); keys.len()]) };
        let keys = keys.as_strs();
        detached(py, || call(&session, &keys))
    }

    /// Replaces the session by the result of `change`, exclusively. The interpreter is released
    /// meanwhile; concurrent calls find no session.
    ///
    /// # Errors
    /// The exception that a signal's handler raised; the store is closed then.
    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(Option<Arc<Session>>) -> Option<Session> + Send,
    ) -> PyResult<()> {
        let before = loop {
            let mut state = self.state.lock();
            if !matches!(*state, State::Changing(process) if !process.is_inherited()) {
                break std::mem::replace(&mut *state, State::Changing(ProcessGuard::current()));
            }
            drop(state);
            py.detach(|| self.changed.wait_for(&mut self.waiting.lock(), CHANGE_POLL_INTERVAL));
        };
        let mut changed = Changed { store: self, becomes: State::Closed };
        let before = match before {
            // Its threads and connections exist only in the parent.
            inherited if inherited.is_inherited() => {
                std::mem::forget(inherited);
                None
            }
            State::Open(_, session) => Some(session),
            State::Closed | State::Changing(_) => None,
        };
        if let Some(session) = detached(py, move || change(before))? {
            changed.becomes = State::Open(ProcessGuard::current(), exit::watched(session));
        }
        Ok(())
    }
}

/// The pause before another look at the state: the change may have ended before the wait began.
const CHANGE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Sets the new state on drop, also after a panic.
struct Changed<'a> {
    store: &'a Store,
    becomes: State,
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        *self.store.state.lock() = std::mem::take(&mut self.becomes);
        self.store.changed.notify_all();
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        match self.state.get_mut() {
            state if state.is_inherited() => std::mem::forget(std::mem::take(state)),
            State::Open(_, session) => exit::shut_down_later(session.clone()),
            State::Closed | State::Changing(_) => {}
        }
    }
}

/// The result of calls before `setup`.
const NOT_SET_UP: Failure = Failure::INVALID_PARAMS;
