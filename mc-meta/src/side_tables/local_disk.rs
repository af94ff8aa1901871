//! The clients' local disks, and the books of what goes to them and comes back.

use core::str::FromStr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mc_types::{ClientId, Endpoint, KeyRef, LocalDiskId, Time};
use thiserror::Error;

use crate::object::Object;
use crate::object::local_disk::{LocalDisk, LocalDiskSpec};
use crate::side_tables::offload_queue::{LocalDiskUsage, OffloadConfig, Offloads, TierJob};
use crate::side_tables::promotion_queue::{PromotionConfig, Promotions};
use crate::tenant::quota::Quotas;
use crate::vocabulary::lock::{Mutex, rank};

/// Most objects on one client's disk.
pub const MAX_DISK_OBJECTS: usize = 10_000_000;

/// Most removed objects that are remembered for one disk.
const MAX_DEAD: usize = 1 << 16;

/// Which objects are written to the clients' local disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffloadFilter {
    /// All.
    #[default]
    All,
    /// Objects that were used since their put: read, or asked for with
    /// [`exist`](crate::Master::exist). A longest prefix and a repeated put are no uses: a read
    /// follows where the bytes are wanted. When puts end, none has been: an object is written after its
    /// first use then. One that would be evicted and has not been used is evicted without a copy. After
    /// a restart of the master every object counts as used, as it counts as leased.
    SecondUse,
}

impl OffloadFilter {
    /// All of them.
    pub const KINDS: [Self; 2] = [Self::All, Self::SecondUse];

    /// Its name in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::SecondUse => "second_use",
        }
    }
}

/// A name that is no filter's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name:?} is no filter; choose all or second_use")]
pub struct UnknownFilter {
    /// The name.
    pub name: String,
}

impl FromStr for OffloadFilter {
    type Err = UnknownFilter;

    fn from_str(name: &str) -> Result<Self, UnknownFilter> {
        let found = Self::KINDS.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| UnknownFilter { name: name.to_owned() })
    }
}

/// How objects come to the clients' local disks.
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
    /// Which objects are written.
    pub filter: OffloadFilter,
    /// How long the objects of a disk are remembered whose client is silent or has left. Default
    /// 24 hours.
    pub return_timeout: Duration,
    /// Most objects on one disk, at most [`MAX_DISK_OBJECTS`], which is the default.
    pub max_objects: u64,
}

