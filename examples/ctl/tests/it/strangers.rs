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
use tokio::task::JoinSet;

use crate::support::{DEADLINE, Master, Node};

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

/// A master that publishes events, a node, and their ports.
struct Cluster {
    master: Master,
    _node: Node,
    ports: Vec<Arc<Port>>,
}

impl Cluster {
    fn start() -> Self {
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
        let port = |(name, number)| {
            let (held, most) = Default::default();
            Arc::new(Port { name, number, held, most })
        };
        Self { master, _node: node, ports: ports.map(port).into() }
    }

    /// Does something while strangers hold every port.
    async fn held<T>(&self, work: impl Future<Output = T>) -> T {
        let of_port = |port: &Arc<Port>| {
            let port = Arc::clone(port);
            (0..STRANGERS).map(move |nth| stranger(Arc::clone(&port), nth))
        };
        let mut strangers: JoinSet<()> = self.ports.iter().flat_map(of_port).collect();
        let is_held = |port: &Arc<Port>| {
            port.name != "data" || port.held.load(Ordering::Relaxed) >= STRANGERS / 4
        };
        mc_testkit::eventually(DEADLINE, "strangers hold the data port", || {
            self.ports.iter().all(is_held)
        })
        .await;
        let done = work.await;
        strangers.shutdown().await;
        for port in &self.ports {
            port.held.store(0, Ordering::Relaxed);
            let most = port.most.swap(0, Ordering::Relaxed);
            eprintln!("{} held up to {most} of {STRANGERS}", port.name);
            assert!(most > 0, "nobody reached {}", port.name);
        }
        done
    }
}

/// The rate of two clients: alone, with strangers at another cluster of the host, and beside strangers at
/// their own. Each is the median of rounds in turns.
async fn rates(rounds: usize, count: usize) -> [f64; 3] {
    let (ours, other) = (Cluster::start(), Cluster::start());
    let (writer, reader) = (client(&ours.master).await, client(&ours.master).await);
    let mut begun = 0;
    let mut work = || {
        begun += 1;
        rate(&writer, &reader, begun, count)
    };
    work().await;
    let mut found = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let rates = [work().await, other.held(work()).await, ours.held(work()).await];
        eprintln!("alone, with strangers elsewhere, beside them: {rates:.0?} values in a second");
        found.iter_mut().zip(rates).for_each(|(found, rate)| found.push(rate));
    }
    writer.shutdown().await;
    reader.shutdown().await;
    found.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rounds / 2]
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_go_on_beside_strangers_at_every_port() {
    let [alone, _, beside] = rates(3, 200).await;
    // Other tests run beside this one.
    assert!(beside / alone > 0.3, "{beside:.0} of {alone:.0} values in a second");
}

/// Beside the same strangers at another cluster, which take as much of the host's processors.
///
/// `cargo nextest run --workspace --run-ignored only --no-capture -E 'test(strangers::clients_keep)'`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures a rate, which needs a machine with nothing else to do; the command is above"]
async fn clients_keep_nine_tenths_of_their_rate_beside_strangers_at_every_port() {
    let [alone, elsewhere, beside] = rates(9, 2_000).await;
    let ratio = beside / elsewhere;
    eprintln!(
        "{ratio:.2} of the rate with strangers elsewhere, {:.2} of that alone",
        beside / alone
    );
    assert!(ratio >= 0.9, "{ratio:.2} of the rate");
}
