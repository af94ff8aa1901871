//! Several connections to one peer, over several network cards: used together, mended,
//! routed around when one is cut. The last needs network namespaces, hence root and the
//! tool `ip`; without them it says so.

#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_transport::{
    Access, BundleConfig, ConnectError, Link, Memory, Operation, RemoteSpan, TcpConfig,
    TcpTransport, Transport, checksum,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(30);

const MIB: usize = 1 << 20;

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |at: u64| (at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
    (0..len.div_ceil(8) as u64).flat_map(|at| word(at).to_le_bytes()).take(len).collect()
}

fn small_stripes() -> BundleConfig {
    let mut bundle = BundleConfig::default();
    bundle.stripe = 64 << 10;
    bundle
}

/// A node on two addresses of this host.
async fn two_rails() -> TcpTransport {
    let mut config = TcpConfig::listening("0.0.0.0:0".parse().unwrap());
    config.advertise_host = Some("127.0.0.1".to_owned());
    config.rails = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
    TcpTransport::start(config).await.unwrap()
}

/// Writes and reads `len` bytes, and compares them.
async fn round_trip(link: &impl Link, key: RemoteKey, len: usize, seed: u64) {
    let bytes = pattern(len, seed);
    let span = RemoteSpan::new(key, Extent::new(0, len as u64).unwrap());
    let write = Operation::write(Bytes::from(bytes.clone()), span).checksummed();
    let written = link.submit(vec![write]).await.remove(0).unwrap();
    assert_eq!(written.checksum, Some(checksum(&bytes)));
    let back = Memory::allocate(len).unwrap();
    let read = Operation::read(span, back.whole()).checksummed();
    let read = link.submit(vec![read]).await.remove(0).unwrap();
    assert_eq!(read.checksum, Some(checksum(&bytes)));
    assert!(back.whole().to_vec() == bytes);
}

#[tokio::test]
async fn every_rail_is_used() {
    let owner = two_rails().await;
    let memory = Memory::allocate(4 * MIB).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    // Without rails of its own, and leaving from two of its own.
    for own in [&[][..], &["127.0.0.3", "127.0.0.4"]] {
        let mut config = TcpConfig::default();
        config.rails = own.iter().map(|rail| rail.parse().unwrap()).collect();
        config.bundle = small_stripes();
        let peer = TcpTransport::start(config).await.unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        eventually("both rails are linked", || link.links() == 2).await;
        round_trip(&*link, region.key(), 4 * MIB, 7).await;
        assert_eq!((peer.stats().links, owner.stats().connections), (2, 2));
        peer.shutdown().await;
        eventually("the owner notices", || owner.stats().connections == 0).await;
    }
    owner.shutdown().await;
    assert_eq!(owner.stats().tasks, 0);
}

#[tokio::test]
async fn links_that_are_lost_come_back() {
    let owner = two_rails().await;
    let memory = Memory::allocate(4 * MIB).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let mut config = TcpConfig::default();
    config.links_per_peer = 4.try_into().unwrap();
    config.bundle = small_stripes();
    let peer = TcpTransport::start(config).await.unwrap();
    let at = owner.endpoint().unwrap().clone();
    let link = peer.connect(&at).await.unwrap();
    eventually("four links over two rails", || link.links() == 4).await;
    round_trip(&*link, region.key(), 4 * MIB, 8).await;
    let port = owner.local_address().unwrap().port();
    drop((region, owner));
    eventually("all are lost", || !link.is_healthy()).await;
    // The same address, another node: nothing of the old one is believed.
    let mut config = TcpConfig::listening(SocketAddr::from(([127, 0, 0, 1], port)));
    config.rails = vec!["127.0.0.1".parse().unwrap()];
    let owner = TcpTransport::start(config).await.unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let link = loop {
        match peer.connect(&at).await {
            Ok(link) => break link,
            Err(error) => assert!(error.is_retryable() && Instant::now() < deadline, "{error}"),
        }
    };
    eventually("four links over one rail", || link.links() == 4).await;
    round_trip(&*link, region.key(), 4 * MIB, 9).await;
}