impl Default for LocalDiskConfig {
    fn default() -> Self {
        Self {
            offload: OffloadConfig::default(),
            on_evict: false,
            force_evict: false,
            filter: OffloadFilter::All,
            return_timeout: Duration::from_secs(24 * 3600),
            max_objects: MAX_DISK_OBJECTS as u64,
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
    /// Its capacity, usage and queue.
    pub usage: LocalDiskUsage,
}

/// Objects that a client is to delete from its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDiskDeletions {
    /// Objects that were removed.
    pub objects: Vec<TierJob>,
    /// Whether to report everything on the disk, because more were removed than are remembered; the
    /// client deletes what is refused.
    pub report_all: bool,
    /// Whether to delete everything on the disk, because everything was removed by force.
    pub remove_all: bool,
}

/// Removed objects on one client's disk.
#[derive(Debug, Default)]
struct Dead {
    objects: VecDeque<TierJob>,
    is_incomplete: bool,
}

/// Every local disk, and the ways there and back. The book's lock is the last that a
/// command takes.
#[derive(Debug)]
pub(crate) struct LocalDisks {
    /// `None` when there are no local disks.
    pub(crate) config: Option<LocalDiskConfig>,
    pub(crate) promotes: bool,
    pub(crate) book: Mutex<Book, { rank::DISKS }>,
}

#[derive(Debug)]
pub(crate) struct Book {
    /// Disks that are not gone.
    known: BTreeMap<LocalDiskId, Arc<LocalDisk>>,
    mounted: BTreeMap<ClientId, Arc<LocalDisk>>,
    /// When those that are away are forgotten.
    forgotten_at: BTreeSet<(Time, LocalDiskId)>,
    /// Objects that were removed and lie on disks that are mounted.
    dead: BTreeMap<ClientId, Dead>,
    /// Objects on a disk are charged to tenants.
    quotas: Arc<Quotas>,
    pub(crate) offloads: Offloads,
    pub(crate) promotions: Promotions,
}

impl LocalDisks {
    pub(crate) fn new(
        config: Option<LocalDiskConfig>,
        promotion: Option<PromotionConfig>,
        seed: u64,
        quotas: Arc<Quotas>,
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
                quotas,
                offloads: Offloads::new(offload),
                promotions: Promotions::new(promotion.unwrap_or_default(), seed),
            }),
        }
    }

    /// Returns whether objects are written to disks when their puts end, or soon after.
    pub(crate) fn writes_at_put(&self) -> bool {
        self.config.is_some_and(|config| !config.on_evict)
    }

    /// Returns whether objects are written to disks when they are used for the first time after their puts.
    pub(crate) fn writes_at_use(&self) -> bool {
        self.writes_at_put() && self.is_filtering()
    }

    /// Returns whether objects are written that were used, and no others.
    pub(crate) fn is_filtering(&self) -> bool {
        self.config.is_some_and(|config| config.filter == OffloadFilter::SecondUse)
    }

    /// Returns whether objects are written to disks when they would be evicted, and then whether
    /// those that cannot be go all the same.
    pub(crate) fn writes_at_eviction(&self) -> Option<bool> {
        self.config.filter(|config| config.on_evict).map(|config| config.force_evict)
    }

    /// Most objects on one disk.
    pub(crate) fn max_objects(&self) -> u64 {
        let most = MAX_DISK_OBJECTS as u64;
        self.config.map_or(most, |config| config.max_objects.min(most))
    }

    /// Bytes of memory that will be free when what is to be evicted is written.
    pub(crate) fn promised(&self, now: Time) -> u64 {
        match self.writes_at_eviction() {
            Some(_) => self.book.lock().offloads.promised(now),
            None => 0,
        }
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
        if self.mounted.get(&client).is_some_and(|disk| disk.id() != spec.id) {
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
        disk.mount(client, spec);
        self.mounted.insert(client, disk);
    }

    /// The disk with this id, which is away if it was not known.
    pub(crate) fn away(&mut self, id: LocalDiskId) -> &Arc<LocalDisk> {
        let quotas = &self.quotas;
        let away = || Arc::new(LocalDisk::away(id, Arc::clone(quotas)));
        self.known.entry(id).or_insert_with(away)
    }

    /// Keeps what is known of a client's disk until that time, unless it is mounted again before.
    pub(crate) fn suspend(&mut self, client: ClientId, forgotten_at: Time) -> bool {
        let Some(disk) = self.mounted.remove(&client) else { return false };
        self.dead.remove(&client);
        disk.leave();
        self.forgotten_at.insert((forgotten_at, disk.id()));
        true
    }

    /// Keeps what is known of all disks that are away until that time.
    pub(crate) fn await_all(&mut self, forgotten_at: Time) {
        let away = self.known.values().filter(|disk| disk.client().is_none());
        self.forgotten_at = away.map(|disk| (forgotten_at, disk.id())).collect();
    }

    /// Forgets a client's disk; the objects on it are gone from now on.
    pub(crate) fn remove(&mut self, client: ClientId) -> bool {
        let disk = self.mounted.remove(&client);
        self.dead.remove(&client);
        disk.inspect(|disk| self.forget(disk.id())).is_some()
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

    fn forget(&mut self, id: LocalDiskId) {
        if let Some(disk) = self.known.remove(&id) {
            disk.forget();
        }
    }

    /// Has a client delete a removed object from its disk.
    pub(crate) fn delete(&mut self, client: ClientId, key: KeyRef<'_>, object: &Object) {
        let dead = self.dead.entry(client).or_default();
        if dead.objects.len() < MAX_DEAD {
            let (generation, len) = (object.generation, object.len());
            dead.objects.push_back(TierJob { key: key.to_owned(), generation, len });
        } else {
            dead.is_incomplete = true;
        }
    }

    /// Hands a client the objects to delete from its disk, at most `max`.
    pub(crate) fn take_dead(&mut self, client: ClientId, max: usize) -> LocalDiskDeletions {
        let remove_all = self.offloads.take_wipe(client);
        let Some(dead) = self.dead.get_mut(&client) else {
            return LocalDiskDeletions { remove_all, ..LocalDiskDeletions::default() };
        };
        let count = dead.objects.len().min(max);
        let objects = dead.objects.drain(..count).collect();
        let report_all = dead.objects.is_empty() && core::mem::take(&mut dead.is_incomplete);
        if dead.objects.is_empty() {
            self.dead.remove(&client);
        }
        LocalDiskDeletions { objects, report_all, remove_all }
    }

    /// Returns whether a client's disk has something to do, or has to be mounted again, or will soon have
    /// something to do: there were more puts than at this client's last heartbeat.
    pub(crate) fn has_work(&mut self, client: ClientId, puts: u64) -> bool {
        let is_busy = self.offloads.note_puts(client, puts);
        is_busy
            || !self.mounted.contains_key(&client)
            || self.dead.contains_key(&client)
            || self.offloads.has_work(client)
            || self.promotions.waits_for(client)
    }

    /// The first of these clients that brings objects back from files.
    pub(crate) fn promoter(&self, clients: &[ClientId], now: Time) -> Option<ClientId> {
        let promotes = |client: &&ClientId| {
            (self.mounted.contains_key(client) || self.promotions.is_taker(**client, now))
                && self.promotions.asks(**client, now)
        };
        clients.iter().find(promotes).copied()
    }

    /// Notes that a client has reported everything on its disk. Returns whether it has one.
    pub(crate) fn settle(&self, client: ClientId) -> bool {
        self.mounted.get(&client).inspect(|disk| disk.settle()).is_some()
    }

    pub(crate) fn infos(&self) -> Vec<LocalDiskInfo> {
        let info = |(client, disk): (&ClientId, &Arc<LocalDisk>)| {
            let (_, spec) = disk.spec()?;
            let mut usage = self.offloads.usage(*client).unwrap_or_default();
            usage.used = disk.bytes();
            let (objects, endpoint) = (disk.objects(), spec.endpoint.clone());
            Some(LocalDiskInfo { client: *client, endpoint, objects, usage })
        };
        self.mounted.iter().filter_map(info).collect()
    }
}
