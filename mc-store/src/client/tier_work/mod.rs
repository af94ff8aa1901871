//! Work on [tiers](super::tiers) that the master asks for, or that keeps them in step with it.

mod files;
mod local_disk;
mod promote;
mod tell;

pub(super) use files::start_shared_tier;
pub(super) use local_disk::{leave_local_disk, start_local_disk};
