//! Peers that die, stall, lie and attack, played by plain sockets that speak the
//! protocol of `docs/tcp-wire.md` by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_ticket::{ClockEpoch, Rights, TicketKey};
use mc_transport::tcp::StartError;
use mc_transport::{
    Access, BootTime, Bundle, Cancel, ConnectError, Link, ListenError, MasterClock, Memory,
    Operation, Outcome, ProtocolViolation, RegisterError, TcpConfig, TcpTransport, Tickets,
    TransferError, Transport,
};
use mc_types::{ByteSize, Endpoint, Extent, RemoteKey, Time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::tcp_wire::{DEADLINE, DESCRIPTION, KEY, WELCOME, request, response, span};

/// Timeouts of the nodes under test, where a test waits for one.
const SHORT: Duration = Duration::from_millis(200);

fn short() -> TcpConfig {
    let mut config = TcpConfig::default();
    config.stall_timeout = SHORT;
    config.connect_timeout = SHORT;
    // Failures are what is looked at here.
    config.breaker.failures = 0;
    config
}

fn listening(mut config: TcpConfig) -> TcpConfig {
    config.listen = Some("127.0.0.1:0".parse().unwrap());
    config
}

fn read_of(len: usize) -> Operation {
    Operation::read(span(KEY, 0, len as u64), Memory::allocate(len).unwrap().whole())
}

fn write_of(len: usize) -> Operation {
    Operation::write(Bytes::from(vec![1; len]), span(KEY, 0, len as u64))
}

/// A listener that plays a server.
struct FakeServer {
    listener: TcpListener,
    endpoint: Endpoint,
}

impl FakeServer {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Self { listener, endpoint: Endpoint::new("tcp", &address).unwrap() }
    }

    /// Takes a connection and greets it.
    async fn greet(&self) -> TcpStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(&preface, WELCOME);
        stream.write_all(WELCOME).await.unwrap();
        stream.write_all(DESCRIPTION).await.unwrap();
        stream
    }

    /// A link of `client` to this server, and the server's end of it.
    async fn link(&self, client: &TcpTransport) -> (Arc<Bundle>, TcpStream) {
        let (link, stream) = tokio::join!(client.connect(&self.endpoint), self.greet());
        (link.unwrap(), stream)
    }
}

/// A client played by hand, its handshake done.
async fn fake_client(address: SocketAddr) -> TcpStream {
    named_client(address).await.0
}

/// The same, and what the server calls its connection.
async fn named_client(address: SocketAddr) -> (TcpStream, RemoteKey) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(WELCOME).await.unwrap();
    let mut preface = [0; 16];
    stream.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface[..8], WELCOME[..8]);
    let mut description = vec![0; stream.read_u32_le().await.unwrap() as usize];
    stream.read_exact(&mut description).await.unwrap();
    let description = String::from_utf8(description).unwrap();
    let id = description.lines().find_map(|line| line.strip_prefix("connection ")).unwrap();
    let id = u128::from_str_radix(id, 16).unwrap().to_be_bytes();
    (stream, RemoteKey::from_bytes(id))
}

/// The bytes that a peer still sends before it closes; resets count as closing.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the peer closes in time");
    bytes
}

/// Answers a submitted batch by hand, and returns its results.
async fn answered(
    link: &Arc<Bundle>,
    batch: Vec<Operation>,
    answer: impl Future<Output = ()>,
) -> Vec<Outcome> {
    let (results, ()) = tokio::join!(timeout(DEADLINE, link.submit(batch)), answer);
    results.expect("the batch ends in time")
}

#[tokio::test]
async fn a_server_that_dies_mid_read_fails_all_that_is_under_way() {
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    let memory = Memory::allocate(1 << 20).unwrap();
    let cut_short = Operation::read(span(KEY, 0, 1 << 20), memory.whole());
    let batch = vec![read_of(4096), cut_short, read_of(10), write_of(100_000)];
    let results = answered(&link, batch, async move {
        let mut requests = [0; 120];
        stream.read_exact(&mut requests).await.unwrap();
        stream.write_all(&response(0, 0, 4096)).await.unwrap();
        stream.write_all(&[5; 4096]).await.unwrap();
        stream.write_all(&response(0, 1, 1 << 20)).await.unwrap();
        stream.write_all(&[5; 300_000]).await.unwrap();
    });
    let results = results.await;
    assert!(results[0].is_ok());
    for result in &results[1..] {
        assert!(matches!(result, Err(TransferError::LinkLost { .. })), "{result:?}");
        assert!(result.as_ref().unwrap_err().is_retryable());
    }
    assert!(!link.is_healthy());
    let late = link.submit(vec![read_of(1)]).await;
    assert!(matches!(late[0], Err(TransferError::LinkLost { .. })));
    assert!(memory.try_into_bytes(0).is_ok(), "nothing holds the memory any more");
    // The pool has dropped the link: the next call connects anew.
    let (again, _stream) = server.link(&client).await;
    assert!(again.is_healthy() && !link.is_healthy());
}

