//! The clients' own disks, known to the objects on them, and the books of what goes to
//! them and comes back.

use core::ops::Deref;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mc_types::{ClientId, Endpoint};

use crate::lock::{Mutex, rank};
use crate::tier::offload_queue::{DiskUsage, OffloadConfig, Offloads};
use crate::tier::promotion_queue::{PromotionConfig, Promotions};

/// Most objects on one client's disk.
pub const MAX_DISK_OBJECTS: usize = 10_000_000;

/// How objects come to the clients' own disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDiskConfig {
    /// Limits of the queues.
    pub offload: OffloadConfig,
    /// Whether an object is written to a disk when it would be evicted, rather than when
    /// its put ends. It then stays in memory until it is written.
    pub on_evict: bool,
    /// Whether, with `on_evict`, an object that cannot be written now is evicted all the
    /// same; otherwise it stays, and is offered again later.
    pub force_evict: bool,
}

/// A client's disk, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDiskInfo {
    /// The client.
    pub client: ClientId,
    /// Where it serves what is on its disk.
    pub endpoint: Endpoint,
    /// Objects on it.
    pub objects: u64,
    /// What is known of it.
    pub usage: DiskUsage,
}

/// One client's disk from when it is mounted until it or its client goes. One that
/// comes back is another one, on which nothing is until its client says what.
#[derive(Debug)]
pub(crate) struct LocalDisk {
    client: ClientId,
    endpoint: Endpoint,
    gone: AtomicBool,
    /// [`OnDisk`]s there are.
    objects: AtomicU64,
}

impl LocalDisk {
    const fn new(client: ClientId, endpoint: Endpoint) -> Self {
        Self { client, endpoint, gone: AtomicBool::new(false), objects: AtomicU64::new(0) }
    }

    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns the number of objects on it.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }
}

/// Notes that an object is on a disk, which counts it until this is dropped.
#[derive(Debug)]
pub(crate) struct OnDisk(Arc<LocalDisk>);

impl OnDisk {
    pub(crate) fn new(disk: Arc<LocalDisk>) -> Self {
        disk.objects.fetch_add(1, Ordering::Relaxed);
        Self(disk)
    }
}

impl Deref for OnDisk {
    type Target = LocalDisk;

    fn deref(&self) -> &LocalDisk {
        &self.0
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        self.0.objects.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every local disk, and the ways there and back. The book's lock is the last that a
/// command takes.
#[derive(Debug)]
pub(crate) struct LocalDisks {
    /// None when there are no local disks.
    pub(crate) config: Option<LocalDiskConfig>,
    pub(crate) promotes: bool,
    pub(crate) book: Mutex<Book, { rank::DISKS }>,
    /// Bytes of memory that will be free when what is to be evicted is written.
    promised: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Book {
    mounted: BTreeMap<ClientId, Arc<LocalDisk>>,
    pub(crate) offloads: Offloads,
    pub(crate) promotions: Promotions,
}

impl LocalDisks {
    pub(crate) fn new(
        config: Option<LocalDiskConfig>,
        promotion: Option<PromotionConfig>,
        seed: u64,
    ) -> Self {
        let offload = config.unwrap_or_default().offload;
        Self {
            config,
            promotes: promotion.is_some(),
            book: Mutex::new(Book {
                mounted: BTreeMap::new(),
                offloads: Offloads::new(offload),
                promotions: Promotions::new(promotion.unwrap_or_default(), seed),
            }),
            promised: AtomicU64::new(0),
        }
    }

    /// Returns whether objects are written to disks when their puts end.
    pub(crate) fn writes_at_put(&self) -> bool {
        self.config.is_some_and(|config| !config.on_evict)
    }

    /// Returns whether objects are written to disks when they would be evicted, and then whether
    /// those that cannot be go all the same.
    pub(crate) fn writes_at_eviction(&self) -> Option<bool> {
        self.config.filter(|config| config.on_evict).map(|config| config.force_evict)
    }

    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    pub(crate) fn promise(&self, bytes: u64) {
        self.promised.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn keep_promise(&self, bytes: u64) {
        let before = self.promised.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "only what was promised is kept");
    }
}

impl Book {
    /// The disk of a client.
    pub(crate) fn disk(&self, client: ClientId) -> Option<&Arc<LocalDisk>> {
        self.mounted.get(&client)
    }

    /// Makes a disk known whose client has none.
    pub(crate) fn add(&mut self, client: ClientId, endpoint: Endpoint) {
        self.mounted.insert(client, Arc::new(LocalDisk::new(client, endpoint)));
    }

    /// Forgets a disk; what is on it counts as gone from now on.
    pub(crate) fn remove(&mut self, client: ClientId) -> bool {
        let disk = self.mounted.remove(&client);
        disk.inspect(|disk| disk.gone.store(true, Ordering::Release)).is_some()
    }

    pub(crate) fn infos(&self) -> Vec<LocalDiskInfo> {
        let info = |disk: &Arc<LocalDisk>| LocalDiskInfo {
            client: disk.client,
            endpoint: disk.endpoint.clone(),
            objects: disk.objects(),
            usage: self.offloads.usage(disk.client).unwrap_or_default(),
        };
        self.mounted.values().map(info).collect()
    }
}
