//! Lets etcd forget what the keys were, which it keeps for ever by default.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::super::member::ClusterView;
use super::shared::Etcd;

/// Keeps this much of the history, as long as the runtime lasts. Every member of the cluster does
/// this: it does no harm twice.
pub(super) async fn compact(
    etcd: Arc<Etcd>,
    views: watch::Receiver<Option<Arc<ClusterView>>>,
    history: Duration,
) {
    // A revision that is as old as the pause before it.
    let mut old = 0;
    loop {
        sleep(history).await;
        // Without a leader nothing is written.
        if views.borrow().as_ref().is_none_or(|view| view.leader.is_none()) {
            continue;
        }
        let Ok(read) = etcd.client.range(etcd.keys.all()).await else { continue };
        let new = read.header.map_or(0, |header| header.revision);
        if old > 0
            && new >= old
            && let Err(error) = etcd.client.compact(old).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "the history of etcd was not shortened");
        }
        old = new;
    }
}