#[tokio::test]
async fn a_server_that_dies_mid_write_fails_it() {
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    let results = answered(&link, vec![write_of(64 << 20), read_of(1)], async move {
        let mut part = vec![0; 1_000_000];
        stream.read_exact(&mut part).await.unwrap();
    });
    for result in results.await {
        assert!(matches!(result, Err(TransferError::LinkLost { .. })), "{result:?}");
    }
    eventually(DEADLINE, "the link's tasks end", || client.stats().tasks == 0).await;
}

#[tokio::test]
async fn wrong_answers_end_the_link() {
    let violations: [(Vec<u8>, Option<ProtocolViolation>); 8] = [
        (response(0, 0, 4096)[..8].to_vec(), None),
        (response(0, 0, 4095), Some(ProtocolViolation::WrongLength { expected: 4096, got: 4095 })),
        (
            response(0, 0, u64::MAX),
            Some(ProtocolViolation::WrongLength { expected: 4096, got: u64::MAX }),
        ),
        (response(1, 0, 4096), Some(ProtocolViolation::WrongLength { expected: 0, got: 4096 })),
        (response(0, 1, 4096), Some(ProtocolViolation::WrongId { expected: Some(0), got: 1 })),
        (response(9, 0, 4096), Some(ProtocolViolation::UnknownStatus { status: 9 })),
        (
            vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Some(ProtocolViolation::ReservedNotZero),
        ),
        (response(5, 0, 0), Some(ProtocolViolation::RequestNotUnderstood)),
    ];
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    for (answer, violation) in violations {
        let (link, mut stream) = server.link(&client).await;
        let results = answered(&link, vec![read_of(4096)], async move {
            stream.write_all(&answer).await.unwrap();
        });
        let error = results.await.remove(0).unwrap_err();
        match violation {
            Some(expected) => {
                let said = matches!(error, TransferError::Protocol(got) if got == expected);
                assert!(said, "{error:?} instead of {expected:?}");
            }
            None => assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}"),
        }
        assert!(!link.is_healthy());
    }
}

#[tokio::test]
async fn an_answer_to_nothing_ends_the_link() {
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    stream.write_all(&response(0, 0, 0)).await.unwrap();
    eventually(DEADLINE, "the link is given up", || !link.is_healthy()).await;
    let error = link.submit(vec![read_of(1)]).await.remove(0).unwrap_err();
    let unasked = ProtocolViolation::WrongId { expected: None, got: 0 };
    assert!(matches!(error, TransferError::Protocol(got) if got == unasked), "{error:?}");
}

#[tokio::test]
async fn refusals_travel_with_their_details() {
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    let batch = vec![read_of(4), write_of(4), read_of(4), write_of(0)];
    let results = answered(&link, batch, async {
        for (id, status) in [1, 2, 3, 0].into_iter().enumerate() {
            stream.write_all(&response(status, id as u32, 0)).await.unwrap();
        }
    });
    let results = results.await;
    assert!(matches!(results[0], Err(TransferError::KeyRefused)));
    assert!(matches!(results[1], Err(TransferError::AccessDenied { wanted: Access::Write })));
    assert!(matches!(results[2], Err(TransferError::OutOfBounds { offset: 0, len: 4 })));
    assert!(results[3].is_ok() && link.is_healthy());
}

#[tokio::test]
async fn what_greets_wrongly_is_no_peer() {
    let client = TcpTransport::start(short()).await.unwrap();
    let server = FakeServer::new().await;
    let greet = async |greeting: &[u8]| {
        let (mut stream, _) = server.listener.accept().await.unwrap();
        stream.write_all(greeting).await.unwrap();
        // Kept open, so that it is the greeting that decides.
        stream
    };
    type Expected = fn(&ConnectError) -> bool;
    let with_description =
        |len: u32, description: &[u8]| [WELCOME, &len.to_le_bytes()[..], description].concat();
    let cases: [(&[u8], Expected); 8] = [
        (b"HTTP/1.1 400 Bad Request\r\n", |error| matches!(error, ConnectError::NotAPeer { .. })),
        (b"MCT1\x04\x00\x02\x00\0\0\0\0\0\0\0\0", |error| {
            matches!(error, ConnectError::VersionMismatch { ours: 3, theirs: 4, .. })
        }),
        (b"MCT1\x03\x00\x01\x00\0\0\0\0\0\0\0\0", |error| {
            matches!(error, ConnectError::Busy { .. }) && error.is_retryable()
        }),
        (b"MCT1\x03", |error| matches!(error, ConnectError::TimedOut { after: SHORT, .. })),
        (&with_description(4097, &[b'x'; 4097]), |error| {
            matches!(error, ConnectError::NotAPeer { .. })
        }),
        (&with_description(5, b"node\n"), |error| matches!(error, ConnectError::NotAPeer { .. })),
        (&with_description(5, b"nod"), |error| matches!(error, ConnectError::TimedOut { .. })),
        (b"", |error| matches!(error, ConnectError::TimedOut { .. }) && error.is_retryable()),
    ];
    for (greeting, expected) in cases {
        let (outcome, _stream) = tokio::join!(client.connect(&server.endpoint), greet(greeting));
        let error = outcome.err().unwrap();
        assert!(expected(&error), "{greeting:?}: {error:?}");
    }
    let endpoint = server.endpoint.clone();
    drop(server);
    let error = client.connect(&endpoint).await.err().unwrap();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    for bad in ["tcp://localhost", "tcp://:7", "tcp://[::1]", "tcp://host:port"] {
        let error = client.connect(&bad.parse().unwrap()).await.err().unwrap();
        assert!(matches!(error, ConnectError::BadAddress { .. }), "{bad}: {error:?}");
    }
    assert_eq!((client.stats().links, client.stats().tasks), (0, 0));
}

