//! The state that the tasks of an election share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::super::clock::Clock;
use super::super::error::ElectionError;
use super::keys::Keys;
use super::sighting::Sighting;
use crate::etcd::Client;

/// The pause between attempts that fail.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The state that all tasks of an election share. Those tasks themselves hold its [`Etcd`] alone,
/// so that they end when no caller needs them any more.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) etcd: Arc<Etcd>,
    pub(super) runtime: Handle,
    /// The election's thread ends when this is dropped.
    pub(super) _open: oneshot::Sender<()>,
}

/// The cluster's keys and the way to them.
#[derive(Debug)]
pub(super) struct Etcd {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ttl: Duration,
    pub(super) sighting: Mutex<Option<Sighting>>,
    /// The highest epoch that was seen.
    pub(super) highest: AtomicU64,
    /// The lease of the registration.
    pub(super) registration: Mutex<Option<i64>>,
}

impl Context {
    /// Runs a future on the election's thread, to its end also when the caller stops waiting.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ElectionError>> + Send + 'static,
    ) -> Result<T, ElectionError> {
        self.runtime.spawn(work).await.unwrap_or(Err(ElectionError::Closed))
    }
}

impl Etcd {
    /// Ends the registration, or lets it end by itself if that fails.
    pub(super) async fn end_registration(&self) {
        let lease = self.registration.lock().take();
        if let Some(lease) = lease
            && let Err(error) = self.client.revoke(lease).await
        {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "cannot revoke the lease of the registration; it expires"
            );
        }
    }
}
