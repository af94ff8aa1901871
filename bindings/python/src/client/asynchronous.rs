//! The client whose calls are coroutines.

use std::sync::{Arc, OnceLock};
use std::task::Poll;

use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::prelude::*;

use super::arguments::{Seconds, Size};
use super::call::{Call, Started};
use super::completion_queue::CompletionSender;
use super::embedded::Embedded;
use super::failure::{Done, Outcome};
use super::member::{Member, Membership};
use super::settings::Settings;

/// Calls that send more bytes than this begin on the client's threads: they may compute a checksum
/// and copy the bytes first, which would block the event loop.
const MAX_INLINE: usize = 64 << 10;

/// A member of a cluster, whose calls are coroutines.
///
/// It has the methods of :class:`Client`, with the same arguments, results and errors. The client
/// does the work on threads of its own, without the interpreter; calls neither block nor start
/// threads. Several event loops in several threads may use one client, those of asyncio and of
/// uvloop.
///
/// A call begins when its coroutine is awaited or made a task. Cancelling the task that awaits it, as
/// :func:`asyncio.wait_for` does, ends the call: a get writes to the given buffers no more, and a put or
/// upsert stores nothing, unless only the master's answer to its end is missing. Over RDMA a get that
/// was cancelled may write until its buffers can be resized again.
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
    pub(super) membership: Arc<Membership>,
}

impl AsyncClient {
    /// Returns a coroutine for a call that sends `bytes` bytes.
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
            // Most calls begin with a message to the master. The event loop's thread sends it
            // while the client's threads wake up.
            if bytes <= MAX_INLINE
                && let Poll::Ready(outcome) = member.poll_once(call.as_mut())
            {
                return Ok(Started::Ended(Box::new(outcome)));
            }
            Ok(Started::Pending(Box::new(move |sender: CompletionSender| {
                let kept = Arc::clone(&member);
                member.spawn(async move {
                    sender.send(Box::new(call.await));
                    drop(kept);
                })
            })))
        };
        Call::new(name, Box::new(start))
    }
}

#[pymethods]
impl AsyncClient {
    // The constructor returns an awaitable, and that returns the client.
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
    /// the result, or use it in an ``async with`` statement, which closes the client at its end.
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

    /// Joins the cluster that the environment names, see :meth:`Client.from_env`. Use the result
    /// as that of :meth:`connect`.
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

    /// Leaves the cluster, see :meth:`Client.close`. Pending calls end with a result or an error.
    fn close(&self) -> Call {
        close(&self.membership)
    }

    /// ``True`` when the client is closed, or belongs to the parent of a forked process.
    #[getter]
    fn closed(&self) -> bool {
        self.membership.is_closed()
    }

    fn __aenter__(slf: Py<Self>) -> Call {
        let start = || Ok(Started::Ended(Box::new(Outcome::Ok(slf))));
        Call::new("AsyncClient.__aenter__", Box::new(start))
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> Call {
        self.close()
    }

    fn __repr__(&self) -> String {
        self.membership.repr("AsyncClient")
    }
}

fn close(membership: &Arc<Membership>) -> Call {
    let membership = Arc::clone(membership);
    let start = || {
        let Ok(member) = membership.member() else {
            return Ok(Started::Ended(Box::new(Outcome::Ok(Done))));
        };
        Ok(Started::Pending(Box::new(move |sender| {
            let kept = Arc::clone(&member);
            member.spawn(async move {
                kept.shutdown().await;
                membership.end();
                sender.send(Box::new(Outcome::Ok(Done)));
            })
        })))
    };
    Call::new("AsyncClient.close", Box::new(start))
}

/// A client that is being connected. Await it, or use it in an ``async with`` statement.
#[pyclass(frozen, extends = Call, module = "mc_store._native")]
#[derive(Debug)]
pub(crate) struct Connecting {
    /// Set when the client is connected.
    joined: Arc<OnceLock<Arc<Membership>>>,
}

/// The result of connecting.
struct Joined {
    member: Arc<Member>,
    joined: Arc<OnceLock<Arc<Membership>>>,
}

impl<'py> IntoPyObject<'py> for Joined {
    type Target = AsyncClient;
    type Output = Bound<'py, AsyncClient>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, AsyncClient>> {
        let membership = self.joined.get_or_init(|| Arc::new(Membership::new(self.member)));
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
        let to_set = Arc::clone(&joined);
        let start = move || {
            Ok(Started::Pending(Box::new(move |sender| {
                let ended = move |outcome: Outcome<Arc<Member>>| {
                    sender.send(Box::new(outcome.map(|member| Joined { member, joined: to_set })));
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
    /// Raises an error with advice: a coroutine is used as if it were the client.
    fn __getattr__(&self, name: &str) -> PyResult<Py<PyAny>> {
        Err(PyAttributeError::new_err(format!(
            "the client is not connected yet and has no attribute '{name}'; await what connects it, \
             or use that in an `async with` statement"
        )))
    }

    fn __aenter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__(&self, _exception: &Bound<'_, PyAny>) -> PyResult<Call> {
        let joined = self.joined.get();
        let joined =
            joined.ok_or_else(|| PyRuntimeError::new_err("this client was never entered"))?;
        Ok(close(joined))
    }
}
