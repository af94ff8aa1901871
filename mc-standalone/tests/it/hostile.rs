//! A server under peers that do not keep to the protocol: each costs itself its connection,
//! or a call, and no other peer anything.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mc_standalone::Server;
use mc_store::{ByteSize, ErrorCode, ObjectStore as _, ReplicateConfig};
use mc_testkit::Random;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::support::{DEADLINE, Host, until};

/// The numbers of calls; see `docs/standalone.md`.
const REGISTER: u32 = 0;
const GET: u32 = 3;
const EXIST: u32 = 4;

/// The version of the protocol.
const VERSION: u16 = 7;

/// No part of an object, but all of it.
const WHOLE: Option<(u64, u64)> = None;

/// The generation of any put.
const ANY: Option<u64> = None;

const WELCOME: u32 = 0;
const UNKNOWN_VERSION: u32 = 1;
const WRONG_USER: u32 = 2;
const NOT_PROVEN: u32 = 3;

type Hello = ([u8; 8], u16, [u8; 16], Option<u64>);
type Welcome = (u32, u16, [u8; 16], [u8; 32], u32, u64);
/// Code, whether to try again, bytes needed, text.
type Failure = (i32, bool, Option<u64>, String);

/// A peer that says what it likes.
struct Peer {
    stream: UnixStream,
    secret: [u8; 16],
}

impl Peer {
    fn connect(server: &Server) -> Self {
        let (secret, name) = greeting(server.local_addr());
        assert_eq!(name, server.socket_name());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream, secret }
    }

    fn admitted(server: &Server) -> Self {
        let mut peer = Self::connect(server);
        assert_eq!(peer.shake_hands(*b"MCDUMMY\0", VERSION, true), WELCOME);
        peer
    }

    /// The verdict.
    fn shake_hands(&mut self, magic: [u8; 8], version: u16, honest: bool) -> u32 {
        let nonce = [3; 16];
        let hello: Hello = (magic, version, nonce, None);
        self.send(&hello);
        let (verdict, _, theirs, proof, _, _) = self.receive::<Welcome>();
        if verdict != WELCOME {
            return verdict;
        }
        assert_eq!(proof, self.proof(b"mc-real/1 server", &nonce, &theirs));
        let mut ours = self.proof(b"mc-real/1 dummy\0", &nonce, &theirs);
        ours[31] ^= u8::from(!honest);
        self.send(&ours);
        self.receive::<u32>()
    }

    fn proof(&self, label: &[u8; 16], dummy: &[u8; 16], server: &[u8; 16]) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [&label[..], &self.secret, dummy, server] {
            hash.update(part);
        }
        hash.finalize().into()
    }

    fn send(&mut self, message: &impl Serialize) {
        self.stream.write_all(&framed(message)).unwrap();
    }

    fn receive<T: DeserializeOwned>(&mut self) -> T {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(len) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        postcard::from_bytes(&frame).unwrap()
    }

    /// Returns the failure of the only open call, if it failed.
    fn failure(&mut self) -> Option<Failure> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(len) as usize];
        self.stream.read_exact(&mut frame).unwrap();
        let ((_, outcome), rest): ((u64, u32), _) = postcard::take_from_bytes(&frame).unwrap();
        (outcome == 1).then(|| postcard::from_bytes(rest).unwrap())
    }

    /// Whether the server closes the connection, whatever it says before.
    fn gets_dropped(mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    fn send_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// Registers `len` bytes of what `descriptor` is; why it fails.
    fn register(&mut self, number: u32, len: u64, descriptor: &OwnedFd) -> Option<Failure> {
        let request = framed(&(9u64, REGISTER, number, len));
        self.send_with(&request, &[descriptor.as_fd()]);
        self.failure()
    }
}

fn greeting(address: SocketAddr) -> ([u8; 16], String) {
    let mut bytes = Vec::new();
    TcpStream::connect(address).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(&bytes[..8], b"MCREALCL");
    let name = String::from_utf8(bytes[27..].to_vec()).unwrap();
    (bytes[10..26].try_into().unwrap(), name)
}

