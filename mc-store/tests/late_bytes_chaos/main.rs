//! Everything late at once: masters that are killed and know nothing afterwards, nodes and
//! applications that are stopped and go on, links that pause and deliver after the close,
//! removals by force. No wrong byte is returned as good, and no object that was stored is
//! destroyed. Callers give up, and use their memory for something else: nothing of that is read, and
//! nothing is written there.
//!
//! Runs for a quarter of a minute. For ten minutes, or with the seed of a run that failed:
//!
//! ```sh
//! CHAOS_SECONDS=600 CHAOS_SEED=7 cargo test -p mc-store --test late_bytes_chaos -- --nocapture
//! ```
//!
//! Applications that share memory are stopped for less than a grant lasts: one that is
//! stopped for longer, in the middle of a copy, writes the rest of 128 KiB when it goes on,
//! which nothing prevents (`docs/security.md`). Those that only speak TCP are stopped for as
//! long as it takes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod impatient;
mod process;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{
    ByteSize, Client, ClientBuilder, GetError, Master, MasterConfig, NodeConfig, PutOutcome,
    ReplicateConfig,
};
use mc_testkit::role::say;
use mc_testkit::{Program, Random, Relay, eventually_async};
use mc_transport::tcp::TcpConfig;
use process::{Role, end, start, wait_for};

/// Bytes of what a writer puts that is stopped in mid-copy, and of what lies there next.
const OLD: usize = 16 << 20;
const NEW: usize = 1 << 20;
const SEGMENT: ByteSize = ByteSize::mib(24);
const NODES: usize = 2;
const SLOW_NODES: usize = 2;
const WORKERS: usize = 3;
/// Values of a key that differ.
const VERSIONS: u64 = 4;
/// Keys of one worker, which the others read.
const KEYS: u64 = 40;
/// How long a node may take to come back.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longer than any process is stopped that shares memory.
const GRANT: Duration = Duration::from_secs(4);

/// A number that follows from another one.
fn mix(number: u64) -> u64 {
    Random::new(number).next_u64()
}

fn millis(random: &mut Random, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + below(random, to - from))
}

fn below(random: &mut Random, limit: u64) -> u64 {
    random.next_u64() % limit
}

/// Bytes that tell key, version and place.
fn content(key: &str, version: u64) -> Bytes {
    let seed = key.bytes().fold(version, |hash, byte| mix(hash ^ u64::from(byte)));
    let len = 64 << (mix(seed_of_length(key)) % 15);
    (0..len / 8).flat_map(|n| mix(seed ^ n).to_le_bytes()).collect()
}

/// All versions of a key are as long.
fn seed_of_length(key: &str) -> u64 {
    key.bytes().fold(77, |hash, byte| mix(hash ^ u64::from(byte)))
}

fn key(worker: u64, number: u64) -> String {
    format!("worker-{worker}/{number}")
}

fn config() -> MasterConfig {
    let mut config = MasterConfig::default();
    config.lease_ttl = Duration::from_millis(700);
    config.put_start_discard_timeout = Duration::from_secs(2);
    config.put_start_release_timeout = GRANT;
    config.client_ttl = Duration::from_secs(2);
    config.client_return_timeout = Duration::from_secs(4);
    config
}

/// Whether a worker speaks TCP only.
const fn is_remote(worker: u64) -> bool {
    worker == 0
}

fn client(master: SocketAddr) -> ClientBuilder {
    client_with(master, true)
}

fn client_with(master: SocketAddr, shares_memory: bool) -> ClientBuilder {
    let mut node = NodeConfig::new(TcpConfig::default());
    node.tcp.stall_timeout = Duration::from_millis(1500);
    node.tcp.connect_timeout = Duration::from_millis(1500);
    if !shares_memory {
        node.shm = None;
    }
    Client::builder()
        .master(master.to_string())
        .node(node)
        .heartbeat_interval(Duration::from_millis(100))
        .put_wait(Duration::from_millis(300))
}

/// The observations of a worker, by kind.
type Counts = BTreeMap<String, u64>;

