//! Changes of the master's state, told as they happen.

pub(crate) mod emit;
pub(crate) mod view;

use core::time::Duration;

use mc_types::{ClientId, Generation, KeyRef, Sequence, StoreEventInfo, Time};

use crate::effect::view::{ObjectView, SpaceView};
use crate::side_tables::damage::ReplicaPlace;
use crate::side_tables::drain::DrainJobInfo;
use crate::side_tables::tasks::TaskInfo;
use crate::space::segment::Segment;
use crate::tenant::below::TierQuotas;
use crate::tenant::id::TenantId;
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::kinds::ReplicaKinds;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::states::SegmentStatus;

/// Receives every change in the order in which it takes effect.
///
/// All effects of a master have one order, and a sink receives them in this order, one at a time.
/// Space that an effect frees is granted again only by a later effect, so the order holds for each
/// byte of a segment, too, across keys and threads. [`Receipt`](crate::Receipt) names the last
/// effect of a command.
///
/// The master calls a sink while it holds the lock of the changed object or segment: that keeps
/// the order true. So a sink must return quickly (count, or append to a queue in memory), must not
/// wait for a disk or a network, and must not call the master.
pub trait EffectSink: Send + Sync {
    /// Receives one change. `sequence` is its place in the order; a sink that wants only some
    /// changes, or a later sink, sees the same numbers.
    fn emit(&self, sequence: Sequence, now: Time, effect: &Effect<'_>);

    /// Learns that the commands of a [receipt](crate::Master::receipt), or a
    /// [tick](crate::Master::tick), have ended, whose last effect this is: their caller, or a command that
    /// saw what they did, may want to know how durable they are. Called on the thread that
    /// executed them, without a lock of the master. Does nothing by default.
    fn executed(&self, last: Sequence) {
        let _ = last;
    }

    /// Returns whether the sink wants the effects of objects and their space
    /// ([`Began`](Effect::Began) to [`Removed`](Effect::Removed)), which come with every put. Those
    /// that no sink wants are neither made nor numbered. Asked once, when the sink is added.
    fn wants_objects(&self) -> bool {
        true
    }
}

impl<S: EffectSink + ?Sized> EffectSink for Box<S> {
    fn emit(&self, sequence: Sequence, now: Time, effect: &Effect<'_>) {
        (**self).emit(sequence, now, effect);
    }

    fn executed(&self, last: Sequence) {
        (**self).executed(last);
    }

    fn wants_objects(&self) -> bool {
        (**self).wants_objects()
    }
}

/// One change of the master's state.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Effect<'a> {
    /// A put has begun: space is granted, and no client can read it. If the key had a value,
    /// that can still be read, and is [`Removed`](Self::Removed) right before this one is
    /// [`Stored`](Self::Stored).
    Began {
        /// The object that is being written.
        object: ObjectView<'a>,
    },
    /// A put was revoked, discarded or preempted. Its space may stay reserved for a while.
    Abandoned {
        /// The key of the put.
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
        /// The metadata that the [`put_end`](crate::Master::put_end) had. It is in no
        /// [`Record`](crate::Record), so a journal that is replayed does not bring it back.
        event_info: Option<&'a StoreEventInfo>,
    },
    /// An object has other replicas than before. What remains may be readable or, while its
    /// file is being written, not. What remains of an object that lost replicas with a segment
    /// may be reported later than the segment.
    Changed {
        /// The object.
        object: ObjectView<'a>,
        /// The kinds of replicas that could be read at the last effect about the object;
        /// [`readable_kinds`](ObjectView::readable_kinds) has those of now.
        before: ReplicaKinds,
    },
    /// A copy, a move or a promotion of a readable object began, or came to nothing. Its
    /// replicas are the same, the space that is set apart for it is not.
    Transferring {
        /// The object.
        object: ObjectView<'a>,
    },
    /// An object has another pin than before, or none. Its replicas are the same.
    Pinned {
        /// The object.
        object: ObjectView<'a>,
    },
    /// Space that no client can find any more is not given out yet, because a client may
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
    /// being written, that file belongs to no object now: the sink may have it deleted. A
    /// writer that comes too late with it is told, and deletes it itself.
    Removed {
        /// The key of the object that is gone.
        key: KeyRef<'a>,
        /// The put that the object came from.
        generation: Generation,
        /// Why.
        cause: Removal,
        /// The kinds of replicas that could be read at the last effect about the object.
        before: ReplicaKinds,
        /// The object as it was, with what it still had.
        object: ObjectView<'a>,
    },
    /// All objects are about to be removed. Until the effect [`RemoveAllEnded`](Self::RemoveAllEnded)
    /// each that can be read is [`Removed`](Self::Removed) or [`Spared`](Self::Spared); other
    /// commands go on meanwhile.
    RemoveAllBegan,
    /// An object stays although all were to be removed: it is leased, or being copied or moved.
    Spared {
        /// The object.
        object: ObjectView<'a>,
    },
    /// The removal of all objects is over.
    RemoveAllEnded,
    /// A replica was found to be damaged, and goes. Told before the object is
    /// [`Changed`](Self::Changed) or [`Removed`](Self::Removed), so that a log knows
    /// which replica it was.
    Damaged {
        /// The object's key.
        key: KeyRef<'a>,
        /// The put that the object came from.
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
    /// A segment's status changed; it is neither new nor gone. Of a suspended one it may be the status
    /// with which it will come back.
    SegmentChanged {
        /// The segment.
        segment: &'a Segment,
        /// The segment's status from now on.
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
        /// The treatment of puts beyond the quota.
        mode: QuotaMode,
        /// Its quotas below memory.
        below: TierQuotas,
    },
    /// A part of the list of objects that are leased: this master is about to hand over. A part with
    /// none `before` it begins a list, and ends the one there was.
    Leased {
        /// The number of objects in the parts before.
        before: u64,
        /// The puts of some more.
        objects: &'a [Generation],
        /// Whether these were all.
        is_last: bool,
    },
    /// A client stayed silent too long: its segments are suspended.
    ClientExpired {
        /// The client.
        client: ClientId,
    },
}

impl<'a> Effect<'a> {
    /// The tenant has no quota any more.
    pub(crate) const fn no_policy(tenant: &'a TenantId) -> Self {
        let below = TierQuotas::NONE;
        Self::TenantPolicy { tenant, requested: None, mode: QuotaMode::Evict, below }
    }
}

impl Effect<'_> {
    /// Returns whether it is about an object or its space, and not about the cluster.
    const fn is_of_object(&self) -> bool {
        match self {
            Self::Began { .. }
            | Self::Abandoned { .. }
            | Self::Stored { .. }
            | Self::Changed { .. }
            | Self::Pinned { .. }
            | Self::Transferring { .. }
            | Self::SpaceKept { .. }
            | Self::SpaceFreed { .. }
            | Self::RemoveAllBegan
            | Self::Spared { .. }
            | Self::RemoveAllEnded
            | Self::Removed { .. } => true,
            Self::Damaged { .. }
            | Self::Task { .. }
            | Self::DrainJob { .. }
            | Self::SegmentMounted { .. }
            | Self::SegmentGone { .. }
            | Self::SegmentChanged { .. }
            | Self::SegmentSuspected { .. }
            | Self::TenantPolicy { .. }
            | Self::Leased { .. }
            | Self::ClientExpired { .. } => false,
        }
    }
}
