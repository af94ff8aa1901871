//! Room on the local disk: for bytes, and for objects.

use std::sync::atomic::Ordering::Relaxed;

use mc_tier::{TierUsage, Watermarks};
use mc_types::ByteSize;
use tracing::warn;

use super::DiskWork;
use crate::client::tiers::WorkError;

/// Parts of the capacity above which objects are evicted, and down to which, in percent.
const HIGH_PERCENT: u64 = 95;
const LOW_PERCENT: u64 = 92;

impl DiskWork<'_> {
    /// Notes how many objects the disk may have: those that it has but for the last, which the master has
    /// refused.
    pub(super) async fn note_most_objects(&self, refused: u64) -> Result<(), WorkError> {
        let tier = self.disk.tier().ok_or(WorkError::Ended)?;
        let objects = self.tiers.on_tier(move || tier.usage()).await?.objects;
        let most = objects.saturating_sub(refused).max(1);
        if self.disk.most_objects.fetch_min(most, Relaxed) > most {
            warn!(
                objects = most,
                "the local disk has as many objects as it may; the oldest make room"
            );
        }
        Ok(())
    }

    /// Makes room when the disk is nearly full, of bytes or of objects, and tells the master how much it can
    /// hold.
    pub(super) async fn evict_above_watermark(&self) -> Result<(), WorkError> {
        self.evict_beyond().await?;
        self.tell_capacity().await
    }

    /// Makes room when the disk is nearly full, of bytes or of objects.
    pub(super) async fn evict_beyond(&self) -> Result<(), WorkError> {
        let part = |percent| ByteSize::bytes(self.disk.capacity().as_u64() / 100 * percent);
        let watermarks = Watermarks { high: part(HIGH_PERCENT), low: part(LOW_PERCENT) };
        let most = self.disk.most_objects.load(Relaxed);
        let tier = self.disk.tier().ok_or(WorkError::Ended)?;
        let evict = move || {
            let mut ids = Vec::new();
            let mut note = |id| ids.push(id);
            let evicted = tier.evict(watermarks, &mut note).and_then(|_| {
                match bytes_of_fewer(tier.usage()?, most) {
                    Some(low) => tier.evict(Watermarks { high: low, low }, &mut note).map(drop),
                    None => Ok(()),
                }
            });
            Ok((ids, evicted))
        };
        let (ids, evicted) = self.tiers.on_tier(evict).await?;
        // What went before a failure is gone.
        self.evicted(ids).await;
        Ok(evicted?)
    }
}

/// The bytes that objects take when as many of the average length are gone as are too many: as many as may be,
/// or nearly. `None` when there are fewer.
fn bytes_of_fewer(usage: TierUsage, most: u64) -> Option<ByteSize> {
    let part = |percent| most.saturating_mul(percent) / 100;
    if usage.objects <= part(HIGH_PERCENT) {
        return None;
    }
    let low = u128::from(usage.bytes) * u128::from(part(LOW_PERCENT)) / u128::from(usage.objects);
    // It is less than the objects take now.
    Some(ByteSize::bytes(u64::try_from(low).unwrap_or(usage.bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_objects_make_room_as_too_many_bytes_do() {
        let low = |objects, bytes| bytes_of_fewer(TierUsage { objects, bytes }, 1000);
        assert_eq!(low(950, 1 << 30), None);
        assert_eq!(low(951, 951_000), Some(ByteSize::bytes(920_000)));
        assert_eq!(low(2000, 1000), Some(ByteSize::bytes(460)));
        assert_eq!(low(u64::MAX, u64::MAX), Some(ByteSize::bytes(920)));
        assert_eq!(bytes_of_fewer(TierUsage { objects: 1, bytes: 7 }, 0), Some(ByteSize::bytes(0)));
        assert_eq!(bytes_of_fewer(TierUsage::default(), 0), None);
    }
}
