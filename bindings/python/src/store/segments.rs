//! Segments that a store mounts after its setup.

use std::path::Path;
use std::time::Duration;

use mc_store::{MemoryOptions, SegmentId};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::arguments::{Items, Size};
use super::session::Session;
use super::{NOT_SET_UP, Store, uuid};
use crate::error::{Failure, OK};

/// The sizes of allocated segments are multiples of this.
const UNIT: usize = 4 << 20;

#[pymethods]
impl Store {
    /// mount_segment(self, path: str, size: int, offset: int = 0, protocol: str = 'tcp', location:
    /// str = '') -> dict
    ///
    /// Contributes the first size bytes of the file at path, such as a file in /dev/shm. The file
    /// must have that length at least. Returns {"ret": 0, "segment_ids": [str]}, or a negative
    /// number and no ids. offset must be 0; location has no effect.
    #[pyo3(signature = (path, size, offset = Size(0), protocol = "tcp", location = ""))]
    #[pyo3(text_signature = "($self, path, size, offset=0, protocol='tcp', location='')")]
    fn mount_segment<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        size: Size,
        offset: Size,
        protocol: &str,
        location: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _ = (protocol, location);
        let path = Path::new(path);
        let mounted = self.with(py, |session| session.mount_file(path, size.0, offset.0))?;
        described(py, mounted)
    }

    /// allocate_and_mount_segment(self, size: int, protocol: str = 'tcp', location: str = '') ->
    /// dict
    ///
    /// Contributes size bytes of memory, rounded up to a multiple of 4 MiB. Returns {"ret": 0,
    /// "segment_ids": [str], "allocated_size": int}, or a negative number, no ids and 0.
    /// location has no effect.
    #[pyo3(signature = (size, protocol = "tcp", location = ""))]
    fn allocate_and_mount_segment<'py>(
        &self,
        py: Python<'py>,
        size: Size,
        protocol: &str,
        location: &str,
    ) -> PyResult<Bound<'py, PyDict>> {
        let _ = (protocol, location);
        let size = size.0.checked_next_multiple_of(UNIT);
        let mounted = self.with(py, |session| {
            let size = size.filter(|size| *size > 0).ok_or(Failure::INVALID_PARAMS)?;
            session.mount(size, MemoryOptions::default()).map(Some)
        })?;
        let allocated = size.filter(|_| mounted.is_ok()).unwrap_or(0);
        let answer = described(py, mounted)?;
        answer.set_item("allocated_size", allocated)?;
        Ok(answer)
    }

    /// unmount_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int
    ///
    /// Unmounts segments; their objects can be read for another grace_period_seconds. Returns 0, or
    /// the number of the first failure after trying all segments.
    #[pyo3(signature = (segment_ids, grace_period_seconds = Size(0)))]
    #[pyo3(text_signature = "($self, segment_ids, grace_period_seconds=0)")]
    fn unmount_segment(
        &self,
        py: Python<'_>,
        segment_ids: Items<String>,
        grace_period_seconds: Size,
    ) -> PyResult<i32> {
        let grace = Duration::from_secs(grace_period_seconds.0 as u64);
        self.code(py, |session| session.unmount_all(&segment_ids, grace))
    }

    /// unmount_and_free_segment(self, segment_ids: list[str], grace_period_seconds: int = 0) -> int
    ///
    /// The same as unmount_segment, which always frees the memory of
    /// allocate_and_mount_segment.
    #[pyo3(signature = (segment_ids, grace_period_seconds = Size(0)))]
    #[pyo3(text_signature = "($self, segment_ids, grace_period_seconds=0)")]
    fn unmount_and_free_segment(
        &self,
        py: Python<'_>,
        segment_ids: Items<String>,
        grace_period_seconds: Size,
    ) -> PyResult<i32> {
        self.unmount_segment(py, segment_ids, grace_period_seconds)
    }

    /// unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int
    ///
    /// Returns 0, because no disk segments exist; -600 before setup.
    #[pyo3(signature = (grace_period_seconds = Size(0)))]
    #[pyo3(text_signature = "($self, grace_period_seconds=0)")]
    fn unmount_local_disk_segment(&self, grace_period_seconds: Size) -> PyResult<i32> {
        let _ = grace_period_seconds;
        Ok(self.session()?.map_or(NOT_SET_UP.code(), |_| OK))
    }
}

impl Session {
    /// Contributes a file; returns `None` for a size of 0.
    fn mount_file(
        &self,
        path: &Path,
        size: usize,
        offset: usize,
    ) -> Result<Option<SegmentId>, Failure> {
        if size == 0 {
            return Ok(None);
        }
        if offset != 0 {
            return Err(Failure::refuse(
                "offset must be 0: a segment begins at the beginning of its file",
            ));
        }
        let path_shown = path.display();
        let len = match std::fs::metadata(path) {
            Ok(file) if file.is_file() => file.len(),
            Ok(_) => {
                return Err(Failure::refuse(format_args!("{path_shown} is not a regular file")));
            }
            Err(error) => return Err(Failure::refuse(format_args!("{path_shown}: {error}"))),
        };
        if len < size as u64 {
            let why = format_args!("{path_shown} has {len} bytes, fewer than {size}");
            return Err(Failure::refuse(why));
        }
        self.mount(size, MemoryOptions::default().file(path)).map(Some)
    }

    fn unmount_all(&self, ids: &[String], grace: Duration) -> Result<(), Failure> {
        let mut first = Ok(());
        for id in ids {
            let outcome = match uuid::parse(id) {
                Some(bits) => self.unmount(SegmentId::from_u128(bits), grace),
                None => Err(Failure::refuse(format_args!("{id:?} is not a segment id"))),
            };
            first = first.and(outcome);
        }
        first
    }
}

/// Converts the outcome of a mount to Mooncake's dict.
fn described<'py>(
    py: Python<'py>,
    mounted: Result<Option<SegmentId>, Failure>,
) -> PyResult<Bound<'py, PyDict>> {
    let answer = PyDict::new(py);
    answer.set_item("ret", mounted.err().map_or(OK, Failure::code))?;
    let ids: Vec<String> =
        mounted.ok().flatten().iter().map(|id| uuid::text(id.as_u128())).collect();
    answer.set_item("segment_ids", ids)?;
    Ok(answer)
}
