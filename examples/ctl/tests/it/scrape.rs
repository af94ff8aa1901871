//! The pages of a large cluster: a thousand segments and ten thousand connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mc_meta::SegmentSpec;
use mc_rpc::frame::{ClientPreface, DEFAULT_MAX_PAYLOAD, Hello, SERVER_PREFACE_LEN};
use mc_rpc::{ClientConfig, blocking::MasterClient};
use mc_types::{ClientId, MediaType, RemoteKey, SegmentId};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::connections::figure;
use crate::support::{DEADLINE, Master, get};

const SEGMENTS: usize = 1_000;
const CONNECTIONS: usize = 10_000;
/// Time limit for a page of metrics, for a collector that asks every few seconds.
const SCRAPE: Duration = Duration::from_millis(50);
/// How often each page is asked for, at least.
const ROUNDS: usize = 10;
/// Calls of each measurement.
const CALLS: usize = 500;

fn segment(number: usize) -> SegmentSpec {
    SegmentSpec {
        id: SegmentId::from_u128(number as u128 + 1),
        name: format!("segment-{number}").into(),
        base: 0,
        size: 1 << 30,
        endpoint: format!("tcp://10.0.{}.{}:7000", number / 250, number % 250)
            .parse()
            .expect("an endpoint"),
        remote_key: RemoteKey::from_bytes([1; 16]),
        ticket_key: None,
        medium: MediaType::Dram,
    }
}

/// Opens a connection that has shaken hands; its answer is read later.
fn connect(address: &str) -> TcpStream {
    let hello = Hello { software: "engine/1.0".into(), ..Hello::default() };
    let mut stream = TcpStream::connect(address).expect("a listener");
    // Its port is free again at once: other tests need some.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket");
    stream.write_all(&ClientPreface::with(DEFAULT_MAX_PAYLOAD, &hello)).expect("a reader");
    stream
}

/// The middle of the times of calls, and the longest of a hundred.
fn pings(client: &MasterClient, node: ClientId) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..CALLS)
        .map(|_| {
            let begun = Instant::now();
            client.ping(node).expect("an answer");
            begun.elapsed()
        })
        .collect();
    times.sort();
    (times[CALLS / 2], times[CALLS * 99 / 100])
}

#[test]
fn a_page_of_metrics_takes_milliseconds_and_no_call_waits_for_it() {
    // Programs that this one starts have its limit.
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS * 3 / 2) as u64;
    if limit.maximum.is_some_and(|most| most < wanted) {
        eprintln!(
            "left out: {CONNECTIONS} connections; a process may open {:?} files",
            limit.maximum
        );
        return;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the own limit");
    let flags = ["--rpc_max_connections_per_address=16384", "--offer_local_socket=false"];
    let master = Master::start(0, &flags);
    let client =
        MasterClient::connect(&master.address, ClientConfig::default()).expect("a connection");
    let node = ClientId::from_u128(7);
    for number in 0..SEGMENTS {
        client.mount_segment(node, &segment(number)).expect("room for a segment");
    }
    let mut crowd: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(&master.address)).collect();
    for stream in &mut crowd {
        stream.set_read_timeout(Some(DEADLINE)).expect("a time");
        stream.read_exact(&mut [0; SERVER_PREFACE_LEN]).expect("an answer");
    }
    let alone = pings(&client, node);

    let (done, pages) =
        (AtomicBool::new(false), ["/metrics", "/api/v1/segments", "/api/v1/clients"]);
    let (beside, mut least) = thread::scope(|scope| {
        let scraping = scope.spawn(|| {
            let (mut least, mut rounds) = ([Duration::MAX; 3], 0);
            while !done.load(Ordering::Relaxed) || rounds < ROUNDS {
                rounds += 1;
                for (least, page) in least.iter_mut().zip(pages) {
                    let begun = Instant::now();
                    let answer = get(&master, page);
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    *least = (*least).min(begun.elapsed());
                }
            }
            least
        });
        let beside = pings(&client, node);
        done.store(true, Ordering::Relaxed);
        (beside, scraping.join().expect("pages"))
    });
    let text = get(&master, "/metrics").ok();
    assert_eq!(figure(&text, "master_rpc_connections"), CONNECTIONS as u64 + 1);
    assert_eq!(text.matches("\nsegment_total_capacity_bytes{").count(), SEGMENTS);
    let clients = get(&master, "/api/v1/clients").json();
    assert_eq!(clients.as_array().map(Vec::len), Some(CONNECTIONS + 1));
    println!("pages {pages:?} in {least:.1?}; ping alone {alone:.1?}, beside them {beside:.1?}");
    // Of a page about each connection in JSON a collector asks nothing.
    least[2] = Duration::ZERO;
    assert!(least.iter().all(|time| *time < SCRAPE), "{least:?}");
    assert!(beside.0 < alone.0 * 10 + SCRAPE / 10, "alone {alone:?}, beside pages {beside:?}");
}
