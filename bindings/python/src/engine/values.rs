//! Mooncake's values of transfers.

use pyo3::prelude::*;

use super::protocol::Notify;
use crate::store::enumerations::enumeration;

enumeration! {
    "mc_store.mooncake.engine";
    /// The direction of a transfer: Read from the peer, Write to the peer.
    TransferOpcode { Read = 0, Write = 1, }
}

/// A message for the program that runs the peer, sent after a transfer.
#[pyclass(get_all, set_all, from_py_object, module = "mc_store.mooncake.engine")]
#[derive(Clone, Debug, Default)]
pub(crate) struct TransferNotify {
    /// The name, at most 65536 bytes of UTF-8.
    name: String,
    /// The message, at most 65536 bytes of UTF-8.
    msg: String,
}

#[pymethods]
impl TransferNotify {
    #[new]
    #[pyo3(signature = (name = String::new(), msg = String::new()))]
    #[pyo3(text_signature = "(name='', msg='')")]
    fn new(name: String, msg: String) -> Self {
        Self { name, msg }
    }

    fn __repr__(&self) -> String {
        format!("TransferNotify({:?}, {:?})", self.name, self.msg)
    }
}

impl From<TransferNotify> for Notify {
    fn from(TransferNotify { name, msg }: TransferNotify) -> Self {
        Self { name, message: msg }
    }
}

impl From<Notify> for TransferNotify {
    fn from(Notify { name, message }: Notify) -> Self {
        Self { name, msg: message }
    }
}