#[tokio::test]
async fn a_silent_peer_times_out() {
    let client = TcpTransport::start(short()).await.unwrap();
    let server = FakeServer::new().await;
    // Idle for longer than the timeout: no answer is due.
    let (link, mut stream) = server.link(&client).await;
    sleep(SHORT * 2).await;
    let results = answered(&link, vec![read_of(4)], async {
        let mut request = [0; 40];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(&response(0, 0, 4)).await.unwrap();
        stream.write_all(b"late").await.unwrap();
    });
    assert!(results.await[0].is_ok(), "the clock starts with the operation");
    let began = Instant::now();
    // More than the sockets buffer, so that both directions stall.
    let batch = vec![read_of(4), write_of(64 << 20)];
    for result in timeout(DEADLINE, link.submit(batch)).await.unwrap() {
        assert!(matches!(result, Err(TransferError::TimedOut { after: SHORT })), "{result:?}");
    }
    assert!(began.elapsed() >= SHORT);
    assert!(!link.is_healthy());
    eventually(DEADLINE, "the link's tasks end", || client.stats().tasks == 0).await;
}

#[tokio::test]
async fn earlier_writes_buy_a_silent_peer_no_time() {
    let mut config = short();
    config.stall_timeout = SHORT * 5;
    let stall = config.stall_timeout;
    let client = TcpTransport::start(config).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    let results = answered(&link, vec![write_of(1 << 20)], async {
        let mut request = vec![0; 40 + (1 << 20)];
        stream.read_exact(&mut request).await.unwrap();
        stream.write_all(&response(0, 0, 0)).await.unwrap();
    });
    assert!(results.await[0].is_ok());
    let began = Instant::now();
    let results = timeout(DEADLINE, link.submit(vec![read_of(4)])).await.unwrap();
    assert!(matches!(results[0], Err(TransferError::TimedOut { .. })), "{results:?}");
    let took = began.elapsed();
    assert!(took >= stall && took < stall * 9 / 5, "{took:?} instead of {stall:?}");
}

#[tokio::test]
async fn a_trickling_peer_times_out() {
    let client = TcpTransport::start(short()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, mut stream) = server.link(&client).await;
    let results = answered(&link, vec![read_of(1 << 20)], async move {
        stream.write_all(&response(0, 0, 1 << 20)).await.unwrap();
        while stream.write_all(b"x").await.is_ok() {
            sleep(SHORT / 10).await;
        }
    });
    let results = results.await;
    assert!(matches!(results[0], Err(TransferError::TimedOut { .. })), "{results:?}");
}

#[tokio::test]
async fn oversized_operations_are_refused_on_both_sides() {
    let mut config = listening(TcpConfig::default());
    config.max_operation = ByteSize::kib(64);
    let server = TcpTransport::start(config).await.unwrap();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = client.connect(server.endpoint().unwrap()).await.unwrap();
    let results = link.submit(vec![write_of((64 << 10) + 1), read_of(64 << 10)]).await;
    let exact = matches!(results[0], Err(TransferError::TooLarge { len: 65_537, max: 65_536 }));
    assert!(exact, "{results:?}");
    assert!(matches!(results[1], Err(TransferError::KeyRefused)), "{results:?}");
    assert!(link.is_healthy());

    for op in [1, 2] {
        for len in [(64 << 10) + 1, u64::MAX] {
            let mut raw = fake_client(server.local_address().unwrap()).await;
            raw.write_all(&request(op, 3, KEY, 0, len)).await.unwrap();
            // What a hasty client would send behind it.
            raw.write_all(&[0; 4096]).await.unwrap();
            assert_eq!(rest(&mut raw).await, response(4, 3, 0));
        }
    }
    drop((client, link));
    eventually(DEADLINE, "every connection is closed", || server.stats().connections == 0).await;
}

