//! What the client hands out about disks.

use core::time::Duration;

use mc_meta::{DiskUsage, LocalDiskInfo, TenantId, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{ClientId, Generation, ObjectKey};

use super::ReplicaLocation;
use super::read::{Answer, Status, endpoint, problem, push_replica, sixteen};
use super::tasks::{object_key, tenant};
use crate::error::MalformedReply;
use crate::request::{MAX_PAGE, TenantKey};
use crate::wire::Fields;

/// An object to move between a client's memory and a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskJob {
    /// Whose object it is.
    pub tenant: TenantId,
    /// The object's key, as its tenant knows it.
    pub key: ObjectKey,
    /// The put that the object came from. Names the job: a later put of the key is
    /// another object.
    pub generation: Generation,
    /// Its length in bytes.
    pub len: u64,
}

impl DiskJob {
    /// The object, as the calls name it that say how it went.
    #[must_use]
    pub fn object(&self) -> TenantKey<'_> {
        TenantKey::of(&self.tenant, self.key.as_ref())
    }
}

/// A page of the clients' own disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalDisks {
    /// The disks, by their clients' ids.
    pub disks: Vec<LocalDiskInfo>,
    /// The client after which the next page begins; `None` at the end.
    pub next_after: Option<ClientId>,
}

/// `DiskJob`.
fn read_job(message: &[u8]) -> Result<DiskJob, MalformedReply> {
    let (mut fields, mut key) = (Fields::new(message), None);
    let (mut whose, mut generation, mut len) = (TenantId::DEFAULT, 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => key = Some(object_key(field)?),
            2 => whose = tenant(field)?,
            3 => generation = field.u64()?,
            4 => len = field.u64()?,
            _ => {}
        }
    }
    let key = key.ok_or(problem("key", "is missing"))?;
    Ok(DiskJob { tenant: whose, key, generation: Generation::new(generation), len })
}

/// `OffloadHeartbeatResponse` and `PromotionHeartbeatResponse`.
pub(crate) fn read_disk_jobs(message: &[u8]) -> Answer<Vec<DiskJob>> {
    let (mut fields, mut status, mut jobs) = (Fields::new(message), Status::default(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            2 if jobs.len() == MAX_PAGE => return Err(problem("jobs", "has too many jobs")),
            2 => jobs.push(read_job(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(jobs))
}

/// `LocalDiskReport`.
fn read_local_disk(message: &[u8]) -> Result<LocalDiskInfo, MalformedReply> {
    let (mut fields, mut client, mut served) = (Fields::new(message), None, None);
    let (mut objects, mut usage) = (0, DiskUsage::default());
    while let Some(field) = fields.next()? {
        match field.number {
            1 => client = Some(ClientId::from_bytes(sixteen(field.bytes()?, "client_id")?)),
            2 => served = Some(endpoint(field)?),
            3 => objects = field.u64()?,
            4 => usage.enabled = field.bool()?,
            5 => usage.used = field.u64()?,
            6 => usage.capacity = field.u64()?,
            7 => usage.queued = usize::try_from(field.u64()?).unwrap_or(usize::MAX),
            8 => usage.writing = usize::try_from(field.u64()?).unwrap_or(usize::MAX),
            _ => {}
        }
    }
    Ok(LocalDiskInfo {
        client: client.ok_or(problem("client_id", "is missing"))?,
        endpoint: served.ok_or(problem("endpoint", "is missing"))?,
        objects,
        usage,
    })
}

/// `ListLocalDisksResponse`.
pub(crate) fn read_local_disks(message: &[u8]) -> Answer<LocalDisks> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut list, mut more) = (LocalDisks::default(), false);
    while let Some(field) = fields.next()? {
        match field.number {
            2 if list.disks.len() == MAX_PAGE => {
                return Err(problem("disks", "has too many disks"));
            }
            2 => list.disks.push(read_local_disk(field.bytes()?)?),
            3 => more = field.bool()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if more {
            // Without one the next page would be this one again, for ever.
            let last = list.disks.last().ok_or(problem("disks", "is missing"))?;
            list.next_after = Some(last.client);
        }
        Ok(list)
    })
}

/// Memory to bring an object back into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionGrant {
    /// Names this way back, and proves that its holder began it: only this answer tells it.
    pub handle: TransferHandle,
    /// The replica to write, as long as the object.
    pub replica: ReplicaLocation,
    /// How long it may be written to, counted from when the master wrote the answer: the
    /// client counts from before it asked.
    pub time_left: Duration,
}

/// `PromotionAllocStartResponse` for an object of `len` bytes.
pub(crate) fn read_promotion(message: &[u8], len: u64) -> Answer<PromotionGrant> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut replicas, mut time_left, mut id, mut token) = (Vec::new(), 0, 0, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => {
                replicas.clear();
                push_replica(&mut replicas, field.bytes()?, &[])?;
            }
            3 => time_left = field.u64()?,
            4 => id = field.u64()?,
            5 => token = field.fixed64()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        let replica = replicas.pop().ok_or(problem("replica", "is missing"))?;
        if replica.extent.len() != len {
            return Err(problem("replica", "is of another length than asked for"));
        }
        let (id, token) = (Generation::new(id), PutToken::from_u64(token));
        let handle = TransferHandle { id, token };
        Ok(PromotionGrant { handle, replica, time_left: Duration::from_millis(time_left) })
    })
}
