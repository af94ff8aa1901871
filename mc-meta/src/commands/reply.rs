//! Replies that name places.

use core::time::Duration;

use mc_types::{ClientId, Generation};

use crate::object::local_disk::{LocalDiskPlacement, LocalDiskReplica};
use crate::space::replica::{Placement, Placements};
use crate::vocabulary::kinds::SharedFile;
use crate::vocabulary::request::{PutHandle, Slices, VerifiedSpan};
use crate::vocabulary::states::{BufferStatus, ReplicaStatus};

/// Space to write an object into.
#[derive(Clone, Debug)]
pub struct PutGrant {
    /// Names this put, and is needed to end it.
    pub handle: PutHandle,
    /// One range for each replica, each as long as the object, all on distinct
    /// segments; at least one.
    pub placements: Placements,
    /// Whether the object is to be written to the shared tier of files as well. Its
    /// writer does so when it finds the time, and says how it went with
    /// [`file_put_end`](crate::Master::file_put_end) or
    /// [`file_put_revoke`](crate::Master::file_put_revoke).
    pub file: bool,
    /// How long from now on the space is the put's own. It may be given to others right
    /// after that, so the writer must have stopped writing by then.
    pub time_left: Duration,
}

/// The data that a reader needs to read an object.
#[derive(Clone, Debug)]
pub struct ReplicaList {
    /// The put that the object came from.
    pub generation: Generation,
    /// The object's slices.
    pub slices: Slices,
    /// Readable replicas in memory. Empty when the object is on disks only.
    pub placements: Placements,
    /// How many of those, the last ones, are in segments that clients could not reach lately.
    pub suspects: usize,
    /// Its file on the shared tier, if that can be read.
    pub file: Option<SharedFile>,
    /// The clients' local disks that it is on.
    pub local_disks: Vec<LocalDiskPlacement>,
    /// How long the master promises to keep these replicas for the reader from now on: the
    /// [lease](crate::MasterConfig::lease_ttl), and no longer than
    /// [`LONGEST_READ`](mc_lease::LONGEST_READ).
    pub lease: Duration,
}

/// The data that a reader of parts of an object needs.
#[derive(Clone, Debug)]
pub struct RangedList {
    /// The data that a reader of all of it needs.
    pub list: ReplicaList,
    /// For each range that was asked for the part of the object that contains it and can
    /// be verified; `None` where nothing can.
    pub spans: Vec<Option<VerifiedSpan>>,
}

/// A lease that was renewed, and what it protects.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// How long the master promises to keep them for the reader from now on, as
    /// [`ReplicaList::lease`].
    pub lease: Duration,
    /// The memory that it protects: where the object can be read now. A reader that reads
    /// elsewhere has lost its replica and begins anew.
    pub placements: Placements,
}

/// One replica, as an administrator sees it.
#[derive(Clone, Debug)]
pub struct ReplicaInfo {
    /// Whether it can be read.
    pub status: ReplicaStatus,
    /// The state of its space.
    pub buffer: BufferStatus,
    /// The segment and extent that hold it.
    pub placement: Placement,
}

/// One object, as an administrator sees it. Looking grants no lease.
#[derive(Clone, Debug)]
pub struct ObjectInfo {
    /// The put that the object came from.
    pub generation: Generation,
    /// The client that put it.
    pub owner: ClientId,
    /// Lengths and checksums of its slices.
    pub slices: Slices,
    /// Its memory replicas in every state.
    pub replicas: Vec<ReplicaInfo>,
    /// The state of its file on the shared tier, if it has one.
    pub file: Option<ReplicaStatus>,
    /// The clients' local disks that it is on.
    pub local_disks: Vec<LocalDiskReplica>,
    /// The remaining time of its lease; zero when none is active.
    pub lease: Duration,
    /// Whether it is soft-pinned now.
    pub soft_pinned: bool,
    /// Time since the last access, or since the put when there was none.
    pub idle: Duration,
}
