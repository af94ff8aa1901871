//! Replicas below memory: files on the shared tier and objects on the clients' local disks, the ways there
//! ([`offload`], [`files`]) and back ([`promote`]), and what was found there after a restart ([`adopt`]).

pub(crate) mod adopt;
pub(crate) mod files;
pub(crate) mod offload;
pub(crate) mod promote;
pub(crate) mod upkeep;
