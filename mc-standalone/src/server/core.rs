//! The state that all connections of a server share.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use mc_places::Places;
use mc_store::Client;
use mc_transport::NodeSecret;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::task::JoinSet;

use super::budget::Budget;
use super::limits::Limits;

/// The state that every connection needs.
pub(super) struct Core {
    pub(super) client: Client,
    pub(super) secret: NodeSecret,
    pub(super) limits: Limits,
    /// One for each thin client.
    pub(super) places: Arc<Places>,
    /// For the requests and answers of all thin clients.
    pub(super) budget: Arc<Budget>,
    pub(super) figures: Arc<Figures>,
    /// Sessions that are not over: each is closed when its last call has ended.
    pub(super) sessions: Mutex<HashMap<u64, Arc<Semaphore>>>,
    pub(super) next_session: AtomicU64,
    pub(super) stopping: watch::Receiver<bool>,
    /// Tasks of connections.
    pub(super) connections: AsyncMutex<JoinSet<()>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The resources in use now.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) clients: AtomicUsize,
    pub(super) memories: AtomicUsize,
    pub(super) shared_bytes: AtomicU64,
    pub(super) calls: AtomicUsize,
}
