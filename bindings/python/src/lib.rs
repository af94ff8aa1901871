//! The native part of the Python package `mc_store`.

mod client;
mod engine;
mod error;
mod fork;
mod interrupt;
mod items;
mod logging;
mod memory;
mod repeats;
mod software;
mod store;
mod threads;
mod traces;

use pyo3::prelude::*;

/// The native part of `mc_store`; import that instead.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::client::{AsyncClient, Buffer, Call, Client, Connecting, leave_all, local};
    #[pymodule_export]
    use crate::engine::{TransferEngine, TransferNotify, TransferOpcode};
    #[pymodule_export]
    use crate::store::{
        BufferHandle, Descriptor, DiskDescriptor, MemoryDescriptor, MooncakeHostMemAllocator,
        ObjectDataType, QueryTaskResponse, ReplicaDescriptor, ReplicaStatus, ReplicateConfig,
        SoftPinAction, Store, StoreEventInfo, TaskStatus, TaskType, bind_to_numa_node,
        exit::shut_down_stores,
    };

    #[pymodule_export]
    use crate::traces::end_traces;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Starts to count forks.
        crate::fork::ProcessGuard::current();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        let register = module.py().import("atexit")?.getattr("register")?;
        // The last one registered is called first.
        for hook in ["_end_traces", "_shut_down_stores", "_leave_all"] {
            register.call1((module.getattr(hook)?,))?;
        }
        Ok(())
    }
}
