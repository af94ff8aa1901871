//! The client whose calls are coroutines.

use std::sync::{Arc, OnceLock};
use std::task::Poll;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::arguments::{Seconds, Size};
use super::blocking::repr;
use super::call::{Begun, Call};
use super::embedded::Embedded;
use super::failure::{Done, Outcome};
use super::mailbox::Ticket;
use super::member::{Member, Membership};
use super::settings::Settings;

/// Calls that send more than so many bytes begin on the client's threads: they may add the
/// bytes up and copy them first, which would hold up the event loop.
const AT_ONCE: usize = 64 << 10;

/// A member of a cluster, whose calls are coroutines.
///
/// It has the methods of :class:`Client`, with the same arguments, results and errors. The
/// work is done by threads of the client's own, without the interpreter; no thread is taken or
/// made for a call. A client may be used by several event loops in several threads, those of
/// asyncio and of uvloop.
///
/// Nothing is done before a coroutine is awaited or made a task. When the task that awaits it is
/// cancelled, the call is given up, except for a put or upsert that has begun, which is brought
/// to its end without its caller; buffers that were given stay in use until then.
///
/// >>> async def main(master):
/// ...     async with mc_store.AsyncClient(master) as client:
/// ...         await client.put("block", b"keys and values")
/// ...         return bytes(await client.get("block"))
/// >>> asyncio.run(main(store.master_addr))
/// b'keys and values'
#[pyclass(frozen, weakref, module = "mc_store", name = "AsyncClient")]
#[derive(Debug)]
pub(crate) struct AsyncClient {
    membership: Arc<Membership>,
}

impl AsyncClient {
    /// A coroutine for a call that sends so many bytes.
    pub(super) fn begin<T, F>(
        &self,
        name: &'static str,
        bytes: usize,
        call: impl FnOnce(mc_store::Client) -> F + Send + 'static,
    ) -> Call
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        let membership = Arc::clone(&self.membership);
        let start = move || {
            let member = membership.member()?;
            let mut call = Box::pin(call(member.client().clone()));
            // Most calls begin with a message to the master. Sent from here it is on its way
            // while the client's threads wake up.
            if bytes <= AT_ONCE
                && let Poll::Ready(outcome) = member.poll_once(call.as_mut())
            {
                return Ok(Begun::Ended(Box::new(outcome)));
            }
            Ok(Begun::Pending(Box::new(move |ticket: Ticket| {
                let kept = Arc::clone(&member);
                member.spawn(async move {
                    ticket.send(Box::new(call.await));
                    drop(kept);
                })
            })))
        };
        Call::new(name, Box::new(start))
    }

    /// Asks the client something that it answers at once.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&mc_store::Client) -> T) -> PyResult<T> {
        Ok(question(self.membership.member()?.client()))
    }
}

