//! Keeps a member registered.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use super::super::error::ElectionError;
use super::super::member::{ClusterView, Member, Standing};
use super::keys::encode_member;
use super::shared::{Etcd, RETRY_PAUSE};
/// The shortest time between two writes of a member's standing.
const STANDING_INTERVAL: Duration = Duration::from_secs(1);

/// Registers the member, tells whether that succeeded, and keeps it registered.
pub(super) async fn keep(
    etcd: Arc<Etcd>,
    member: Member,
    standings: watch::Receiver<Standing>,
    views: watch::Receiver<Option<Arc<ClusterView>>>,
    told: oneshot::Sender<Result<(), ElectionError>>,
) {
    let mut told = Some(told);
    let mut registration = Registration { etcd: &etcd, member, standings, views };
    loop {
        let failure = registration.keep_once(&mut told).await;
        if let Some(told) = told.take() {
            // The caller may have gone.
            let _ = told.send(Err(failure));
            return;
        }
        tracing::warn!(
            member = %registration.member.id(),
            error = &failure as &dyn std::error::Error,
            "the registration was lost; registering again"
        );
        sleep(RETRY_PAUSE).await;
    }
}

struct Registration<'a> {
    etcd: &'a Etcd,
    member: Member,
    standings: watch::Receiver<Standing>,
    views: watch::Receiver<Option<Arc<ClusterView>>>,
}

impl Registration<'_> {
    /// Registers, and stays so until the lease is lost.
    async fn keep_once(
        &mut self,
        told: &mut Option<oneshot::Sender<Result<(), ElectionError>>>,
    ) -> ElectionError {
        // etcd counts whole seconds, and may lengthen the lease.
        let wanted = self.etcd.ttl.as_millis().div_ceil(1000) as i64;
        let lease = match self.etcd.client.grant(wanted).await {
            Ok(lease) => lease.id,
            Err(error) => return error,
        };
        // An earlier one is lost, or ends by itself.
        *self.etcd.registration.lock() = Some(lease);
        self.keep_lease(lease, told).await
    }

    async fn keep_lease(
        &mut self,
        lease: i64,
        told: &mut Option<oneshot::Sender<Result<(), ElectionError>>>,
    ) -> ElectionError {
        let mut written = match self.write(lease).await {
            Ok(written) => written,
            Err(error) => return error,
        };
        if let Some(told) = told.take() {
            let _ = told.send(Ok(()));
        }
        let mut written_at = Instant::now();
        loop {
            sleep(self.etcd.ttl / 3).await;
            let mut renewed = self.etcd.client.keep_alive(lease).await;
            let due = written_at.elapsed() >= STANDING_INTERVAL
                && (*self.standings.borrow() != written || !self.is_seen());
            if renewed.is_ok() && due {
                renewed = self.write(lease).await.map(|standing| written = standing);
                written_at = Instant::now();
            }
            match renewed {
                Err(ElectionError::LeaseEnded) => return ElectionError::LeaseEnded,
                // The lease may outlast that.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(error, "the registration was not renewed");
                }
                Ok(()) => {}
            }
        }
    }

    async fn write(&self, lease: i64) -> Result<Standing, ElectionError> {
        let standing = *self.standings.borrow();
        let value = encode_member(&self.member, standing);
        self.etcd.client.put(&self.etcd.keys.member(self.member.id()), value, lease).await?;
        Ok(standing)
    }

    /// Whether the key is there with this member's address: an administrator can delete it, and
    /// another process by mistake have the same id.
    fn is_seen(&self) -> bool {
        let view = self.views.borrow();
        view.as_ref().is_none_or(|view| {
            let status = view.member(self.member.id());
            status.is_some_and(|status| status.member == self.member)
        })
    }
}
