//! Peers: whether they are there, their memory, and their notifies.

use pyo3::prelude::*;

use crate::engine::TransferEngine;
use crate::engine::error::{EngineError, value_or};
use crate::engine::values::TransferNotify;
use crate::error::OK;

#[pymethods]
impl TransferEngine {
    /// get_first_buffer_address(self, segment_name: str) -> int
    ///
    /// Returns the address of the memory that the peer of a session registered before its other
    /// memory; 0 when it has none, or cannot be reached.
    fn get_first_buffer_address(&self, py: Python<'_>, segment_name: &str) -> PyResult<u64> {
        let first = self.with(py, |engine| engine.first_address(segment_name))?;
        Ok(value_or(first, None).unwrap_or(0))
    }

    /// get_notifies(self) -> list[TransferNotify]
    ///
    /// Returns the notifies that have come since the last call, those of each peer in its order.
    /// 65536 wait at most; more are refused.
    fn get_notifies(&self) -> PyResult<Vec<TransferNotify>> {
        Ok(match self.started()? {
            Some(engine) => engine.take_notifies().map(Into::into).collect(),
            None => Vec::new(),
        })
    }

    /// send_probe(self, peer_server_name: str) -> int
    ///
    /// Returns 0 when the peer of a session answers, otherwise -102.
    fn send_probe(&self, py: Python<'_>, peer_server_name: &str) -> PyResult<i32> {
        let answered = self.with(py, |engine| engine.probe(peer_server_name))?;
        Ok(value_or(answered.map(|()| OK), EngineError::NO_ANSWER))
    }

    /// warmup_efa_segment(self, segment_name: str) -> int
    ///
    /// Connects to the peer of a session, so that its first transfer is as fast as others. Returns
    /// 0 or a negative number.
    fn warmup_efa_segment(&self, py: Python<'_>, segment_name: &str) -> PyResult<i32> {
        self.code(py, |engine| engine.warm_up(segment_name))
    }
}
