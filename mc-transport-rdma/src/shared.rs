//! State that all links of a transport share.

use std::sync::Arc;

use mc_transport::backend::{Counters, Tasks};

use super::config::RdmaConfig;
use super::local::LocalMemory;
use super::poller::Poller;
use super::ports::Ports;

/// See the module.
pub(super) struct Shared {
    pub(super) config: RdmaConfig,
    pub(super) ports: Arc<Ports>,
    pub(super) local: Arc<LocalMemory>,
    pub(super) poller: Arc<Poller>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) counters: Arc<Counters>,
}
