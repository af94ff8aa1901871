//! Serves peers that connected.

use std::sync::Arc;

use mc_places::Seat;
use tokio::net::TcpStream;
#[cfg(feature = "tls")]
use tokio::time::Instant;

use super::config::TcpConfig;
#[cfg(feature = "tls")]
use super::tls::admit;
use crate::backend::tune::tune;
use crate::stream::server::{End, Service, serve_stream};

/// State that all connections of a server share.
pub(super) struct Server {
    pub(super) config: TcpConfig,
    pub(super) service: Service,
}

impl Server {
    /// Serves one peer that has just connected.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream, seat: Seat) -> Result<(), End> {
        tune(&stream, self.config.congestion_control.as_deref());
        #[cfg(feature = "tls")]
        if let Some(tls) = self.config.tls.as_ref().and_then(|tls| tls.server.as_ref()) {
            let begun = Instant::now();
            let stream = Box::pin(admit(stream.into(), tls, &self.service)).await?;
            let mut service = self.service.clone();
            service.connect_timeout = service.connect_timeout.saturating_sub(begun.elapsed());
            return serve_stream(stream, &service, seat).await;
        }
        serve_stream(stream.into(), &self.service, seat).await
    }
}
