//! Several connections to one peer, over several network cards: used together, mended,
//! routed around when one is cut. The last needs network namespaces, hence root and the
//! tool `ip`; without them it says so.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::role::{self, say};
use mc_testkit::{Input, Program, eventually, eventually_async, eventually_blocking};
use mc_transport::{
    Access, BundleConfig, ConnectError, Link, Memory, Operation, RemoteSpan, TcpConfig,
    TcpTransport, Transport, checksum,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(30);

const MIB: usize = 1 << 20;

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
    config.advertise_hosts = vec!["127.0.0.1".to_owned()];
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
        eventually(DEADLINE, "both rails are linked", || link.links() == 2).await;
        round_trip(&*link, region.key(), 4 * MIB, 7).await;
        assert_eq!((peer.stats().links, owner.stats().connections), (2, 2));
        peer.shutdown().await;
        eventually(DEADLINE, "the owner notices", || owner.stats().connections == 0).await;
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
    eventually(DEADLINE, "four links over two rails", || link.links() == 4).await;
    round_trip(&*link, region.key(), 4 * MIB, 8).await;
    let port = owner.local_address().unwrap().port();
    drop((region, owner));
    eventually(DEADLINE, "all are lost", || !link.is_healthy()).await;
    // The same address, another node: nothing of the old one is believed.
    let mut config = TcpConfig::listening(SocketAddr::from(([127, 0, 0, 1], port)));
    config.rails = vec!["127.0.0.1".parse().unwrap()];
    let owner = TcpTransport::start(config).await.unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let link = eventually_async(DEADLINE, "there is a link", async || {
        let link = peer.connect(&at).await;
        link.inspect_err(|error| assert!(error.is_retryable(), "{error}"))
    })
    .await;
    eventually(DEADLINE, "four links over one rail", || link.links() == 4).await;
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
        eventually(DEADLINE, "the stranger is gone", || other.stats().connections == 0).await;
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
    // The rail's port is that of the endpoint unless another process has it.
    drop(owner);
    eventually(DEADLINE, "its end is noticed", || !link.is_healthy()).await;
    let listening = |ip: [u8; 4]| TcpConfig::listening(SocketAddr::from((ip, port)));
    let stranger = TcpTransport::start(listening([127, 0, 0, 2])).await.unwrap();
    let owner = TcpTransport::start(listening([127, 0, 0, 1])).await.unwrap();
    let memory = Memory::allocate(MIB).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let connect = async || peer.connect(&at).await;
    let link = eventually_async(DEADLINE, "there is a link", connect).await;
    round_trip(&*link, region.key(), MIB, 3).await;
    eventually(DEADLINE, "nobody stays with the stranger", || stranger.stats().connections == 0)
        .await;
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
    let connect = async || peer.connect(&endpoint).await;
    eventually_async(DEADLINE, "the breaker closes again", connect).await;
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

#[test]
fn plays_its_role() {
    let Some(role) = role::role() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    match role.split_once(' ') {
        None => runtime.block_on(own_a_region()),
        Some((_, words)) => runtime.block_on(move_until_told(words)),
    }
}

const REGION: usize = 32 * MIB;

async fn own_a_region() {
    let mut config = TcpConfig::listening("0.0.0.0:0".parse().unwrap());
    config.advertise_hosts = vec!["10.77.1.1".to_owned()];
    config.rails = vec!["10.77.1.1".parse().unwrap(), "10.77.2.1".parse().unwrap()];
    let owner = TcpTransport::start(config).await.unwrap();
    let memory = Memory::allocate(REGION).unwrap();
    let region = owner.register(&memory, Access::ReadWrite).unwrap();
    let key = u128::from_be_bytes(region.key().to_bytes());
    say(format_args!("{} {key:032x}", owner.endpoint().unwrap()));
    let end = end_of_input();
    until(|| end.is_finished()).await;
}

/// Ends with standard input. A plain thread: a runtime would wait for it after a panic.
fn end_of_input() -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| while role::hear().is_some() {})
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
    eventually(DEADLINE, "both cards are used", || link.links() == 2).await;
    let end = end_of_input();
    let mut moved = 0_u64;
    while !end.is_finished() {
        round_trip(&*link, key, REGION, moved).await;
        moved += 1;
        say(format_args!("moved {moved} links {}", link.links()));
        // Mends what is missing.
        drop(peer.connect(&endpoint).await);
    }
}

/// Starts a process with a role, in a network namespace.
fn play(namespace: &str, role: &str) -> Program {
    let mut launcher = Command::new("ip");
    launcher.args(["netns", "exec", namespace]);
    let command = &mut role::launched_by(launcher, "tcp_rails::plays_its_role", role);
    Program::start(DEADLINE, command, Input::Open)
}

/// The number of transfers of a mover, once `holds` for that and the number of links.
fn hear_until(mover: &mut Program, what: &str, holds: impl Fn(u64, usize) -> bool) -> u64 {
    eventually_blocking(DEADLINE, what, || {
        let words = mover.hear();
        let ["moved", moved, "links", links] = words.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{words:?}")
        };
        let (moved, links) = (moved.parse().unwrap(), links.parse().unwrap());
        if holds(moved, links) { Ok(moved) } else { Err(words) }
    })
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
    let mut owner = play(&cables.a, "own");
    let words = owner.hear();
    let mut mover = play(&cables.b, &format!("move {words}"));
    let before = hear_until(&mut mover, "both cards are used", |_, links| links == 2);
    ip(&["-n", &cables.a, "link", "set", "va1", "down"]).unwrap();
    // What was under way on the cut cable is done by the other.
    let cut = hear_until(&mut mover, "one card is left", |_, links| links == 1);
    let alone = hear_until(&mut mover, "work goes on", |moved, _| moved >= cut + 5);
    assert!(alone > before);
    ip(&["-n", &cables.a, "link", "set", "va1", "up"]).unwrap();
    hear_until(&mut mover, "the cable is used again", |_, links| links == 2);
    mover.close_input();
    assert_eq!(mover.finish().code, Some(0), "every byte was right");
}
