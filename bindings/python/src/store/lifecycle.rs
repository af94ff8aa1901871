//! Joining and leaving a cluster.

use mc_store::StartError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::arguments::Size;
use super::exit::ShutDown as _;
use super::session::Session;
use super::settings::{self, Settings};
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, OK};
use crate::interrupt::detached;
use crate::logging;

#[pymethods]
impl Store {
    /// Makes a store that is not set up. The arguments are for constructors of derived classes.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// setup(self, local_hostname: str, metadata_server: str, global_segment_size: int = 16777216,
    /// local_buffer_size: int = 16777216, protocol: str = 'tcp', rdma_devices: str = '',
    /// master_server_addr: str = '127.0.0.1:50051', engine: object = None, enable_ssd_offload: bool
    /// = False, ssd_offload_path: str = '', tenant_id: str = 'default', enable_client_http_server:
    /// bool = False, client_http_port: int = 9300) -> int setup(self, config: dict) -> int
    ///
    /// Joins the cluster of a master. A store that is set up already leaves its cluster first.
    /// Returns 0, or a negative number when the cluster cannot be joined; the store is then closed.
    ///
    /// local_hostname: the name or address by which other hosts reach this host; "host:port" sets
    ///     the port, too. If the port is in use, a free port is used. Without one a client with memory
    ///     takes a free port from 12300 to 14300, or from MC_STORE_CLIENT_MIN_PORT to
    ///     MC_STORE_CLIENT_MAX_PORT.
    /// metadata_server: has no effect: the master knows where segments are.
    /// global_segment_size: bytes of memory to contribute to the pool; 0 for none.
    /// local_buffer_size: bytes of memory for values that get and get_batch read; with 0 the calls that
    ///     take or return values fail: put with -600, get with b"". Those with addresses work.
    /// protocol: "tcp", or "quic" with the variables MC_STORE_TRANSFER_TLS_CA, _CERT and _KEY.
    ///     "rdma" goes to peers that have it, too, and TCP to the others; in a wheel built without
    ///     RDMA it means TCP, with one warning for each process.
    /// rdma_devices: network devices to use together, separated by commas; devices that the host
    ///     lacks are omitted with a warning.
    /// engine: has no effect.
    /// master_server_addr: "host:port"; several masters with ";" between them; or
    ///     "etcd://host:port;host:port/cluster", where the masters elect their leader.
    /// enable_ssd_offload, ssd_offload_path: keep objects in this directory, too, if the master runs
    ///     with --enable_offload; by default in that of MOONCAKE_OFFLOAD_FILE_STORAGE_PATH.
    /// tenant_id: the tenant that owns the objects.
    /// enable_client_http_server, client_http_port: serve /health and /metrics, at this port.
    ///
    /// A dict has the same keys; sizes in a dict may be strings such as "16MB". device_name and
    /// master_server_address are other names of rdma_devices and master_server_addr; unknown
    /// keys are ignored with a warning.
    #[pyo3(signature = (
        local_hostname = None,
        metadata_server = None,
        global_segment_size = None,
        local_buffer_size = None,
        protocol = "tcp",
        rdma_devices = "",
        master_server_addr = settings::MASTER,
        engine = None,
        enable_ssd_offload = false,
        ssd_offload_path = "",
        tenant_id = settings::TENANT,
        enable_client_http_server = false,
        client_http_port = settings::HTTP_PORT,
        *,
        config = None,
    ))]
    #[pyo3(text_signature = "($self, local_hostname, metadata_server, \
        global_segment_size=16777216, local_buffer_size=16777216, protocol='tcp', \
        rdma_devices='', master_server_addr='127.0.0.1:50051', engine=None, \
        enable_ssd_offload=False, ssd_offload_path='', tenant_id='default', \
        enable_client_http_server=False, client_http_port=9300)")]
    #[allow(clippy::too_many_arguments, reason = "Mooncake's")]
    fn setup(
        &self,
        py: Python<'_>,
        local_hostname: Option<&Bound<'_, PyAny>>,
        metadata_server: Option<&str>,
        global_segment_size: Option<&Bound<'_, PyAny>>,
        local_buffer_size: Option<&Bound<'_, PyAny>>,
        protocol: &str,
        rdma_devices: &str,
        master_server_addr: &str,
        engine: Option<&Bound<'_, PyAny>>,
        enable_ssd_offload: bool,
        ssd_offload_path: &str,
        tenant_id: &str,
        enable_client_http_server: bool,
        client_http_port: u16,
        config: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<i32> {
        logging::set_up();
        // Mooncake's transfer engine, which mc-store does not have.
        let _ = engine;
        let dict = config.or_else(|| local_hostname?.cast::<PyDict>().ok());
        if let Some(dict) = dict {
            return match Settings::from_dict(dict)? {
                Some(settings) => self.join(py, settings),
                None => Ok(NOT_SET_UP.code()),
            };
        }
        let (Some(local_hostname), Some(_)) = (local_hostname, metadata_server) else {
            return Err(PyTypeError::new_err(
                "setup() requires local_hostname and metadata_server, or a dict of settings",
            ));
        };
        let size = |size: Option<&Bound<'_, PyAny>>| {
            size.map_or(Ok(Ok(settings::SIZE)), settings::parse_size)
        };
        let sizes = (size(global_segment_size)?, size(local_buffer_size)?);
        let (Ok(global_segment_size), Ok(local_buffer_size)) = sizes else {
            return Ok(Failure::INVALID_PARAMS.code());
        };
        let settings = Settings {
            local_hostname: local_hostname.extract()?,
            global_segment_size,
            local_buffer_size,
            protocol: protocol.to_owned(),
            devices: rdma_devices.to_owned(),
            master_server_addr: master_server_addr.to_owned(),
            enable_ssd_offload,
            ssd_offload_path: ssd_offload_path.to_owned(),
            tenant_id: tenant_id.to_owned(),
            http_port: enable_client_http_server.then_some(client_http_port),
        };
        self.join(py, settings)
    }

    /// setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int
    ///
    /// Becomes a thin client of the node agent (the program mc-node) at server_address,
    /// "host:port", on this host. Values travel through shared memory: a pool of mem_pool_size
    /// bytes for alloc_from_mem_pool, and local_buffer_size bytes for the values of other calls.
    /// Returns 0 or a negative number.
    fn setup_dummy(
        &self,
        py: Python<'_>,
        mem_pool_size: Size,
        local_buffer_size: Size,
        server_address: &str,
    ) -> PyResult<i32> {
        logging::set_up();
        self.session()?;
        self.replace(py, || {
            Session::attach(server_address, mem_pool_size.0, local_buffer_size.0).map(Some)
        })
    }

    /// init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16777216) -> int
    ///
    /// For programs that call init_all after setup, which initialises everything: contributes
    /// mount_segment_size bytes of memory if the store contributes none yet. Returns 0, or a
    /// negative number.
    #[pyo3(signature = (protocol, device_name, mount_segment_size = Size(16777216)))]
    #[pyo3(text_signature = "($self, protocol, device_name, mount_segment_size=16777216)")]
    fn init_all(
        &self,
        py: Python<'_>,
        protocol: &str,
        device_name: &str,
        mount_segment_size: Size,
    ) -> PyResult<i32> {
        let _ = device_name;
        self.code(py, |session| {
            settings::protocol(protocol).ok_or(Failure::INTERNAL)?.warn_if_missing();
            if mount_segment_size.0 > 0 && session.segments().is_empty() {
                session.mount(mount_segment_size.0, Default::default())?;
            }
            Ok(())
        })
    }

    /// close(self) -> int
    ///
    /// Leaves the cluster: unmounts this store's segments. Objects without a replica elsewhere are
    /// lost. Pending calls of other threads end by themselves. Registered memory may be freed
    /// afterwards. Returns 0, also when the store is not set up. The store can be set up again.
    fn close(&self, py: Python<'_>) -> PyResult<i32> {
        self.replace(py, || Ok(None))
    }

    /// health_check(self) -> int
    ///
    /// Returns 0 when the master answers, 1 when the store is not set up, 2 when the master cannot
    /// be reached.
    fn health_check(&self, py: Python<'_>) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(1) };
        Ok(if detached(py, || session.backend.is_reachable())? { 0 } else { 2 })
    }

    /// get_hostname(self) -> str
    ///
    /// Returns the name by which puts can prefer this store's segment, "host:port"; without a
    /// segment the local_hostname of setup, and "" before setup.
    fn get_hostname(&self) -> PyResult<String> {
        Ok(self.session()?.map_or_else(String::new, |session| session.hostname().to_owned()))
    }

    /// The size of the local buffer in bytes, the default limit of a pool of buffers; 0 without a
    /// local buffer.
    #[getter(_local_buffer_size)]
    fn local_buffer_size(&self) -> PyResult<u64> {
        Ok(self.session()?.map_or(0, |session| session.local_buffer_size()))
    }

    /// get_offload_rpc_read_count(self) -> int
    ///
    /// Returns 0: no values are kept on disks of other clients.
    fn get_offload_rpc_read_count(&self) -> u64 {
        0
    }
}

impl Store {
    fn join(&self, py: Python<'_>, settings: Settings) -> PyResult<i32> {
        self.session()?;
        let Settings { global_segment_size, local_buffer_size, .. } = settings;
        if let Err(failure) = settings::check_sizes(global_segment_size, local_buffer_size) {
            return Ok(failure.code());
        }
        let Some(protocol) = settings::protocol(&settings.protocol) else {
            return Ok(Failure::INTERNAL.code());
        };
        self.replace(py, || {
            let config = settings.into_config(protocol).map_err(StartError::from)?;
            Ok(Some(Session::join(config, local_buffer_size > 0)?))
        })
    }

    /// Leaves the cluster, and makes another session, if any; returns 0, or the number of the failure.
    fn replace(
        &self,
        py: Python<'_>,
        make: impl FnOnce() -> Result<Option<Session>, Failure> + Send,
    ) -> PyResult<i32> {
        let mut code = OK;
        self.change(py, |before| {
            if let Some(before) = before {
                // First, because the new session may use the same port.
                before.shut_down();
            }
            make().unwrap_or_else(|failure| {
                code = failure.code();
                None
            })
        })?;
        Ok(code)
    }
}
