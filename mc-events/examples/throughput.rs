//! Measures the cost of `publish` for its caller, and the events per second from one endpoint to
//! one subscriber over loopback: `cargo run --release -p mc-events --example throughput`.

#![allow(clippy::unwrap_used, reason = "a measurement that fails panics")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Peer, config, stored, subscribers};
use mc_events::{Encoding, Event, EventSystem, Limits, PublisherConfig};

const EVENTS: u32 = 1_000_000;

fn main() {
    for interval in [Duration::ZERO, Duration::from_millis(1)] {
        measure(interval);
    }
}

/// The time that this thread has run: other processes do not count.
fn cpu_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(times.split(' ').next().unwrap().parse().unwrap())
}

fn measure(send_interval: Duration) {
    let limits = Limits {
        queue_events: EVENTS as usize,
        queue_bytes: 1 << 30,
        subscriber_bytes: 1 << 30,
        ..Limits::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = PublisherConfig { limits, send_interval, ..config(Encoding::S4) };
    let events = runtime.block_on(EventSystem::start(config)).unwrap();
    let endpoint = events.endpoints()[0].endpoint.clone();
    let mut peer = runtime.block_on(Peer::subscribe(&endpoint, ""));
    runtime.block_on(subscribers(&events, 1));
    let ready: Vec<Event> =
        (0..EVENTS).map(|at| stored(format!("llama-{at:044}")).into()).collect();

    let started = Instant::now();
    let received = runtime.spawn(async move {
        let mut count = 0;
        while count < EVENTS {
            let payload = peer.receive().await.remove(2);
            // Array of two, a float of nine bytes, then the array of events.
            count += u32::from(match payload[10] {
                short @ 0x90..=0x9F => u16::from(short & 0xF),
                _ => u16::from_be_bytes([payload[11], payload[12]]),
            });
        }
        started.elapsed()
    });
    let before = cpu_time();
    for event in ready {
        drop(events.publish(event));
    }
    let publishing = cpu_time() - before;
    let took = runtime.block_on(received).unwrap();
    let stats = events.stats();
    assert_eq!((stats.dropped, stats.skipped), (0, 0));
    println!(
        "send_interval {send_interval:?}: publish {:.0} ns of CPU time a call, {:.0} events/s received, {:.1} events a message",
        publishing.as_nanos() as f64 / f64::from(EVENTS),
        f64::from(EVENTS) / took.as_secs_f64(),
        stats.published as f64 / stats.batches as f64,
    );
}
