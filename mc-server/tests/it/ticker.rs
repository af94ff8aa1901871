//! A panic in the master's own work does not end that work.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_meta::{Effect, EffectSink, PutEnd, PutStart, Removal, ReplicateConfig, SegmentSpec};
use mc_server::{Master, MasterConfig};
use mc_testkit::eventually;
use mc_types::{ClientId, KeyRef, RemoteKey, SegmentId, Sequence, Time};

const CLIENT: ClientId = ClientId::from_u128(1);
const DEADLINE: Duration = Duration::from_secs(20);

/// Panics when it is told of the first object that is evicted, in the middle of the eviction.
struct PanicsOnce(AtomicBool);

impl EffectSink for PanicsOnce {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let is_eviction = matches!(effect, Effect::Removed { cause: Removal::Evicted, .. });
        assert!(!is_eviction || self.0.swap(true, Ordering::Relaxed), "a sink that fails");
    }
}

/// Fills nine tenths of a segment.
fn fill(master: &Master) {
    let state = master.state();
    let spec = SegmentSpec {
        id: SegmentId::from_u128(1),
        name: "segment".into(),
        base: 0,
        size: 1000,
        endpoint: "mem://node".parse().unwrap(),
        remote_key: RemoteKey::from_bytes([0; 16]),
        ticket_key: None,
        medium: mc_types::MediaType::Dram,
    };
    state.mount_segment(Time::ORIGIN, CLIENT, spec).unwrap();
    let config = ReplicateConfig::default();
    for n in 0..90 {
        let name = format!("{n}");
        let key = KeyRef::new(&name).unwrap();
        let put = PutStart { key, slice_lengths: &[10], config: &config };
        let handle = state.put_start(Time::ORIGIN, CLIENT, &put).unwrap().handle;
        let end = PutEnd::new(key, handle);
        state.put_end(Time::ORIGIN, CLIENT, &end).unwrap();
    }
}

/// Panics whenever it is told of an object that is evicted.
#[cfg(feature = "grpc")]
struct PanicsAlways;

#[cfg(feature = "grpc")]
impl EffectSink for PanicsAlways {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let is_eviction = matches!(effect, Effect::Removed { cause: Removal::Evicted, .. });
        assert!(!is_eviction, "a sink that always fails");
    }
}

/// Asks the gRPC health service, and returns the number of the status: 1 for SERVING, 2 for
/// NOT_SERVING.
#[cfg(feature = "grpc")]
async fn health(master: &Master) -> u8 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    // RFC 9113: the preface, no settings, the headers and the message of one request.
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    }
    // RFC 7541: literals that are not indexed.
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", "master"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let literal = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let header = |(name, value)| [vec![0], literal(name), literal(value)].concat();
    let headers: Vec<u8> = headers.into_iter().flat_map(header).collect();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers),
        frame(0, 1, 1, &[0; 5]),
    ];
    let mut stream = tokio::net::TcpStream::connect(master.local_addr()).await.unwrap();
    stream.write_all(&request.concat()).await.unwrap();
    // The answer is a message of two bytes, of which the second is the status.
    let head = [0, 0, 0, 0, 2, 8];
    let mut answer = Vec::new();
    let read = async {
        loop {
            let found = answer.windows(7).find(|window| window[..6] == head);
            if let Some(found) = found {
                return found[6];
            }
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{answer:?}");
        }
    };
    tokio::time::timeout(DEADLINE, read).await.expect("an answer in time")
}

#[cfg(feature = "grpc")]
#[tokio::test]
async fn grpc_health_says_that_time_stands_still() {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 30);
    config.eviction_high_watermark_ratio = 0.5;
    let master = Master::builder().config(config).sink(PanicsAlways).start().await.unwrap();
    assert_eq!(health(&master).await, 1);
    fill(&master);
    let watch = master.ticker_watch();
    tokio::time::timeout(DEADLINE, watch.failed()).await.expect("it gives up");
    assert_eq!(health(&master).await, 2);
    master.shutdown().await;
}

#[tokio::test]
async fn eviction_goes_on_after_a_panic() {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(1 << 30);
    config.eviction_high_watermark_ratio = 0.5;
    let sink = PanicsOnce(AtomicBool::new(false));
    let master = Master::builder().config(config).sink(sink).start().await.unwrap();
    fill(&master);
    let watch = master.ticker_watch();
    let ticks = eventually(DEADLINE, "objects are evicted after the panic", || {
        let (used, ticks) = (master.report().totals.used, watch.read());
        if used <= 500 && ticks.panics > 0 { Ok(ticks) } else { Err((used, ticks)) }
    })
    .await;
    assert_eq!((ticks.panics, ticks.problem), (1, None));
    master.shutdown().await;
}
