//! What a sink outside of the master is told, and a master made from it again.
//!
//! [`effect`]: each change as it happens. [`record`]: the same as records that can be kept;
//! [`record_ref`]: the same, borrowed. [`receipt`]: the order of these changes, and the last one of a command. [`export`]: the whole state as records, in pages. [`leases`]: what is leased when a master hands over. [`recover`]: a master rebuilt from records.

pub(crate) mod effect;
pub(crate) mod emit;
pub(crate) mod export;
pub(crate) mod leases;
pub(crate) mod receipt;
pub(crate) mod record;
pub(crate) mod record_ref;
pub(crate) mod recover;
