//! The watermark of a master, which may change while it serves.

use core::sync::atomic::{AtomicU64, Ordering};

use mc_evict::Watermark;

/// A [`Watermark`] that is read without a lock.
///
/// A reader during a change may see one of the two parts changed and the other not. Either is a part that
/// was asked for, and the next tick sees both.
pub(crate) struct LiveWatermark {
    /// The bits of `f64`s.
    high: AtomicU64,
    ratio: AtomicU64,
}

impl LiveWatermark {
    pub(crate) fn new(high: f64, ratio: f64) -> Self {
        Self { high: high.to_bits().into(), ratio: ratio.to_bits().into() }
    }

    pub(crate) fn set(&self, high: f64, ratio: f64) {
        self.high.store(high.to_bits(), Ordering::Relaxed);
        self.ratio.store(ratio.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Watermark {
        let part = |bits: &AtomicU64| f64::from_bits(bits.load(Ordering::Relaxed));
        Watermark::new(part(&self.high), part(&self.ratio))
    }
}
