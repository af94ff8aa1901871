//! Joining and leaving a cluster.

use mc_store::StartError;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::arguments::Size;
use super::session::Session;
use super::settings::{self, Settings};
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, OK, code_of};
use crate::interrupt::detached;
use crate::logging;

#[pymethods]
impl Store {
    /// A store before its setup. Arguments are for the constructors of derived classes.
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
    /// Returns 0, or a negative number when the cluster cannot be joined; the store is as before
    /// the first setup then.
    ///
    /// local_hostname: this host's name or address, as others reach it; "host:port" to be
    ///     reached at this port. A port that is taken is replaced by any other.
    /// metadata_server: accepted in every form and without effect: the master itself says where
    ///     segments are.
    /// global_segment_size: bytes of memory to contribute to the pool; 0 for none.
    /// local_buffer_size: bytes of memory for values that get and get_batch read; 0 makes a pure
    ///     server, whose other calls are refused with -600.
    /// protocol: "tcp", or "quic" with the variables MC_STORE_TRANSFER_TLS_CA, _CERT and _KEY.
    ///     "rdma" is accepted and means TCP; a process warns of that once.
    /// rdma_devices: network devices to use together, with commas in between; those that the host
    ///     lacks are left out with a warning.
    /// engine, ssd_offload_path: accepted and without effect.
    /// master_server_addr: "host:port".
    /// enable_ssd_offload: accepted, with a warning, and without effect.
    /// tenant_id: whose objects these are.
    /// enable_client_http_server, client_http_port: whether, and where, to serve /health and
    ///     /metrics.
    ///
    /// A dict has the same keys, and sizes may be texts such as "16MB" in it. device_name and
    /// master_server_address are other names of rdma_devices and master_server_addr; unknown
    /// keys are warned of.
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
        // Settings of ways and storage that do not exist here.
        let _ = (engine, ssd_offload_path);
        let dict = config.or_else(|| local_hostname?.cast::<PyDict>().ok());
        if let Some(dict) = dict {
            return match Settings::from_dict(dict)? {
                Some(settings) => self.join(py, settings),
                None => Ok(NOT_SET_UP.code()),
            };
        }
        let (Some(local_hostname), Some(_)) = (local_hostname, metadata_server) else {
            return Err(PyTypeError::new_err(
                "setup() needs local_hostname and metadata_server, or a dict of settings",
            ));
        };
        let size =
            |size: Option<&Bound<'_, PyAny>>| size.map_or(Ok(settings::SIZE), settings::parse_size);
        let settings = Settings {
            local_hostname: local_hostname.extract()?,
            global_segment_size: size(global_segment_size)?,
            local_buffer_size: size(local_buffer_size)?,
            protocol: protocol.to_owned(),
            devices: rdma_devices.to_owned(),
            master_server_addr: master_server_addr.to_owned(),
            enable_ssd_offload,
            tenant_id: tenant_id.to_owned(),
            http_port: enable_client_http_server.then_some(client_http_port),
        };
        self.join(py, settings)
    }

    /// setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int
    ///
    /// Becomes a thin client of the node agent (the program mc-node) that serves
    /// server_address, "host:port", on this host. Values travel through memory that both share:
    /// mem_pool_size bytes that alloc_from_mem_pool divides, and local_buffer_size bytes for
    /// values that other calls put and get. Returns 0 or a negative number.
    fn setup_dummy(
        &self,
        py: Python<'_>,
        mem_pool_size: Size,
        local_buffer_size: Size,
        server_address: &str,
    ) -> PyResult<i32> {
        logging::set_up();
        self.session()?;
        let mut code = OK;
        self.change(py, |before| {
            if let Some(before) = before {
                before.shut_down();
            }
            let attached = Session::attach(server_address, mem_pool_size.0, local_buffer_size.0);
            attached.map_err(|failure| code = failure.code()).ok()
        })?;
        Ok(code)
    }

    /// init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16777216) -> int
    ///
    /// For programs that call it after setup, which did all of this already: contributes
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
        let Some(session) = self.session()? else { return Ok(NOT_SET_UP.code()) };
        let Some(protocol) = settings::protocol(protocol) else {
            return Ok(Failure::INTERNAL.code());
        };
        protocol.warn_if_missing();
        let mounted = detached(py, || {
            if mount_segment_size.0 > 0 && session.segments().is_empty() {
                session.mount(mount_segment_size.0, Default::default())?;
            }
            Ok(())
        });
        Ok(code_of(mounted?))
    }

    /// close(self) -> int
    ///
    /// Leaves the cluster: what this store contributed is withdrawn, and objects whose only
    /// replica was there are gone. Calls of other threads that are under way end by themselves.
    /// Memory that was registered may be released after it. Returns 0, also when there is
    /// nothing to close; the store can be set up again.
    fn close(&self, py: Python<'_>) -> PyResult<i32> {
        self.change(py, |before| {
            if let Some(before) = before {
                before.shut_down();
            }
            None
        })?;
        Ok(OK)
    }

    /// health_check(self) -> int
    ///
    /// 0 when the master answers, 1 when the store is not set up, 2 when the master cannot be
    /// reached.
    fn health_check(&self, py: Python<'_>) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(1) };
        Ok(if detached(py, || session.backend.is_reachable())? { 0 } else { 2 })
    }

    /// get_hostname(self) -> str
    ///
    /// The name of this store's segment, by which puts can prefer it, "host:port"; without a
    /// segment the local_hostname that setup was told, and "" before setup.
    fn get_hostname(&self) -> PyResult<String> {
        Ok(self.session()?.map_or_else(String::new, |session| session.hostname().to_owned()))
    }

    /// Bytes of the local buffer, by which a pool of buffers is bounded that is told no bound; 0
    /// if there is none.
    #[getter(_local_buffer_size)]
    fn local_buffer_size(&self) -> PyResult<u64> {
        Ok(self.session()?.map_or(0, |session| session.local_buffer_size()))
    }

    /// get_offload_rpc_read_count(self) -> int
    ///
    /// How many values were read from disks of other clients: none, as none are kept there.
    fn get_offload_rpc_read_count(&self) -> u64 {
        0
    }
}

impl Store {
    fn join(&self, py: Python<'_>, settings: Settings) -> PyResult<i32> {
        self.session()?;
        let Some(protocol) = settings::protocol(&settings.protocol) else {
            return Ok(Failure::INTERNAL.code());
        };
        let mut code = OK;
        self.change(py, |before| {
            if let Some(before) = before {
                // It may have the port that the next one is to have.
                before.shut_down();
            }
            let config = settings.into_config(protocol).map_err(StartError::from);
            let joined = config.and_then(Session::join).map_err(Failure::from);
            joined.map_err(|failure| code = failure.code()).ok()
        })?;
        Ok(code)
    }
}