#[tokio::test]
async fn a_fence_ends_what_a_lost_connection_began() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let address = server.local_address().unwrap();
    let memory = Memory::allocate(1 << 20).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let key = region.key();
    let (mut lost, id) = named_client(address).await;
    lost.write_all(&request(2, 1, key, 0, 1 << 20)).await.unwrap();
    lost.write_all(&[1; 100]).await.unwrap();
    eventually(DEADLINE, "the write has begun", || memory.slice(99, 1).unwrap().to_vec() == [1])
        .await;

    let (mut other, own_id) = named_client(address).await;
    assert_ne!(own_id, id);
    let fenced = [request(3, 1, id, 0, 0), request(2, 2, key, 0, 5), b"newer".to_vec()].concat();
    other.write_all(&fenced).await.unwrap();
    let mut answers = [0; 32];
    other.read_exact(&mut answers).await.unwrap();
    assert_eq!(answers.to_vec(), [response(0, 1, 0), response(0, 2, 0)].concat());
    assert_eq!(server.stats().connections, 1, "it has ended before the answer came");
    // Bytes that are on their way are not received.
    let _ = lost.write_all(&[1; 100_000]).await;
    assert_eq!(rest(&mut lost).await, b"");
    assert_eq!(memory.slice(0, 5).unwrap().to_vec(), b"newer");
    assert_eq!(memory.slice(100, 100).unwrap().to_vec(), [0; 100]);

    // Again, with an unknown name, and with its own.
    for id in [id, RemoteKey::from_bytes([9; 16])] {
        other.write_all(&request(3, 3, id, 0, 0)).await.unwrap();
        let mut answer = [0; 16];
        other.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer.to_vec(), response(0, 3, 0));
    }
    other.write_all(&request(3, 4, own_id, 0, 0)).await.unwrap();
    assert_eq!(rest(&mut other).await, b"");
    eventually(DEADLINE, "nobody is left", || server.stats().connections == 0).await;
}

/// A write of `len` bytes has begun with a hundred of them; the peer's end of it.
async fn half_written(server: &TcpTransport, memory: &Memory, begin: &[u8]) -> TcpStream {
    let mut raw = fake_client(server.local_address().unwrap()).await;
    raw.write_all(begin).await.unwrap();
    raw.write_all(&[1; 100]).await.unwrap();
    eventually(DEADLINE, "the write has begun", || memory.slice(99, 1).unwrap().to_vec() == [1])
        .await;
    raw
}

async fn answer(raw: &mut TcpStream) -> Vec<u8> {
    let mut answer = [0; 16];
    timeout(DEADLINE, raw.read_exact(&mut answer)).await.expect("in time").unwrap();
    answer.to_vec()
}

#[tokio::test]
async fn a_stalled_write_is_ended_with_its_region() {
    const LEN: u64 = 1 << 20;
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let memory = Memory::allocate(LEN as usize).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let begin = request(2, 1, region.key(), 0, LEN);
    let mut raw = half_written(&server, &memory, &begin).await;
    // Long before the peer's patience is over.
    timeout(Duration::from_secs(5), region.withdraw()).await.expect("it does not wait for peers");
    memory.whole().copy_from(0, &vec![7; LEN as usize]).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    raw.write_all(&vec![1; LEN as usize - 100]).await.unwrap();
    assert_eq!(answer(&mut raw).await, response(1, 1, 0), "the key is refused");
    assert!(memory.whole().to_vec().iter().all(|&byte| byte == 7), "late bytes arrived");
    // The connection is as good as before.
    raw.write_all(&request(2, 2, region.key(), 0, 0)).await.unwrap();
    assert_eq!(answer(&mut raw).await, response(0, 2, 0));
}

#[tokio::test]
async fn a_stalled_read_is_broken_off_with_its_region() {
    const LEN: u64 = 32 << 20;
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let memory = Memory::allocate(LEN as usize).unwrap();
    let region = server.register(&memory, Access::Read).unwrap();
    let mut raw = fake_client(server.local_address().unwrap()).await;
    let reads = [request(1, 1, region.key(), 0, LEN), request(1, 2, region.key(), 0, 10)];
    raw.write_all(&reads.concat()).await.unwrap();
    // The first bytes have come: the rest fills the buffers between, and waits.
    assert_eq!(answer(&mut raw).await, response(0, 1, LEN));
    timeout(Duration::from_secs(5), region.withdraw()).await.expect("it does not wait for peers");
    memory.whole().copy_from(0, &vec![7; LEN as usize]).unwrap();
    let read = rest(&mut raw).await;
    assert!((read.len() as u64) < LEN, "it was broken off");
    assert!(read.iter().all(|&byte| byte == 0), "bytes of the memory's next life were read");
}

