//! The client whose calls block until they end.

use pyo3::prelude::*;
use pyo3::types::PyAny;

use super::arguments::{Seconds, Size};
use super::embedded::Embedded;
use super::failure::Outcome;
use super::member::{Member, Membership};
use super::settings::Settings;
use super::value;
use crate::interrupt::{detached, is_interrupted};

/// A member of a cluster, whose calls block until they end.
///
/// :param master: The master's address: ``"host:port"``, ``"unix:/path"``, or several addresses
///     separated by semicolons or commas, of which one leads; or
///     ``"etcd://host:port;host:port/cluster"``, where the masters elect their leader.
/// :param segment_size: Memory to contribute, in bytes or as ``"4GB"``. None by default: the client
///     only puts and gets.
/// :param local_buffer: Memory to read values into, allocated on first use; 256 MiB by default. 0
///     makes a client that only contributes memory.
/// :param listen: Address to serve segments at, as ``"address:port"``. By default a client with a
///     segment uses a free port of every address. Segments can be mounted later only if this
///     or a segment is given.
/// :param segment_name: The name by which puts can prefer the segment.
/// :param hot_cache: Memory to cache values that this client gets repeatedly; none by default.
/// :param put_wait: Seconds that a put waits for space; 1 by default.
/// :param config: All other settings: the path of a JSON or TOML file, or a mapping, with the
///     keys of ``docs/configuration.md``. The arguments above override it.
///
/// Keys are :class:`str` of 1 to 1024 bytes of UTF-8: a key with a lone surrogate raises
/// :class:`UnicodeEncodeError`, an empty or longer key
/// :class:`~mc_store.exceptions.InvalidArgument`; both are :class:`ValueError`. Values are
/// bytes-like objects of any kind, sent without a copy. Times are in seconds, sizes in bytes or
/// strings such as ``"16MB"`` (every unit is a power of 1024).
///
/// Threads may share a client, and a call does not block other Python threads. Ctrl-C interrupts
/// a waiting call. After a fork the child needs a client of its own.
///
/// The client also works as a mapping: ``client[key]`` gets, ``client[key] = value`` upserts,
/// ``del client[key]`` removes, ``key in client`` checks whether the key exists. A ``with``
/// statement closes the client at its end.
///
/// Errors are :class:`~mc_store.exceptions.StoreError`.
///
/// >>> with mc_store.Client(store.master_addr) as client:
/// ...     client.put("prompt-17/block-0", bytes(65536))
/// ...     client.longest_prefix(["prompt-17/block-0", "prompt-17/block-1"])
/// True
/// 1
#[pyclass(frozen, weakref, module = "mc_store", name = "Client")]
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) membership: Membership,
}

impl Client {
    fn connect(py: Python<'_>, settings: Settings) -> PyResult<Self> {
        let member = detached(py, || Member::join(settings, None))??;
        Ok(Self { membership: Membership::new(member) })
    }

    /// Waits for a call with the interpreter released, and abandons the call when a signal's
    /// handler raises.
    pub(super) fn wait<T, F>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(mc_store::Client) -> F,
    ) -> PyResult<T>
    where
        T: Send,
        F: Future<Output = Outcome<T>> + Send,
    {
        let member = self.membership.member()?;
        let outcome = wait(py, &member, call(member.client().clone()));
        value::release_unused(py);
        outcome
    }
}

fn wait<T, F>(py: Python<'_>, member: &Member, call: F) -> PyResult<T>
where
    T: Send,
    F: Future<Output = Outcome<T>> + Send,
{
    Ok(detached(py, || member.block_on_unless(call, is_interrupted))??)
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (master=None, **settings),
        text_signature = "(master=None, *, segment_size=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn new(py: Python<'_>, master: Option<String>, settings: Option<Settings>) -> PyResult<Self> {
        Self::connect(py, settings.unwrap_or_default().master(master))
    }

    /// Joins the cluster that the environment names: the file in ``MOONCAKE_CONFIG_PATH``, and
    /// variables such as ``MOONCAKE_MASTER``. The arguments are those of the constructor and
    /// override the environment.
    #[staticmethod]
    #[pyo3(
        signature = (master=None, **settings),
        text_signature = "(master=None, *, segment_size=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
    )]
    fn from_env(
        py: Python<'_>,
        master: Option<String>,
        settings: Option<Settings>,
    ) -> PyResult<Self> {
        Self::connect(py, settings.unwrap_or_default().master(master).and_environment())
    }

    /// Leaves the cluster: unmounts this client's segments. Objects without a replica elsewhere
    /// are lost. Later calls raise :class:`~mc_store.exceptions.Closed`. Buffers that gets have
    /// returned stay valid. Closing twice has no effect.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(member) = self.membership.member() else { return Ok(()) };
        wait(py, &member, async {
            member.shutdown().await;
            Ok(())
        })?;
        self.membership.end();
        Ok(())
    }

    /// ``True`` when the client is closed, or belongs to the parent of a forked process.
    #[getter]
    fn closed(&self) -> bool {
        self.membership.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        self.membership.repr("Client")
    }
}

/// Starts a whole cluster in this process: a master, a segment, and the client that is returned.
/// Closing the client ends the cluster.
///
/// :param segment_size: Memory for objects, in bytes or as ``"64MB"``.
/// :param lease: Seconds for which reading an object protects it from removal and eviction; 5 by
///     default.
///
/// Other arguments are those of :class:`Client`. Other processes of this host can join the
/// cluster at :attr:`Client.master_addr`.
///
/// >>> with mc_store.local(segment_size="16MB") as notebook:
/// ...     notebook["k"] = b"v"
/// ...     bytes(notebook["k"])
/// b'v'
#[pyfunction]
#[pyo3(
    signature = (segment_size=None, *, lease=None, **settings),
    text_signature = "(segment_size='64MB', *, lease=None, local_buffer=None, listen=None, segment_name=None, hot_cache=None, put_wait=None, config=None)"
)]
pub(crate) fn local(
    py: Python<'_>,
    segment_size: Option<Size>,
    lease: Option<Seconds>,
    settings: Option<Settings>,
) -> PyResult<Client> {
    let settings = settings.unwrap_or_default().near(segment_size);
    let member = detached(py, || {
        let master = Embedded::start(lease.map(|lease| lease.0))?;
        let settings = settings.master(Some(master.address().to_string()));
        Member::join(settings, Some(master))
    })??;
    Ok(Client { membership: Membership::new(member) })
}
