//! A cache of objects of many sizes hits about as often as one of equal sizes.

use core::time::Duration;

use mc_evict::PolicyKind;
use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig};
use mc_types::{ClientId, KeyRef, SplitMix64, Time};

use crate::common::segment;

const CLIENT: ClientId = ClientId::from_u128(1);
const KIB: u64 = 1 << 10;

/// The mean length in both.
const MEAN: u64 = 256 * KIB;
const SEGMENTS: u64 = 4;
const SEGMENT: u64 = 256 << 20;
const KEYS: u64 = 40_000;
const REQUESTS: u64 = 150_000;

/// Sizes of 1,000 objects: 800 of 64 KiB, 150 of 512 KiB, 49 of 2 MiB and one of 32 MiB, 256 KiB
/// each on average.
fn mixed(key: u64) -> u64 {
    match SplitMix64::mix(key ^ 0x5eed) % 1000 {
        0..800 => 64 * KIB,
        800..950 => 512 * KIB,
        950..999 => 2048 * KIB,
        _ => 32 * 1024 * KIB,
    }
}

/// The part of the requests that find their object, after the first third of them.
fn hit_rate(policy: PolicyKind, len_of: impl Fn(u64) -> u64) -> f64 {
    let mut settings = MasterConfig::default();
    settings.client_ttl = Duration::from_secs(1 << 40);
    settings.lease_ttl = Duration::from_millis(20);
    settings.eviction_policy = policy;
    let master = Master::new(settings, 7).unwrap();
    for number in 0..SEGMENTS {
        let spec = segment(number.into(), SEGMENT);
        master.mount_segment(Time::ORIGIN, CLIENT, spec).unwrap();
    }
    let config = ReplicateConfig::default();
    let (mut hits, mut asked) = (0_u32, 0_u32);
    for n in 0..REQUESTS {
        let now = Time::from_millis(n);
        if n % 100 == 0 {
            while master.tick(now) {}
        }
        // The k-th key is asked for about 1/k as often as the first.
        let uniform = (SplitMix64::mix(n) >> 11) as f64 / (1_u64 << 53) as f64;
        let number = (KEYS as f64).powf(uniform) as u64;
        let name = format!("key-{number}");
        let key = KeyRef::new(&name).unwrap();
        let is_hit = master.get_replica_list(now, key).is_ok();
        if n >= REQUESTS / 3 {
            asked += 1;
            hits += u32::from(is_hit);
        }
        if !is_hit {
            let put = PutStart { key, slice_lengths: &[len_of(number)], config: &config };
            // What is leased may be in the way.
            let Ok(grant) = master.put_start(now, CLIENT, &put) else { continue };
            let end = PutEnd::new(key, grant.handle);
            master.put_end(now, CLIENT, &end).unwrap();
        }
    }
    f64::from(hits) / f64::from(asked)
}

#[test]
fn mixed_sizes_hit_nearly_as_often_as_equal_ones() {
    let mean = (0..KEYS).map(mixed).sum::<u64>() / KEYS;
    assert!((MEAN * 9 / 10..MEAN * 11 / 10).contains(&mean), "{mean}");
    for policy in [PolicyKind::Lru, PolicyKind::Adaptive] {
        let equal = hit_rate(policy, |_| MEAN);
        let mixed = hit_rate(policy, mixed);
        println!("{policy:?}: equal {equal:.4}, mixed {mixed:.4}, {:.4}", mixed / equal);
        assert!(mixed >= 0.95 * equal, "{policy:?}: {mixed} against {equal}");
    }
}
