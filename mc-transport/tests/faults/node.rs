//! The implementations under test, behind one face.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::{DynTransport, Memory, ShmConfig, ShmTransport, TcpConfig, TcpTransport};

/// How long a node waits for one that owes it something.
pub(crate) const STALL: Duration = Duration::from_millis(500);

/// An implementation, in one of the ways in which it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    #[cfg(feature = "tls")]
    Tls,
    #[cfg(feature = "tls")]
    Quic,
    /// Memory that peers map.
    Shm,
    /// Memory that they cannot map.
    ShmStreams,
}

/// The connections, links and tasks that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) connections: usize,
    pub(crate) links: usize,
    pub(crate) tasks: usize,
}

/// A node of any kind.
pub(crate) struct Node {
    pub(crate) transport: Arc<dyn DynTransport>,
    open: Box<dyn Fn() -> Open + Send + Sync>,
}

impl Node {
    pub(crate) fn open(&self) -> Open {
        (self.open)()
    }
}

impl Kind {
    const ALL: &[Self] = &[
        Self::Tcp,
        #[cfg(feature = "tls")]
        Self::Tls,
        #[cfg(feature = "tls")]
        Self::Quic,
        Self::Shm,
        Self::ShmStreams,
    ];

    /// The kind that prints like this.
    pub(crate) fn named(name: &str) -> Self {
        *Self::ALL.iter().find(|kind| format!("{kind:?}") == name).unwrap()
    }

    /// Whether an owner that does not run keeps operations from being carried out.
    pub(crate) fn needs_the_owner(self) -> bool {
        self != Self::Shm
    }

    /// Memory to register.
    pub(crate) fn memory(self, node: &Node, len: usize) -> Memory {
        match self {
            Self::ShmStreams => Memory::allocate(len).unwrap(),
            _ => node.transport.allocate(len).unwrap(),
        }
    }

    /// A node that accepts peers. Certificates are in `files`.
    pub(crate) async fn owner(self, files: &Path) -> Node {
        self.node(files, true).await
    }

    /// A node that does not.
    pub(crate) async fn peer(self, files: &Path) -> Node {
        self.node(files, false).await
    }

    #[cfg_attr(not(feature = "tls"), allow(unused_variables, reason = "only TLS has files"))]
    async fn node(self, files: &Path, listens: bool) -> Node {
        match self {
            Self::Shm | Self::ShmStreams => {
                let mut config = ShmConfig::default();
                (config.stall_timeout, config.connect_timeout) = (STALL, STALL);
                let transport = Arc::new(ShmTransport::start(config).await.unwrap());
                let seen = Arc::clone(&transport);
                let open = Box::new(move || {
                    let stats = seen.stats();
                    let links = stats.links + stats.streams + stats.mapped_regions;
                    Open { connections: stats.connections, links, tasks: stats.tasks }
                });
                Node { transport, open }
            }
            Self::Tcp => start(TcpConfig::default(), listens).await,
            #[cfg(feature = "tls")]
            Self::Tls => {
                let mut config = TcpConfig::default();
                config.tls = Some(certified(files, listens));
                start(config, listens).await
            }
            #[cfg(feature = "tls")]
            Self::Quic => start_quic(files, listens).await,
        }
    }
}

async fn start(mut config: TcpConfig, listens: bool) -> Node {
    (config.stall_timeout, config.connect_timeout) = (STALL, STALL);
    // Failures are what is looked at here.
    config.breaker.failures = 0;
    if listens {
        config.listen = Some("127.0.0.1:0".parse().unwrap());
    }
    let transport = Arc::new(TcpTransport::start(config).await.unwrap());
    let seen = Arc::clone(&transport);
    let open = Box::new(move || {
        let stats = seen.stats();
        Open { connections: stats.connections, links: stats.links, tasks: stats.tasks }
    });
    Node { transport, open }
}

#[cfg(feature = "tls")]
async fn start_quic(files: &Path, listens: bool) -> Node {
    use mc_transport_quic::{QuicConfig, QuicTransport};
    let (client, server) = (client_tls(files), listens.then(|| server_tls(files)));
    let mut config = match server {
        Some(server) => QuicConfig::listening("127.0.0.1:0".parse().unwrap(), server),
        None => QuicConfig::connecting(client),
    };
    (config.stall_timeout, config.connect_timeout, config.idle_timeout) = (STALL, STALL, STALL);
    let transport = Arc::new(QuicTransport::start(config).await.unwrap());
    if !listens {
        // The socket that all links share is opened with the first attempt.
        let nowhere = "quic://127.0.0.1:9".parse().unwrap();
        assert!(DynTransport::connect(&*transport, &nowhere).await.is_err());
    }
    let seen = Arc::clone(&transport);
    let open = Box::new(move || {
        let stats = seen.stats();
        Open { connections: stats.connections, links: stats.links, tasks: stats.tasks }
    });
    Node { transport, open }
}

#[cfg(feature = "tls")]
fn certified(files: &Path, listens: bool) -> mc_transport::TcpTls {
    let tls = mc_transport::TcpTls::new(client_tls(files));
    if listens { tls.server(server_tls(files)) } else { tls }
}

#[cfg(feature = "tls")]
fn client_tls(files: &Path) -> mc_tls::ClientTls {
    let at = |name: &str| files.join(name);
    mc_tls::ClientTls::new(at("ca.pem")).identity(at("client.pem"), at("client.key"))
}

#[cfg(feature = "tls")]
fn server_tls(files: &Path) -> Arc<mc_tls::ServerTls> {
    use mc_tls::{ClientAuth, ServerTls, TlsFiles};
    let at = |name: &str| files.join(name);
    let own = TlsFiles::new(at("server.pem"), at("server.key"));
    let own = own.client_ca(at("ca.pem"), ClientAuth::Required);
    Arc::new(ServerTls::load(own).unwrap())
}
