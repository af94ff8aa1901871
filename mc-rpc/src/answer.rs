//! Answers as the client returns them: parsed once into checked types, bounded whatever the other
//! side sends.

mod read;

use core::time::Duration;
use std::sync::Arc;

use mc_meta::{ClientStatus, PutHandle, ReplicaCheck, SharedFile, Slices, VerifiedSpan};
use mc_ticket::{ClockEpoch, Ticket};
use mc_types::{ClientId, Endpoint, Extent, Generation, RemoteKey, SegmentId, Time};

pub(crate) use read::{
    Answer, ListParts, Status, push_replica, read_all_done, read_all_exist, read_done, read_exists,
    read_grant, read_grants, read_length, read_pong, read_ranged_lists, read_replica_list,
    read_replica_lists,
};

/// A segment, as far as one needs to know it to reach its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentLocation {
    /// Its name.
    pub name: Box<str>,
    /// Its id.
    pub id: SegmentId,
    /// The endpoint that serves its bytes.
    pub endpoint: Endpoint,
    /// Names its memory to the node that holds it, and opens it where ranges have no
    /// [ticket](ReplicaLocation::ticket).
    pub remote_key: RemoteKey,
}

/// The place of one replica's bytes, and the ticket that opens it.
///
/// Two are equal when they are the same place, whatever their tickets: each answer signs
/// its own.
#[derive(Clone, Debug)]
pub struct ReplicaLocation {
    /// The segment; the replicas of one answer share it.
    pub segment: Arc<SegmentLocation>,
    /// The range inside the segment.
    pub extent: Extent,
    /// The ticket that opens the range, in the direction and for the time that the answer grants;
    /// `None` where the segment's remote key does.
    pub ticket: Option<Ticket>,
}

impl PartialEq for ReplicaLocation {
    fn eq(&self, other: &Self) -> bool {
        self.extent == other.extent
            && (Arc::ptr_eq(&self.segment, &other.segment) || self.segment == other.segment)
    }
}

impl Eq for ReplicaLocation {}

/// An object on a client's local disk, for readers.
///
/// Two are equal when they are the same place, whatever their tickets.
#[derive(Clone, Debug)]
pub struct DiskLocation {
    /// The client that serves it.
    pub client: ClientId,
    /// Where the client serves it.
    pub endpoint: Endpoint,
    /// The key of the region that it is read from.
    pub remote_key: RemoteKey,
    /// The range inside the region.
    pub extent: Extent,
    /// The ticket that opens the range for the time that the answer grants; `None` where the remote
    /// key does.
    pub ticket: Option<Ticket>,
}

impl PartialEq for DiskLocation {
    fn eq(&self, other: &Self) -> bool {
        let place = |it: &Self| (it.client, it.remote_key, it.extent);
        place(self) == place(other) && self.endpoint == other.endpoint
    }
}

impl Eq for DiskLocation {}

/// The time of the master's clock when it wrote an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Names the run of the clock; times of two runs cannot be compared.
    pub epoch: ClockEpoch,
    /// The time that it showed.
    pub now: Time,
}

/// `disk_work` of a `PingResponse` that has some, and of one that has none.
pub(crate) const DISK_WORK: u32 = 2;
pub(crate) const NO_DISK_WORK: u32 = 1;

/// The answer to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pong {
    /// Changes whenever a segment is mounted or goes.
    pub view: u64,
    /// The next step for the client.
    pub status: ClientStatus,
    /// Tasks that wait for the client, at most
    /// [`MAX_FETCHED_TASKS`](mc_meta::MAX_FETCHED_TASKS).
    pub tasks: usize,
    /// Whether there is something to do for the client's local disk, or of a client that
    /// [promotes](crate::Heartbeat::promotes), to bring back into memory; `None` of a master that does
    /// not say it.
    pub disk_work: Option<bool>,
    /// The master's clock.
    pub clock: ClockReading,
    /// Replicas that the client is to check, if it said that it
    /// [takes such questions](crate::Heartbeat::takes_checks).
    pub checks: Vec<ReplicaCheck>,
}

/// Space to write an object into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutGrant {
    /// Names this put among all puts of the key, and proves that its holder began it: only
    /// this answer tells it.
    pub handle: PutHandle,
    /// One range for each replica, each as long as the object; at least one.
    pub replicas: Vec<ReplicaLocation>,
    /// Whether the object is to be written to the shared tier of files as well; see
    /// [`mc_meta::PutGrant::file`].
    pub file: bool,
    /// How long the space may be written to, counted from when the master wrote the
    /// answer: the writer counts from before it asked, and ends its writes before.
    pub time_left: Duration,
}

/// The data that a reader needs to read an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaList {
    /// The put that the object came from.
    pub generation: Generation,
    /// The object's slices.
    pub slices: Slices,
    /// Readable replicas in memory, each as long as the slices together. Empty when the
    /// object is on disks only; it is somewhere.
    pub replicas: Vec<ReplicaLocation>,
    /// How many of those, the last ones, are in segments that clients could not reach lately.
    pub suspects: usize,
    /// Its file on the shared tier, if that can be read.
    pub file: Option<SharedFile>,
    /// Clients' local disks that it is on, at most as many as there can be replicas.
    pub local_disks: Vec<DiskLocation>,
    /// How long the master keeps these replicas, counted from when it wrote the
    /// answer: the reader counts from before it asked.
    pub lease: Duration,
}

/// The data that a reader of parts of an object needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangedList {
    /// The data that a reader of all of it needs.
    pub list: ReplicaList,
    /// The span to read and verify for each requested range, in their order; `None`
    /// where nothing verifies it. Each lies in the object and has its range in it.
    pub spans: Vec<Option<VerifiedSpan>>,
}