#[tokio::test]
async fn a_rail_that_leads_to_another_node_is_left_alone() {
    let other = TcpTransport::start(TcpConfig::listening("127.0.0.1:0".parse().unwrap())).await;
    let other = other.unwrap();
    let elsewhere = other.local_address().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = Endpoint::new("tcp", &address.to_string()).unwrap();
    let mut config = TcpConfig::default();
    config.links_per_peer = 2.try_into().unwrap();
    let peer = TcpTransport::start(config).await.unwrap();
    // Claims that the other node's address is one of its own.
    let served = async {
        let text = format!("node {:032x}\nrail {address}\nrail {elsewhere}\n", 7);
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        stream.write_all(&preface).await.unwrap();
        let len = u32::try_from(text.len()).unwrap();
        stream.write_all(&[&len.to_le_bytes()[..], text.as_bytes()].concat()).await.unwrap();
        stream
    };
    let (link, _stream) = tokio::join!(peer.connect(&endpoint), served);
    let link = link.unwrap();
    // Each call tries again what is missing, until the breaker of that way opens.
    for _ in 0..50 {
        peer.connect(&endpoint).await.unwrap();
        eventually("the stranger is gone", || other.stats().connections == 0).await;
    }
    assert!(link.links() == 1 && link.is_healthy());
}

#[tokio::test]
async fn a_rail_that_became_somebody_else_s_is_not_the_peer() {
    let mut config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    config.rails = vec!["127.0.0.2".parse().unwrap()];
    let owner = TcpTransport::start(config).await.unwrap();
    let at = owner.endpoint().unwrap().clone();
    let port = owner.local_address().unwrap().port();
    let peer = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = peer.connect(&at).await.unwrap();
    // The rail's port is that of the endpoint unless somebody else has it.
    drop(owner);
    eventually("its end is noticed", || !link.is_healthy()).await;
    let listening = |ip: [u8; 4]| TcpConfig::listening(SocketAddr::from((ip, port)));
    let stranger = TcpTransport::start(listening([127, 0, 0, 2])).await.unwrap();
    let owner = TcpTransport::start(listening([127, 0, 0, 1])).await.unwrap();
    let memory = Memory::allocate(MIB).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let link = loop {
        match peer.connect(&at).await {
            Ok(link) => break link,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    round_trip(&*link, region.key(), MIB, 3).await;
    eventually("nobody stays with the stranger", || stranger.stats().connections == 0).await;
}

#[tokio::test]
async fn a_peer_that_is_gone_is_left_alone_for_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let endpoint = Endpoint::new("tcp", &address.to_string()).unwrap();
    let peer = TcpTransport::start(TcpConfig::default()).await.unwrap();
    for _ in 0..3 {
        let error = peer.connect(&endpoint).await.err().unwrap();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    }
    let error = peer.connect(&endpoint).await.err().unwrap();
    let ConnectError::CircuitOpen { retry_in, .. } = error else { panic!("{error:?}") };
    assert!(error.is_retryable() && retry_in <= Duration::from_millis(250));
    let owner = TcpTransport::start(TcpConfig::listening(address)).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    while peer.connect(&endpoint).await.is_err() {
        assert!(Instant::now() < deadline, "the breaker closes again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(owner.stats().connections, 1);
}

#[tokio::test]
async fn a_peer_that_is_said_to_be_back_is_tried_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let endpoint = Endpoint::new("tcp", &address.to_string()).unwrap();
    let mut config = TcpConfig::default();
    config.breaker.first_pause = Duration::from_secs(3600);
    config.breaker.longest_pause = Duration::from_secs(3600);
    let peer = TcpTransport::start(config).await.unwrap();
    for _ in 0..3 {
        peer.connect(&endpoint).await.err().unwrap();
    }
    let _owner = TcpTransport::start(TcpConfig::listening(address)).await.unwrap();
    let error = peer.connect(&endpoint).await.err().unwrap();
    assert!(matches!(error, ConnectError::CircuitOpen { .. }), "{error:?}");
    peer.forgive(&endpoint);
    peer.connect(&endpoint).await.unwrap();
}

/// The part that a process of these tests plays, when it was started for one.
const ROLE: &str = "MC_TEST_ROLE";

#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match role.split_once(' ') {
        None => runtime.block_on(own_a_region()),
        Some((_, words)) => runtime.block_on(move_until_told(words)),
    }
}

const REGION: usize = 32 * MIB;

