//! Questions about the cluster, which clients of every role may ask.

use std::collections::HashSet;
use std::time::Duration;

use mc_rpc::{ClusterReport, MAX_BATCH};
use mc_types::{BoxFuture, ClientId};
use tokio::time::Instant;

use super::Client;
use crate::error::CallError;

impl Client {
    /// Asks the master for a sign of life, and says how long the answer took.
    ///
    /// # Errors
    /// [`CallError`] when the master does not answer.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// println!("the master is {:?} away", client.ping().await?);
    /// # Ok(()) });
    /// ```
    pub fn ping<'a>(&'a self) -> BoxFuture<'a, Result<Duration, CallError>> {
        Box::pin(async move {
            let asked = Instant::now();
            self.core.link.question()?.ping(self.core.link.id).await?;
            Ok(asked.elapsed())
        })
    }

    /// The cluster's totals and segments.
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// let report = client.cluster_report().await?;
    /// assert_eq!((report.segments.len(), report.totals.capacity), (1, 4 << 20));
    /// # Ok(()) });
    /// ```
    pub fn cluster_report<'a>(&'a self) -> BoxFuture<'a, Result<ClusterReport, CallError>> {
        Box::pin(async move { Ok(self.core.link.question()?.cluster_report().await?) })
    }

    /// The hosts that serve the segments of each of `clients`: addresses or names, each
    /// once. Clients that contribute nothing, or that are away, are left out, and one that
    /// is asked for twice is answered for once.
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// let hosts = client.hosts(&[client.id()]).await?;
    /// assert_eq!(hosts, [(client.id(), vec!["127.0.0.1".into()])]);
    /// # Ok(()) });
    /// ```
    pub async fn hosts(
        &self,
        clients: &[ClientId],
    ) -> Result<Vec<(ClientId, Vec<Box<str>>)>, CallError> {
        let master = self.core.link.question()?;
        let (mut unique, mut seen) = (clients.to_vec(), HashSet::new());
        unique.retain(|client| seen.insert(*client));
        let mut hosts = Vec::new();
        for part in unique.chunks(MAX_BATCH) {
            hosts.append(&mut master.batch_query_ip(part).await?);
        }
        Ok(hosts)
    }
}
