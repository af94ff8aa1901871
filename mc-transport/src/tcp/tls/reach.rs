//! TLS of the side that reaches out.

use std::sync::Arc;

use mc_tls::rustls::ClientConfig;
use mc_tls::rustls::pki_types::ServerName;
use mc_tls::{ClientTls, TlsError};
use mc_types::Endpoint;
use tokio::task::spawn_blocking;

use crate::error::ConnectError;
use crate::stream::plain::PlainSocket;
use crate::stream::socket::Stream;
use crate::stream::tls::{HandshakeError, PROTOCOL, TlsStream};
use crate::tls_failure::TlsFailure;

/// TLS settings for a peer, and the name that its certificate must have.
pub(in crate::tcp) struct Settings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Settings {
    /// The settings for one connection to `endpoint`, from files as they are now.
    pub(in crate::tcp) async fn read(
        tls: &ClientTls,
        endpoint: &Endpoint,
    ) -> Result<Self, ConnectError> {
        let (tls, address) = (tls.clone(), endpoint.address().to_owned());
        let reading = spawn_blocking(move || {
            let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
            let name = tls.expected_name(host)?;
            Ok(Self { config: tls.connect_config(PROTOCOL)?, name })
        });
        // Files are not read to the end when the runtime ends.
        let read: Result<_, TlsError> = reading.await.map_err(|_| ConnectError::Closed)?;
        read.map_err(|error| failed(endpoint, TlsFailure::Settings(Arc::new(error))))
    }

    /// Speaks TLS with the server at the other end of `socket`, which `endpoint` names in
    /// errors.
    pub(in crate::tcp) async fn secure(
        self,
        socket: PlainSocket,
        endpoint: &Endpoint,
    ) -> Result<Stream, ConnectError> {
        let stream = TlsStream::client(socket, self.config, self.name)
            .map_err(|error| failed(endpoint, error.into()))?;
        let Err(error) = stream.shake_hands().await else {
            return Ok(Stream::Tls(Box::new(stream)));
        };
        let failure = match error {
            HandshakeError::Plain { busy: true } => {
                return Err(ConnectError::Busy { endpoint: endpoint.clone() });
            }
            HandshakeError::Plain { busy: false } => TlsFailure::NotSpoken,
            HandshakeError::OtherProtocol => TlsFailure::OtherProtocol,
            HandshakeError::Tls(error) => error.into(),
            HandshakeError::Io(error) => TlsFailure::Ended(Arc::new(error)),
        };
        Err(failed(endpoint, failure))
    }
}

fn failed(endpoint: &Endpoint, source: TlsFailure) -> ConnectError {
    ConnectError::Tls { endpoint: endpoint.clone(), source }
}
