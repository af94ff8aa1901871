//! One client's local disk, as the objects on it know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use mc_ticket::TicketKey;
use mc_types::{ClientId, Endpoint, Extent, LocalDiskId, RemoteKey};
use smallvec::SmallVec;

use crate::tenant::below::TierBelow;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::Quotas;
use crate::vocabulary::lock::{RwLock, rank};

/// The ids of clients' local disks; no heap for a single one.
pub type LocalDiskIds = SmallVec<[LocalDiskId; 1]>;

/// The description of a disk that its client gives when it mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDiskSpec {
    /// Names the disk, also when another client mounts it: the same node after a restart.
    pub id: LocalDiskId,
    /// Where the client serves the objects on it.
    pub endpoint: Endpoint,
    /// The key of the region whose bytes the objects are.
    pub remote_key: RemoteKey,
    /// The key that the region verifies tickets with; `None` when the remote key alone opens it.
    pub ticket_key: Option<TicketKey>,
}

/// An object on a client's disk, for readers.
#[derive(Clone, Debug)]
pub struct LocalDiskPlacement {
    /// The client that serves it.
    pub client: ClientId,
    /// The disk.
    pub disk: Arc<LocalDiskSpec>,
    /// Where the object is in the disk's region.
    pub extent: Extent,
}

/// An object on one client's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalDiskReplica {
    /// The client.
    pub client: ClientId,
    /// Where it serves what is on its disk.
    pub endpoint: Endpoint,
}

impl From<LocalDiskPlacement> for LocalDiskReplica {
    fn from(placement: LocalDiskPlacement) -> Self {
        Self { client: placement.client, endpoint: placement.disk.endpoint.clone() }
    }
}

/// One client's disk until it is unmounted, or was away for too long.
#[derive(Debug)]
pub(crate) struct LocalDisk {
    id: LocalDiskId,
    mount: RwLock<Mount, { rank::MOUNT }>,
    /// Objects found before this mount and not since are not on it any more.
    settled: AtomicU32,
    /// [`OnLocalDisk`]s there are, and their bytes.
    objects: AtomicU64,
    bytes: AtomicU64,
    /// The accounts of the objects' tenants.
    quotas: Arc<Quotas>,
}

/// How a disk can be reached now.
#[derive(Clone, Debug)]
struct Mount {
    /// Counts the mounts, from 1; 0 before the first one.
    number: u32,
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
    pub(crate) fn away(id: LocalDiskId, quotas: Arc<Quotas>) -> Self {
        let mount = RwLock::new(Mount { number: 0, presence: Presence::Away });
        let [objects, bytes] = [const { AtomicU64::new(0) }; 2];
        Self { id, mount, settled: AtomicU32::new(0), objects, bytes, quotas }
    }

    pub(crate) const fn id(&self) -> LocalDiskId {
        self.id
    }

    /// The client that has it mounted.
    pub(crate) fn client(&self) -> Option<ClientId> {
        self.spec().map(|(client, _)| client)
    }

    pub(crate) fn spec(&self) -> Option<(ClientId, Arc<LocalDiskSpec>)> {
        match &self.mount.read().presence {
            Presence::Present(client, spec) => Some((*client, Arc::clone(spec))),
            Presence::Away | Presence::Gone => None,
        }
    }

    pub(crate) fn mount(&self, client: ClientId, spec: LocalDiskSpec) {
        let mut mount = self.mount.write();
        mount.number = mount.number.saturating_add(1);
        mount.presence = Presence::Present(client, Arc::new(spec));
    }

    /// Notes that its client is silent, or has left it.
    pub(crate) fn leave(&self) {
        self.mount.write().presence = Presence::Away;
    }

    /// Notes that it is gone with the objects on it.
    pub(crate) fn forget(&self) {
        self.mount.write().presence = Presence::Gone;
    }

    fn is_gone(&self) -> bool {
        matches!(self.mount.read().presence, Presence::Gone)
    }

    /// Returns the number of objects on it.
    pub(crate) fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes that everything on it was reported since it was mounted.
    pub(crate) fn settle(&self) {
        self.settled.store(self.mount.read().number, Ordering::Relaxed);
    }
}

/// Notes that an object is on a disk, which counts it until this is dropped.
#[derive(Debug)]
pub(crate) struct OnLocalDisk {
    disk: Arc<LocalDisk>,
    /// The mount in which the object is at this place.
    mount: u32,
    /// The tenant that is charged for it; none while a master is rebuilt.
    tenant: Option<TenantSlot>,
    extent: Extent,
}

const _: () = assert!(size_of::<OnLocalDisk>() == 32, "kept once per object on a disk");

impl OnLocalDisk {
    /// An object that is at `extent` of a disk's region, as the disk is mounted now: the caller holds
    /// the book of the disks, so that it is mounted still as it was when the place was told. Its tenant
    /// is charged for it, beyond the quota if need be.
    pub(crate) fn new(disk: Arc<LocalDisk>, extent: Extent, tenant: TenantSlot) -> Self {
        let mut place = Self::uncharged(disk, extent);
        place.charge(tenant);
        place
    }

    /// An object on a disk whose owner is not known yet.
    pub(crate) fn uncharged(disk: Arc<LocalDisk>, extent: Extent) -> Self {
        disk.objects.fetch_add(1, Ordering::Relaxed);
        disk.bytes.fetch_add(extent.len(), Ordering::Relaxed);
        let mount = disk.mount.read().number;
        Self { disk, mount, tenant: None, extent }
    }

    /// Charges a tenant for it, if none is.
    pub(crate) fn charge(&mut self, tenant: TenantSlot) {
        if self.tenant.is_none() {
            self.disk.quotas.add_below(TierBelow::Disks, tenant, self.extent.len());
            self.tenant = Some(tenant);
        }
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
    pub(crate) fn placement(&self) -> Option<LocalDiskPlacement> {
        let (client, disk) = self.disk.spec().filter(|_| self.is_readable())?;
        Some(LocalDiskPlacement { client, disk, extent: self.extent })
    }
}

impl Drop for OnLocalDisk {
    fn drop(&mut self) {
        self.disk.objects.fetch_sub(1, Ordering::Relaxed);
        self.disk.bytes.fetch_sub(self.extent.len(), Ordering::Relaxed);
        if let Some(tenant) = self.tenant {
            self.disk.quotas.give_back_below(TierBelow::Disks, tenant, self.extent.len());
        }
    }
}