#[tokio::test]
async fn a_cancelled_read_touches_its_memory_no_more() {
    // Into the buffer, straight into memory, and in several pieces.
    for len in [100, 40_000, 700_000] {
        for first in [0, 50, len / 2, len - 1] {
            let server = FakeServer::new().await;
            let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
            let (link, mut peer) = server.link(&client).await;
            assert!(link.capabilities().cancels);
            let memory = Memory::allocate(len).unwrap();
            let (cancel, from) = (Cancel::new(), span(KEY, 0, len as u64));
            let read = Operation::read(from, memory.whole()).cancelled_by(&cancel);
            let results = link.submit(vec![read]);
            // Told apart from the read by the order of answers alone.
            let behind = link.submit(vec![read_of(1000)]);
            peer.write_all(&response(0, 0, len as u64)).await.unwrap();
            peer.write_all(&vec![1; first]).await.unwrap();
            let taken = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == 1).count() == first;
            eventually(DEADLINE, "the first bytes are there", || taken(&memory.whole().to_vec()))
                .await;
            cancel.cancel();
            memory.whole().copy_from(0, &vec![7; len]).unwrap();
            peer.write_all(&vec![1; len - first]).await.unwrap();
            peer.write_all(&response(0, 1, 1000)).await.unwrap();
            peer.write_all(&[2; 1000]).await.unwrap();
            assert!(behind.await[0].is_ok(), "the link goes on");
            assert!(matches!(results.await[0], Err(TransferError::Cancelled)));
            let bytes = memory.whole().to_vec();
            assert!(bytes.iter().all(|&byte| byte == 7), "bytes came late, {first} of {len}");
        }
    }
}

#[tokio::test]
async fn a_write_under_a_ticket_ends_with_its_time() {
    const LEN: u64 = 1 << 20;
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let memory = Memory::allocate(LEN as usize).unwrap();
    let (key, epoch) = (TicketKey::from_bytes([3; 16]), ClockEpoch::new(7));
    let clock = Arc::new(MasterClock::new());
    clock.observe(BootTime::now(), epoch, Time::from_millis(10_000));
    let tickets = Tickets { key, clock };
    let region = server.register_with_tickets(&memory, Access::ReadWrite, tickets).unwrap();
    let until = BootTime::now() + Duration::from_millis(700);
    let extent = Extent::new(0, LEN).unwrap();
    let time = Time::from_millis(10_700);
    let ticket = key.sign(epoch, region.key(), extent, Rights::Write, time);
    let shown = |id, len| {
        let mut bytes = request(2, id, region.key(), 0, len);
        bytes[1] = 1;
        for number in [0, LEN, time.as_millis()] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(ticket.tag);
        bytes
    };
    let mut raw = half_written(&server, &memory, &shown(1, LEN)).await;
    // One whose header comes in pieces.
    let mut slow = fake_client(server.local_address().unwrap()).await;
    for byte in shown(1, 0) {
        slow.write_all(&[byte]).await.unwrap();
    }
    assert_eq!(answer(&mut slow).await, response(0, 1, 0));

    eventually(DEADLINE, "the grant has ended", || until.has_passed()).await;
    raw.write_all(&vec![1; LEN as usize - 100]).await.unwrap();
    assert_eq!(answer(&mut raw).await, response(6, 1, 0), "the grant has ended");
    let written = memory.whole().to_vec();
    assert!(written[100..].iter().all(|&byte| byte == 0), "late bytes arrived");
    raw.write_all(&shown(2, 0)).await.unwrap();
    assert_eq!(answer(&mut raw).await, response(6, 2, 0));
    // A ticket that names no extent ends the connection.
    let mut endless = shown(3, 0);
    endless[48..56].fill(0xff);
    endless[40] = 1;
    raw.write_all(&endless).await.unwrap();
    assert_eq!(rest(&mut raw).await, response(5, 3, 0));
}

#[tokio::test]
async fn malformed_requests_end_the_connection() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    for (at, value) in [(0, 0), (0, 5), (1, 2), (2, 1), (3, 0x80)] {
        let mut raw = fake_client(server.local_address().unwrap()).await;
        let mut bytes = request(1, 9, KEY, 0, 0);
        bytes[at] = value;
        raw.write_all(&request(1, 8, KEY, 0, 0)).await.unwrap();
        raw.write_all(&bytes).await.unwrap();
        let answers = [response(1, 8, 0), response(5, 9, 0)].concat();
        assert_eq!(rest(&mut raw).await, answers, "byte {at} is {value}");
    }
    for (offset, len) in [(1, 0), (0, 1)] {
        let mut raw = fake_client(server.local_address().unwrap()).await;
        raw.write_all(&request(3, 9, KEY, offset, len)).await.unwrap();
        assert_eq!(rest(&mut raw).await, response(5, 9, 0), "a fence has no extent");
    }
    let offset_overflows = request(2, 1, KEY, u64::MAX, 4);
    let mut raw = fake_client(server.local_address().unwrap()).await;
    raw.write_all(&offset_overflows).await.unwrap();
    raw.write_all(b"data").await.unwrap();
    let mut answer = [0; 16];
    raw.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer.to_vec(), response(1, 1, 0));
    drop(raw);
    eventually(DEADLINE, "every connection is closed", || server.stats().connections == 0).await;
}

