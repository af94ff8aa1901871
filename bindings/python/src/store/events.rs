//! What callers want told to those who follow the store's events.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::arguments::Items;

/// What an inference engine knows of a block that it stores, for those who follow the events of
/// the store. All fields may be left out, given by name, and set afterwards.
///
/// model_name: the model that the block is of.
/// block_size: how many tokens, or bytes, the block has; 0 is unknown.
/// block_hash, parent_block_hash: the engine's name of the block, and of the one before it.
/// token_ids: the block's tokens, ints below 2**32.
///
/// Calls that store check these and carry them no further: the control protocol has no place for
/// them yet.
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

/// Refuses what is not one `StoreEventInfo` for each of `count` objects: a list, or one alone
/// for one object.
///
/// # Errors
/// TypeError for other types, ValueError for another number of them.
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
