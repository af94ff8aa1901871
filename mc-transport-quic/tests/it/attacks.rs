//! Clients that lie, stall, flood and vanish.

use std::net::UdpSocket;
use std::time::Duration;

use mc_testkit::eventually;
use mc_transport::{Access, Memory, Region, Transport};
use mc_transport_quic::{QuicConfig, QuicTransport};
use mc_types::{ByteSize, RemoteKey};
use quinn::{Connection, ConnectionError, ReadError, VarInt};
use tokio::time::timeout;

use super::nodes::{DEADLINE, SHORT, listening, start, still_serves, with_short_timeouts};
use super::pki::Authority;
use super::raw::{self, OURS, request};

/// Streams that a server allows at a time.
const MAX_STREAMS: usize = 128;

const REGION: usize = 1 << 20;

struct Victim {
    authority: Authority,
    server: QuicTransport,
    region: Region,
}

impl Victim {
    async fn new(change: impl FnOnce(&mut QuicConfig)) -> Self {
        let authority = Authority::new();
        let mut config = with_short_timeouts(listening(&authority));
        config.max_operation = ByteSize::gib(1);
        change(&mut config);
        let server = start(config).await;
        let memory = Memory::allocate(REGION).unwrap();
        let region = server.register(&memory, Access::ReadWrite).unwrap();
        Self { authority, server, region }
    }

    fn key(&self) -> RemoteKey {
        self.region.key()
    }

    /// Shows that it has let go of the attacker and serves others.
    async fn is_well(&self) {
        eventually(DEADLINE, "the server let go", || {
            // What remains is the task that accepts.
            (self.server.stats().connections, self.server.stats().tasks) == (0, 1)
        })
        .await;
        still_serves(&self.server, &self.authority, &self.region).await;
    }
}