#[tokio::test]
async fn a_trace_has_no_answer_and_changes_nothing() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let region = server.register(&memory, Access::Read).unwrap();
    let mut raw = fake_client(server.local_address().unwrap()).await;
    // One for more requests than come, one for none, two that name nothing, and one in front of a refusal.
    for (count, trace, offset, key) in [
        (u32::MAX, KEY, 5, region.key()),
        (0, KEY, 5, region.key()),
        (1, RemoteKey::from_bytes([0; 16]), 5, region.key()),
        (1, KEY, 0, region.key()),
        (1, KEY, u64::MAX, KEY),
    ] {
        raw.write_all(&request(4, count, trace, offset, u64::MAX)).await.unwrap();
        raw.write_all(&request(1, 6, key, 0, 0)).await.unwrap();
        let mut answer = [0; 16];
        raw.read_exact(&mut answer).await.unwrap();
        let refused = u8::from(key == KEY);
        assert_eq!(answer.to_vec(), response(refused, 6, 0), "{count} of {trace:?} from {offset}");
    }
    // One that shows a ticket is malformed.
    let mut bytes = request(4, 9, KEY, 5, 1);
    bytes[1] = 1;
    raw.write_all(&bytes).await.unwrap();
    assert_eq!(rest(&mut raw).await, response(5, 9, 0));
}

#[tokio::test]
async fn foreign_and_future_clients_are_turned_away() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let address = server.local_address().unwrap();
    let mut http = TcpStream::connect(address).await.unwrap();
    http.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(rest(&mut http).await, b"");
    let mut newer = TcpStream::connect(address).await.unwrap();
    newer.write_all(b"MCT1\x04\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff").await.unwrap();
    assert_eq!(rest(&mut newer).await, b"MCT1\x03\x00\x02\x00\x00\x00\x00\x40\x00\x00\x00\x00");
    eventually(DEADLINE, "both are closed", || server.stats().connections == 0).await;
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let server = TcpTransport::start(listening(short())).await.unwrap();
    let address = server.local_address().unwrap();
    let memory = Memory::allocate(4 << 20).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let key = region.key();

    let mut half_preface = TcpStream::connect(address).await.unwrap();
    half_preface.write_all(b"MCT").await.unwrap();
    let mut half_header = fake_client(address).await;
    half_header.write_all(&request(1, 0, key, 0, 1)[..20]).await.unwrap();
    let mut half_payload = fake_client(address).await;
    half_payload.write_all(&request(2, 0, key, 0, 100)).await.unwrap();
    half_payload.write_all(&[1; 50]).await.unwrap();
    let mut half_refused = fake_client(address).await;
    half_refused.write_all(&request(2, 0, KEY, 0, 100)).await.unwrap();
    half_refused.write_all(&[1; 50]).await.unwrap();
    let idle = fake_client(address).await;
    for stream in [&mut half_preface, &mut half_header, &mut half_payload, &mut half_refused] {
        assert_eq!(rest(stream).await, b"");
    }
    // Takes no answers: the server stops reading, then gives up.
    let mut deaf = fake_client(address).await;
    let reads: Vec<u8> = (0..1000).flat_map(|id| request(1, id, key, 0, 4 << 20)).collect();
    deaf.write_all(&reads).await.unwrap();
    eventually(DEADLINE, "only the idle client is left", || server.stats().connections == 1).await;
    drop(idle);
    eventually(DEADLINE, "nobody is left", || server.stats().connections == 0).await;
    assert_eq!(server.stats().tasks, 1, "the accepting task");
}

