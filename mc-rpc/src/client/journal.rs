//! The stream over which a standby gets the leader's journal.

use std::sync::Arc;

use mc_types::{BoxFuture, Epoch, ErrorCode};

use super::config::ClientConfig;
use super::connection::greet;
use super::dial::{handshake_failed, no_answer};
use super::link::Link;
use crate::error::RpcError;
use crate::refusal::Refusal;
use crate::stream::ByteStream;

/// A stream over which a standby gets the leader's journal, after the handshake with the leader's
/// server. Dropping it closes the connection.
#[derive(Debug)]
pub struct JournalStream {
    /// The stream behind the handshake.
    pub stream: Box<dyn ByteStream>,
    /// The term of the leader, if it has any.
    pub epoch: Option<Epoch>,
    /// The leader's address, one of those that were given.
    pub addr: Arc<str>,
}

impl JournalStream {
    /// Connects to the leader at `addr`, an address or several as
    /// [`MasterClient::connect`](crate::MasterClient::connect) takes them, by the TLS settings, the
    /// token and the time-out of `config`. One attempt is made. Cancelling gives it up.
    ///
    /// # Errors
    /// As [`MasterClient::connect`](crate::MasterClient::connect); [`RpcError::Refused`] with
    /// `PermissionDenied` to those who have not the role admin, with `UnavailableInCurrentMode` by a
    /// master without journal, and with `NotSupported` by one that is older.
    pub fn connect(addr: &str, config: ClientConfig) -> BoxFuture<'_, Result<Self, RpcError>> {
        Box::pin(Self::dial(addr, config))
    }

    async fn dial(addr: &str, mut config: ClientConfig) -> Result<Self, RpcError> {
        // No call is made, and the way is the one that was named.
        (config.journal, config.retry, config.local_socket) = (true, false, false);
        let link = Arc::new(Link::new(addr, config));
        link.dial(|link, address| async move {
            let prepared = link.prepare().await?;
            let (config, addr) = (link.config(), address.text());
            let greeting = greet(&address, &prepared, link.identity(), config);
            let greeted = tokio::time::timeout(config.connect_timeout, greeting).await;
            let greeted = greeted.map_err(|_| no_answer(addr, config.connect_timeout))?;
            let (greeted, _) = greeted.map_err(|error| handshake_failed(addr, error))?;
            if !greeted.welcome.is_journal {
                let message =
                    format!("the master at {addr} is older and has no journal; upgrade it");
                return Err(Refusal::new(ErrorCode::NotSupported, message).into());
            }
            let (stream, epoch) = (Box::new(greeted.stream), greeted.welcome.epoch);
            Ok(Self { stream, epoch, addr: Arc::clone(addr) })
        })
        .await
    }
}
