//! When to evict, and how much.

/// Evict when more than `high` of the capacity is used, down to `high - ratio`.
///
/// Both are parts of the whole, in `0.0..=1.0`; values outside are clamped.
///
/// ```
/// use mc_evict::Watermark;
/// let watermark = Watermark::new(0.95, 0.05);
/// assert_eq!(watermark.excess(950, 1000), 0);
/// assert_eq!(watermark.excess(960, 1000), 60);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermark {
    high: f64,
    ratio: f64,
}

impl Watermark {
    /// A watermark at `high`, freeing `ratio` of the capacity below it.
    #[must_use]
    pub const fn new(high: f64, ratio: f64) -> Self {
        Self { high: high.clamp(0.0, 1.0), ratio: ratio.clamp(0.0, 1.0) }
    }

    /// Bytes to free now; zero below the watermark and without capacity.
    #[must_use]
    pub fn excess(&self, used: u64, capacity: u64) -> u64 {
        if capacity == 0 || used <= part(capacity, self.high) {
            return 0;
        }
        self.rest(used, capacity)
    }

    /// Bytes that are still to be freed once eviction has begun, which goes on below the watermark until `ratio`
    /// of the capacity is free there.
    ///
    /// ```
    /// use mc_evict::Watermark;
    /// let watermark = Watermark::new(0.95, 0.05);
    /// assert_eq!(watermark.rest(940, 1000), 40);
    /// assert_eq!(watermark.rest(900, 1000), 0);
    /// ```
    #[must_use]
    pub fn rest(&self, used: u64, capacity: u64) -> u64 {
        used.saturating_sub(part(capacity, (self.high - self.ratio).max(0.0)))
    }

    /// Bytes that one round frees when an allocation has failed: the ratio's part
    /// of the capacity.
    #[must_use]
    pub fn round(&self, capacity: u64) -> u64 {
        part(capacity, self.ratio)
    }
}

/// `ratio` of `capacity`, to the nearest byte. Above 2^53 bytes it is rounded, by far less than a segment.
fn part(capacity: u64, ratio: f64) -> u64 {
    (capacity as f64 * ratio + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_harmless() {
        assert_eq!(Watermark::new(0.95, 0.05).excess(0, 0), 0);
        assert_eq!(Watermark::new(0.0, 0.5).excess(10, 10), 10);
        assert_eq!(Watermark::new(1.0, 0.1).excess(10, 10), 0);
        assert_eq!(Watermark::new(f64::INFINITY, -3.0).excess(11, 10), 1);
        assert!(Watermark::new(0.95, 0.05).excess(u64::MAX, u64::MAX) > 0);
    }
}
