//! Several links used as one: the public suite, and links that break.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mc_transport::conformance::{Pair, run_all};
use mc_transport::{
    Access, Bundle, BundleConfig, Capabilities, Completions, ConnectError, DynTransport, Link,
    MemFabric, MemTransport, Memory, Operation, Region, RegisterError, RemoteSpan, TransferError,
    Transport, checksum,
};
use mc_types::{Endpoint, Extent};

fn config(stripe: u64) -> BundleConfig {
    let mut config = BundleConfig::default();
    config.stripe = stripe;
    config
}

/// A transport whose links are bundles of links of another.
struct Bundled {
    inner: MemTransport,
    links: usize,
    stripe: u64,
}

impl Transport for Bundled {
    type Link = Bundle;

    fn scheme(&self) -> &'static str {
        Transport::scheme(&self.inner)
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Transport::endpoint(&self.inner)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        Transport::register(&self.inner, memory, access)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<Bundle>, ConnectError> {
        let bundle = Bundle::new(config(self.stripe));
        for _ in 0..self.links {
            bundle.add(DynTransport::connect(&self.inner, endpoint).await?);
        }
        Ok(Arc::new(bundle))
    }
}

#[tokio::test]
async fn a_bundle_keeps_the_contract() {
    for (links, stripe) in [(1, 2 << 20), (3, 10_000), (2, 1 << 20)] {
        run_all(async || {
            let fabric = MemFabric::new();
            let bundled = |name| {
                let inner = fabric.transport(name).unwrap();
                Arc::new(Bundled { inner, links, stripe })
            };
            Pair { owner: bundled("owner"), peer: bundled("peer") }
        })
        .await;
    }
}

/// A link that breaks after some operations.
struct Breaking {
    inner: Arc<dyn Link>,
    left: AtomicUsize,
    carried: AtomicUsize,
    broken: AtomicBool,
}

impl Breaking {
    fn new(inner: Arc<dyn Link>, operations: usize) -> Arc<Self> {
        let left = AtomicUsize::new(operations);
        Arc::new(Self { inner, left, carried: AtomicUsize::new(0), broken: AtomicBool::new(false) })
    }
}

impl Link for Breaking {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let (to_complete, completions) = Completions::pending(batch.len());
        for (operation, completion) in batch.into_iter().zip(to_complete) {
            let one = |left: usize| left.checked_sub(1);
            if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one).is_err() {
                self.broken.store(true, Ordering::SeqCst);
                let source = Arc::new(std::io::ErrorKind::BrokenPipe.into());
                completion.complete(Err(TransferError::LinkLost { source }));
                continue;
            }
            self.carried.fetch_add(1, Ordering::SeqCst);
            let mut one = self.inner.submit(vec![operation]);
            let done = tokio::runtime::Handle::current();
            done.spawn(async move { completion.complete(one.next().await.unwrap().1) });
        }
        completions
    }

    fn is_healthy(&self) -> bool {
        !self.broken.load(Ordering::SeqCst)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

struct Rig {
    _owner: MemTransport,
    region: Region,
    link: Arc<dyn Link>,
}

impl Rig {
    async fn new(len: usize) -> Self {
        let fabric = MemFabric::new();
        let owner = fabric.transport("owner").unwrap();
        let peer = fabric.transport("peer").unwrap();
        let memory = Memory::allocate(len).unwrap();
        let region = Transport::register(&owner, &memory, Access::ReadWrite).unwrap();
        let at = Transport::endpoint(&owner).unwrap();
        let link = DynTransport::connect(&peer, at).await.unwrap();
        Self { _owner: owner, region, link }
    }

    fn span(&self, offset: u64, len: u64) -> RemoteSpan {
        RemoteSpan::new(self.region.key(), Extent::new(offset, len).unwrap())
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}

#[tokio::test]
async fn what_a_broken_link_leaves_others_finish() {
    const LEN: usize = 1 << 20;
    for broken_after in [0, 1, 5, 40] {
        let rig = Rig::new(LEN).await;
        let bundle = Bundle::new(config(16 << 10));
        let weak = Breaking::new(Arc::clone(&rig.link), broken_after);
        let strong = Breaking::new(Arc::clone(&rig.link), usize::MAX);
        bundle.add(weak.clone());
        bundle.add(strong.clone());
        let wanted = bytes(LEN, broken_after as u64);
        let whole = rig.span(0, LEN as u64);
        let write = Operation::write(bytes::Bytes::from(wanted.clone()), whole).checksummed();
        let written = bundle.submit(vec![write]).await.remove(0).unwrap();
        assert_eq!(written.checksum, Some(checksum(&wanted)), "{broken_after}");
        let back = Memory::allocate(LEN).unwrap();
        let read = Operation::read(whole, back.whole()).checksummed();
        let read = bundle.submit(vec![read]).await.remove(0).unwrap();
        assert_eq!(read.checksum, Some(checksum(&wanted)), "{broken_after}");
        assert!(back.whole().to_vec() == wanted, "{broken_after}");
        assert!(bundle.is_healthy());
        assert_eq!(weak.carried.load(Ordering::SeqCst), broken_after);
        assert!(strong.carried.load(Ordering::SeqCst) + broken_after >= 128);
        assert_eq!(bundle.links(), 1);
    }
}

#[tokio::test]
async fn links_share_the_work() {
    let rig = Rig::new(1 << 20).await;
    let bundle = Bundle::new(config(16 << 10));
    let links = [(); 4].map(|()| Breaking::new(Arc::clone(&rig.link), usize::MAX));
    for link in &links {
        bundle.add(link.clone());
    }
    let memory = Memory::allocate(1 << 20).unwrap();
    bundle
        .submit(vec![Operation::read(rig.span(0, 1 << 20), memory.whole())])
        .await
        .remove(0)
        .unwrap();
    // 64 pieces of one length.
    for link in &links {
        assert_eq!(link.carried.load(Ordering::SeqCst), 16);
    }
}

#[tokio::test]
async fn without_links_nothing_hangs() {
    let rig = Rig::new(4096).await;
    let bundle = Bundle::new(BundleConfig::default());
    let write = || Operation::write(bytes::Bytes::from_static(b"x"), rig.span(0, 1));
    assert!(!bundle.is_healthy());
    let lost = bundle.submit(vec![write()]).await.remove(0).unwrap_err();
    assert!(matches!(lost, TransferError::LinkLost { .. }));
    bundle.add(Breaking::new(Arc::clone(&rig.link), 1));
    bundle.add(Breaking::new(Arc::clone(&rig.link), 1));
    let outcomes = bundle.submit((0..100).map(|_| write()).collect()).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 2);
    assert!(outcomes.iter().flat_map(|outcome| outcome.as_ref().err()).all(|e| e.is_retryable()));
    assert!(!bundle.is_healthy());
    bundle.add(Arc::clone(&rig.link));
    assert!(bundle.submit(vec![write()]).await[0].is_ok(), "a new link mends it");
}

#[tokio::test]
async fn refusals_are_not_repeated() {
    let rig = Rig::new(4096).await;
    let bundle = Bundle::new(BundleConfig::default());
    let links = [(); 2].map(|()| Breaking::new(Arc::clone(&rig.link), usize::MAX));
    for link in &links {
        bundle.add(link.clone());
    }
    let outside = Operation::write(bytes::Bytes::from_static(b"x"), rig.span(4096, 1));
    let refused = bundle.submit(vec![outside]).await.remove(0);
    assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })));
    let carried: usize = links.iter().map(|link| link.carried.load(Ordering::SeqCst)).sum();
    assert_eq!(carried, 1);
}
