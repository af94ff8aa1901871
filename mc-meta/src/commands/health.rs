//! Reports of clients on what does not work: damaged bytes and segments that cannot be reached.

pub(crate) mod damage;
pub(crate) mod suspicion;
