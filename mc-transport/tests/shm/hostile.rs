//! Peers that lie and attack, played by plain sockets that speak the protocol of
//! `docs/shm-wire.md` by hand.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};

use mc_transport::{
    Access, ConnectError, Link, Memory, MemoryError, ProtocolViolation, ShmConfig, ShmTransport,
    TransferError, Transport,
};
use mc_types::Endpoint;
use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::*;

const KEY: RemoteKey = RemoteKey::from_bytes([7; 16]);
const HELLO: &[u8; 24] = b"MCS1\x01\x00\x00\x000123456789abcdef";
const SLOTS: u32 = 100;

fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, bytes.len());
}

/// One message, and the descriptor that comes with it.
async fn receive_with(stream: &UnixStream, len: usize) -> (Vec<u8>, Option<OwnedFd>) {
    let (mut bytes, mut descriptor) = (Vec::new(), None);
    while bytes.len() < len {
        timeout(DEADLINE, stream.readable()).await.unwrap().unwrap();
        let mut part = vec![0; len - bytes.len()];
        let received = stream.try_io(tokio::io::Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut part)];
            let received = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptor = descriptors.into_iter().next();
                }
            }
            Ok(received.bytes)
        });
        match received {
            Ok(0) => panic!("the peer closed after {bytes:?}"),
            Ok(count) => bytes.extend(&part[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    (bytes, descriptor)
}

fn greeting(verdict: u16) -> Vec<u8> {
    let mut bytes = b"MCS1\x01\x00".to_vec();
    bytes.extend(verdict.to_le_bytes());
    bytes.extend([9; 16]);
    bytes.extend([0; 32]);
    bytes.extend((1_u64 << 30).to_le_bytes());
    bytes
}

fn admission(slots: u32) -> Vec<u8> {
    [[0; 4], slots.to_le_bytes()].concat()
}

fn answer(status: u8, access: u8, id: u32, len: u64, generation: u64, slot: u32) -> Vec<u8> {
    let mut bytes = vec![status, access, 0, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend(slot.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// Memory as a peer should offer it.
fn memory(len: usize) -> Memory {
    Memory::options().shared().allocate(len).unwrap()
}

/// A page that says that the transport and every region at generation one are open.
fn page() -> Memory {
    let page = memory(SLOTS as usize * 64);
    for slot in 0..SLOTS as usize {
        page.whole().copy_from(slot * 64, &1_u64.to_le_bytes()).unwrap();
    }
    page
}

/// A listener that plays an owner.
struct FakeOwner {
    listener: UnixListener,
    endpoint: Endpoint,
}

impl FakeOwner {
    fn new() -> Self {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).unwrap();
        let name = format!("mc-fake-{:032x}", u128::from_le_bytes(bits));
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = StdListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = UnixListener::from_std(listener).unwrap();
        Self { listener, endpoint: Endpoint::new("shm", &format!("@{name}")).unwrap() }
    }

    /// Takes a connection and its first word.
    async fn accept(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut hello = [0; 24];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello[..8], &HELLO[..8]);
        stream
    }

    /// Admits a peer.
    async fn admit(&self) -> UnixStream {
        let mut stream = self.accept().await;
        stream.write_all(&greeting(0)).await.unwrap();
        let mut proof = [0; 32];
        stream.read_exact(&mut proof).await.unwrap();
        let page = page().share(Access::Read).unwrap();
        send_with(&stream, &admission(SLOTS), &[page.as_fd()]);
        stream
    }

    async fn link(&self, client: &ShmTransport) -> (Arc<ShmLink>, UnixStream) {
        let (link, stream) = tokio::join!(client.connect(&self.endpoint), self.admit());
        (link.unwrap(), stream)
    }
}

/// A client played by hand, admitted.
async fn fake_client(owner: &ShmTransport) -> UnixStream {
    let name = owner.endpoint().unwrap().address().replace('@', "\0");
    let mut stream = UnixStream::connect(name).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    let (bytes, _) = receive_with(&stream, 64).await;
    assert_eq!(bytes[..8], HELLO[..8]);
    stream.write_all(&[0; 32]).await.unwrap();
    let (_, page) = receive_with(&stream, 8).await;
    assert!(page.is_some());
    stream
}

/// Waits until the peer has closed, whatever it still says.
async fn closed(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
    let _ = read.expect("the peer closes in time");
}

fn request(kind: u8, id: u32, key: RemoteKey) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &id.to_le_bytes(), &key.to_bytes()].concat()
}

fn unsealed(len: u64) -> OwnedFd {
    let file = File::from(memfd_create("mc-test", MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(len).unwrap();
    file.into()
}

fn growable(len: u64) -> OwnedFd {
    let file = unsealed(len);
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

/// Submits a read, has it answered with `bytes` and `descriptors`, and says what came
/// of it.
async fn answered(bytes: Vec<u8>, descriptors: &[OwnedFd]) -> (Outcome, bool) {
    let client = client(ShmConfig::default()).await;
    let fake = FakeOwner::new();
    let (link, mut stream) = fake.link(&client).await;
    let play = async {
        let mut request = [0; 24];
        stream.read_exact(&mut request).await.unwrap();
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        send_with(&stream, &bytes, &borrowed);
    };
    let (outcome, ()) = tokio::join!(one(&*link, read_of(KEY, 4096)), play);
    let healthy = link.is_healthy();
    if !healthy {
        closed(&mut stream).await;
        assert_eq!(client.stats().mapped_regions, 0);
    }
    (outcome, healthy)
}

#[tokio::test]
async fn only_memory_that_is_safe_to_touch_is_mapped() {
    let _alone = alone().await;
    let before = held();
    let good = || memory(4096).share(Access::ReadWrite).unwrap();
    let granted = |len| answer(0, 3, 0, len, 1, 1);
    let (outcome, healthy) = answered(granted(4096), &[good()]).await;
    assert!(outcome.is_ok() && healthy, "{outcome:?}");

    let unsafe_memory = ProtocolViolation::UnsafeMemory;
    let count = |expected, got| ProtocolViolation::WrongDescriptors { expected, got };
    let pipe = || OwnedFd::from(io::pipe().unwrap().0);
    let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
    let device = || OwnedFd::from(File::open("/dev/zero").unwrap());
    let cases: Vec<(&str, Vec<u8>, Vec<OwnedFd>, ProtocolViolation)> = vec![
        ("can shrink", granted(4096), vec![unsealed(4096)], unsafe_memory),
        ("shorter than said", granted(4097), vec![good()], unsafe_memory),
        ("shorter by far", granted(1 << 43), vec![good()], unsafe_memory),
        ("of no bytes", granted(0), vec![good()], unsafe_memory),
        ("short and can grow", granted(4096), vec![growable(4095)], unsafe_memory),
        ("a pipe", granted(4096), vec![pipe()], unsafe_memory),
        ("a socket", granted(4096), vec![socket()], unsafe_memory),
        ("a device", granted(4096), vec![device()], unsafe_memory),
        ("nothing", granted(4096), vec![], count(1, 0)),
        ("two", granted(4096), vec![good(), good()], count(1, 2)),
        ("ten", granted(4096), (0..10).map(|_| good()).collect(), count(1, 4)),
        ("unasked for", answer(1, 0, 0, 0, 0, 0), vec![good()], count(0, 1)),
        ("no region", answer(0, 0, 0, 0, 0, 0), vec![good()], ProtocolViolation::WrongGrant),
        ("slot zero", answer(0, 3, 0, 4096, 1, 0), vec![good()], ProtocolViolation::WrongGrant),
        ("no slot", answer(0, 3, 0, 4096, 1, SLOTS), vec![good()], ProtocolViolation::WrongGrant),
        ("never open", answer(0, 3, 0, 4096, 2, 1), vec![good()], ProtocolViolation::WrongGrant),
        ("busy", answer(4, 0, 0, 0, 0, 0), vec![], ProtocolViolation::WrongGrant),
        (
            "another question",
            answer(1, 0, 1, 0, 0, 0),
            vec![],
            ProtocolViolation::WrongId { expected: Some(0), got: 1 },
        ),
        (
            "no status",
            answer(6, 0, 0, 0, 0, 0),
            vec![],
            ProtocolViolation::UnknownStatus { status: 6 },
        ),
        ("no access", answer(0, 4, 0, 4096, 1, 1), vec![], ProtocolViolation::ReservedNotZero),
        ("malformed", answer(3, 0, 0, 0, 0, 0), vec![], ProtocolViolation::RequestNotUnderstood),
    ];
    for (what, bytes, descriptors, expected) in cases {
        let (outcome, healthy) = answered(bytes, &descriptors).await;
        let Err(TransferError::Protocol(violation)) = outcome else {
            panic!("{what}: {outcome:?}")
        };
        match violation {
            // Those that found no room were closed by the system.
            ProtocolViolation::WrongDescriptors { expected: 1, got: 2..=9 } if what == "ten" => {}
            other => assert_eq!(other, expected, "{what}"),
        }
        assert!(!healthy, "{what}");
    }
    // Regions larger than what may be mapped are left to a stream, if there is one.
    for len in [1 << 45, u64::MAX] {
        let vast = memory(4096).share(Access::ReadWrite).unwrap();
        let client = client(short()).await;
        let fake = FakeOwner::new();
        let (link, mut stream) = fake.link(&client).await;
        let play = async {
            let mut request = [0; 24];
            stream.read_exact(&mut request).await.unwrap();
            send_with(&stream, &granted(len), &[vast.as_fd()]);
            stream.read_exact(&mut request).await.unwrap();
            assert_eq!(request[..8], [2, 0, 0, 0, 1, 0, 0, 0], "a stream is asked for");
        };
        let (outcome, ()) = tokio::join!(one(&*link, read_of(KEY, 4096)), play);
        assert!(matches!(outcome, Err(TransferError::TimedOut { .. })), "{outcome:?}");
        assert_eq!(client.stats().mapped_regions, 0);
    }
    // Memory that allows less than was said cannot be mapped; a stream has to do, and
    // here there is none.
    let short_of_rights = memory(4096).share(Access::Read).unwrap();
    let client = client(short()).await;
    let fake = FakeOwner::new();
    let (link, mut stream) = fake.link(&client).await;
    let play = async {
        let mut request = [0; 24];
        stream.read_exact(&mut request).await.unwrap();
        send_with(&stream, &granted(4096), &[short_of_rights.as_fd()]);
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(request[..8], [2, 0, 0, 0, 1, 0, 0, 0], "a stream is asked for");
        // What comes is no socket.
        send_with(&stream, &answer(0, 0, 1, 0, 0, 0), &[short_of_rights.as_fd()]);
    };
    let (outcome, ()) = tokio::join!(one(&*link, read_of(KEY, 4096)), play);
    let expected = TransferError::Protocol(ProtocolViolation::WrongGrant);
    assert_eq!(format!("{:?}", outcome.unwrap_err()), format!("{expected:?}"));
    closed(&mut stream).await;
    drop((link, stream, fake, short_of_rights));
    client.shutdown().await;
    drop(client);
    eventually(DEADLINE, "nothing is left", || held() == before).await;
}

#[tokio::test]
async fn an_owner_that_answers_unasked_loses_its_link() {
    let _alone = alone().await;
    let client = client(ShmConfig::default()).await;
    let fake = FakeOwner::new();
    let (link, mut stream) = fake.link(&client).await;
    for _ in 0..1000 {
        stream.write_all(&answer(5, 0, 0, 0, 0, 0)).await.unwrap();
    }
    stream.write_all(&answer(1, 0, 0, 0, 0, 0)).await.unwrap();
    closed(&mut stream).await;
    assert!(!link.is_healthy());
    let Err(TransferError::Protocol(violation)) = one(&*link, read_of(KEY, 1)).await else {
        panic!("the link was given up for a reason");
    };
    assert_eq!(violation, ProtocolViolation::WrongId { expected: None, got: 0 });
}

#[tokio::test]
async fn an_owner_that_does_not_greet_is_no_peer() {
    let _alone = alone().await;
    let before = held();
    let client = client(short()).await;
    let fake = FakeOwner::new();
    let silent = client.connect(&fake.endpoint).await;
    assert!(matches!(silent, Err(ConnectError::TimedOut { .. })), "{silent:?}");
    drop(fake);

    let mut other_version = greeting(2);
    other_version[4] = 9;
    let good = memory(6400);
    /// The error, the first and the second word, what comes with the second.
    type Case = (&'static str, Vec<u8>, Option<Vec<u8>>, Vec<OwnedFd>);
    let cases: Vec<Case> = vec![
        ("NotAPeer", b"HTTP/1.1 400 Bad Request\r\n".repeat(3), None, vec![]),
        ("NotAPeer", greeting(77), None, vec![]),
        ("NotAPeer", greeting(2), None, vec![]),
        ("VersionMismatch", other_version, None, vec![]),
        ("Busy", greeting(1), None, vec![]),
        ("NotAdmitted", greeting(3), None, vec![]),
        ("NotAdmitted", greeting(4), None, vec![]),
        ("Unreachable", greeting(0)[..63].to_vec(), None, vec![]),
        ("NotAPeer", greeting(0), Some(admission(SLOTS)), vec![]),
        ("NotAPeer", greeting(0), Some(vec![0, 0, 1, 0, 0, 0, 0, 0]), vec![]),
        ("NotAdmitted", greeting(0), Some(vec![4, 0, 0, 0, 0, 0, 0, 0]), vec![]),
        ("Unreachable", greeting(0), Some(admission(SLOTS)), vec![unsealed(6400)]),
        ("Unreachable", greeting(0), Some(admission(101)), vec![good.share(Access::Read).unwrap()]),
        ("Unreachable", greeting(0), Some(admission(0)), vec![good.share(Access::Read).unwrap()]),
        (
            "Unreachable",
            greeting(0),
            Some(admission(u32::MAX)),
            vec![good.share(Access::Read).unwrap()],
        ),
    ];
    for (expected, first, second, descriptors) in cases {
        let fake = FakeOwner::new();
        let play = async {
            let mut stream = fake.accept().await;
            stream.write_all(&first).await.unwrap();
            if let Some(second) = second {
                let mut proof = [0; 32];
                stream.read_exact(&mut proof).await.unwrap();
                let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                send_with(&stream, &second, &borrowed);
            }
        };
        let (refused, ()) = tokio::join!(client.connect(&fake.endpoint), play);
        let shown = format!("{:?}", refused.unwrap_err());
        assert!(shown.starts_with(expected), "{expected}: {shown}");
    }
    drop(good);
    drop(client);
    eventually(DEADLINE, "nothing is left", || held() == before).await;
}

#[tokio::test]
async fn clients_that_break_the_protocol_are_dropped() {
    let _alone = alone().await;
    let owner = ShmTransport::start(short()).await.unwrap();
    let before = held();
    let name = owner.endpoint().unwrap().address().replace('@', "\0");
    let strange_flags = b"MCS1\x01\x00\x02\x000123456789abcdef";
    for words in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], strange_flags, b"", b"MCS1"] {
        let mut stream = UnixStream::connect(&name).await.unwrap();
        stream.write_all(words).await.unwrap();
        // Also those that say too little: they have the connect timeout.
        closed(&mut stream).await;
    }
    let mut stream = UnixStream::connect(&name).await.unwrap();
    stream.write_all(b"MCS1\x09\x00\x00\x000123456789abcdef").await.unwrap();
    let (refusal, _) = receive_with(&stream, 64).await;
    assert_eq!(refusal[4..8], [1, 0, 2, 0], "our version, and that theirs is unknown");
    closed(&mut stream).await;
    drop(stream);
    // A wrong proof, where one was offered.
    let mut stream = UnixStream::connect(&name).await.unwrap();
    stream.write_all(b"MCS1\x01\x00\x01\x000123456789abcdef").await.unwrap();
    assert_ne!(receive_with(&stream, 64).await.0[24..56], [0; 32]);
    stream.write_all(&[1; 32]).await.unwrap();
    let (refusal, page) = receive_with(&stream, 8).await;
    assert_eq!((&refusal[..], page.is_none()), (&[4, 0, 0, 0, 0, 0, 0, 0][..], true));
    closed(&mut stream).await;
    drop(stream);
    for malformed in [request(0, 5, KEY), request(3, 5, KEY), request(2, 5, KEY)] {
        let mut stream = fake_client(&owner).await;
        stream.write_all(&malformed).await.unwrap();
        let (said, _) = receive_with(&stream, 32).await;
        assert_eq!(said, answer(3, 0, 5, 0, 0, 0));
        closed(&mut stream).await;
    }
    // Half a request, and gone.
    let mut stream = fake_client(&owner).await;
    stream.write_all(&[1; 13]).await.unwrap();
    drop(stream);
    // Descriptors without a request.
    let stream = fake_client(&owner).await;
    let file = File::open("/dev/null").unwrap();
    for id in 0..50 {
        send_with(&stream, &request(1, id, KEY), &[file.as_fd(); 16]);
        assert_eq!(receive_with(&stream, 32).await.0, answer(1, 0, id, 0, 0, 0));
    }
    drop((stream, file));
    eventually(DEADLINE, "nothing is left", || owner.stats().connections == 0 && held() == before)
        .await;
}

#[tokio::test]
async fn a_client_may_ask_for_any_number_of_unknown_keys() {
    const COUNT: u32 = 100_000;
    let _alone = alone().await;
    let owner = owner().await;
    let stream = fake_client(&owner).await;
    let (mut receiving, mut sending) = stream.into_split();
    let ask = async {
        for first in (0..COUNT).step_by(1000) {
            let many: Vec<u8> = (first..first + 1000)
                .flat_map(|id| request(1, id, RemoteKey::from_bytes([id as u8; 16])))
                .collect();
            sending.write_all(&many).await.unwrap();
        }
    };
    let hear = async {
        for id in 0..COUNT {
            let mut said = [0; 32];
            receiving.read_exact(&mut said).await.unwrap();
            assert_eq!(said[..], answer(1, 0, id, 0, 0, 0));
        }
    };
    timeout(DEADLINE, async { tokio::join!(ask, hear) }).await.expect("they end in time");
}

#[tokio::test]
async fn a_client_that_takes_no_answers_is_dropped() {
    let _alone = alone().await;
    let owner = ShmTransport::start(short()).await.unwrap();
    let mut stream = fake_client(&owner).await;
    let many = request(1, 0, KEY).repeat(1000);
    let flood = async { while stream.write_all(&many).await.is_ok() {} };
    timeout(DEADLINE, flood).await.expect("the owner gives up");
    eventually(DEADLINE, "it is gone", || owner.stats().connections == 0).await;
}

#[tokio::test]
async fn a_client_has_a_few_streams_at_most() {
    let _alone = alone().await;
    let owner = owner().await;
    let mut stream = fake_client(&owner).await;
    let mut streams = Vec::new();
    for id in 0..10 {
        let ask = request(2, id, RemoteKey::from_bytes([0; 16]));
        stream.write_all(&ask).await.unwrap();
        let (said, descriptor) = receive_with(&stream, 32).await;
        assert_eq!(said[0] == 0, descriptor.is_some());
        streams.extend(descriptor);
    }
    assert_eq!((streams.len(), owner.stats().connections), (4, 5));
    streams.clear();
    eventually(DEADLINE, "they end", || owner.stats().connections == 1).await;
}

#[tokio::test]
async fn a_region_for_reading_cannot_be_written_through_its_descriptor() {
    let _alone = alone().await;
    let owner = owner().await;
    let memory = owner.allocate(4096).unwrap();
    let region = owner.register(&memory, Access::Read).unwrap();
    let mut stream = fake_client(&owner).await;
    for (access, code) in [(Access::Read, 1), (Access::Write, 2), (Access::ReadWrite, 3)] {
        let other = owner.register(&memory, access).unwrap();
        stream.write_all(&request(1, 0, other.key())).await.unwrap();
        let (said, descriptor) = receive_with(&stream, 32).await;
        assert_eq!((said[0], said[1]), (0, code));
        let mapped = Memory::map_shared(descriptor.unwrap(), 4096, Access::ReadWrite);
        match access {
            Access::Read => {
                assert!(matches!(mapped, Err(MemoryError::Refused { .. })), "{mapped:?}");
            }
            _ => mapped.unwrap().whole().copy_from(0, b"written").unwrap(),
        }
        // The region is withdrawn, which this connection is told.
        drop(other);
        assert_eq!(receive_with(&stream, 32).await.0, answer(5, 0, 0, 0, 0, 0));
    }
    assert_eq!(region.memory().slice(0, 7).unwrap().to_vec(), b"written");
}
