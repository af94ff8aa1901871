//! The clients' own disks, known to the objects on them, and the books of what goes to
//! them and comes back.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_ticket::TicketKey;
use mc_types::{ClientId, DiskId, Endpoint, Extent, KeyRef, RemoteKey, Time};
use parking_lot::RwLock;

use crate::lock::{Mutex, rank};
use crate::object::Object;
use crate::tier::offload_queue::{DiskJob, DiskUsage, OffloadConfig, Offloads};
use crate::tier::promotion_queue::{PromotionConfig, Promotions};

/// Most objects on one client's disk.
pub const MAX_DISK_OBJECTS: usize = 10_000_000;

/// Most removed objects that are remembered for one disk.
const MAX_DEAD: usize = 1 << 16;

/// How objects come to the clients' own disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// How long the objects of a disk are remembered whose client is silent or has left. Default
    /// 24 hours.
    pub return_timeout: Duration,
}

impl Default for LocalDiskConfig {
    fn default() -> Self {
        Self {
            offload: OffloadConfig::default(),
            on_evict: false,
            force_evict: false,
            return_timeout: Duration::from_secs(24 * 3600),
        }
    }
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

/// What a client says of its disk when it mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDiskSpec {
    /// Names the disk, also when another client mounts it: the same node after a restart.
    pub id: DiskId,
    /// Where the client serves the objects on it.
    pub endpoint: Endpoint,
    /// The key of the region whose bytes the objects are.
    pub remote_key: RemoteKey,
    /// The key that the region verifies tickets with; `None` when the remote key alone opens it.
    pub ticket_key: Option<TicketKey>,
}

/// An object on a client's disk, for readers.
#[derive(Clone, Debug)]
pub struct DiskPlacement {
    /// The client that serves it.
    pub client: ClientId,
    /// The disk.
    pub disk: Arc<LocalDiskSpec>,
    /// Where the object is in the disk's region.
    pub extent: Extent,
}

/// One client's disk until it is unmounted, or was away for too long.
#[derive(Debug)]
pub(crate) struct LocalDisk {
    id: DiskId,
    mount: RwLock<Mount>,
    /// Objects found before this mount and not since are not on it any more.
    settled: AtomicU64,
    /// [`OnDisk`]s there are, and their bytes.
    objects: AtomicU64,
    bytes: AtomicU64,
}

/// How a disk can be reached now.
#[derive(Clone, Debug)]
struct Mount {
    /// Counts the mounts, from 1; 0 before the first one.
    number: u64,
    presence: Presence,
}

#[derive(Clone, Debug)]
enum Presence {
    Present(ClientId, Arc<LocalDiskSpec>),
    /// Its client is silent, or the master has just begun.
    Away,
    Gone,
}

impl LocalDisk {
    /// A disk that is away, and has never been mounted.
    fn away(id: DiskId) -> Self {
        let mount = RwLock::new(Mount { number: 0, presence: Presence::Away });
        let [settled, objects, bytes] = [const { AtomicU64::new(0) }; 3];
        Self { id, mount, settled, objects, bytes }
    }

    pub(crate) const fn id(&self) -> DiskId {
        self.id
    }

    /// The client that has it mounted.
    pub(crate) fn client(&self) -> Option<ClientId> {
        self.spec().map(|(client, _)| client)
    }

    fn spec(&self) -> Option<(ClientId, Arc<LocalDiskSpec>)> {
        match &self.mount.read().presence {
            Presence::Present(client, spec) => Some((*client, Arc::clone(spec))),
            Presence::Away | Presence::Gone => None,
        }
    }

    fn is_gone(&self) -> bool {
        matches!(self.mount.read().presence, Presence::Gone)
    }

    /// Returns the number of objects on it.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Notes that everything on it was reported since it was mounted.
    fn settle(&self) {
        self.settled.store(self.mount.read().number, Ordering::Relaxed);
    }
}