/// Puts, replaces, reads and removes until it is told to end.
async fn work(master: SocketAddr, number: u64, seed: u64) -> Counts {
    let mut random = Random::new(seed ^ number);
    let mut counts = Counts::new();
    let client = loop {
        // The master may just have been killed.
        match client_with(master, !is_remote(number)).connect().await {
            Ok(client) => break client,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let config = ReplicateConfig::default();
    let mut given_back = impatient::GivenBack::default();
    while !process::is_told_to_end() {
        given_back.check(&mut counts, false);
        let mut count = |what: &str| *counts.entry(what.to_owned()).or_default() += 1;
        let own = key(number, below(&mut random, KEYS));
        let any = key(below(&mut random, WORKERS as u64), below(&mut random, KEYS));
        match below(&mut random, 12) {
            10 => {
                let value = content(&own, below(&mut random, VERSIONS));
                count(impatient::put(&client, &own, &value, &mut random, &mut given_back).await);
            }
            11 => {
                let len = content(&any, 0).len();
                let read = impatient::get(&client, &any, len, &mut random, &mut given_back).await;
                match read {
                    None => count("get given up"),
                    Some(Ok(value)) => {
                        count("read in time");
                        if !(0..VERSIONS).any(|version| value == content(&any, version)) {
                            count("WRONG");
                            eprintln!("wrong bytes as good: {any}");
                        }
                    }
                    Some(Err(GetError::ChecksumMismatch { endpoint })) => {
                        count("DESTROYED");
                        eprintln!("destroyed: {any} at {endpoint}");
                    }
                    Some(Err(_)) => count("read failed"),
                }
            }
            0..=2 => {
                let value = content(&own, below(&mut random, VERSIONS));
                match client.put_with(&own, value, &config).await {
                    Ok(PutOutcome::Stored) => count("stored"),
                    Ok(_) => count("not stored"),
                    Err(_) => count("put failed"),
                }
            }
            3 => {
                let value = content(&own, below(&mut random, VERSIONS));
                match client.upsert(&own, value).await {
                    Ok(()) => count("replaced"),
                    Err(_) => count("upsert failed"),
                }
            }
            4..=5 => match client.get(&any).await {
                Ok(value) => {
                    count("read");
                    if !(0..VERSIONS).any(|version| value == content(&any, version)) {
                        count("WRONG");
                        eprintln!("wrong bytes as good: {any}");
                    }
                }
                Err(GetError::NotFound | GetError::NotReady) => count("absent"),
                Err(GetError::ChecksumMismatch { endpoint }) => {
                    count("DESTROYED");
                    eprintln!("destroyed: {any} at {endpoint}");
                }
                Err(_) => count("read failed"),
            },
            6..=8 => {
                let len = content(&any, 0).len() as u64;
                let start = below(&mut random, len);
                let end = start + 1 + below(&mut random, len - start);
                match client.get_range(&any, start..end).await {
                    Ok(part) => {
                        count("range read");
                        let range = start as usize..end as usize;
                        let right = |version| part == content(&any, version).slice(range.clone());
                        if !(0..VERSIONS).any(right) {
                            count("WRONG");
                            eprintln!("wrong bytes as good: {any} {start}..{end}");
                        }
                    }
                    Err(GetError::NotFound | GetError::NotReady) => count("absent"),
                    Err(GetError::ChecksumMismatch { endpoint }) => {
                        count("DESTROYED");
                        eprintln!("destroyed: {any} at {endpoint}");
                    }
                    Err(_) => count("range failed"),
                }
            }
            _ => match client.remove(&own, true).await {
                Ok(()) => count("removed"),
                Err(_) => count("not removed"),
            },
        }
    }
    client.shutdown().await;
    given_back.check(&mut counts, true);
    counts
}

/// Plays the role of a process that this test starts.
#[test]
fn process() {
    let Some((role, master)) = process::own_role() else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match role {
            Role::Master => {
                let limit = Duration::from_secs(20);
                let master = eventually_async(limit, "the address is free", async || {
                    Master::builder().config(config()).listen(master).start().await
                })
                .await;
                say(format_args!("listening {}", master.local_addr()));
                process::wait_for_the_end().await;
            }
            Role::Node => {
                let node = client(master)
                    .listen("127.0.0.1:0".parse().unwrap())
                    .segment_size(SEGMENT)
                    .connect()
                    .await
                    .unwrap();
                say("ready");
                process::wait_for_the_end().await;
                drop(node);
            }
            Role::Writer => {
                let writer = client(master).connect().await.unwrap();
                let value = Bytes::from(vec![0xee; OLD]);
                for n in 0.. {
                    if process::is_told_to_end() {
                        break;
                    }
                    let put = writer.put(&format!("old/{n}"), value.clone()).await;
                    say(format_args!("ended {put:?}"));
                    let _ = writer.remove(&format!("old/{n}"), true).await;
                }
            }
            Role::Worker { number, seed } => {
                let counts = work(master, number, seed).await;
                for (what, count) in counts {
                    say(format_args!("{count} {what}"));
                }
                say("done");
            }
        }
    });
}

/// Chunks that wait in one direction of a link that pauses.
const WAITING: usize = 1024;

