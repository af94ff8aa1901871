//! What a command changed, told as it happens.

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::segment::Segment;
use crate::states::SegmentStatus;
use crate::view::ObjectView;

/// Receives every change in the order in which it takes effect.
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

/// One change of the master's state.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Effect<'a> {
    /// A put has begun: space is granted, and nobody can read it.
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
    },
    /// An object became readable.
    Stored {
        /// The object.
        object: ObjectView<'a>,
    },
    /// An object that was readable is gone.
    Removed {
        /// Its key.
        key: KeyRef<'a>,
        /// Its put.
        generation: Generation,
        /// Why.
        cause: Removal,
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
}
