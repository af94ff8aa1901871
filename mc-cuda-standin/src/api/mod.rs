//! The driver's functions, by their subjects.

pub(crate) mod context;
pub(crate) mod control;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod pointer;
pub(crate) mod stream;
pub(crate) mod virtual_memory;