#[pymethods]
impl AsyncClient {
    // What there is to await comes first, the client after that.
    #[new]
    #[pyo3(
        signature = (master=None, **settings),
        text_signature = "(master=None, *, segment_size=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn construct(
        py: Python<'_>,
        master: Option<String>,
        settings: Option<Settings>,
    ) -> PyResult<Py<Connecting>> {
        Self::connect(py, master, settings)
    }

    /// Joins a cluster, as the constructor does; the arguments are those of :class:`Client`. Await
    /// it, or use it in an ``async with`` statement, at whose end the client is closed.
    #[staticmethod]
    #[pyo3(
        signature = (master=None, **settings),
        text_signature = "(master=None, *, segment_size=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn connect(
        py: Python<'_>,
        master: Option<String>,
        settings: Option<Settings>,
    ) -> PyResult<Py<Connecting>> {
        let settings = settings.unwrap_or_default().master(master);
        Connecting::begin(py, "AsyncClient.connect", settings, || Ok(None))
    }

    /// Joins the cluster that the environment names, see :meth:`Client.from_env`; as
    /// :meth:`connect`.
    #[staticmethod]
    #[pyo3(
        signature = (master=None, **settings),
        text_signature = "(master=None, *, segment_size=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn from_env(
        py: Python<'_>,
        master: Option<String>,
        settings: Option<Settings>,
    ) -> PyResult<Py<Connecting>> {
        let settings = settings.unwrap_or_default().master(master).and_environment();
        Connecting::begin(py, "AsyncClient.from_env", settings, || Ok(None))
    }

    /// A whole cluster in this process, see :func:`mc_store.local`; as :meth:`connect`.
    #[staticmethod]
    #[pyo3(
        signature = (segment_size=None, *, lease=None, **settings),
        text_signature = "(segment_size='64MB', *, lease=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn local(
        py: Python<'_>,
        segment_size: Option<Size>,
        lease: Option<Seconds>,
        settings: Option<Settings>,
    ) -> PyResult<Py<Connecting>> {
        let settings = settings.unwrap_or_default().near(segment_size);
        let master = move || Embedded::start(lease.map(|lease| lease.0)).map(Some);
        Connecting::begin(py, "AsyncClient.local", settings, master)
    }

    /// Leaves the cluster, see :meth:`Client.close`. Calls that are under way end with the
    /// results that they get.
    fn close(&self) -> Call {
        close(&self.membership)
    }

    /// Whether the client is closed, or belongs to the process that this one was forked from.
    #[getter]
    fn closed(&self) -> bool {
        self.membership.is_closed()
    }

    fn __aenter__(slf: Py<Self>) -> Call {
        let start = || Ok(Begun::Ended(Box::new(Outcome::Ok(slf))));
        Call::new("AsyncClient.__aenter__", Box::new(start))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> Call {
        self.close()
    }

    fn __repr__(&self) -> String {
        repr("AsyncClient", &self.membership)
    }
}

fn close(membership: &Arc<Membership>) -> Call {
    let membership = Arc::clone(membership);
    let start = || {
        let Ok(member) = membership.member() else {
            return Ok(Begun::Ended(Box::new(Outcome::Ok(Done))));
        };
        Ok(Begun::Pending(Box::new(move |ticket| {
            let kept = Arc::clone(&member);
            member.spawn(async move {
                kept.shutdown().await;
                membership.end();
                ticket.send(Box::new(Outcome::Ok(Done)));
            })
        })))
    };
    Call::new("AsyncClient.close", Box::new(start))
}

/// A client that is being connected: to be awaited, or used in an ``async with`` statement.
#[pyclass(frozen, extends = Call, module = "mc_store._native")]
#[derive(Debug)]
pub(crate) struct Connecting {
    /// Once it is connected.
    joined: Arc<OnceLock<Arc<Membership>>>,
}

/// What it comes to.
struct Joined {
    member: Arc<Member>,
    told: Arc<OnceLock<Arc<Membership>>>,
}

impl<'py> IntoPyObject<'py> for Joined {
    type Target = AsyncClient;
    type Output = Bound<'py, AsyncClient>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, AsyncClient>> {
        let membership = self.told.get_or_init(|| Arc::new(Membership::new(self.member)));
        Bound::new(py, AsyncClient { membership: Arc::clone(membership) })
    }
}

impl Connecting {
    fn begin(
        py: Python<'_>,
        name: &'static str,
        settings: Settings,
        master: impl FnOnce() -> Outcome<Option<Embedded>> + Send + 'static,
    ) -> PyResult<Py<Self>> {
        let joined = Arc::new(OnceLock::new());
        let told = Arc::clone(&joined);
        let start = move || {
            Ok(Begun::Pending(Box::new(move |ticket| {
                let ended = move |outcome: Outcome<Arc<Member>>| {
                    ticket.send(Box::new(outcome.map(|member| Joined { member, told })));
                };
                Member::join_apart(settings, master, ended)
            })))
        };
        let call = PyClassInitializer::from(Call::new(name, Box::new(start)));
        Py::new(py, call.add_subclass(Self { joined }))
    }
}

#[pymethods]
impl Connecting {
    fn __aenter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<Call> {
        let joined = self.joined.get();
        let joined = joined.ok_or_else(|| PyRuntimeError::new_err("it was never entered"))?;
        Ok(close(joined))
    }
}
