//! Mooncake's descriptors of replicas.

use mc_store::ReplicaDescription;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::Store;
use super::arguments::Texts;
use super::enumerations::ReplicaStatus;
use crate::interrupt::detached;

/// One replica of an object.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
#[derive(Clone, Debug)]
pub(crate) struct ReplicaDescriptor {
    /// The replica's state.
    #[pyo3(get)]
    status: ReplicaStatus,
    memory: Descriptor,
}

/// A replica in memory.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
#[derive(Clone, Debug)]
pub(crate) struct MemoryDescriptor {
    /// The place of the replica's bytes.
    #[pyo3(get)]
    buffer_descriptor: Descriptor,
}

/// A range of a segment.
#[pyclass(frozen, get_all, module = "mc_store.mooncake.store")]
#[derive(Clone, Debug)]
pub(crate) struct Descriptor {
    /// The length in bytes.
    size: u64,
    /// The offset of the first byte from the beginning of the segment.
    buffer_address: u64,
    /// The segment's name; by default the address of its node.
    transport_endpoint: String,
}

/// A replica in a file. The store keeps none; the class exists for programs that name it.
#[pyclass(frozen, get_all, module = "mc_store.mooncake.store")]
#[derive(Debug)]
pub(crate) struct DiskDescriptor {
    /// The file's path.
    file_path: String,
    /// The object's length in bytes.
    object_size: u64,
}

#[pymethods]
impl ReplicaDescriptor {
    /// True: all replicas are in memory.
    fn is_memory_replica(&self) -> bool {
        true
    }

    /// False: no replica is in a file that nodes share.
    fn is_disk_replica(&self) -> bool {
        false
    }

    /// False: no replica is on a disk of a node.
    fn is_local_disk_replica(&self) -> bool {
        false
    }

    /// Returns the descriptor of the memory.
    fn get_memory_descriptor(&self) -> MemoryDescriptor {
        MemoryDescriptor { buffer_descriptor: self.memory.clone() }
    }

    /// Raises RuntimeError, because the replica is in memory.
    fn get_disk_descriptor(&self) -> PyResult<DiskDescriptor> {
        Err(PyRuntimeError::new_err("the replica is in memory, not in a file"))
    }

    fn __repr__(&self) -> String {
        let Descriptor { size, transport_endpoint, .. } = &self.memory;
        format!("<ReplicaDescriptor {:?} of {size} bytes in {transport_endpoint}>", self.status)
    }
}

#[pymethods]
impl MemoryDescriptor {
    fn __repr__(&self) -> String {
        format!("<MemoryDescriptor {}>", self.buffer_descriptor.__repr__())
    }
}

#[pymethods]
impl Descriptor {
    fn __repr__(&self) -> String {
        format!(
            "<Descriptor size={} buffer_address={} transport_endpoint={}>",
            self.size, self.buffer_address, self.transport_endpoint
        )
    }
}

impl From<ReplicaDescription> for ReplicaDescriptor {
    fn from(replica: ReplicaDescription) -> Self {
        let memory = Descriptor {
            size: replica.extent.len(),
            buffer_address: replica.extent.offset(),
            transport_endpoint: replica.segment_name.into(),
        };
        Self { status: replica.status.into(), memory }
    }
}

#[pymethods]
impl Store {
    /// get_replica_desc(self, key: str) -> list[ReplicaDescriptor]
    ///
    /// Returns an object's replicas, in every state; an empty list when there is no such object.
    fn get_replica_desc(&self, py: Python<'_>, key: &str) -> PyResult<Vec<ReplicaDescriptor>> {
        Ok(self.replicas(py, &[key])?.into_iter().flatten().flatten().collect())
    }

    /// batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]
    ///
    /// Returns the replicas of many objects; omits keys without an object.
    fn batch_get_replica_desc<'py>(
        &self,
        py: Python<'py>,
        keys: Texts,
    ) -> PyResult<Bound<'py, PyDict>> {
        let keys = keys.as_strs();
        let found = PyDict::new(py);
        for (key, replicas) in keys.iter().zip(self.replicas(py, &keys)?) {
            if let Some(replicas) = replicas {
                found.set_item(key, replicas)?;
            }
        }
        Ok(found)
    }

    /// batch_replica_clear(self, keys: list[str], segment_name: str = '') -> list[str]
    ///
    /// Removes replicas of objects that this store put, in one segment or, without a name, in
    /// all segments. Skips objects that a lease protects. Returns the keys whose replicas were
    /// removed.
    #[pyo3(signature = (keys, segment_name = ""))]
    fn batch_replica_clear(
        &self,
        py: Python<'_>,
        keys: Texts,
        segment_name: &str,
    ) -> PyResult<Vec<String>> {
        let Some(session) = self.session()? else { return Ok(Vec::new()) };
        let keys = keys.as_strs();
        let segment = Some(segment_name).filter(|name| !name.is_empty());
        let cleared = detached(py, || session.backend.clear_replicas(&keys, segment))?;
        Ok(cleared.unwrap_or_default().iter().map(|key| key.as_str().to_owned()).collect())
    }
}

impl Store {
    /// Returns the replicas for each key; `None` for a key without an object, or whose lookup
    /// failed.
    fn replicas(
        &self,
        py: Python<'_>,
        keys: &[&str],
    ) -> PyResult<Vec<Option<Vec<ReplicaDescriptor>>>> {
        let Some(session) = self.session()? else { return Ok(vec![]) };
        let found = detached(py, || session.backend.batch_replicas(keys))?.unwrap_or_default();
        let described = |replicas: Vec<ReplicaDescription>| {
            replicas.into_iter().map(ReplicaDescriptor::from).collect()
        };
        Ok(found.into_iter().map(|replicas| replicas.ok().map(described)).collect())
    }
}
