//! The native part of the Python package `mc_store`.

mod client;
mod error;
mod fork;
mod interrupt;
mod logging;
mod memory;
mod store;

use pyo3::prelude::*;

/// The native part of `mc_store`; import that instead.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::store::{
        BufferHandle, Descriptor, DiskDescriptor, MemoryDescriptor, MooncakeHostMemAllocator,
        ObjectDataType, QueryTaskResponse, ReplicaDescriptor, ReplicaStatus, ReplicateConfig,
        SoftPinAction, Store, StoreEventInfo, TaskStatus, TaskType, bind_to_numa_node,
        exit::shut_down_stores,
    };

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let hook = module.getattr("_shut_down_stores")?;
        module.py().import("atexit")?.call_method1("register", (hook,))?;
        Ok(())
    }
}
