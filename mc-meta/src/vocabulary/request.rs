//! Requests: what a caller asks of the master, and replies that name no place.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;

use mc_lease::SoftPin;
use mc_ticket::PutToken;
use mc_types::{
    Checksum, Generation, KeyRef, MediaType, ObjectKey, SegmentId, StoreEventInfo, TransferId,
};

/// Most replicas one object can have.
pub const MAX_REPLICAS: usize = 32;

/// Most slices one object can have.
pub const MAX_SLICES: usize = 1024;

/// Longest name of a group, in bytes.
pub const MAX_GROUP_NAME_LEN: usize = 256;

/// Bytes between the places in a slice up to which prefix checksums are taken.
pub const CHECKPOINT: u64 = 64 * 1024;

/// Most segments one put can prefer, and most it can exclude by their names.
pub const MAX_NAMED_SEGMENTS: usize = 32;

/// Most segments one put can avoid by their ids.
pub const MAX_AVOIDED_SEGMENTS: usize = 4096;

/// The soft pin that a put asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SoftPinAction {
    /// Nothing: a new object has none, and one that replaces another keeps the pin of that one, if it
    /// is in force.
    #[default]
    Preserve,
    /// The object is kept in preference to others while its pin lasts.
    Enable {
        /// How long it lasts, counted as [`soft_pin_from`](crate::MasterConfig::soft_pin_from) says; at most
        /// [`max_soft_pin_ttl`](crate::MasterConfig::max_soft_pin_ttl), and zero is no pin. `None`:
        /// [`soft_pin_ttl`](crate::MasterConfig::soft_pin_ttl).
        ttl: Option<Duration>,
    },
    /// The object has none, even if it replaces another that has one.
    Disable,
}

impl SoftPinAction {
    /// The pin of an object that is put so in place of one with a pin in force, `before`.
    pub(crate) fn apply(self, before: SoftPin) -> SoftPin {
        match self {
            Self::Preserve => before,
            Self::Enable { ttl } => ttl.map_or(SoftPin::STANDARD, SoftPin::lasting),
            Self::Disable => SoftPin::NONE,
        }
    }
}

/// How an object is to be replicated and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicateConfig {
    /// Replicas wanted, at least one. Best effort: the object gets as many as
    /// there are segments with room, and at least one.
    pub replica_num: u32,
    /// Whether to keep the object in preference to others.
    pub soft_pin: SoftPinAction,
    /// Never evict the object. It goes when it is removed.
    pub with_hard_pin: bool,
    /// The name of a group: its objects are evicted together or not at all. At most
    /// [`MAX_GROUP_NAME_LEN`] bytes.
    pub group: Option<Box<str>>,
    /// The key of the object that this one continues: the block before it in a
    /// prompt, which is evicted after this one. Objects whose puts end in one [`Batch`](crate::Batch)
    /// and name none continue each other in their order.
    pub parent: Option<ObjectKey>,
    /// Names of segments to try first, in this order.
    pub preferred_segments: Vec<Box<str>>,
    /// Names of segments to leave out, even preferred ones: those that the writer
    /// could not reach a moment ago.
    pub excluded_segments: Vec<Box<str>>,
    /// Ids of segments to leave out, as those of `excluded_segments`, at most
    /// [`MAX_AVOIDED_SEGMENTS`]. A client names those here that it could not reach: after a crash
    /// of many nodes there are more of them than names are taken, and their free room attracts
    /// every put that does not leave them out.
    pub avoided_segments: Vec<SegmentId>,
    /// The medium that all replicas are to lie in: segments of other media are left out,
    /// even preferred ones, and the put fails when there is none of it. `None`: the medium of
    /// the first preferred segment there is, or else DRAM; without any segment of DRAM, SSD
    /// or else VRAM.
    pub medium: Option<MediaType>,
}

impl Default for ReplicateConfig {
    fn default() -> Self {
        Self {
            replica_num: 1,
            soft_pin: SoftPinAction::Preserve,
            with_hard_pin: false,
            group: None,
            parent: None,
            preferred_segments: Vec::new(),
            excluded_segments: Vec::new(),
            avoided_segments: Vec::new(),
            medium: None,
        }
    }
}

impl ReplicateConfig {
    /// Asks for `replica_num` replicas.
    #[must_use]
    pub fn replicas(mut self, replica_num: u32) -> Self {
        self.replica_num = replica_num;
        self
    }

    /// Soft-pins the object, for as long as the master's settings say.
    #[must_use]
    pub fn soft_pin(mut self) -> Self {
        self.soft_pin = SoftPinAction::Enable { ttl: None };
        self
    }