fn say(line: &str) {
    // Lines of the test harness may stand before it in the same line.
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

async fn own_a_region() {
    let mut config = TcpConfig::listening("0.0.0.0:0".parse().unwrap());
    config.advertise_host = Some("10.77.1.1".to_owned());
    config.rails = vec!["10.77.1.1".parse().unwrap(), "10.77.2.1".parse().unwrap()];
    let owner = TcpTransport::start(config).await.unwrap();
    let memory = Memory::allocate(REGION).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let key = u128::from_be_bytes(region.key().to_bytes());
    say(&format!("{} {key:032x}", owner.endpoint().unwrap()));
    let end = end_of_input();
    until(|| end.is_finished()).await;
}

/// Ends with standard input. A plain thread: a runtime would wait for it after a panic.
fn end_of_input() -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    })
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Moves blocks there and back, and says so, until standard input ends.
async fn move_until_told(words: &str) {
    let (endpoint, key) = words.split_once(' ').unwrap();
    let endpoint: Endpoint = endpoint.parse().unwrap();
    let key = RemoteKey::from_bytes(u128::from_str_radix(key, 16).unwrap().to_be_bytes());
    let mut config = TcpConfig::default();
    config.rails = vec!["10.77.1.2".parse().unwrap(), "10.77.2.2".parse().unwrap()];
    config.reroute_after = Duration::from_millis(500);
    let peer = TcpTransport::start(config).await.unwrap();
    let link = peer.connect(&endpoint).await.unwrap();
    eventually("both cards are used", || link.links() == 2).await;
    let end = end_of_input();
    let mut moved = 0_u64;
    while !end.is_finished() {
        round_trip(&*link, key, REGION, moved).await;
        moved += 1;
        say(&format!("moved {moved} links {}", link.links()));
        // Mends what is missing.
        drop(peer.connect(&endpoint).await);
    }
}

/// A process with a role, in a network namespace.
struct Player {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Player {
    fn start(namespace: &str, role: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        command.args(["plays_its_role", "--exact", "--nocapture"]).env(ROLE, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (heard, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(words) = line.strip_prefix("> ") {
                    let _ = heard.send(words.to_owned());
                }
            }
        });
        Self { child, stdin, lines: said }
    }

    fn hear(&mut self) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            panic!("it says nothing more: {:?}", self.child.try_wait());
        })
    }

    /// The number of transfers, once `holds` for that and the number of links.
    fn hear_until(&mut self, what: &str, holds: impl Fn(u64, usize) -> bool) -> u64 {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let words = self.hear();
            let words: Vec<&str> = words.split(' ').collect();
            let ["moved", moved, "links", links] = words[..] else { panic!("{words:?}") };
            let (moved, links) = (moved.parse().unwrap(), links.parse().unwrap());
            if holds(moved, links) {
                return moved;
            }
            assert!(Instant::now() < deadline, "not in time: {what}: {words:?}");
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two namespaces with two cables between them, gone when dropped.
struct Cables {
    a: String,
    b: String,
}

impl Cables {
    fn lay() -> Result<Self, String> {
        let id = std::process::id();
        let cables = Self { a: format!("mc-rails-{id}-a"), b: format!("mc-rails-{id}-b") };
        ip(&["netns", "add", &cables.a])?;
        ip(&["netns", "add", &cables.b])?;
        for n in ["1", "2"] {
            let (near, far) = (format!("va{n}"), format!("vb{n}"));
            let (a, b) = (&*cables.a, &*cables.b);
            ip(&["-n", a, "link", "add", &near, "type", "veth", "peer", "name", &far, "netns", b])?;
            for (space, card, host) in [(a, &near, "1"), (b, &far, "2")] {
                let address = format!("10.77.{n}.{host}/24");
                ip(&["-n", space, "address", "add", &address, "dev", card])?;
                ip(&["-n", space, "link", "set", card, "up"])?;
            }
        }
        Ok(cables)
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for space in [&self.a, &self.b] {
            let _ = ip(&["netns", "delete", space]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_cut_cable_is_routed_around() {
    let cables = match Cables::lay() {
        Ok(cables) => cables,
        Err(reason) => {
            // SAFETY: asks the system who we are.
            let is_root = unsafe { libc::geteuid() } == 0;
            let has_tool = Command::new("ip").arg("-V").output().is_ok();
            let forbidden = reason.contains("ermi") || reason.contains("ead-only");
            assert!(!is_root || !has_tool || forbidden, "{reason}");
            eprintln!("not run: network namespaces cannot be made here: {reason}");
            return;
        }
    };
    let mut owner = Player::start(&cables.a, "own");
    let words = owner.hear();
    let mut mover = Player::start(&cables.b, &format!("move {words}"));
    let before = mover.hear_until("both cards are used", |_, links| links == 2);
    ip(&["-n", &cables.a, "link", "set", "va1", "down"]).unwrap();
    // What was under way on the cut cable is done by the other.
    let cut = mover.hear_until("one card is left", |_, links| links == 1);
    let alone = mover.hear_until("work goes on", |moved, _| moved >= cut + 5);
    assert!(alone > before);
    ip(&["-n", &cables.a, "link", "set", "va1", "up"]).unwrap();
    mover.hear_until("the cable is used again", |_, links| links == 2);
    drop(mover.stdin.take());
    let deadline = Instant::now() + DEADLINE;
    let ended = loop {
        if let Some(status) = mover.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(ended.success(), "every byte was right");
}