async fn closed_with(connection: &Connection) -> u64 {
    match timeout(DEADLINE, connection.closed()).await.expect("in time") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn garbage_datagrams_change_nothing() {
    let victim = Victim::new(|_| {}).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let seed = std::process::id() as usize;
    println!("seed {seed}");
    let mut state = seed as u64 | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..3000 {
        let mut bytes = vec![0; random() as usize % 1500];
        bytes.fill_with(|| random() as u8);
        // Some look like the first packets of this version of QUIC.
        if round % 3 == 0 && bytes.len() > 6 {
            bytes[0] = 0xc0 | bytes[0] & 0x3f;
            bytes[1..5].copy_from_slice(&1_u32.to_be_bytes());
        }
        let _ = socket.send_to(&bytes, victim.server.local_address().unwrap());
        if round % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    victim.is_well().await;
}

#[tokio::test]
async fn a_handshake_that_is_not_finished_ends() {
    let victim = Victim::new(|_| {}).await;
    // The first message of a client, from an address that is gone.
    let catcher = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let config = raw::client_config(&victim.authority, OURS);
    let endpoint = raw::endpoint();
    let connecting =
        endpoint.connect_with(config, catcher.local_addr().unwrap(), "127.0.0.1").unwrap();
    let mut first = vec![0; 2000];
    let len = timeout(DEADLINE, catcher.recv(&mut first)).await.unwrap().unwrap();
    catcher.send_to(&first[..len], victim.server.local_address().unwrap()).await.unwrap();
    eventually(DEADLINE, "it is taken", || victim.server.stats().connections == 1).await;
    drop(connecting);
    victim.is_well().await;
}

#[tokio::test]
async fn a_client_that_does_not_say_hello_is_closed() {
    let victim = Victim::new(|_| {}).await;
    let silent = raw::connect(&victim.authority, &victim.server, OURS).await.unwrap();
    timeout(DEADLINE, silent.closed()).await.expect("in time");
    for greeting in [&b"GET / HTTP/3"[..], &[0xff; 32], b"", &[0xff; 100_000]] {
        let rude = raw::connect(&victim.authority, &victim.server, OURS).await.unwrap();
        let (mut send, _receive) = rude.open_bi().await.unwrap();
        let _ = send.write_all(greeting).await;
        let _ = send.finish();
        timeout(DEADLINE, rude.closed()).await.expect("in time");
    }
    victim.is_well().await;
}

#[tokio::test]
async fn what_is_no_request_closes_the_connection() {
    let victim = Victim::new(|config| config.max_operation = ByteSize::mib(2)).await;
    let key = victim.key();
    let mut reserved = request(1, 0, key, 0, 1);
    reserved[3] = 1;
    let many = (0..1025).flat_map(|id| request(1, id, key, 0, 0)).collect();
    let attacks: [Vec<u8>; 9] = [
        request(0, 0, key, 0, 1),
        request(4, 0, key, 0, 1),
        request(3, 0, key, 0, 1),
        // The link of the client itself.
        request(3, 0, RemoteKey::from_bytes([0; 16]), 0, 0),
        reserved,
        request(1, 0, key, 0, (2 << 20) + 1),
        request(2, 0, key, 0, u64::MAX),
        // The first is good.
        [request(1, 0, key, 0, 1), vec![0xff; 40]].concat(),
        many,
    ];
    for attack in attacks {
        let client = raw::client(&victim.authority, &victim.server).await;
        let (mut send, _receive) = client.open_bi().await.unwrap();
        send.write_all(&attack).await.unwrap();
        assert_eq!(closed_with(&client).await, 1, "{:?}", &attack[..40]);
    }
    victim.is_well().await;
}

#[tokio::test]
async fn requests_that_are_cut_short_end_their_stream() {
    let victim = Victim::new(|_| {}).await;
    let client = raw::client(&victim.authority, &victim.server).await;
    let half = [request(2, 0, victim.key(), 0, REGION as u64), vec![5; REGION / 2]].concat();
    for attack in [&half[..], &half[..39], &half[..1]] {
        for reset in [true, false] {
            let (mut send, mut receive) = client.open_bi().await.unwrap();
            send.write_all(attack).await.unwrap();
            match reset {
                true => send.reset(VarInt::from_u32(7)).unwrap(),
                false => send.finish().unwrap(),
            }
            let answer = timeout(DEADLINE, receive.read_to_end(100)).await.expect("in time");
            assert!(answer.map_or(true, |bytes| bytes.is_empty()));
        }
    }
    // The connection is as good as before.
    let (mut send, mut receive) = client.open_bi().await.unwrap();
    send.write_all(&request(1, 9, victim.key(), 0, 3)).await.unwrap();
    send.finish().unwrap();
    let answer = receive.read_to_end(100).await.unwrap();
    assert_eq!(answer, [raw::response(0, 9, 3), vec![5; 3]].concat());
    client.close(0_u32.into(), b"");
    victim.is_well().await;
}

#[tokio::test]
async fn silent_streams_are_given_up_one_by_one() {
    let victim = Victim::new(|_| {}).await;
    let client = raw::client(&victim.authority, &victim.server).await;
    let header = request(2, 0, victim.key(), 0, 100_000);
    let mut streams = Vec::new();
    for said in [&header[..1], &header[..], &[&header[..], &[1; 1000]].concat()] {
        let (mut send, receive) = client.open_bi().await.unwrap();
        send.write_all(said).await.unwrap();
        streams.push((send, receive));
    }
    for (_send, receive) in &mut streams {
        let ended = timeout(DEADLINE, receive.read_to_end(100)).await.expect("in time");
        let reset = ReadError::Reset(VarInt::from_u32(2));
        let stalled = matches!(&ended, Err(quinn::ReadToEndError::Read(error)) if *error == reset);
        assert!(stalled, "{ended:?}");
    }
    assert!(client.close_reason().is_none(), "the connection is none of that");
    client.close(0_u32.into(), b"");
    victim.is_well().await;
}

#[tokio::test]
async fn ten_thousand_streams_are_not_opened() {
    let victim = Victim::new(|config| config.stall_timeout = DEADLINE).await;
    let client = raw::client(&victim.authority, &victim.server).await;
    let mut streams = Vec::new();
    for _ in 0..10_000 {
        let Ok(opened) = timeout(SHORT, client.open_bi()).await else { break };
        let (mut send, receive) = opened.unwrap();
        // One byte, without which the peer would not know of the stream.
        let _ = send.write_all(&[1]).await;
        streams.push((send, receive));
    }
    assert!(streams.len() <= MAX_STREAMS, "{}", streams.len());
    eventually(DEADLINE, "they arrive", || victim.server.stats().tasks >= streams.len()).await;
    // One for each, one for the connection, one that accepts.
    assert!(victim.server.stats().tasks <= MAX_STREAMS + 2);
    still_serves(&victim.server, &victim.authority, &victim.region).await;
    client.close(0_u32.into(), b"");
    victim.is_well().await;
}

#[tokio::test]
async fn who_takes_no_answers_waits_alone() {
    let victim = Victim::new(|config| config.window = ByteSize::kib(64)).await;
    let client = raw::client_limited(&victim.authority, &victim.server, |limits| {
        limits.stream_receive_window(1000_u32.into());
    });
    let client = client.await;
    let (mut send, mut receive) = client.open_bi().await.unwrap();
    for id in 0..8 {
        send.write_all(&request(1, id, victim.key(), 0, REGION as u64)).await.unwrap();
    }
    send.finish().unwrap();
    still_serves(&victim.server, &victim.authority, &victim.region).await;
    let reset = timeout(DEADLINE, receive.received_reset()).await.expect("in time").unwrap();
    assert_eq!(reset, Some(VarInt::from_u32(2)));
    // The connection stays open.
    let (mut send, mut receive) = client.open_bi().await.unwrap();
    send.write_all(&request(1, 0, victim.key(), 0, 1)).await.unwrap();
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(100).await.unwrap().len(), 17);
    client.close(0_u32.into(), b"");
    victim.is_well().await;
}

#[tokio::test]
async fn a_client_that_vanishes_is_let_go() {
    let victim = Victim::new(|config| {
        config.idle_timeout = SHORT;
        config.stall_timeout = Duration::from_secs(60);
    });
    let victim = victim.await;
    let client = raw::client_limited(&victim.authority, &victim.server, |limits| {
        limits.keep_alive_interval(None);
    });
    let client = client.await;
    let (mut send, _receive) = client.open_bi().await.unwrap();
    send.write_all(&request(2, 0, victim.key(), 0, 1000)).await.unwrap();
    victim.is_well().await;
}