    /// Soft-pins the object for this long.
    #[must_use]
    pub fn soft_pin_for(mut self, ttl: Duration) -> Self {
        self.soft_pin = SoftPinAction::Enable { ttl: Some(ttl) };
        self
    }

    /// Hard-pins the object.
    #[must_use]
    pub fn hard_pin(mut self) -> Self {
        self.with_hard_pin = true;
        self
    }

    /// Makes the object a member of this group.
    #[must_use]
    pub fn group(mut self, name: impl Into<Box<str>>) -> Self {
        self.group = Some(name.into());
        self
    }

    /// Names the object that this one continues.
    #[must_use]
    pub fn parent(mut self, key: ObjectKey) -> Self {
        self.parent = Some(key);
        self
    }

    /// Tries the segment of this name before others.
    #[must_use]
    pub fn prefer(mut self, segment_name: impl Into<Box<str>>) -> Self {
        self.preferred_segments.push(segment_name.into());
        self
    }

    /// Leaves the segment of this name out.
    #[must_use]
    pub fn exclude(mut self, segment_name: impl Into<Box<str>>) -> Self {
        self.excluded_segments.push(segment_name.into());
        self
    }

    /// Leaves the segment of this id out.
    #[must_use]
    pub fn avoid(mut self, segment: SegmentId) -> Self {
        self.avoided_segments.push(segment);
        self
    }

    /// Whether segments are left out, by name or by id.
    pub(crate) const fn leaves_out_any(&self) -> bool {
        !self.excluded_segments.is_empty() || !self.avoided_segments.is_empty()
    }

    /// Places all replicas in segments of this medium.
    #[must_use]
    pub fn medium(mut self, medium: MediaType) -> Self {
        self.medium = Some(medium);
        self
    }
}

/// Asks for space for an object.
#[derive(Clone, Copy, Debug)]
pub struct PutStart<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// Lengths of its slices in bytes; the object is their concatenation.
    pub slice_lengths: &'a [u64],
    /// How to replicate and keep it.
    pub config: &'a ReplicateConfig,
}

/// Names a put, and proves that its holder began it: only the answer to the call that
/// began the put tells the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutHandle {
    /// Names the put among all puts of the key.
    pub generation: Generation,
    /// Proves that the holder began it.
    pub token: PutToken,
}

/// Names a copy, a move or the way of an object back into memory, and proves that its
/// holder began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferHandle {
    /// Names the transfer among all transfers of the object.
    pub id: TransferId,
    /// Proves that the holder began it.
    pub token: PutToken,
}

/// Whether bytes of a write that failed may still arrive in the space of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LateWrites {
    /// Every node that holds the space has confirmed that no write reaches it any more,
    /// or nothing was sent. The space can be given out at once.
    Impossible,
    /// A write timed out, or its link was lost: the space is kept until the grant ends.
    Possible,
}

/// Ends a put: every replica has been written.
#[derive(Clone, Copy, Debug)]
pub struct PutEnd<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put, as [`PutGrant::handle`](crate::PutGrant::handle) named it.
    pub handle: PutHandle,
    /// One checksum for each slice of the put; empty when the writer has none,
    /// which leaves readers without a way to verify.
    pub checksums: &'a [Checksum],
    /// The checksums of the prefixes of each slice that end at a multiple of
    /// [`CHECKPOINT`] bytes inside the slice, slice after slice: `(len - 1) / CHECKPOINT`
    /// for a slice of `len` bytes. With them, parts of a slice can be verified. Empty when
    /// the writer has none. Prefixes without checksums are refused.
    pub prefixes: &'a [Checksum],
    /// Metadata for the subscribers of events. It goes to the sinks with the effect of this call
    /// and is not kept.
    pub event_info: Option<&'a StoreEventInfo>,
}

impl<'a> PutEnd<'a> {
    /// Ends a put without checksums or metadata.
    #[must_use]
    pub const fn new(key: KeyRef<'a>, handle: PutHandle) -> Self {
        Self { key, handle, checksums: &[], prefixes: &[], event_info: None }
    }
}

/// Gives a put up.
#[derive(Clone, Copy, Debug)]
pub struct PutRevoke<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put, as [`PutGrant::handle`](crate::PutGrant::handle) named it.
    pub handle: PutHandle,
    /// Whether its writes may still arrive.
    pub late: LateWrites,
}

/// One slice of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its length in bytes.
    pub len: u64,
    /// The checksum its writer gave.
    pub checksum: Option<Checksum>,
}

