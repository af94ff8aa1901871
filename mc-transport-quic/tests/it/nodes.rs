//! Nodes under test.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_transport::{Link, Memory, Operation, Outcome, Region, RemoteSpan, Transport};
use mc_transport_quic::{QuicConfig, QuicTransport};
use mc_types::{Extent, RemoteKey};
use tokio::time::timeout;

use super::pki::Authority;

/// Long enough for a loaded machine; nothing waits for it when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Timeouts of the nodes under test, where a test waits for one.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

pub(crate) fn listening(authority: &Authority) -> QuicConfig {
    QuicConfig::listening("127.0.0.1:0".parse().unwrap(), authority.server())
}

pub(crate) fn connecting(authority: &Authority) -> QuicConfig {
    QuicConfig::connecting(authority.client())
}

pub(crate) async fn start(config: QuicConfig) -> QuicTransport {
    QuicTransport::start(config).await.unwrap()
}

pub(crate) fn with_short_timeouts(mut config: QuicConfig) -> QuicConfig {
    config.stall_timeout = SHORT;
    config.connect_timeout = SHORT;
    config
}

pub(crate) fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).unwrap())
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

pub(crate) async fn one(link: &dyn Link, operation: Operation) -> Outcome {
    let mut results = timeout(DEADLINE, link.submit(vec![operation])).await.expect("in time");
    results.remove(0)
}

/// Shows that `server` serves a new client.
pub(crate) async fn still_serves(server: &QuicTransport, authority: &Authority, region: &Region) {
    let client = start(connecting(authority)).await;
    let link = timeout(DEADLINE, client.connect(server.endpoint().unwrap())).await;
    let link = link.expect("in time").unwrap();
    let write = Operation::write(Bytes::from_static(b"fine"), span(region.key(), 0, 4));
    one(&*link, write).await.unwrap();
    let memory = Memory::allocate(4).unwrap();
    one(&*link, Operation::read(span(region.key(), 0, 4), memory.whole())).await.unwrap();
    assert_eq!(memory.whole().to_vec(), b"fine");
    drop(link);
    client.shutdown().await;
}

/// A server whose region has `len` bytes, a client, and the link between them.
pub(crate) struct Rig {
    pub(crate) authority: Authority,
    pub(crate) server: QuicTransport,
    pub(crate) client: QuicTransport,
    pub(crate) region: Region,
    pub(crate) link: Arc<dyn Link>,
}

impl Rig {
    pub(crate) async fn new(
        len: usize,
        server: impl FnOnce(&mut QuicConfig),
        client: impl FnOnce(&mut QuicConfig),
    ) -> Self {
        let authority = Authority::new();
        let mut config = listening(&authority);
        server(&mut config);
        let owner = start(config).await;
        let mut config = connecting(&authority);
        client(&mut config);
        let client = start(config).await;
        let memory = Memory::allocate(len).unwrap();
        let region = owner.register(&memory, mc_transport::Access::ReadWrite).unwrap();
        let link = client.connect(owner.endpoint().unwrap()).await.unwrap();
        Self { authority, server: owner, client, region, link }
    }
}
