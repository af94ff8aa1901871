//! Lets etcd forget what the keys were, which it keeps for ever by default.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::super::error::ElectionError;
use super::super::member::ClusterView;
use super::shared::Etcd;
use crate::etcd::PREFIX;
use crate::etcd::messages::{RangeRequest, RangeResponse};

/// Keeps this much of the history, as long as the runtime lasts. Every member of the cluster does
/// this: it does no harm twice. While etcd has keys of others it is done only if `for_others`.
pub(super) async fn compact(
    etcd: Arc<Etcd>,
    views: watch::Receiver<Option<Arc<ClusterView>>>,
    history: Duration,
    for_others: bool,
) {
    // A revision that is as old as the pause before it.
    let mut old = 0;
    let mut is_told = false;
    loop {
        sleep(history).await;
        // Without a leader nothing is written.
        if views.borrow().as_ref().is_none_or(|view| view.leader.is_none()) {
            continue;
        }
        let Ok(read) = etcd.client.range(etcd.keys.all()).await else { continue };
        let new = read.header.map_or(0, |header| header.revision);
        if old > 0 && new >= old {
            let is_alone = for_others || has_only_ours(&etcd).await.unwrap_or(false);
            if is_alone {
                compact_to(&etcd, old).await;
            } else if !std::mem::replace(&mut is_told, true) {
                tracing::info!(
                    "etcd has keys of other users, or this user may not count them: its history is \
                     left to etcd's own --auto-compaction-retention"
                );
            }
        }
        old = new;
    }
}

async fn compact_to(etcd: &Etcd, revision: i64) {
    if let Err(error) = etcd.client.compact(revision).await {
        let error = &error as &dyn std::error::Error;
        tracing::debug!(error, "the history of etcd was not shortened");
    }
}

/// Whether all keys in etcd are those of clusters of masters.
async fn has_only_ours(etcd: &Etcd) -> Result<bool, ElectionError> {
    let count = async |prefix: &str| {
        let counted = etcd.client.range(RangeRequest::count(prefix)).await;
        counted.map(|RangeResponse { count, .. }| count)
    };
    // In this order: a cluster that begins in between is not taken for another user.
    let all = count("").await?;
    Ok(count(&format!("{PREFIX}/")).await? >= all)
}
