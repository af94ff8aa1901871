//! The classes `Client` and `AsyncClient`.
//!
//! Every call is written once, in [`calls`], as a future that owns its arguments. `Client` waits
//! for the future ([`blocking`]); `AsyncClient` wraps it in a coroutine ([`call`]), whose result
//! reaches the event loop through a [`completion_queue`].

use pyo3::prelude::*;

mod arguments;
mod asynchronous;
mod blocking;
mod buffer;
mod call;
mod calls;
mod completion_queue;
mod embedded;
mod failure;
mod mapping;
mod member;
mod reports;
mod settings;
mod value;
mod wakeup;
mod work;

pub(crate) use asynchronous::{AsyncClient, Connecting};
pub(crate) use blocking::{Client, local};
pub(crate) use buffer::Buffer;
pub(crate) use call::Call;

/// Leaves all clusters that this process is still a member of, when the interpreter exits.
#[pyfunction(name = "_leave_all")]
pub(crate) fn leave_all(py: Python<'_>) {
    py.detach(member::leave_all);
}
