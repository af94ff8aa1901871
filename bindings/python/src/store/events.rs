//! Mooncake's `StoreEventInfo`: what a caller adds to the events of the store.

use std::sync::Arc;

use mc_store::{InfoTooLong, StoreEventInfo as Native};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::arguments::Items;
use super::records::{Repr as _, record};

record! {
    "(model_name='', block_size=0, block_hash='', parent_block_hash='', token_ids=[])";
    /// An inference engine's description of a block, for subscribers of the store's events. All fields
    /// are optional keyword arguments and attributes.
    ///
    /// model_name: the block's model.
    /// block_size: the number of tokens, or bytes, of the block; 0 means unknown.
    /// block_hash, parent_block_hash: the engine's hashes of the block and of the preceding block.
    /// token_ids: the block's tokens, ints below 2**32; at most 32,768.
    ///
    /// Strings have at most 256 bytes of UTF-8. A put copies the values, and the master publishes them with
    /// the event that reports the object as stored.
    #[pyclass(module = "mc_store.mooncake.store", get_all, set_all)]
    #[derive(Clone, Debug, Default)]
    StoreEventInfo() {
        model_name: String = String::new(),
        block_size: u32 = 0,
        block_hash: String = String::new(),
        parent_block_hash: String = String::new(),
        token_ids: Items<u32> = Items::default(),
    }
}

impl StoreEventInfo {
    /// Returns a copy for a put.
    ///
    /// # Errors
    /// The first field that is too long.
    pub(crate) fn checked(&self) -> Result<Arc<Native>, InfoTooLong> {
        let info = Native {
            model_name: self.model_name.clone(),
            block_size: self.block_size,
            block_hash: self.block_hash.clone(),
            parent_block_hash: self.parent_block_hash.clone(),
            token_ids: self.token_ids.to_vec(),
        };
        info.check().map(|()| Arc::new(info))
    }
}

/// A description for each object of a call, or none at all.
#[derive(Debug, Default)]
pub(super) struct EventInfos(Vec<Arc<Native>>);

impl EventInfos {
    /// Checks and copies the argument `store_event_infos` of a call for `count` objects: a list with
    /// one `StoreEventInfo` for each, or a single one for one object.
    ///
    /// # Errors
    /// TypeError for other types, ValueError for a different number and for one that is too long.
    pub(super) fn new(infos: Option<&Bound<'_, PyAny>>, count: usize) -> PyResult<Self> {
        let Some(infos) = infos else { return Ok(Self::default()) };
        let mut copies = Vec::new();
        let mut add = |info: &Bound<'_, PyAny>| {
            let info = info.cast::<StoreEventInfo>()?.try_borrow()?;
            let at = copies.len();
            copies.push(info.checked().map_err(|error| {
                PyValueError::new_err(format!("store_event_infos[{at}]: {error}"))
            })?);
            PyResult::Ok(())
        };
        if infos.cast::<StoreEventInfo>().is_ok() {
            add(infos)?;
        } else if infos.cast::<PyList>().is_ok() || infos.cast::<PyTuple>().is_ok() {
            for info in infos.try_iter()? {
                add(&info?)?;
            }
        } else {
            return Err(PyTypeError::new_err("store_event_infos must be a list of StoreEventInfo"));
        }
        if copies.len() == count {
            return Ok(Self(copies));
        }
        let given = copies.len();
        Err(PyValueError::new_err(format!("{given} store_event_infos for {count} objects")))
    }

    /// The description of the object with this index.
    pub(super) fn of(&self, place: usize) -> Option<Arc<Native>> {
        self.0.get(place).cloned()
    }
}