/// Notes that an object is on a disk, which counts it until this is dropped.
#[derive(Debug)]
pub(crate) struct OnDisk {
    disk: Arc<LocalDisk>,
    /// The mount in which the object is at this place.
    mount: u64,
    extent: Extent,
}

impl OnDisk {
    /// An object that is at `extent` of a disk's region, as the disk is mounted now: the caller holds
    /// the [`Book`], so that it is mounted still as it was when the place was told.
    pub(crate) fn new(disk: Arc<LocalDisk>, extent: Extent) -> Self {
        disk.objects.fetch_add(1, Ordering::Relaxed);
        disk.bytes.fetch_add(extent.len(), Ordering::Relaxed);
        let mount = disk.mount.read().number;
        Self { disk, mount, extent }
    }

    pub(crate) fn disk(&self) -> &Arc<LocalDisk> {
        &self.disk
    }

    /// The client that has the disk mounted.
    pub(crate) fn client(&self) -> Option<ClientId> {
        self.disk.client()
    }

    /// Returns whether the object is not on the disk any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.mount < self.disk.settled.load(Ordering::Relaxed) || self.disk.is_gone()
    }

    /// Returns whether it was found there since the disk was mounted, and can be read.
    pub(crate) fn is_readable(&self) -> bool {
        let mount = self.disk.mount.read();
        mount.number == self.mount && matches!(mount.presence, Presence::Present(..))
    }

    /// The place for readers; `None` when it cannot be read now.
    pub(crate) fn placement(&self) -> Option<DiskPlacement> {
        let (client, disk) = self.disk.spec().filter(|_| self.is_readable())?;
        Some(DiskPlacement { client, disk, extent: self.extent })
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        self.disk.objects.fetch_sub(1, Ordering::Relaxed);
        self.disk.bytes.fetch_sub(self.extent.len(), Ordering::Relaxed);
    }
}

/// Objects that a client is to delete from its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskDeletions {
    /// Objects that were removed.
    pub objects: Vec<DiskJob>,
    /// Whether to report everything on the disk, because more were removed than are remembered; the
    /// client deletes what is refused.
    pub report_all: bool,
    /// Whether to delete everything on the disk, because everything was removed by force.
    pub remove_all: bool,
}

/// Removed objects on one client's disk.
#[derive(Debug, Default)]
struct Dead {
    objects: VecDeque<DiskJob>,
    is_incomplete: bool,
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
    /// Those that are not gone.
    known: BTreeMap<DiskId, Arc<LocalDisk>>,
    mounted: BTreeMap<ClientId, Arc<LocalDisk>>,
    /// When those that are away are forgotten.
    forgotten_at: BTreeSet<(Time, DiskId)>,
    /// Objects that were removed and lie on disks that are mounted.
    dead: BTreeMap<ClientId, Dead>,
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
                known: BTreeMap::new(),
                mounted: BTreeMap::new(),
                forgotten_at: BTreeSet::new(),
                dead: BTreeMap::new(),
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

    /// Returns whether the client has this disk mounted, with all that the spec says.
    pub(crate) fn is_mounted(&self, client: ClientId, spec: &LocalDiskSpec) -> bool {
        let found = self.mounted.get(&client).and_then(|disk| disk.spec());
        found.is_some_and(|(_, mounted)| *mounted == *spec)
    }

    /// The client whose mount has to end before this client can mount the disk, and whether it is a
    /// mount of the same disk; otherwise it is another disk of the client.
    pub(crate) fn in_the_way(
        &self,
        client: ClientId,
        spec: &LocalDiskSpec,
    ) -> Option<(ClientId, bool)> {
        if self.mounted.get(&client).is_some_and(|disk| disk.id != spec.id) {
            return Some((client, false));
        }
        let holder = self.known.get(&spec.id)?.client()?;
        (!self.is_mounted(client, spec)).then_some((holder, true))
    }

