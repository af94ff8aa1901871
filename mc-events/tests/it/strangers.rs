//! Unknown peers can hold a bounded part of a publisher's resources.

use std::time::Duration;

use mc_events::{Encoding, EventSystem, Limits, PublisherConfig};
use mc_testkit::eventually_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{LIMIT, Peer, config, number, replay_endpoint, stored, subscribers};

async fn start(limits: Limits) -> EventSystem {
    EventSystem::start(PublisherConfig { limits, ..config(Encoding::S4) }).await.unwrap()
}

fn endpoint(events: &EventSystem) -> &str {
    &events.endpoints()[0].endpoint
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_whose_answers_are_not_read_hold_one_answer() {
    /// More than the system's buffers take.
    const PINGS: usize = 60_000;
    const CONTEXT: usize = 400;
    let events = start(Limits::default()).await;
    let mut peer = Peer::connect(endpoint(&events), "SUB").await;
    let body = [&b"\x04PING\0\x01"[..], &[b'c'; CONTEXT]].concat();
    let head = [&[6][..], &(body.len() as u64).to_be_bytes()].concat();
    let ping = [head, body].concat();
    for _ in 0..PINGS / 100 {
        peer.0.write_all(&ping.repeat(100)).await.unwrap();
        // One answer waits, and one is being written.
        let waiting = events.stats().waiting_bytes;
        assert!(waiting <= 4 * CONTEXT, "{waiting} bytes wait");
    }
    // Behind all heartbeats.
    peer.send(&[b"\x01"]).await;
    subscribers(&events, 1).await;
    let waiting = events.stats().waiting_bytes;
    assert!(waiting <= 4 * CONTEXT, "{waiting} bytes wait");
}

#[tokio::test]
async fn a_heartbeat_is_answered_with_its_context() {
    let events = start(Limits::default()).await;
    let mut peer = Peer::connect(endpoint(&events), "SUB").await;
    for context in ["one", "two"] {
        let body = format!("\x04PING\0\x01{context}");
        peer.0.write_all(&[&[4, body.len() as u8], body.as_bytes()].concat()).await.unwrap();
        let pong = format!("\x04PONG{context}");
        let mut answer = vec![0; 2 + pong.len()];
        peer.0.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, [&[4, pong.len() as u8], pong.as_bytes()].concat());
    }
    eventually_async(LIMIT, "nothing waits", async || events.stats().waiting_bytes == 0).await;
}

#[tokio::test]
async fn connections_without_a_subscription_give_their_places_to_subscribers() {
    let events = start(Limits { connections: 8, ..Limits::default() }).await;
    let mut first = Peer::subscribe(endpoint(&events), "").await;
    subscribers(&events, 1).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        for _ in 0..8 {
            silent.push(Peer::connect(endpoint(&events), "SUB").await);
        }
        let mut late = Peer::subscribe(endpoint(&events), "").await;
        subscribers(&events, 2).await;
        assert!(events.publish(stored("k")).await);
        let told = number(&first.receive().await[1]);
        assert_eq!(late.number().await, told);
        drop(late);
        subscribers(&events, 1).await;
    }
}

#[tokio::test]
async fn connections_without_a_request_give_their_places_to_those_that_replay() {
    let events = start(Limits { connections: 8, ..Limits::default() }).await;
    assert!(events.publish(stored("k")).await);
    let mut first = Peer::connect(replay_endpoint(&events), "DEALER").await;
    assert_eq!(first.replay(0).await.len(), 1);
    let mut silent = Vec::new();
    for _ in 0..24 {
        silent.push(Peer::connect(replay_endpoint(&events), "DEALER").await);
    }
    let mut late = Peer::connect(replay_endpoint(&events), "DEALER").await;
    assert_eq!(late.replay(0).await.len(), 1);
    assert_eq!(first.replay(0).await.len(), 1, "it keeps its place");
}

#[tokio::test]
async fn a_share_is_of_those_that_subscribe() {
    const MAX: usize = 8 << 20;
    let events = start(Limits { subscriber_bytes: MAX, ..Limits::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..15 {
        silent.push(Peer::connect(endpoint(&events), "SUB").await);
    }
    let _stalled = Peer::subscribe(endpoint(&events), "").await;
    subscribers(&events, 1).await;
    let mut published = 0;
    while events.stats().skipped == 0 {
        assert!(events.publish(stored("k".repeat(200_000))).await);
        published += 1;
        assert!(published < 10_000, "nothing is skipped");
    }
    let waiting = events.stats().waiting_bytes;
    assert!(waiting > MAX / 2 && waiting <= MAX, "{waiting} bytes wait");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_system_asks_silent_subscribers_whether_they_are_there() {
    let events = start(Limits::default()).await;
    let subscriber = Peer::subscribe(endpoint(&events), "").await;
    subscribers(&events, 1).await;
    let (ours, theirs) =
        (subscriber.0.peer_addr().unwrap().port(), subscriber.0.local_addr().unwrap().port());
    // Address and port of both ends, the state, the queues, and the timer: 2 is keepalive.
    let (ours, theirs) = (format!(":{ours:04X}"), format!(":{theirs:04X}"));
    let asks = async || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        sockets.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[1].ends_with(&ours) && fields[2].ends_with(&theirs) && {
                let (timer, ticks) = fields[5].split_once(':').unwrap();
                let left = Duration::from_millis(10 * u64::from_str_radix(ticks, 16).unwrap());
                timer == "02" && left <= Duration::from_secs(15)
            }
        })
    };
    eventually_async(LIMIT, "the keepalive timer runs", asks).await;
}

#[tokio::test]
async fn a_subscriber_that_reads_outlasts_subscriptions_to_nothing() {
    let events = start(Limits { connections: 8, ..Limits::default() }).await;
    let mut reader = Peer::subscribe(endpoint(&events), "").await;
    subscribers(&events, 1).await;
    let mut strangers = Vec::new();
    for _ in 0..8 {
        for _ in 0..3 {
            strangers.push(Peer::subscribe(endpoint(&events), "nothing").await);
        }
        assert!(events.publish(stored("k")).await);
        reader.number().await;
    }
}
