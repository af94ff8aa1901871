//! What a command changed, told as it happens.

use mc_types::{ClientId, Generation, KeyRef, Time};

use crate::segment::Segment;

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
    /// An object became readable.
    Stored {
        /// Its key.
        key: KeyRef<'a>,
        /// Its put.
        generation: Generation,
        /// Its length in bytes.
        len: u64,
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
    /// A client stayed silent too long.
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
}
