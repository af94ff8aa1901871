//! The Pythonic face: `Client` and `AsyncClient`.
//!
//! Every call is written once, in [`calls`], as a future that owns what it needs. `Client`
//! waits for it ([`blocking`]), `AsyncClient` makes a coroutine of it ([`call`]), whose end
//! reaches the event loop through a [`mailbox`].

use pyo3::prelude::*;

mod arguments;
mod asynchronous;
mod bell;
mod blocking;
mod buffer;
mod call;
mod calls;
mod embedded;
mod failure;
mod mailbox;
mod mapping;
mod member;
mod reports;
mod settings;
mod value;

pub(crate) use asynchronous::{AsyncClient, Connecting};
pub(crate) use blocking::{Client, local};
pub(crate) use buffer::Buffer;
pub(crate) use call::Call;

/// Leaves the clusters that this process is still a member of; for the end of the interpreter.
#[pyfunction(name = "_leave_all")]
pub(crate) fn leave_all(py: Python<'_>) {
    py.detach(member::leave_all);
}
