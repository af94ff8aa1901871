//! A panic in the master's own work does not end that work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_meta::{Effect, EffectSink, PutEnd, PutStart, Removal, ReplicateConfig, SegmentSpec};
use mc_store::{ClientId, Master, MasterConfig};
use mc_types::{KeyRef, RemoteKey, SegmentId, Time};

const CLIENT: ClientId = ClientId::from_u128(1);
const DEADLINE: Duration = Duration::from_secs(20);

/// Panics when it is told of the first object that is evicted, in the middle of the eviction.
struct PanicsOnce(AtomicBool);

impl EffectSink for PanicsOnce {
    fn emit(&self, _: Time, effect: &Effect<'_>) {
        let is_eviction = matches!(effect, Effect::Removed { cause: Removal::Evicted, .. });
        assert!(!is_eviction || self.0.swap(true, Ordering::Relaxed), "a sink that fails");
    }
}

#[tokio::test]
async fn eviction_goes_on_after_a_panic() {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 30);
    config.eviction_high_watermark_ratio = 0.5;
    let sink = PanicsOnce(AtomicBool::new(false));
    let master = Master::builder().config(config).sink(sink).start().await.unwrap();
    let state = master.state();
    let spec = SegmentSpec {
        id: SegmentId::from_u128(1),
        name: "segment".into(),
        base: 0,
        size: 1000,
        endpoint: "mem://node".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([0; 16]),
        ticket_key: None,
    };
    state.mount_segment(Time::ORIGIN, CLIENT, spec).unwrap();
    let config = ReplicateConfig::default();
    for n in 0..90 {
        let name = format!("{n}");
        let key = KeyRef::new(&name).unwrap();
        let put = PutStart { key, slice_lengths: &[10], config: &config };
        let handle = state.put_start(Time::ORIGIN, CLIENT, &put).unwrap().handle;
        let end = PutEnd { key, handle, checksums: &[], prefixes: &[] };
        state.put_end(Time::ORIGIN, CLIENT, &end).unwrap();
    }
    let watch = master.ticker_watch();
    let end = Instant::now() + DEADLINE;
    loop {
        let (used, ticks) = (master.report().used, watch.read());
        if used <= 500 && ticks.panics > 0 {
            assert_eq!((ticks.panics, ticks.problem), (1, None));
            break;
        }
        assert!(Instant::now() < end, "{used} bytes in use, {ticks:?}");
        tokio::task::yield_now().await;
    }
    master.shutdown().await;
}
