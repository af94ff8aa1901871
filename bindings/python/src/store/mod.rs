//! The face of Mooncake: `MooncakeDistributedStore`.
//!
//! Methods answer with numbers, as there: 0 or a count, and negative ones of
//! [`ErrorCode::reference_code`](mc_types::ErrorCode::reference_code) for failures. What went
//! wrong in words goes to the log.

#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments that come from Python are made for the call"
)]

mod arguments;
mod backend;
mod buffers;
mod config;
mod descriptors;
mod enumerations;
mod events;
pub(crate) mod exit;
mod get;
mod handle;
mod host_memory;
mod keys;
mod lifecycle;
mod numa;
mod put;
mod ranges;
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
use crate::error::Failure;
use crate::fork::Home;
use crate::interrupt::detached;

/// What `MooncakeDistributedStore` is derived from: everything but tensors.
///
/// Threads may call at the same time, and they run at the same time: no call holds the
/// interpreter while it waits. Methods that return numbers return 0 or a count, and a negative
/// number for a failure: -600 for arguments that cannot be used and before `setup`, -704 for a
/// key that has no object, -200 when there is no room. The log, on standard error, has the cause
/// in words; `MC_LOG=debug` has more of it.
///
/// A store does not survive a fork: in a child process every method raises RuntimeError, except
/// `close`, after which the child can set it up anew.
#[pyclass(frozen, subclass, module = "mc_store._native")]
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Locked for moments, by threads that hold the interpreter: so nobody has it locked when a
    /// program forks.
    state: Mutex<State>,
    /// For who waits until `state` is `Changing` no more.
    waiting: Mutex<()>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    /// A thread sets the store up or closes it.
    Changing(Home),
    Open(Home, Arc<Session>),
}

impl State {
    /// Whether what it is about stayed in a parent process.
    fn was_left(&self) -> bool {
        match self {
            Self::Closed => false,
            Self::Changing(home) | Self::Open(home, _) => home.was_left(),
        }
    }
}

impl Store {
    /// What calls work with; `None` before `setup`.
    ///
    /// # Errors
    /// RuntimeError in a process that was forked from the one that set the store up.
    fn session(&self) -> PyResult<Option<Arc<Session>>> {
        let state = self.state.lock();
        if state.was_left() {
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

    /// Has `change` make another state of the present one, alone. The interpreter is released
    /// meanwhile; calls that come meanwhile find no session.
    ///
    /// # Errors
    /// What a signal's handler raised; the store is closed then.
    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(Option<Arc<Session>>) -> Option<Session> + Send,
    ) -> PyResult<()> {
        let before = loop {
            let mut state = self.state.lock();
            if !matches!(*state, State::Changing(home) if !home.was_left()) {
                break std::mem::replace(&mut *state, State::Changing(Home::here()));
            }
            drop(state);
            py.detach(|| self.changed.wait_for(&mut self.waiting.lock(), LOOK_AGAIN));
        };
        let mut changed = Changed { store: self, becomes: State::Closed };
        let before = match before {
            // Its threads and connections are in another process.
            left if left.was_left() => {
                std::mem::forget(left);
                None
            }
            State::Open(_, session) => Some(session),
            State::Closed | State::Changing(_) => None,
        };
        if let Some(session) = detached(py, move || change(before))? {
            changed.becomes = State::Open(Home::here(), exit::watched(session));
        }
        Ok(())
    }
}

/// How long to wait for a change at most before looking again: it may have been over before.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Ends a change of the state, also when what changed it panics.
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
            state if state.was_left() => std::mem::forget(std::mem::take(state)),
            State::Open(_, session) => exit::shut_down_later(Arc::clone(session)),
            State::Closed | State::Changing(_) => {}
        }
    }
}

/// The answer of calls that need a `setup`.
const NOT_SET_UP: Failure = Failure::INVALID_PARAMS;
