//! Mooncake's descriptors of replicas.

use std::path::PathBuf;

use mc_store::{ObjectDescription, ReplicaDescription, StoreError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::Store;
use super::arguments::Texts;
use super::enumerations::ReplicaStatus;
use crate::error::Failure;

/// One replica of an object.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
#[derive(Clone, Debug)]
pub(crate) struct ReplicaDescriptor {
    /// The replica's state.
    #[pyo3(get)]
    status: ReplicaStatus,
    medium: Medium,
}

#[derive(Clone, Debug)]
enum Medium {
    Memory(Descriptor),
    File(DiskDescriptor),
    LocalDisk,
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

/// A replica in a file on the shared tier.
#[pyclass(frozen, get_all, module = "mc_store.mooncake.store")]
#[derive(Clone, Debug)]
pub(crate) struct DiskDescriptor {
    /// The file's path; empty for a thin client, which has no access to the file.
    file_path: String,
    /// The object's length in bytes.
    object_size: u64,
}

#[pymethods]
impl ReplicaDescriptor {
    /// Returns whether the replica is in memory.
    fn is_memory_replica(&self) -> bool {
        matches!(self.medium, Medium::Memory(_))
    }

    /// Returns whether the replica is a file on the shared tier.
    fn is_disk_replica(&self) -> bool {
        matches!(self.medium, Medium::File(_))
    }

    /// Returns whether the replica is on a disk of a node.
    fn is_local_disk_replica(&self) -> bool {
        matches!(self.medium, Medium::LocalDisk)
    }

    /// Returns the descriptor of the memory. Raises RuntimeError when the replica is elsewhere.
    fn get_memory_descriptor(&self) -> PyResult<MemoryDescriptor> {
        match &self.medium {
            Medium::Memory(memory) => Ok(MemoryDescriptor { buffer_descriptor: memory.clone() }),
            _ => Err(PyRuntimeError::new_err("the replica is not in memory")),
        }
    }

    /// Returns the descriptor of the file. Raises RuntimeError when the replica is no file.
    fn get_disk_descriptor(&self) -> PyResult<DiskDescriptor> {
        match &self.medium {
            Medium::File(file) => Ok(file.clone()),
            _ => Err(PyRuntimeError::new_err("the replica is not in a file")),
        }
    }

    fn __repr__(&self) -> String {
        let place = match &self.medium {
            Medium::Memory(Descriptor { size, transport_endpoint, .. }) => {
                format!("of {size} bytes in {transport_endpoint}")
            }
            Medium::File(DiskDescriptor { file_path, object_size }) => {
                format!("of {object_size} bytes in {file_path}")
            }
            Medium::LocalDisk => "on a disk of a node".to_owned(),
        };
        format!("<ReplicaDescriptor {:?} {place}>", self.status)
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
        Self { status: replica.status.into(), medium: Medium::Memory(memory) }
    }
}

impl ReplicaDescriptor {
    /// The replicas of an object: in memory, in its file, on disks of nodes.
    fn all(object: ObjectDescription, file_path: impl FnOnce() -> Option<PathBuf>) -> Vec<Self> {
        let on_disk = Self { status: ReplicaStatus::COMPLETE, medium: Medium::LocalDisk };
        let file = object.file.map(|status| {
            let file_path = file_path().unwrap_or_default().to_string_lossy().into_owned();
            let object_size = object.slices.total_len();
            let medium = Medium::File(DiskDescriptor { file_path, object_size });
            Self { status: status.into(), medium }
        });
        let disks = std::iter::repeat_n(on_disk, object.local_disks.len());
        object.replicas.into_iter().map(Self::from).chain(file).chain(disks).collect()
    }
}

#[pymethods]
impl Store {
    /// get_replica_desc(self, key: str) -> list[ReplicaDescriptor]
    ///
    /// Returns an object's replicas, in every state: those in memory first, then a file on the shared
    /// tier, then disks of nodes; an empty list when there is no such object.
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
        let keys = keys.as_strs();
        let segment = Some(segment_name).filter(|name| !name.is_empty());
        let cleared = self.with(py, |session| session.backend.clear_replicas(&keys, segment))?;
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
        let described = self.with(py, |session| {
            let found = session.backend.wait(|store| store.batch_describe(keys))?;
            let all = |(key, object): (&&str, Result<ObjectDescription, StoreError>)| {
                let object = object.map_err(Failure::from).ok()?;
                let generation = object.generation;
                let file_path = || session.backend.file_path(key, generation);
                Some(ReplicaDescriptor::all(object, file_path))
            };
            Ok(keys.iter().zip(found).map(all).collect())
        })?;
        Ok(described.unwrap_or_default())
    }
}
