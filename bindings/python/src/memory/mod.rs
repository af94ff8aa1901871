//! Memory of callers: registered by address, borrowed from Python objects, or copied with care.

mod checked;
mod host;
mod lent;
mod loans;
mod maps;
mod registered;

pub(crate) use self::checked::{copy_in, copy_out};
pub(crate) use self::host::HostMemory;
pub(crate) use self::lent::Lender;
pub(crate) use self::registered::{Buffers, Look, RegisterError};
