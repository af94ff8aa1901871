//! Every port of a cluster in the hands of strangers, beside clients that go on.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mc_store::{Client, ClientBuilder, NodeConfig};
use mc_testkit::free_port;
use mc_transport::TcpConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Master, Node};

/// Connections to each port.
const STRANGERS: usize = 100;

/// How strangers begin: with nothing, half a request, a length that is none, half a preface.
const OPENINGS: [&[u8]; 4] =
    [b"", b"GET / HTTP/1.1\r\n", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"MC"];

const VALUE: usize = 64 << 10;

struct Port {
    name: &'static str,
    number: u16,
    held: AtomicUsize,
    most: AtomicUsize,
}

/// Where strangers come from: an address of their own, whose ports no other test listens at.
const ABROAD: Ipv4Addr = Ipv4Addr::new(127, 0, 77, 1);

/// Connects from another address than the clients', holds what it gets and comes back.
async fn stranger(port: Arc<Port>, nth: usize) {
    let opening = OPENINGS[nth % OPENINGS.len()];
    loop {
        if let Ok(mut stream) = connect(port.number).await {
            let held = 1 + port.held.fetch_add(1, Ordering::Relaxed);
            port.most.fetch_max(held, Ordering::Relaxed);
            let _ = stream.write_all(opening).await;
            let mut answer = [0; 4096];
            let ended =
                async { while stream.read(&mut answer).await.is_ok_and(|read| read > 0) {} };
            let _ = tokio::time::timeout(Duration::from_secs(5), ended).await;
            port.held.fetch_sub(1, Ordering::Relaxed);
        }
        // The load, not a wait: strangers that are dropped come back a few times in a second.
        tokio::time::sleep(Duration::from_millis(200 + nth as u64)).await;
    }
}

async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((ABROAD, 0).into())?;
    socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
}

async fn client(master: &Master) -> Client {
    let mut node = NodeConfig::new(TcpConfig::default());
    node.disable_shared_memory();
    let builder: ClientBuilder = Client::builder().master(&master.address).node(node);
    builder.connect().await.expect("the master answers")
}

/// Values put by one client and read by another in a second, each of which is right.
async fn rate(writer: &Client, reader: &Client, round: usize, count: usize) -> f64 {
    let begun = Instant::now();
    let (told, mut keys) = tokio::sync::mpsc::channel(8);
    let writes = async {
        for nth in 0..count {
            let (key, value) = (format!("{round}-{nth}"), vec![nth as u8; VALUE]);
            writer.put(&key, value).await.expect("puts go on");
            told.send((key, nth as u8)).await.expect("the reader goes on");
        }
        drop(told);
    };
    let reads = async {
        while let Some((key, byte)) = keys.recv().await {
            let value = reader.get(&key).await.expect("gets go on");
            assert_eq!(value.len(), VALUE);
            assert!(value.iter().all(|found| *found == byte), "{key}");
            // What was read is leased, so that what was not would be evicted.
            reader.remove(&key, true).await.expect("removals go on");
        }
    };
    tokio::join!(writes, reads);
    2.0 * count as f64 / begun.elapsed().as_secs_f64()
}

/// Returns the rate beside strangers at every port, by the rate without them: the median of rounds
/// in turns.
async fn ratio(rounds: usize, count: usize) -> f64 {
    let (events, replay) = (free_port(), free_port());
    let master = Master::start(
        0,
        &[
            "--enable_kv_event_publish=true",
            &format!("--kv_event_publisher_endpoint=tcp://127.0.0.1:{events}"),
            &format!("--kv_event_publisher_replay_endpoint=tcp://127.0.0.1:{replay}"),
        ],
    );
    let node = Node::start(&master.address, "node", 0, "256MB");
    let number = |address: &str| address.parse::<SocketAddr>().expect("host:port").port();
    let ports = [
        ("calls", master.port()),
        ("metrics", number(master.metrics.trim_start_matches("http://"))),
        ("events", events),
        ("replay", replay),
        ("data", node.port()),
        ("agent", number(&node.dummies)),
    ];
    let ports = ports.map(|(name, number)| {
        let (held, most) = Default::default();
        Arc::new(Port { name, number, held, most })
    });
    let (writer, reader) = (client(&master).await, client(&master).await);
    rate(&writer, &reader, 0, count).await;
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let alone = rate(&writer, &reader, 2 * round + 1, count).await;
        let strangers: Vec<_> = ports
            .iter()
            .flat_map(|port| {
                (0..STRANGERS).map(|nth| tokio::spawn(stranger(Arc::clone(port), nth)))
            })
            .collect();
        mc_testkit::eventually(crate::support::DEADLINE, "strangers hold the data port", || {
            ports[4].most.load(Ordering::Relaxed) >= STRANGERS / 4
        })
        .await;
        let beside = rate(&writer, &reader, 2 * round + 2, count).await;
        eprintln!("{alone:.0} values in a second alone, {beside:.0} beside strangers");
        ratios.push(beside / alone);
        for stranger in &strangers {
            stranger.abort();
        }
        for stranger in strangers {
            let _ = stranger.await;
        }
        for port in &ports {
            let most = port.most.swap(0, Ordering::Relaxed);
            port.held.store(0, Ordering::Relaxed);
            eprintln!("{} held up to {most} of {STRANGERS}", port.name);
            assert!(most > 0, "nobody reached {}", port.name);
        }
    }
    writer.shutdown().await;
    reader.shutdown().await;
    ratios.sort_by(f64::total_cmp);
    ratios[rounds / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_go_on_beside_strangers_at_every_port() {
    let ratio = ratio(3, 200).await;
    // Other tests run beside this one.
    assert!(ratio > 0.3, "{ratio:.2} of the rate");
}

/// `cargo nextest run --workspace --run-ignored only -E 'test(strangers::clients_keep)'`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures a rate, which needs a machine with nothing else to do"]
async fn clients_keep_nine_tenths_of_their_rate_beside_strangers_at_every_port() {
    let ratio = ratio(9, 2_000).await;
    assert!(ratio >= 0.9, "{ratio:.2} of the rate");
}
