//! Work on [tiers](super::tiers) that the master asks for, or that keeps them in step with it.

mod files;
mod local_disk;
mod promote;
mod tell;