/// The slices of an object in the order in which their bytes follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slices {
    /// The usual case, kept inline.
    One(Slice),
    /// Two slices or more.
    Many(Arc<[Slice]>),
}

impl Slices {
    /// The slices.
    #[must_use]
    pub fn as_slice(&self) -> &[Slice] {
        match self {
            Self::One(slice) => core::slice::from_ref(slice),
            Self::Many(slices) => slices,
        }
    }

    /// The object's length in bytes.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.as_slice().iter().map(|slice| slice.len).sum()
    }
}

/// A read of parts of an object.
#[derive(Clone, Copy, Debug)]
pub struct RangeRead<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// Its bytes that are wanted, counted from the object's first.
    pub ranges: &'a [Range<u64>],
}

/// The smallest part of an object that contains a range and that a reader can verify.
///
/// The reader reads the whole span. In the slice that contains `start` it continues from
/// `head` over the span's bytes; in the slice that contains the byte before `end`, which
/// may be the same, the result must be `tail`; the slices before that one must have their
/// own checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedSpan {
    /// The span's first byte, counted from the object's first. It is in the slice that
    /// contains the range's first byte.
    pub start: u64,
    /// The byte after its last one. That is in the slice that contains the range's last
    /// byte.
    pub end: u64,
    /// The CRC-32C of the bytes before `start` in its slice.
    pub head: Checksum,
    /// The CRC-32C of the bytes before `end` in its slice.
    pub tail: Checksum,
}

/// The state that a client reports of itself when it [pings](crate::Master::beat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Its own check finds its data path dead.
    pub is_cut_off: bool,
    /// Whether it has never had an answer from itself at its advertised address, which may be
    /// one that only others can reach, or no client.
    pub is_unproven: bool,
    /// The segments that it takes for mounted, without those that are being unmounted; 0 if it does not
    /// say.
    pub segments: usize,
    /// Whether it has no disk of its own, and [brings back](crate::Master::promotion_heartbeat) objects that are in
    /// files alone when [`Pong::disk_work`] says that there is something to do, which it says of nothing
    /// else then.
    pub promotes: bool,
}

/// The master's view of a client that pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStatus {
    /// Its segments are mounted.
    Ok,
    /// The client's segments are suspended because it stayed silent too long, or the
    /// master knows of none, even if it knows the client's disk, or it knows of fewer than the
    /// client does. A client with segments attaches them again
    /// ([`reattach_segment`](crate::Master::reattach_segment)), and mounts those that
    /// are not known anew, with fresh ids and remote keys.
    NeedRemount,
}

/// The outcome of mounting a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// The segment is new, and empty.
    New,
    /// The segment was mounted before, and nothing changed.
    Already,
    /// The segment was suspended, and is back with all that it holds.
    Reattached,
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pong {
    /// Changes whenever a segment is mounted or goes.
    pub view: u64,
    /// The next step for the client.
    pub status: ClientStatus,
    /// Tasks that wait for the client to [fetch](crate::Master::fetch_tasks) them; no
    /// more than [`MAX_FETCHED_TASKS`](crate::MAX_FETCHED_TASKS) are counted.
    pub tasks: usize,
    /// Whether a client with a disk has something to do for it: objects to write, to delete or to
    /// bring back, or the disk to mount again; or soon will have, since there were puts after its last
    /// ping. Without this it need not ask.
    pub disk_work: bool,
}

impl Pong {
    /// An answer that knows of no tasks.
    #[must_use]
    pub const fn new(view: u64, status: ClientStatus) -> Self {
        Self { view, status, tasks: 0, disk_work: false }
    }
}

/// One line of a key listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The object's key.
    pub key: ObjectKey,
    /// Its length in bytes.
    pub len: u64,
    /// Its readable replicas of every kind; zero while the put is under way.
    pub replicas: u32,
}

/// The position of a key listing. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListCursor {
    pub(crate) shard: u32,
    pub(crate) slot: u32,
}

impl ListCursor {
    /// The cursor as one number, for the wire.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.shard as u64) << 32 | self.slot as u64
    }

    /// Reads [`to_u64`](Self::to_u64). Any number is a cursor; one past the end
    /// lists nothing.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self { shard: (number >> 32) as u32, slot: number as u32 }
    }
}

/// Part of a key listing, in no order.
#[derive(Clone, Debug)]
pub struct KeyPage {
    /// The keys; may be empty although more follow.
    pub keys: Vec<KeyInfo>,
    /// The position of the next page; `None` at the end.
    pub next: Option<ListCursor>,
}
