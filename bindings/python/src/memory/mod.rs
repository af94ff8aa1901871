//! The callers' memory, also a GPU's: registered by address, borrowed from Python objects, or copied with checks.

mod borrow_guard;
mod borrows;
mod checked;
mod device;
mod host;
mod maps;
mod registered;

pub(crate) use self::borrow_guard::BorrowGuard;
pub(crate) use self::borrows::Borrows;
pub(crate) use self::checked::{check_mapped, copy_in, copy_out};
pub(crate) use self::device::{DeviceMemory, DeviceObject, gather, land, scatter, stage};
pub(crate) use self::host::HostMemory;
pub(crate) use self::registered::{Buffers, Lookup, RegisterError, Removed};
