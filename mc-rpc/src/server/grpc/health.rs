//! The standard health service: serving until the server is to end.

use core::pin::Pin;

use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// Longest question about the health of something, in bytes.
const MAX_QUESTION: usize = 4 << 10;

/// What the master's health can be asked of: everything, and its service.
const NAMES: [&str; 2] = ["", "mc.store.v1.MasterService"];

pub(super) type HealthServer = health_server::HealthServer<Health>;

/// The service of a server that serves until `draining` turns true.
pub(super) fn server(draining: watch::Receiver<bool>) -> HealthServer {
    health_server::HealthServer::new(Health { draining }).max_decoding_message_size(MAX_QUESTION)
}

#[derive(Debug)]
pub(super) struct Health {
    draining: watch::Receiver<bool>,
}

fn health(known: bool, draining: bool) -> HealthCheckResponse {
    let status = match (known, draining) {
        (false, _) => ServingStatus::ServiceUnknown,
        (true, false) => ServingStatus::Serving,
        (true, true) => ServingStatus::NotServing,
    };
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !NAMES.contains(&&*request.get_ref().service) {
            return Err(Status::not_found("the master has no service of this name"));
        }
        Ok(Response::new(health(true, *self.draining.borrow())))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Says how the health is, says it again when the server is to end, and ends.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = NAMES.contains(&&*request.get_ref().service);
        let draining = self.draining.clone();
        let stream = stream::unfold((draining, None), move |(mut draining, told)| async move {
            match told {
                None => {}
                Some(true) => return None,
                // A server that is gone ends the stream, too.
                Some(false) => drop(draining.wait_for(|draining| *draining).await.ok()?),
            }
            let now = *draining.borrow();
            Some((Ok(health(known, now)), (draining, Some(now))))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}
