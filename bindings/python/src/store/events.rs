//! Mooncake's `StoreEventInfo`: what a caller adds to the events of the store.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::arguments::Items;

/// An inference engine's description of a block, for subscribers of the store's events. All fields
/// are optional keyword arguments and attributes.
///
/// model_name: the block's model.
/// block_size: the number of tokens, or bytes, of the block; 0 means unknown.
/// block_hash, parent_block_hash: the engine's hashes of the block and of the preceding block.
/// token_ids: the block's tokens, ints below 2**32.
///
/// Puts check these values and then drop them: the control protocol does not carry them yet.
#[pyclass(module = "mc_store.mooncake.store", get_all, set_all)]
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreEventInfo {
    model_name: String,
    block_size: u32,
    block_hash: String,
    parent_block_hash: String,
    token_ids: Items<u32>,
}

#[pymethods]
impl StoreEventInfo {
    #[new]
    #[pyo3(signature = (
        model_name = String::new(),
        block_size = 0,
        block_hash = String::new(),
        parent_block_hash = String::new(),
        token_ids = Items::default(),
    ))]
    #[pyo3(text_signature = "(model_name='', block_size=0, block_hash='', \
        parent_block_hash='', token_ids=[])")]
    fn new(
        model_name: String,
        block_size: u32,
        block_hash: String,
        parent_block_hash: String,
        token_ids: Items<u32>,
    ) -> Self {
        Self { model_name, block_size, block_hash, parent_block_hash, token_ids }
    }

    fn __repr__(&self) -> String {
        format!(
            "StoreEventInfo(model_name={:?}, block_size={}, block_hash={:?}, \
             parent_block_hash={:?}, token_ids={:?})",
            self.model_name,
            self.block_size,
            self.block_hash,
            self.parent_block_hash,
            self.token_ids
        )
    }
}

/// Checks that `infos` has one `StoreEventInfo` for each of `count` objects: a list, or a single
/// one for one object.
///
/// # Errors
/// TypeError for other types, ValueError for a different number.
pub(super) fn check(infos: Option<&Bound<'_, PyAny>>, count: usize) -> PyResult<()> {
    let Some(infos) = infos else { return Ok(()) };
    let given = if infos.cast::<StoreEventInfo>().is_ok() {
        1
    } else if infos.cast::<PyList>().is_ok() || infos.cast::<PyTuple>().is_ok() {
        for info in infos.try_iter()? {
            info?.cast_into::<StoreEventInfo>()?;
        }
        infos.len()?
    } else {
        return Err(PyTypeError::new_err("store_event_infos must be a list of StoreEventInfo"));
    };
    if given == count {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{given} store_event_infos for {count} objects")))
}
