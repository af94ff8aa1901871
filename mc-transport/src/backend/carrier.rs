//! The transports that a node is made of, as it sees them: what they must do to carry its bytes, and
//! what to be a shorter way to some of its peers.
//!
//! A node starts each from its settings, with the regions that all of them serve. TCP and shared
//! memory are such transports, and those of other crates are added to a
//! [`NodeConfig`](super::NodeConfig) in the same way.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_types::{BoxFuture, Endpoint};

use crate::backend::description::{Description, Shortcut};
use crate::region::{Region, RegionTable};
use crate::transport::{DynTransport, Link};

/// Why a transport of a node did not start.
pub type CarrierError = Box<dyn Error + Send + Sync>;

/// Settings of a transport between hosts, beside or in place of TCP.
pub trait CarrierConfig: fmt::Debug + Send + Sync + 'static {
    /// Returns the address at which peers are accepted; `None` when they are not.
    fn listens_at(&self) -> Option<SocketAddr>;

    /// Returns the hosts that peers are told, without a port, the best first.
    fn advertised_hosts(&self) -> &[String];

    /// Returns these settings with peers accepted at `address` and told `hosts`; `None` when they
    /// lack what that needs, such as a certificate.
    fn accepting(&self, address: SocketAddr, hosts: &[String]) -> Option<Arc<dyn CarrierConfig>>;

    /// Returns the settings of a node that reaches this one, over one connection.
    fn of_peer(&self) -> Arc<dyn CarrierConfig>;

    /// Returns the certificate that is shown to peers; none by default.
    #[cfg(feature = "tls")]
    fn certificate(&self) -> Option<Arc<mc_tls::ServerTls>> {
        None
    }

    /// Starts the transport, which serves the regions of `regions` and tells its peers of
    /// `shortcuts`.
    ///
    /// # Errors
    /// [`CarrierError`] when it does not start: the node does not either.
    fn start(
        &self,
        regions: RegionTable,
        shortcuts: Vec<Shortcut>,
    ) -> BoxFuture<'static, Result<Arc<dyn Carrier>, CarrierError>>;
}

/// A transport between hosts over which peers say of themselves which other ways lead to them.
pub trait Carrier: DynTransport {
    /// Returns what the peer at `endpoint` said of itself; `None` before there was a link.
    fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>>;
}

/// Settings of a faster way to some peers, which is advertised over the node's other transports.
pub trait ShortcutConfig: fmt::Debug + Send + Sync + 'static {
    /// Starts the transport, which serves the regions of `regions`, for a node that peers reach as
    /// `node` says. `None` when this host has nothing for it: the node starts without.
    fn start(
        &self,
        node: &Reached,
        regions: RegionTable,
    ) -> BoxFuture<'static, Option<Arc<dyn ShortcutTransport>>>;
}

/// Where a node is reached over its transports between hosts.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Reached {
    /// The address at which it accepts peers; `None` when it accepts none.
    pub listen: Option<SocketAddr>,
    /// The host that peers are told, if one is set.
    pub host: Option<String>,
}

/// A faster way to some of a node's peers.
pub trait ShortcutTransport: DynTransport + Any {
    /// Returns the advertisement of this side for peers; `None` when it accepts none.
    fn told(&self) -> Option<Shortcut>;

    /// Returns the link to the node that described itself as `peer`, if it has one or gets one
    /// soon. `over` leads to the same node, at `endpoint`.
    fn shorten<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        peer: &'a Description,
        over: &'a Arc<dyn Link>,
    ) -> BoxFuture<'a, Option<Arc<dyn Link>>>;

    /// Prepares for a region that was just opened, so that the first peer need not wait. Does
    /// nothing by default.
    fn prepare(&self, region: &Region) {
        let _ = region;
    }
}