/// A node in this process, behind a link that pauses.
async fn slow_node(master: SocketAddr) -> (Client, Relay) {
    let node = client(master)
        .listen("127.0.0.1:0".parse().unwrap())
        .advertise("127.0.0.2".parse().unwrap())
        .segment_size(SEGMENT)
        .connect()
        .await
        .unwrap();
    let endpoint = node.endpoint().unwrap();
    let port = endpoint.address().parse::<SocketAddr>().unwrap().port();
    let link = Relay::to(port, WAITING).await.unwrap();
    (node, link)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_past_touches_reused_space() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = mc_testkit::seed("CHAOS_SEED");
    let time = Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(15));
    let mut random = Random::new(seed);
    let any = "127.0.0.1:0".parse().unwrap();
    let mut master = start(Role::Master, any);
    let address: SocketAddr = wait_for(&mut master, "listening ").parse().unwrap();
    let mut nodes: Vec<Program> = (0..NODES).map(|_| start(Role::Node, address)).collect();
    nodes.iter_mut().for_each(|node| drop(wait_for(node, "ready")));
    let mut slow = Vec::new();
    for _ in 0..SLOW_NODES {
        slow.push(slow_node(address).await);
    }
    let mut workers: Vec<Program> =
        (0..WORKERS as u64).map(|number| start(Role::Worker { number, seed }, address)).collect();

    let (mut kills, mut stops, mut pauses) = (0, 0, 0);
    let begun = Instant::now();
    while begun.elapsed() < time {
        tokio::time::sleep(millis(&mut random, 50, 500)).await;
        match below(&mut random, 8) {
            0 => {
                kills += 1;
                master.kill();
                tokio::time::sleep(millis(&mut random, 1, 700)).await;
                master = start(Role::Master, address);
                wait_for(&mut master, "listening ");
            }
            1..=2 => {
                stops += 1;
                let node = &nodes[below(&mut random, NODES as u64) as usize];
                node.freeze();
                tokio::time::sleep(millis(&mut random, 50, 2500)).await;
                node.resume();
            }
            3..=4 => {
                stops += 1;
                let number = below(&mut random, WORKERS as u64);
                let worker = &workers[number as usize];
                worker.freeze();
                let longest = if is_remote(number) { 6000 } else { 2500 };
                tokio::time::sleep(millis(&mut random, 50, longest)).await;
                worker.resume();
            }
            _ => {
                pauses += 1;
                let (_, link) = &slow[below(&mut random, SLOW_NODES as u64) as usize];
                link.pause();
                tokio::time::sleep(millis(&mut random, 50, 2500)).await;
                link.resume();
            }
        }
    }
    let mut counts = Counts::new();
    for worker in &mut workers {
        for line in end(worker) {
            let Some((count, what)) = line.split_once(' ') else { continue };
            if let Ok(count) = count.parse::<u64>() {
                *counts.entry(what.to_owned()).or_default() += count;
            }
        }
    }
    println!("{kills} master kills, {stops} stops, {pauses} pauses; {counts:?}");
    let of = |what: &str| counts.get(what).copied().unwrap_or(0);
    for what in ["WRONG", "DESTROYED", "WRITTEN LATE", "CHANGED without a reason"] {
        assert_eq!(of(what), 0, "CHAOS_SEED={seed}, {what}: {counts:?}");
    }
    // It was worth the while.
    for what in ["stored", "replaced", "read", "range read", "removed"] {
        assert!(of(what) > 100, "CHAOS_SEED={seed}, {what}: {counts:?}");
    }
    assert!(of("put given up") + of("get given up") > 0, "CHAOS_SEED={seed}: {counts:?}");
}

/// A writer over shared memory is in the middle of a copy when it is stopped and the master
/// forgets everything. The node offers its segment anew, others fill it, the writer goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_forgotten_past_touches_nothing_that_is_new() {
    const ROUNDS: usize = 8;
    let any = "127.0.0.1:0".parse().unwrap();
    let mut master = start(Role::Master, any);
    let address: SocketAddr = wait_for(&mut master, "listening ").parse().unwrap();
    let mut node = start(Role::Node, address);
    wait_for(&mut node, "ready");
    let mut writer = start(Role::Writer, address);
    let app = client(address).connect().await.unwrap();
    let mut destroyed = 0;
    let mut put = 0;
    for round in 0..ROUNDS {
        wait_for(&mut writer, "ended Ok(Stored)");
        // A put takes some milliseconds, and most of them are its copy.
        tokio::time::sleep(Duration::from_millis(1 + round as u64 % 4)).await;
        writer.freeze();
        master.kill();
        master = start(Role::Master, address);
        wait_for(&mut master, "listening ");
        let config = ReplicateConfig::default().hard_pin();
        let mut keys = Vec::new();
        let begun = Instant::now();
        while keys.len() < SEGMENT.as_u64() as usize / NEW {
            let key = format!("new/{round}/{}", keys.len());
            match app.put_with(&key, large(&key), &config).await {
                Ok(_) => keys.push(key),
                // There may be no more room than this.
                Err(_) if keys.len() > SEGMENT.as_u64() as usize / NEW - 3 => break,
                // The node is still on its way back.
                Err(error) => assert!(begun.elapsed() < DEADLINE, "{}: {error}", keys.len()),
            }
        }
        writer.resume();
        // The put that was stopped, and one that began afterwards.
        wait_for(&mut writer, "ended");
        wait_for(&mut writer, "ended");
        put += keys.len();
        for key in &keys {
            match app.get(key).await {
                Ok(value) => assert!(value == large(key), "wrong bytes as good: {key}"),
                Err(error) => {
                    destroyed += 1;
                    eprintln!("{key}: {error}");
                }
            }
        }
        app.remove_all(true).await.unwrap();
    }
    assert_eq!(destroyed, 0, "of {put} acknowledged objects destroyed");
}

/// [`NEW`] bytes that tell key and place.
fn large(key: &str) -> Bytes {
    let seed = seed_of_length(key);
    (0..NEW as u64 / 8).flat_map(|n| mix(seed ^ n).to_le_bytes()).collect()
}