#[tokio::test]
async fn connections_are_limited() {
    let mut config = listening(TcpConfig::default());
    config.max_connections = 2;
    let server = TcpTransport::start(config).await.unwrap();
    let address = server.local_address().unwrap();
    let memory = Memory::allocate(100).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let key = region.key();
    // Both are at work: half of a payload has come.
    let (mut first, mut second) = (fake_client(address).await, fake_client(address).await);
    for stream in [&mut first, &mut second] {
        // An answer to the first request says that the second has come, too.
        let mut requests = request(1, 1, KEY, 0, 1);
        requests.extend(request(2, 2, key, 0, 100));
        requests.extend([1; 50]);
        stream.write_all(&requests).await.unwrap();
        let mut answer = [0; 16];
        stream.read_exact(&mut answer).await.unwrap();
    }
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let refused = client.connect(server.endpoint().unwrap()).await.err().unwrap();
    assert!(matches!(refused, ConnectError::Busy { .. }), "{refused:?}");
    assert_eq!((server.stats().connections, server.stats().refused_connections), (2, 1));
    // One that is idle makes room.
    first.write_all(&[1; 50]).await.unwrap();
    assert!(client.connect(server.endpoint().unwrap()).await.is_ok());
    assert_eq!(rest(&mut first).await.len(), 16, "the answer, and the end");
    assert_eq!(server.stats().yielded_connections, 1);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let taken = server.local_address().unwrap();
    let error = TcpTransport::start(TcpConfig::listening(taken)).await.unwrap_err();
    assert!(
        matches!(error, StartError::Listen(ListenError::AddressInUse { address, .. }) if address == taken)
    );
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

#[tokio::test]
async fn the_advertised_host_is_what_peers_are_told() {
    let unspecified = TcpConfig::listening("0.0.0.0:0".parse().unwrap());
    let error = TcpTransport::start(unspecified.clone()).await.unwrap_err();
    assert!(matches!(error, StartError::Listen(ListenError::NoAdvertisedHost { .. })), "{error:?}");
    for (host, shown) in [("localhost", "localhost"), ("::1", "[::1]"), ("[::1]", "[::1]")] {
        let mut config = unspecified.clone();
        config.advertise_hosts = vec![host.to_owned()];
        let server = TcpTransport::start(config).await.unwrap();
        let port = server.local_address().unwrap().port();
        assert_eq!(server.endpoint().unwrap().as_str(), format!("tcp://{shown}:{port}"));
    }
    let mut config = unspecified;
    config.advertise_hosts = vec!["two words".to_owned()];
    let error = TcpTransport::start(config).await.unwrap_err();
    assert!(
        matches!(error, StartError::Listen(ListenError::BadAdvertisedHost { .. })),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_data_port_that_is_taken_for_a_moment_is_tried_again() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap();
    let error = TcpTransport::start(TcpConfig::listening(address)).await.unwrap_err();
    let causes = format!("{:?}", std::error::Error::source(&error));
    assert!(causes.contains(&format!("{}", std::process::id())), "{error}: {causes}");
    let leave = async {
        sleep(Duration::from_secs(1)).await;
        drop(holder);
    };
    let (started, ()) = tokio::join!(TcpTransport::start(TcpConfig::listening(address)), leave);
    assert_eq!(started.unwrap().local_address(), Some(address));
}

#[tokio::test]
async fn clients_come_back_after_a_restart() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let address = server.local_address().unwrap();
    let endpoint = server.endpoint().unwrap().clone();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let old = client.connect(&endpoint).await.unwrap();
    assert!(matches!(old.submit(vec![read_of(1)]).await[0], Err(TransferError::KeyRefused)));
    server.shutdown().await;
    assert_eq!((server.stats().connections, server.stats().tasks), (0, 0));
    let memory = Memory::allocate(1).unwrap();
    assert!(matches!(server.register(&memory, Access::Read), Err(RegisterError::Closed)));
    eventually(DEADLINE, "the old link is lost", || !old.is_healthy()).await;
    assert!(client.connect(&endpoint).await.is_err());

    let server = TcpTransport::start(TcpConfig::listening(address)).await.unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let region = server.register(&memory, Access::Write).unwrap();
    let new = client.connect(&endpoint).await.unwrap();
    let write = Operation::write(Bytes::from_static(b"back"), span(region.key(), 0, 4));
    assert!(new.submit(vec![write]).await[0].is_ok());
    assert_eq!(memory.slice(0, 4).unwrap().to_vec(), b"back");
    assert!(!old.is_healthy() && client.stats().links == 1);
}

#[tokio::test]
async fn shutdown_fails_what_is_under_way() {
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let server = FakeServer::new().await;
    let (link, _stream) = server.link(&client).await;
    let batch = link.submit(vec![read_of(4), write_of(64 << 20)]);
    let (results, ()) = tokio::join!(batch, client.shutdown());
    for result in results {
        assert!(matches!(result, Err(TransferError::Closed)), "{result:?}");
    }
    assert_eq!((client.stats().links, client.stats().tasks), (0, 0));
    assert!(matches!(client.connect(&server.endpoint).await, Err(ConnectError::Closed)));
}

#[test]
fn links_outlive_neither_their_transport_nor_its_runtime() {
    let threaded = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (elsewhere, runtime) = (threaded(), threaded());
    let server = elsewhere.block_on(TcpTransport::start(listening(TcpConfig::default()))).unwrap();
    let client = runtime.block_on(TcpTransport::start(TcpConfig::default())).unwrap();
    let link = runtime.block_on(client.connect(server.endpoint().unwrap())).unwrap();
    drop(runtime);
    let here = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let results = here.block_on(link.submit(vec![read_of(4)]));
    assert!(matches!(results[0], Err(TransferError::Closed)), "{results:?}");
    drop((client, link));
    let gone = eventually(DEADLINE, "the connection is closed", || server.stats().connections == 0);
    elsewhere.block_on(gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_may_be_full() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let memory = Memory::allocate(8 << 20).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = client.connect(server.endpoint().unwrap()).await.unwrap();
    let whole = span(region.key(), 0, 8 << 20);
    let local = Memory::allocate(8 << 20).unwrap();
    let batch = (0..64).map(|index| match index % 2 {
        0 => Operation::read(whole, local.whole()),
        _ => Operation::write(Bytes::from(vec![index; 8 << 20]), whole),
    });
    let results = timeout(DEADLINE, link.submit(batch.collect())).await.expect("no deadlock");
    assert!(results.iter().all(Result::is_ok));
    assert!(memory.whole().to_vec().iter().all(|&byte| byte == 63));
}

#[tokio::test]
async fn a_revoked_region_is_released() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = client.connect(server.endpoint().unwrap()).await.unwrap();
    let owner = Arc::new(());
    let bytes = Box::leak(vec![7u8; 4096].into_boxed_slice());
    let base = std::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: the leaked bytes live for ever and are not used by reference again.
    let memory = unsafe { Memory::from_raw(base, 4096, Arc::clone(&owner)) };
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let local = Memory::allocate(4096).unwrap();
    let read = Operation::read(span(region.key(), 0, 4096), local.whole());
    assert!(link.submit(vec![read]).await[0].is_ok());
    drop((memory, region));
    eventually(DEADLINE, "the owner is dropped", || Arc::strong_count(&owner) == 1).await;
    assert_eq!(server.stats().regions, 0);
}

#[tokio::test]
async fn a_crowd_shares_one_connection() {
    let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
    let client = Arc::new(TcpTransport::start(TcpConfig::default()).await.unwrap());
    let endpoint = server.endpoint().unwrap().clone();
    let crowd: Vec<_> = (0..50)
        .map(|_| {
            let (client, endpoint) = (Arc::clone(&client), endpoint.clone());
            tokio::spawn(async move { client.connect(&endpoint).await.map(|_| ()) })
        })
        .collect();
    for one in crowd {
        one.await.unwrap().unwrap();
    }
    assert_eq!((client.stats().links, server.stats().connections), (1, 1));
}

mod garbage {
    use super::*;
    use proptest::prelude::*;

    fn attack() -> impl Strategy<Value = Vec<u8>> {
        let header = (0u8..4, 0u64..20_000, prop_oneof![0u64..70_000, any::<u64>()]);
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..5000),
            (prop::collection::vec(header, 1..20), any::<bool>()).prop_map(|(headers, known)| {
                let key = if known { RemoteKey::from_bytes([0xaa; 16]) } else { KEY };
                headers
                    .into_iter()
                    .flat_map(|(op, offset, len)| {
                        let mut bytes = request(op, 0, key, offset, len);
                        bytes.resize(bytes.len() + (len % 3000) as usize, 0);
                        bytes
                    })
                    .collect()
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn spoils_nothing(attack in attack(), greets in any::<bool>()) {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = TcpTransport::start(listening(TcpConfig::default())).await.unwrap();
                let memory = Memory::allocate(16 << 10).unwrap();
                let region = server.register(&memory, Access::ReadWrite).unwrap();
                // The attacker knows a real key in half of the cases.
                let known = [0xaa; 16];
                let real = region.key().to_bytes();
                let mut attack = attack;
                let mut at = 0;
                while let Some(found) = attack[at..].windows(16).position(|bytes| bytes == known) {
                    attack[at + found..at + found + 16].copy_from_slice(&real);
                    at += found + 16;
                }
                let address = server.local_address().unwrap();
                let mut raw = match greets {
                    true => fake_client(address).await,
                    false => TcpStream::connect(address).await.unwrap(),
                };
                // Takes answers all along, as an attacker who wants more would.
                let (mut reading, mut writing) = raw.split();
                let mut answers = Vec::new();
                let send = async {
                    let _ = writing.write_all(&attack).await;
                    let _ = writing.shutdown().await;
                };
                let (_, ended) =
                    tokio::join!(send, timeout(DEADLINE, reading.read_to_end(&mut answers)));
                assert!(ended.is_ok(), "the connection ends");
                drop(raw);
                eventually(DEADLINE, "the server let go", || server.stats().connections == 0).await;

                let client = TcpTransport::start(TcpConfig::default()).await.unwrap();
                let link = client.connect(server.endpoint().unwrap()).await.unwrap();
                let write = Operation::write(Bytes::from_static(b"fine"), span(region.key(), 0, 4));
                assert!(link.submit(vec![write]).await[0].is_ok());
                client.shutdown().await;
                server.shutdown().await;
            });
        }
    }
}