fn framed(message: &impl Serialize) -> Vec<u8> {
    let message = postcard::to_extend(message, Vec::new()).unwrap();
    [&(message.len() as u32).to_le_bytes()[..], &message].concat()
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(memory);
    file.set_len(len).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// The server works for others, and nothing is left of those before.
async fn assert_sound(host: &Host) {
    host.until_idle().await;
    let app = host.app().await;
    app.put("sound", "value".into()).await.unwrap();
    assert_eq!(app.get("sound").await.unwrap(), "value");
    app.remove("sound", true).await.unwrap();
    drop(app);
    host.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_is_not_served() {
    let host =
        Host::with(ByteSize::mib(8), |server| server.patience(Duration::from_millis(500))).await;
    let mut random = Random::seeded("MC_TEST_SEED");
    for _ in 0..50 {
        let len = random.below(2000);
        let noise: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        let mut tcp = TcpStream::connect(host.server.local_addr()).unwrap();
        let _ = tcp.write_all(&noise);
        let mut peer = Peer::connect(&host.server);
        let _ = peer.stream.write_all(&noise);
        drop(peer);
    }
    // Longer than a stranger's frame may be, longer than any, and one that never ends.
    for len in [257u32, u32::MAX] {
        let mut peer = Peer::connect(&host.server);
        peer.stream.write_all(&len.to_le_bytes()).unwrap();
        assert!(peer.gets_dropped(), "{len}");
    }
    let mut slow = Peer::connect(&host.server);
    slow.stream.write_all(&[10, 0, 0, 0, 1]).unwrap();
    assert!(slow.gets_dropped(), "the handshake may not take for ever");

    assert!({
        let mut other = Peer::connect(&host.server);
        other.send(&(*b"MCOTHER\0", 1u16, [0u8; 16], None::<u64>));
        other.gets_dropped()
    });
    let verdict = Peer::connect(&host.server).shake_hands(*b"MCDUMMY\0", VERSION + 1, true);
    assert_eq!(verdict, UNKNOWN_VERSION);
    let verdict = Peer::connect(&host.server).shake_hands(*b"MCDUMMY\0", VERSION, false);
    assert_eq!(verdict, NOT_PROVEN);
    let mut peer = Peer::admitted(&host.server);
    peer.stream.write_all(&((2 << 20) + 1u32).to_le_bytes()).unwrap();
    assert!(peer.gets_dropped(), "a frame that is too long");
    assert_sound(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_sealed_memory_is_mapped() {
    let host =
        Host::with(ByteSize::mib(8), |server| server.max_memories(3).max_shared(ByteSize::mib(20)))
            .await;
    let mut peer = Peer::admitted(&host.server);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let sealed = memfd(4096, SealFlags::SHRINK);
    let cases: [(&str, u64, OwnedFd); 7] = [
        ("a pipe", 4096, pipe.into()),
        ("a device", 4096, File::open("/dev/null").unwrap().into()),
        ("a file", 1, File::open(std::env::current_exe().unwrap()).unwrap().into()),
        ("memory that can shrink", 4096, memfd(4096, SealFlags::empty())),
        ("memory that is too short", 4097, sealed.try_clone().unwrap()),
        ("no bytes", 0, sealed.try_clone().unwrap()),
        ("impossibly much", u64::MAX, sealed.try_clone().unwrap()),
    ];
    for (what, len, descriptor) in cases {
        let (code, ..) = peer.register(1, len, &descriptor).expect(what);
        let codes = [ErrorCode::InvalidParams.code(), ErrorCode::Overloaded.code()];
        assert!(codes.contains(&code), "{what}: {code}");
        assert_eq!(host.server.report().memories, 0, "{what}");
    }
    peer.send(&(9u64, REGISTER, 1u32, 4096u64));
    assert!(peer.failure().unwrap().3.contains("descriptor"), "none came");

    for number in [1, 1, 2, 3] {
        assert_eq!(peer.register(number, 4096, &sealed), None, "{number}");
    }
    assert_eq!(host.server.report().memories, 3, "the first was replaced");
    assert!(peer.register(4, 4096, &sealed).unwrap().3.contains("3 memories"));
    let large = memfd(21 << 20, SealFlags::SHRINK);
    let (code, retryable, ..) = peer.register(3, 21 << 20, &large).unwrap();
    assert_eq!((code, retryable), (ErrorCode::Overloaded.code(), true));

    // Named wrongly: the call fails, and only the call.
    for (memory, offset, len) in
        [(7, 0, 1), (1, 0, 4097), (1, 4097, 0), (1, u64::MAX, 1), (1, 1, u64::MAX), (3, 0, 1)]
    {
        let span: (u32, u64, u64) = (memory, offset, len);
        peer.send(&(9u64, GET, vec![("k", vec![span], WHOLE, ANY)]));
        let (code, ..) = peer.failure().expect("refused");
        assert_eq!(code, ErrorCode::InvalidParams.code(), "{span:?}");
    }
    let many = vec![("k", vec![(1u32, 0u64, 1u64); 1024], WHOLE, ANY); 5];
    peer.send(&(9u64, GET, many));
    assert!(peer.failure().unwrap().3.contains("pieces"));
    peer.send(&(9u64, GET, vec![("absent", vec![(1u32, 0u64, 4096u64)], WHOLE, ANY)]));
    assert_eq!(peer.failure(), None, "it still works, and the object alone fails");
    drop(peer);
    assert_sound(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descriptors_that_nobody_asked_for_are_closed() {
    let host = Host::with(ByteSize::mib(8), |server| server).await;
    let sealed = memfd(4096, SealFlags::SHRINK);
    let exist = framed(&(1u64, EXIST, vec!["k"]));
    for count in [1, 2, 9, 30] {
        let mut peer = Peer::admitted(&host.server);
        let (reader, writer) = std::io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        peer.send_with(&exist, &vec![writer.as_fd(); count]);
        assert!(peer.gets_dropped(), "{count}");
        drop(writer);
        // The end of a pipe whose other ends are all closed.
        let mut reader = reader;
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "{count}");
    }
    let mut peer = Peer::admitted(&host.server);
    let register = framed(&(1u64, REGISTER, 1u32, 4096u64));
    peer.send_with(&register, &[sealed.as_fd(), sealed.as_fd()]);
    assert!(peer.gets_dropped(), "one too many");
    assert_sound(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_takes_no_answers_is_read_no_more() {
    const CALLS: usize = 16;
    let host = Host::with(ByteSize::mib(8), |server| {
        server.max_calls(CALLS as u32).patience(Duration::from_millis(500))
    })
    .await;
    let mut peer = Peer::admitted(&host.server);
    peer.stream.set_nonblocking(true).unwrap();
    let keys: Vec<String> = (0..1000).map(|n| format!("key-{n}")).collect();
    let request = framed(&(1u64, EXIST, keys));
    let mut sent = 0;
    until("the connection to be given up", async || {
        assert!(host.server.report().calls <= CALLS);
        // As if all at once; the socket takes some and then no more.
        while sent < 10_000 {
            match peer.stream.write(&request) {
                Ok(len) if len == request.len() => sent += 1,
                Ok(_) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
                Err(_) => return Some(()),
            }
        }
        panic!("10,000 requests were taken without an answer being read");
    })
    .await;
    drop(peer);
    assert_sound(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_slightly_wrong_do_no_harm() {
    let host = Host::with(ByteSize::mib(8), |server| server).await;
    host.real.put("k", vec![1; 4096]).await.unwrap();
    let mut random = Random::seeded("MC_TEST_SEED");
    let sealed = memfd(4096, SealFlags::SHRINK);
    let get = framed(&(
        1u64,
        GET,
        vec![("k", vec![(1u32, 0u64, 4096u64)], WHOLE, ANY), ("l", Vec::new(), Some((7, 9)), ANY)],
    ));
    let exist = framed(&(2u64, EXIST, vec!["k", "l"]));
    for _ in 0..300 {
        let mut peer = Peer::admitted(&host.server);
        assert_eq!(peer.register(1, 4096, &sealed), None);
        let mut bytes = [&get[..], &exist, &get].concat();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = random.next_u64() as u8;
        }
        bytes.truncate(random.below(bytes.len()) + 1);
        peer.stream.write_all(&bytes).unwrap();
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(peer.gets_dropped());
    }
    assert_sound(&host).await;
}

/// Connections that say nothing keep no application out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_make_room_for_applications() {
    let host = Host::with(ByteSize::mib(1), |server| server.max_clients(4)).await;
    let old = host.app().await;
    old.put("k", "value".into()).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..3 {
        for _ in 0..50 {
            crowd.push(Peer::connect(&host.server));
        }
        let new = until("a place", async || host.dummy().connect().await.ok()).await;
        assert_eq!(new.get("k").await.unwrap(), "value");
        assert_eq!(old.get("k").await.unwrap(), "value");
    }
}

/// Processes of other users are turned away before they say anything, and take no place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_is_turned_away_before_anything_is_read() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can act for another user");
        return;
    }
    let host = Host::with(ByteSize::mib(1), |server| server.max_clients(4)).await;
    let app = host.app().await;
    let verdicts: Vec<u32> = std::thread::scope(|scope| {
        let as_nobody = scope.spawn(|| {
            // Of this thread alone.
            let nobody = rustix::process::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut strangers: Vec<Peer> = (0..20).map(|_| Peer::connect(&host.server)).collect();
            let verdict = |peer: &mut Peer| peer.receive::<Welcome>().0;
            strangers.iter_mut().map(verdict).collect()
        });
        as_nobody.join().unwrap()
    });
    assert_eq!(verdicts, [WRONG_USER; 20]);
    assert_eq!(host.server.report().clients, 1);
    app.put("k", "value".into()).await.unwrap();
    drop(app);
    assert_sound(&host).await;
}

/// Reads that the node has carried out for applications.
fn answered(host: &Host) -> u64 {
    host.real
        .metrics()
        .operations
        .iter()
        .filter(|of| of.operation.is_read())
        .map(|of| of.calls())
        .sum()
}

/// A request for as many objects as one call may name, none of which is there, so that the answer
/// says so of each.
fn large_request() -> Vec<u8> {
    let wanted = |n: u64| (n.to_string(), Vec::<(u32, u64, u64)>::new(), WHOLE, ANY);
    framed(&(1u64, GET, (0..1024).map(wanted).collect::<Vec<_>>()))
}

/// Answers that the sockets of a peer hold.
const IN_SOCKETS: u64 = 16;

/// Peers that take no answers.
struct Takers {
    all: Vec<(Peer, usize)>,
    request: Vec<u8>,
    before: u64,
}

impl Takers {
    fn new(host: &Host, count: u64) -> Self {
        let all: Vec<_> = (0..count).map(|_| (Peer::admitted(&host.server), 0)).collect();
        for (peer, _) in &all {
            peer.stream.set_nonblocking(true).unwrap();
        }
        Self { all, request: large_request(), before: answered(host) }
    }

    /// Asks until nothing more is taken or answered; returns the answers.
    async fn fill(&mut self, host: &Host, most: u64) -> u64 {
        let (mut kept, mut same) = (0, 0);
        until("the node to take no more", async || {
            for (peer, sent) in &mut self.all {
                while let Ok(len) = peer.stream.write(&self.request[*sent..]) {
                    *sent = (*sent + len) % self.request.len();
                }
            }
            let now = answered(host) - self.before;
            assert!(now <= most, "{now} answers for {} peers", self.all.len());
            same = if now == kept && now > 0 { same + 1 } else { 0 };
            kept = now;
            (same == 100).then_some(())
        })
        .await;
        kept
    }
}

/// The memory for answers that applications do not take is bounded for each of them and for all of
/// a user: they are not read any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_takes_are_bounded() {
    /// `docs/standalone.md` has the limits.
    const OF_ONE: u64 = 4 << 20;
    const OF_USER: u64 = 48 << 20;
    // No peer is disconnected meanwhile, which would make room for the answers of others.
    let patient = Duration::from_secs(600);
    let host = Host::with(ByteSize::mib(1), |server| server.patience(patient)).await;
    let mut honest = Peer::admitted(&host.server);
    honest.stream.write_all(&large_request()).unwrap();
    let mut head = [0; 4];
    honest.stream.read_exact(&mut head).unwrap();
    let answer = u64::from(u32::from_le_bytes(head));
    drop(honest);
    host.until_idle().await;
    for (peers, of_all) in [(1, OF_ONE), (24, OF_USER)] {
        let bound = of_all / answer;
        let mut takers = Takers::new(&host, peers);
        let kept = takers.fill(&host, bound + peers * IN_SOCKETS).await;
        println!("{peers} peers that take nothing: {kept} answers, at most {bound} of them kept");
        // Otherwise something else was in the way, and the test shows nothing.
        assert!(kept >= bound / 2, "{kept} of {bound}");
        drop(takers);
        host.until_idle().await;
    }
    assert_sound(&host).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_are_answered_while_others_of_their_user_take_no_answers() {
    // The others are not disconnected meanwhile.
    let patient = Duration::from_secs(600);
    let host = Host::with(ByteSize::mib(8), |server| server.patience(patient)).await;
    let mut takers = Takers::new(&host, 8);
    takers.fill(&host, u64::MAX).await;
    let app = host.app().await;
    let block = app.allocate(4096).unwrap();
    block.whole().copy_from(0, b"value").unwrap();
    let calls = async {
        app.put_from("key", &block.whole(), &ReplicateConfig::default()).await.unwrap();
        assert_eq!(app.get_into("key", &block.whole()).await.unwrap(), 4096);
        let keys: Vec<String> = (0..1024).map(|n| format!("key-{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        assert_eq!(app.batch_exist(&keys).await.unwrap(), [false; 1024]);
        assert_eq!(app.batch_stat(&keys).await.unwrap().len(), 1024);
    };
    tokio::time::timeout(DEADLINE, calls).await.expect("it does not wait for the others");
    assert_eq!(host.server.report().clients, 9);
    drop((app, takers));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_its_answers_byte_by_byte_is_given_up() {
    let host =
        Host::with(ByteSize::mib(8), |server| server.patience(Duration::from_millis(500))).await;
    let mut peer = Peer::admitted(&host.server);
    peer.stream.set_nonblocking(true).unwrap();
    let request = large_request();
    let mut sent = 0;
    until("the connection to be given up", async || {
        while let Ok(len) = peer.stream.write(&request[sent..]) {
            sent = (sent + len) % request.len();
        }
        let _ = peer.stream.read(&mut [0; 1]);
        (host.server.report().clients == 0).then_some(())
    })
    .await;
    assert_sound(&host).await;
}
