//! The standard health service: serving while the master is well, until the server is to end.

use core::pin::Pin;
use core::time::Duration;
use std::sync::Arc;

use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// Longest question about the health of something, in bytes.
const MAX_QUESTION: usize = 4 << 10;

/// The services whose health can be asked for: all together, and the master's.
const NAMES: [&str; 2] = ["", "mc.store.v1.MasterService"];

pub(super) type HealthServer = health_server::HealthServer<Health>;

/// How often those who watch are told that the master is not well, or well again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Tells whether the master is well.
type Wellness = Arc<dyn Fn() -> bool + Send + Sync>;

/// The service of a server that serves until `draining` turns true, while it is well.
pub(super) fn server(draining: watch::Receiver<bool>, well: Option<Wellness>) -> HealthServer {
    let health = Health { draining, well };
    health_server::HealthServer::new(health).max_decoding_message_size(MAX_QUESTION)
}

#[derive(Clone)]
pub(super) struct Health {
    draining: watch::Receiver<bool>,
    well: Option<Wellness>,
}

impl Health {
    fn is_serving(&self) -> bool {
        !*self.draining.borrow() && self.well.as_ref().is_none_or(|is_well| is_well())
    }

    fn status(&self, is_known: bool) -> ServingStatus {
        match (is_known, self.is_serving()) {
            (false, _) => ServingStatus::ServiceUnknown,
            (true, true) => ServingStatus::Serving,
            (true, false) => ServingStatus::NotServing,
        }
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// A caller's watch.
struct Watched {
    health: Health,
    is_known: bool,
    told: Option<ServingStatus>,
}

impl Watched {
    /// Returns the next status that is not the one before, until the server ends.
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let is_ending = *self.health.draining.borrow();
            let status = self.health.status(self.is_known);
            if self.told.replace(status) != Some(status) {
                return Some((Ok(answer(status)), self));
            }
            if is_ending {
                return None;
            }
            let ending = self.health.draining.wait_for(|draining| *draining);
            let ended = match &self.health.well {
                Some(_) => timeout(LOOK_AGAIN, ending).await.ok().map(|ended| ended.is_err()),
                None => Some(ending.await.is_err()),
            };
            // A server that is gone ends the stream, too.
            if ended == Some(true) {
                return None;
            }
        }
    }
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
        Ok(Response::new(answer(self.status(true))))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Reports the health now and at each change, until the server is to end.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let is_known = NAMES.contains(&&*request.get_ref().service);
        let watched = Watched { health: self.clone(), is_known, told: None };
        Ok(Response::new(Box::pin(stream::unfold(watched, Watched::next))))
    }
}
