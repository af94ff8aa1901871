//! Mooncake's interface to transfers between the memories of processes: `TransferEngine`.
//!
//! Methods return Mooncake's numbers; the log has the text of a failure. [`core`] is the engine
//! itself; [`protocol`] the messages by which engines find each other's memory, which
//! [`server`] answers and a [`peer`] asks for; [`transfer`] plans and carries out.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 makes the arguments for each call")]

mod batches;
mod channel;
mod core;
mod error;
mod methods;
mod notifies;
mod peer;
mod protocol;
mod ranges;
mod regions;
mod server;
mod settings;
mod topology;
mod transfer;
mod values;

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use self::core::Engine;
use self::error::{EngineError, code_of};
use self::settings::Settings;
pub(crate) use self::values::{TransferNotify, TransferOpcode};
use crate::fork::ProcessGuard;
use crate::interrupt::detached;
use crate::logging;
use crate::store::exit::{self, ShutDown as _};

/// Transfers bytes between the memory of this process and that of others, by address.
///
/// Both processes register memory. The one that transfers names the other by its session,
/// "host:port": the host of its local_hostname, and its get_rpc_port(). Addresses are those of the
/// process that has the memory.
///
/// Threads may share an engine and call it concurrently: a waiting call releases the interpreter.
/// Methods that return a number return 0 for success and a negative number for a failure, unless
/// they say otherwise. The log on standard error has the cause; `MC_LOG=debug` logs more.
///
/// Every process that can connect can read and write all registered memory, unless there are
/// certificates: see docs/engine.md.
///
/// An engine does not survive a fork: in a child process every method that uses the
/// engine raises RuntimeError.
#[pyclass(frozen, subclass, module = "mc_store.mooncake.engine")]
#[derive(Default)]
pub(crate) struct TransferEngine {
    /// Locked briefly, only by threads that hold the interpreter: so it is never locked when the
    /// process forks.
    state: Mutex<Option<(ProcessGuard, Arc<Engine>)>>,
}

impl TransferEngine {
    /// Returns the engine; `None` before `initialize`.
    ///
    /// # Errors
    /// RuntimeError in a process that was forked from the one that initialized the engine.
    fn started(&self) -> PyResult<Option<Arc<Engine>>> {
        match &*self.state.lock() {
            None => Ok(None),
            Some((process, _)) if process.is_inherited() => Err(PyRuntimeError::new_err(
                "this engine was initialized in a parent process and does not survive a fork; \
                 make a new one here, or start processes with the method 'spawn'",
            )),
            Some((_, engine)) => Ok(Some(Arc::clone(engine))),
        }
    }

    /// Calls the engine with the interpreter released.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Arc<Engine>) -> Result<T, EngineError> + Send,
    ) -> PyResult<Result<T, EngineError>> {
        let engine = self.started()?;
        detached(py, || engine.as_ref().ok_or(EngineError::NotInitialized).and_then(call))
    }

    /// Calls the engine and returns 0, or the number of the failure.
    fn code(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Arc<Engine>) -> Result<(), EngineError> + Send,
    ) -> PyResult<i32> {
        self.with(py, call).map(code_of)
    }

    fn start(
        &self,
        py: Python<'_>,
        settings: impl FnOnce() -> Result<Settings, EngineError> + Send,
    ) -> PyResult<i32> {
        logging::set_up();
        self.started()?;
        let before = self.state.lock().take();
        let started = detached(py, || {
            // First, because the new engine may use the same port.
            if let Some((_, before)) = before {
                before.shut_down();
            }
            settings().and_then(|settings| Engine::start(&settings))
        })?;
        Ok(code_of(started.map(|engine| {
            let process = ProcessGuard::current();
            let replaced = self.state.lock().replace((process, exit::watched(engine)));
            // Two threads initialized the engine at the same time.
            if let Some((_, replaced)) = replaced {
                py.detach(|| replaced.shut_down());
            }
        })))
    }
}

impl Drop for TransferEngine {
    fn drop(&mut self) {
        match self.state.get_mut().take() {
            // Its threads and connections exist only in the parent.
            Some((process, engine)) if process.is_inherited() => std::mem::forget(engine),
            Some((_, engine)) => {
                // Waited for, because the program frees the memory next. Without an interpreter
                // the hook for exits has shut the engine down.
                Python::try_attach(|py| py.detach(|| engine.shut_down()));
            }
            None => {}
        }
    }
}

#[pymethods]
impl TransferEngine {
    /// Makes an engine that is not initialized.
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The enumeration of directions.
    #[classattr]
    #[pyo3(name = "TransferOpcode")]
    fn opcode(py: Python<'_>) -> Bound<'_, PyType> {
        py.get_type::<TransferOpcode>()
    }

    /// initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str)
    /// -> int
    ///
    /// Starts the engine. An engine that was initialized already forgets its memory first. Returns 0,
    /// or a negative number when it cannot start.
    ///
    /// local_hostname: the name or address by which peers reach this host; "host:port" asks for a
    ///     port, too. A loopback address keeps other hosts out.
    /// metadata_server: "P2PHANDSHAKE": peers are named by the host and their get_rpc_port(). Others
    ///     are not asked, which is logged once; peers are named by their local_hostname, whose port is
    ///     12001 unless it has one, and which must be free.
    /// protocol: "tcp", "quic" with certificates, or "rdma", which goes to peers that have it, too,
    ///     and TCP to the others; in a wheel built without RDMA it means TCP, with one warning for
    ///     each process.
    /// device_name: network devices to use together, separated by commas; devices that the host lacks
    ///     are omitted with a warning.
    fn initialize(
        &self,
        py: Python<'_>,
        local_hostname: &str,
        metadata_server: &str,
        protocol: &str,
        device_name: &str,
    ) -> PyResult<i32> {
        self.start(py, || {
            Settings::new(local_hostname, metadata_server, protocol, device_name, None)
        })
    }

    /// initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name:
    /// str, metadata_type: str) -> int
    ///
    /// As initialize. metadata_type: "p2p" means the metadata server "P2PHANDSHAKE".
    fn initialize_ext(
        &self,
        py: Python<'_>,
        local_hostname: &str,
        metadata_server: &str,
        protocol: &str,
        device_name: &str,
        metadata_type: &str,
    ) -> PyResult<i32> {
        let kind = Some(metadata_type);
        self.start(py, || {
            Settings::new(local_hostname, metadata_server, protocol, device_name, kind)
        })
    }

    /// get_rpc_port(self) -> int
    ///
    /// Returns the port of this engine's session; -1 before initialize.
    fn get_rpc_port(&self) -> PyResult<i32> {
        Ok(self
            .started()?
            .map_or_else(|| EngineError::NotInitialized.logged(), |engine| engine.port().into()))
    }

    /// get_engine(self) -> TransferEngine
    ///
    /// Returns the engine itself, for the argument engine of MooncakeDistributedStore.setup.
    fn get_engine(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// get_local_topology(self, device_name: str | None = None) -> str
    ///
    /// Returns a JSON object with the RDMA devices of this host: for the memory of each NUMA node,
    /// "cpu:0", a list of the near devices and a list of the other ones. device_name limits it to
    /// devices, separated by commas.
    #[pyo3(signature = (device_name = None))]
    fn get_local_topology(&self, py: Python<'_>, device_name: Option<&str>) -> String {
        py.detach(|| topology::describe(device_name))
    }
}