    /// Mounts a disk that no client has mounted. The objects on it can be read when they are reported.
    pub(crate) fn mount(&mut self, client: ClientId, spec: LocalDiskSpec) {
        let id = spec.id;
        let disk = Arc::clone(self.away(id));
        self.forgotten_at.retain(|(_, other)| *other != id);
        {
            let mut mount = disk.mount.write();
            mount.number += 1;
            mount.presence = Presence::Present(client, Arc::new(spec));
        }
        self.mounted.insert(client, disk);
    }

    /// The disk with this id, which is away if it was not known.
    pub(crate) fn away(&mut self, id: DiskId) -> &Arc<LocalDisk> {
        self.known.entry(id).or_insert_with(|| Arc::new(LocalDisk::away(id)))
    }

    /// Keeps what is known of a client's disk until that time, unless it is mounted again before.
    pub(crate) fn suspend(&mut self, client: ClientId, forgotten_at: Time) -> bool {
        let Some(disk) = self.mounted.remove(&client) else { return false };
        self.dead.remove(&client);
        disk.mount.write().presence = Presence::Away;
        self.forgotten_at.insert((forgotten_at, disk.id));
        true
    }

    /// Keeps what is known of all disks that are away until that time.
    pub(crate) fn await_all(&mut self, forgotten_at: Time) {
        let away = self.known.values().filter(|disk| disk.client().is_none());
        self.forgotten_at = away.map(|disk| (forgotten_at, disk.id)).collect();
    }

    /// Forgets a client's disk; the objects on it are gone from now on.
    pub(crate) fn remove(&mut self, client: ClientId) -> bool {
        let disk = self.mounted.remove(&client);
        self.dead.remove(&client);
        disk.inspect(|disk| self.forget(disk.id)).is_some()
    }

    /// Forgets the disks that were away for too long. Returns whether there were any.
    pub(crate) fn forget_due(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(&(at, id)) = self.forgotten_at.first()
            && at <= now
        {
            self.forgotten_at.pop_first();
            self.forget(id);
            any = true;
        }
        any
    }

    fn forget(&mut self, id: DiskId) {
        if let Some(disk) = self.known.remove(&id) {
            disk.mount.write().presence = Presence::Gone;
        }
    }

    /// Has a client delete a removed object from its disk.
    pub(crate) fn delete(&mut self, client: ClientId, key: KeyRef<'_>, object: &Object) {
        let dead = self.dead.entry(client).or_default();
        if dead.objects.len() < MAX_DEAD {
            let (generation, len) = (object.generation, object.len());
            dead.objects.push_back(DiskJob { key: key.to_owned(), generation, len });
        } else {
            dead.is_incomplete = true;
        }
    }

    /// Hands a client the objects to delete from its disk, at most `max`.
    pub(crate) fn take_dead(&mut self, client: ClientId, max: usize) -> DiskDeletions {
        let remove_all = self.offloads.take_wipe(client);
        let Some(dead) = self.dead.get_mut(&client) else {
            return DiskDeletions { remove_all, ..DiskDeletions::default() };
        };
        let count = dead.objects.len().min(max);
        let objects = dead.objects.drain(..count).collect();
        let report_all = dead.objects.is_empty() && core::mem::take(&mut dead.is_incomplete);
        if dead.objects.is_empty() {
            self.dead.remove(&client);
        }
        DiskDeletions { objects, report_all, remove_all }
    }

    /// Notes that a client has reported everything on its disk. Returns whether it has one.
    pub(crate) fn settle(&self, client: ClientId) -> bool {
        self.mounted.get(&client).inspect(|disk| disk.settle()).is_some()
    }

    pub(crate) fn infos(&self) -> Vec<LocalDiskInfo> {
        let info = |(client, disk): (&ClientId, &Arc<LocalDisk>)| {
            let (_, spec) = disk.spec()?;
            let mut usage = self.offloads.usage(*client).unwrap_or_default();
            usage.used = disk.bytes.load(Ordering::Relaxed);
            let (objects, endpoint) = (disk.objects(), spec.endpoint.clone());
            Some(LocalDiskInfo { client: *client, endpoint, objects, usage })
        };
        self.mounted.iter().filter_map(info).collect()
    }
}
