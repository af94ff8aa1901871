//! What a command changed, told as it happens.

use core::time::Duration;

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::health::damage::ReplicaPlace;
use crate::object::states::SegmentStatus;
use crate::object::view::{ObjectView, SpaceView};
use crate::space::segment::Segment;
use crate::tenant::id::TenantId;
use crate::transfer::drain::DrainJobInfo;
use crate::transfer::tasks::TaskInfo;

/// Receives every change in the order in which it takes effect.
///
/// Whatever frees space is told before the space can be given to anybody else, so the
/// order holds for each byte of a segment, too, across keys and threads.
///
/// It is called while the master holds the lock of whatever changed: that is
/// what makes the order true for each key. So it must return quickly (count,
/// or append to a queue) and must not call the master.
pub trait EffectSink: Send + Sync {
    /// One change.
    fn emit(&self, now: Time, effect: &Effect<'_>);
}

impl<S: EffectSink + ?Sized> EffectSink for Box<S> {
    fn emit(&self, now: Time, effect: &Effect<'_>) {
        (**self).emit(now, effect);
    }
}

/// The first is told of each change before the second.
impl<A: EffectSink, B: EffectSink> EffectSink for (A, B) {
    fn emit(&self, now: Time, effect: &Effect<'_>) {
        self.0.emit(now, effect);
        self.1.emit(now, effect);
    }
}

/// One change of the master's state.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Effect<'a> {
    /// A put has begun: space is granted, and nobody can read it. If the key had a value,
    /// that can still be read, and is [`Removed`](Self::Removed) right before this one is
    /// [`Stored`](Self::Stored).
    Began {
        /// The object that is being written.
        object: ObjectView<'a>,
    },
    /// A put was given up before its end. Its space may stay reserved for a while.
    Abandoned {
        /// Its key.
        key: KeyRef<'a>,
        /// The put.
        generation: Generation,
        /// The put as it was, with what it had.
        object: ObjectView<'a>,
    },
    /// An object became readable.
    Stored {
        /// The object.
        object: ObjectView<'a>,
    },
    /// What is known of an object is something else now, but not its key or its put: its
    /// replicas of whatever kind, or the copy or move that is under way with the space
    /// set apart for it. What remains may be readable or, while its file is being
    /// written, not. What remains of an object that lost replicas with a segment may be
    /// told of later than the segment.
    Changed {
        /// The object.
        object: ObjectView<'a>,
    },
    /// Space that nobody can find any more is not given out yet, because somebody may
    /// still be writing to it or reading from it. Told before what it belonged to is
    /// [`Removed`](Self::Removed), [`Abandoned`](Self::Abandoned) or
    /// [`Changed`](Self::Changed), so that at no time a record of it is missing.
    SpaceKept {
        /// The space.
        space: SpaceView<'a>,
        /// How long from now on.
        left: Duration,
    },
    /// Space that was kept can be given out.
    SpaceFreed {
        /// The space.
        space: SpaceView<'a>,
    },
    /// An object that was readable is gone. If it had a file on the shared tier, or one
    /// being written, that file is nobody's now: whoever hears of this may delete it. A
    /// writer that comes too late with it is told, and deletes it itself.
    Removed {
        /// Its key.
        key: KeyRef<'a>,
        /// Its put.
        generation: Generation,
        /// Why.
        cause: Removal,
        /// The object as it was, with what it still had.
        object: ObjectView<'a>,
    },
    /// A replica was found to be damaged, and goes. Told before the object is
    /// [`Changed`](Self::Changed) or [`Removed`](Self::Removed), so that whoever logs knows
    /// which replica it was.
    Damaged {
        /// The object's key.
        key: KeyRef<'a>,
        /// Its put.
        generation: Generation,
        /// The replica.
        place: ReplicaPlace,
        /// Its segment, when it is in memory.
        segment: Option<&'a Segment>,
    },
    /// A task was created, fetched, given to another client or ended. Of those that have
    /// ended the last [`max_finished`](crate::TaskConfig::max_finished) stay known.
    Task {
        /// The task as it is now.
        task: &'a TaskInfo,
    },
    /// A drain job was created, or is somewhere else in its life.
    DrainJob {
        /// The job as it is now.
        job: &'a DrainJobInfo,
    },
    /// A segment was mounted.
    SegmentMounted {
        /// The segment.
        segment: &'a Segment,
    },
    /// A segment is gone with all that it held.
    SegmentGone {
        /// The segment.
        segment: &'a Segment,
    },
    /// A segment's status changed; it is neither new nor gone.
    SegmentChanged {
        /// The segment.
        segment: &'a Segment,
        /// Its status now.
        status: SegmentStatus,
    },
    /// Clients could not reach a segment, and nothing is placed there until its node is heard
    /// of; or it was heard of.
    SegmentSuspected {
        /// The segment.
        segment: &'a Segment,
        /// Whether it is suspect now.
        is_suspect: bool,
    },
    /// A tenant has this quota from now on, or none.
    TenantPolicy {
        /// The tenant.
        tenant: &'a TenantId,
        /// Bytes; `None` when it has no quota any more.
        requested: Option<u64>,
    },
    /// A client stayed silent too long: its segments are suspended.
    ClientExpired {
        /// The client.
        client: ClientId,
    },
}

/// Why an object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removal {
    /// Somebody asked for it.
    Requested,
    /// It made room.
    Evicted,
    /// Its last segment is gone.
    SegmentLost,
    /// Another value was put in its place.
    Replaced,
    /// All that was left of it was on disks, and went.
    DiskLost,
    /// Its time after it was first read was over.
    Expired,
    /// Its last replica had bytes that were not put there.
    Damaged,
}
