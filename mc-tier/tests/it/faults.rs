//! A tier that fails on demand.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_tier::{Faults, FaultyTier, MemoryTier, ObjectBytes, ObjectId, SliceBytes, Tier, TierError};
use mc_types::{Generation, ObjectKey};

fn id(number: u64) -> ObjectId {
    ObjectId::new("", ObjectKey::new("key").unwrap(), Generation::new(number)).unwrap()
}

fn object() -> ObjectBytes {
    ObjectBytes::new(vec![SliceBytes::new(Bytes::from_static(b"bytes"))]).unwrap()
}

fn faulty(set: impl FnOnce(&mut Faults)) -> FaultyTier<MemoryTier> {
    let tier = FaultyTier::new(MemoryTier::new(), 7);
    tier.put(&id(0), &object()).unwrap();
    let mut faults = Faults::default();
    set(&mut faults);
    tier.set(faults);
    tier
}

#[test]
fn each_fault_has_its_error() {
    let tier = faulty(|faults| faults.full = 1.0);
    assert!(matches!(tier.put(&id(1), &object()), Err(TierError::Full { .. })));
    assert_eq!(tier.get(&id(0)).unwrap(), Some(object()));
    let tier = faulty(|faults| faults.flipped_bit = 1.0);
    assert!(matches!(tier.get(&id(0)), Err(TierError::Damaged { .. })));
    assert!(matches!(tier.get_range(&id(0), 0..1), Err(TierError::Damaged { .. })));
    assert_eq!(tier.get(&id(1)).unwrap(), None, "what is not there is not damaged");
    let tier = faulty(|faults| (faults.read_fails, faults.write_fails) = (1.0, 1.0));
    let one = NonZeroUsize::MIN;
    for error in [
        tier.put(&id(1), &object()).unwrap_err(),
        tier.remove(&id(0)).unwrap_err(),
        tier.get(&id(0)).unwrap_err(),
        tier.get_range(&id(0), 0..1).unwrap_err(),
        tier.scan(None, one).unwrap_err(),
        tier.usage().unwrap_err(),
    ] {
        assert!(matches!(error, TierError::File { .. }) && error.is_retryable(), "{error:?}");
    }
}

#[test]
fn a_change_that_fails_may_have_happened() {
    let tier = faulty(|faults| faults.write_fails = 1.0);
    (1..1000).for_each(|number| drop(tier.put(&id(number), &object())));
    let stored = tier.usage().unwrap().objects;
    assert!((400..600).contains(&stored), "{stored}");
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let outcomes = || {
        let tier = faulty(|faults| (faults.full, faults.write_fails) = (0.3, 0.3));
        (1..100).map(|number| tier.put(&id(number), &object()).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(), outcomes());
    assert!(outcomes().contains(&true) && outcomes().contains(&false));
}

#[test]
fn a_slow_tier_takes_its_time() {
    let delay = Duration::from_millis(20);
    let tier = faulty(|faults| faults.delay = delay);
    let begin = Instant::now();
    tier.get(&id(0)).unwrap();
    assert!(begin.elapsed() >= delay);
}
