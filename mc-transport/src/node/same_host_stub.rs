//! The same as `same_host`, where no memory is shared.

use std::sync::Arc;

use mc_types::Endpoint;

use super::config::NodeConfig;
use super::error::NodeError;
use crate::description::Shortcut;
use crate::region::RegionTable;
use crate::transport::{DynTransport, Link};

#[derive(Default)]
pub(super) struct SameHost {}

#[allow(clippy::unused_self, clippy::unused_async, reason = "the signatures of its twin")]
impl SameHost {
    pub(super) async fn start(_: &NodeConfig, _: &RegionTable) -> Result<Self, NodeError> {
        Ok(Self {})
    }

    pub(super) fn shortcuts(&self) -> Vec<Shortcut> {
        Vec::new()
    }

    pub(super) fn told_by<T>(&mut self, _: &Arc<T>) {}

    pub(super) async fn link(&self, _: &Endpoint) -> Option<Arc<dyn Link>> {
        None
    }

    pub(super) fn transport(&self) -> Option<&dyn DynTransport> {
        None
    }

    pub(super) async fn shutdown(&self) {}
}
