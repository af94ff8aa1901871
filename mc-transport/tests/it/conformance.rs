//! The public suite, run on every implementation of this crate.

use std::sync::Arc;

use mc_transport::conformance::{Pair, run_all};
use mc_transport::{MemFabric, Transport as _};

fn mem_pair() -> Pair {
    let fabric = MemFabric::new();
    Pair {
        owner: Arc::new(fabric.transport("owner").unwrap()),
        peer: Arc::new(fabric.transport("peer").unwrap()),
    }
}

#[tokio::test]
async fn mem_on_one_thread() {
    run_all(async || mem_pair()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mem_on_two_threads() {
    run_all(async || mem_pair()).await;
}

#[tokio::test]
async fn nodes_leave_their_fabric() {
    let fabric = MemFabric::new();
    let first = fabric.transport("node").unwrap();
    assert!(fabric.transport("node").is_err());
    assert!(fabric.transport("two words").is_err());
    drop(first);
    let second = fabric.transport("node").unwrap();
    assert_eq!(second.endpoint().unwrap().as_str(), "mem://node");
}

mod tcp {
    use std::time::Duration;

    use mc_transport::conformance::{CASES, run};
    use mc_transport::{Link as _, TcpConfig, TcpTransport};

    use super::*;

    async fn pair(listen: &str, links: usize) -> (TcpTransport, TcpTransport) {
        let config = TcpConfig::listening(listen.parse().unwrap());
        let owner = TcpTransport::start(config).await.unwrap();
        let mut config = TcpConfig::default();
        config.links_per_peer = links.try_into().unwrap();
        (owner, TcpTransport::start(config).await.unwrap())
    }

    /// Runs every case, and after each waits until both sides have closed and
    /// ended everything.
    async fn suite(listen: &str, links: usize) {
        for case in CASES {
            let (owner, peer) = pair(listen, links).await;
            let (owner, peer) = (Arc::new(owner), Arc::new(peer));
            let watch = (Arc::downgrade(&owner), Arc::clone(&peer));
            run(case, Pair { owner, peer }).await;
            watch.1.shutdown().await;
            assert!(watch.0.upgrade().is_none(), "{}: the case dropped its owner", case.name);
            assert_eq!((watch.1.stats().links, watch.1.stats().tasks), (0, 0), "{}", case.name);
        }
    }

    #[tokio::test]
    async fn on_one_thread() {
        suite("127.0.0.1:0", 1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_two_threads() {
        suite("127.0.0.1:0", 1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn with_three_links() {
        suite("127.0.0.1:0", 3).await;
    }

    #[tokio::test]
    async fn over_ipv6() {
        suite("[::1]:0", 1).await;
    }

    #[tokio::test]
    async fn links_work_from_another_executor() {
        let (owner, peer) = pair("127.0.0.1:0", 1).await;
        let memory = mc_transport::Memory::allocate(4096).unwrap();
        let region = owner.register(&memory, mc_transport::Access::ReadWrite).unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        let extent = mc_types::Extent::new(0, 4).unwrap();
        let to = mc_transport::RemoteSpan::new(region.key(), extent);
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let bytes = bytes::Bytes::from_static(b"here");
            runtime.block_on(link.submit(vec![mc_transport::Operation::write(bytes, to)]))
        });
        while !elsewhere.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(elsewhere.join().unwrap()[0].is_ok());
        assert_eq!(memory.slice(0, 4).unwrap().to_vec(), b"here");
    }
}

#[cfg(target_os = "linux")]
mod shm {
    use async_trait::async_trait;
    use mc_transport::conformance::{CASES, run};
    use mc_transport::{
        Access, ConnectError, DynTransport, Link, Memory, MemoryError, Region, RegisterError,
        ShmConfig, ShmTransport,
    };
    use mc_types::Endpoint;

    use super::*;

    /// A node whose memory its peers cannot map.
    struct Unshared(ShmTransport);

    #[async_trait]
    impl DynTransport for Unshared {
        fn scheme(&self) -> &'static str {
            DynTransport::scheme(&self.0)
        }

        fn endpoint(&self) -> Option<&Endpoint> {
            DynTransport::endpoint(&self.0)
        }

        fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
            Memory::allocate(len)
        }

        fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
            DynTransport::register(&self.0, memory, access)
        }

        async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError> {
            DynTransport::connect(&self.0, endpoint).await
        }
    }

    async fn start() -> ShmTransport {
        ShmTransport::start(ShmConfig::default()).await.unwrap()
    }

    /// Runs every case, and after each waits until the peer has let go of everything.
    async fn suite(shared: bool) {
        for case in CASES {
            // Views are for memory that is shared; tests/shm asks for others.
            if !shared && case.name == "capabilities_are_kept" {
                continue;
            }
            let owner = start().await;
            let owner: Arc<dyn DynTransport> =
                if shared { Arc::new(owner) } else { Arc::new(Unshared(owner)) };
            let peer = Arc::new(start().await);
            let watch = (Arc::downgrade(&owner), Arc::clone(&peer));
            run(case, Pair { owner, peer }).await;
            watch.1.shutdown().await;
            assert!(watch.0.upgrade().is_none(), "{}: the case dropped its owner", case.name);
            let stats = watch.1.stats();
            let left = (stats.links, stats.streams, stats.mapped_regions, stats.tasks);
            assert_eq!(left, (0, 0, 0, 0), "{}", case.name);
        }
    }

    #[tokio::test]
    async fn on_one_thread() {
        suite(true).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_two_threads() {
        suite(true).await;
    }

    #[tokio::test]
    async fn unshared_memory_on_one_thread() {
        suite(false).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn unshared_memory_on_two_threads() {
        suite(false).await;
    }
}
