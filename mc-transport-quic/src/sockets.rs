//! The UDP sockets that connections to others leave from.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime};
use tokio::runtime::Handle;

use super::config::QuicConfig;
use super::fault::CLOSED;
use super::tuning;

/// One endpoint for each version of IP, made when it is first needed.
pub(super) struct Sockets {
    runtime: Handle,
    config: QuicConfig,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    v4: Option<Endpoint>,
    v6: Option<Endpoint>,
    closed: bool,
}

impl State {
    fn slot(&mut self, peer: SocketAddr) -> &mut Option<Endpoint> {
        if peer.is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }
}

/// Why a node did not move to another address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebindError {
    /// The system does not give this address.
    #[error("cannot move to {address}; is it one of this host, and free?")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The transport was shut down.
    #[error("the transport was shut down")]
    Closed,
}

impl Sockets {
    pub(super) fn new(runtime: Handle, config: QuicConfig) -> Self {
        Self { runtime, config, state: Mutex::default() }
    }

    /// The endpoint from which `peer` can be reached; `None` after the end.
    pub(super) fn towards(&self, peer: SocketAddr) -> io::Result<Option<Endpoint>> {
        let mut state = self.state.lock();
        if state.closed {
            return Ok(None);
        }
        let slot = state.slot(peer);
        if let Some(endpoint) = slot {
            return Ok(Some(endpoint.clone()));
        }
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = open(&self.runtime, any, tuning::endpoint(&self.config), None)?;
        *slot = Some(endpoint.clone());
        Ok(Some(endpoint))
    }

    /// Moves every connection to peers of the version of IP of `address` there, and
    /// those to come; where they are now.
    pub(super) fn rebind(&self, address: SocketAddr) -> Result<SocketAddr, RebindError> {
        let failed = |source| RebindError::Bind { address, source };
        let mut state = self.state.lock();
        if state.closed {
            return Err(RebindError::Closed);
        }
        let slot = state.slot(address);
        if let Some(endpoint) = slot {
            let socket = tuning::bind(address).map_err(failed)?;
            let _context = self.runtime.enter();
            endpoint.rebind(socket).map_err(failed)?;
            return endpoint.local_addr().map_err(failed);
        }
        let endpoint = open(&self.runtime, address, tuning::endpoint(&self.config), None);
        let endpoint = endpoint.map_err(failed)?;
        let bound = endpoint.local_addr().map_err(failed)?;
        *slot = Some(endpoint);
        Ok(bound)
    }

    /// Ends every connection; those that are left to be waited for.
    pub(super) fn close(&self) -> Vec<Endpoint> {
        let state = &mut *self.state.lock();
        state.closed = true;
        let endpoints: Vec<Endpoint> =
            [state.v4.take(), state.v6.take()].into_iter().flatten().collect();
        for endpoint in &endpoints {
            endpoint.close(CLOSED, b"");
        }
        endpoints
    }
}

/// An endpoint at `address`, whose tasks run on `runtime`.
pub(super) fn open(
    runtime: &Handle,
    address: SocketAddr,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    let socket = tuning::bind(address)?;
    let _context = runtime.enter();
    Endpoint::new(config, server, socket, Arc::new(TokioRuntime))
}
