//! Servers that lie, stall and break off.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mc_testkit::eventually;
use mc_transport::{
    ConnectError, Link, Memory, Operation, Outcome, ProtocolViolation, TransferError, Transport,
};
use mc_transport_quic::QuicTransport;
use mc_types::{Endpoint, RemoteKey};
use quinn::{Connection, ConnectionError, VarInt};
use tokio::time::{sleep, timeout};

use super::nodes::{DEADLINE, SHORT, connecting, one, span, start, with_short_timeouts};
use super::pki::Authority;
use super::raw::{self, OURS, response};

const KEY: RemoteKey = RemoteKey::from_bytes([7; 16]);

/// A client, and a server that is played.
struct Stage {
    /// The client reads its files whenever it connects.
    _authority: Authority,
    client: QuicTransport,
    server: quinn::Endpoint,
    endpoint: Endpoint,
    /// The id of the client's last link.
    last: Mutex<Option<[u8; 16]>>,
}

impl Stage {
    fn endpoint_of(server: &quinn::Endpoint) -> Endpoint {
        Endpoint::new("quic", &server.local_addr().unwrap().to_string()).unwrap()
    }

    async fn new() -> Self {
        let authority = Authority::new();
        let client = start(with_short_timeouts(connecting(&authority))).await;
        let server = raw::server(&authority, OURS);
        let endpoint = Self::endpoint_of(&server);
        Self { _authority: authority, client, server, endpoint, last: Mutex::default() }
    }

    /// A new link. The client asks for the end of the one before, if it lost that.
    async fn link(&self) -> (Arc<dyn Link>, Connection) {
        let greet = async {
            let (connection, id) = raw::greet(&self.server).await;
            let lost = self.last.lock().unwrap().replace(id);
            if let Some(lost) = lost {
                let (mut send, mut receive) = connection.accept_bi().await.unwrap();
                let fence = raw::request(3, 0, RemoteKey::from_bytes(lost), 0, 0);
                assert_eq!(receive.read_to_end(100).await.unwrap(), fence);
                send.write_all(&response(0, 0, 0)).await.unwrap();
                send.finish().unwrap();
            }
            connection
        };
        let greeted = timeout(DEADLINE, greet);
        let (link, connection) = tokio::join!(self.client.connect(&self.endpoint), greeted);
        (link.unwrap(), connection.expect("in time"))
    }
}

fn read_of(len: usize) -> Operation {
    Operation::read(span(KEY, 0, len as u64), Memory::allocate(len).unwrap().whole())
}

fn write_of(len: usize) -> Operation {
    Operation::write(Bytes::from(vec![1; len]), span(KEY, 0, len as u64))
}

async fn results(link: &Arc<dyn Link>, batch: Vec<Operation>) -> Vec<Outcome> {
    timeout(DEADLINE, link.submit(batch)).await.expect("the batch ends in time")
}

#[tokio::test]
async fn wrong_answers_end_the_link() {
    let violations: [(Vec<u8>, ProtocolViolation); 11] = [
        (vec![], ProtocolViolation::EarlyEnd { missing: 1 }),
        (response(0, 0, 4096)[..8].to_vec(), ProtocolViolation::EarlyEnd { missing: 1 }),
        (
            [response(0, 0, 4096), vec![0; 4095]].concat(),
            ProtocolViolation::EarlyEnd { missing: 1 },
        ),
        (response(0, 0, 4095), ProtocolViolation::WrongLength { expected: 4096, got: 4095 }),
        (
            response(0, 0, u64::MAX),
            ProtocolViolation::WrongLength { expected: 4096, got: u64::MAX },
        ),
        (response(1, 0, 4096), ProtocolViolation::WrongLength { expected: 0, got: 4096 }),
        (response(0, 1, 4096), ProtocolViolation::WrongId { expected: Some(0), got: 1 }),
        (response(9, 0, 4096), ProtocolViolation::UnknownStatus { status: 9 }),
        ([vec![0, 1], vec![0; 14]].concat(), ProtocolViolation::ReservedNotZero),
        (response(5, 0, 0), ProtocolViolation::RequestNotUnderstood),
        (
            [response(0, 0, 4096), vec![0; 4096], response(0, 1, 0)].concat(),
            ProtocolViolation::TrailingBytes,
        ),
    ];
    let stage = Stage::new().await;
    for (answer, expected) in violations {
        let (link, connection) = stage.link().await;
        let late = expected == ProtocolViolation::TrailingBytes;
        let answer = async {
            let (mut send, _receive) = connection.accept_bi().await.unwrap();
            send.write_all(&answer).await.unwrap();
            let _ = send.finish();
            let closed = timeout(DEADLINE, connection.closed()).await.expect("in time");
            let ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed:?}") };
            assert_eq!(close.error_code.into_inner(), 1, "{expected:?}");
        };
        let (mut results, ()) = tokio::join!(results(&link, vec![read_of(4096)]), answer);
        eventually(DEADLINE, "the link is given up", || !link.is_healthy()).await;
        let error = match late {
            // What was answered is done.
            true => results.remove(0).and(one(&*link, read_of(1)).await).unwrap_err(),
            false => results.remove(0).unwrap_err(),
        };
        let said = matches!(error, TransferError::Protocol(got) if got == expected);
        assert!(said, "{error:?} instead of {expected:?}");
    }
    eventually(DEADLINE, "every task has ended", || stage.client.stats().tasks == 0).await;
}

#[tokio::test]
async fn a_write_is_not_done_before_it_was_sent() {
    let stage = Stage::new().await;
    for status in [0, 1] {
        let (link, connection) = stage.link().await;
        let memory = Memory::allocate(64 << 20).unwrap();
        let write = Operation::write(memory.whole(), span(KEY, 0, 64 << 20));
        let answer = async {
            let (mut send, _receive) = connection.accept_bi().await.unwrap();
            send.write_all(&response(status, 0, 0)).await.unwrap();
            timeout(DEADLINE, connection.closed()).await.expect("in time");
        };
        let (results, ()) = tokio::join!(results(&link, vec![write]), answer);
        let early = ProtocolViolation::EarlyAnswer { id: 0 };
        let said =
            matches!(&results[0], Err(TransferError::Protocol(violation)) if *violation == early);
        assert!(said, "{results:?}");
        assert!(memory.try_into_bytes(0).is_ok(), "nothing holds the memory any more");
    }
}

#[tokio::test]
async fn a_server_that_breaks_off_fails_what_is_under_way() {
    let stage = Stage::new().await;
    type Break = fn(&Connection, &mut quinn::SendStream, &mut quinn::RecvStream);
    let breaks: [Break; 3] = [
        |connection, _, _| connection.close(VarInt::from_u32(0), b"going"),
        |_, send, _| send.reset(VarInt::from_u32(2)).unwrap(),
        |_, _, receive| receive.stop(VarInt::from_u32(2)).unwrap(),
    ];
    for break_off in breaks {
        let (link, connection) = stage.link().await;
        let memory = Memory::allocate(1 << 20).unwrap();
        let cut_short = Operation::read(span(KEY, 0, 1 << 20), memory.whole());
        let answer = async {
            // The large ones have streams of their own.
            let mut streams = Vec::new();
            for _ in 0..2 {
                streams.push(connection.accept_bi().await.unwrap());
            }
            for (send, receive) in &mut streams {
                let mut header = [0; 40];
                receive.read_exact(&mut header).await.unwrap();
                if header[0] == 1 {
                    send.write_all(&response(0, 0, 1 << 20)).await.unwrap();
                    send.write_all(&[5; 300_000]).await.unwrap();
                }
            }
            for (send, receive) in &mut streams {
                break_off(&connection, send, receive);
                sleep(SHORT / 100).await;
            }
            timeout(DEADLINE, connection.closed()).await.expect("in time");
        };
        let batch = vec![cut_short, write_of(20 << 20)];
        let (results, ()) = tokio::join!(results(&link, batch), answer);
        for result in results {
            let error = result.unwrap_err();
            assert!(matches!(error, TransferError::LinkLost { .. }), "{error:?}");
            assert!(error.is_retryable());
        }
        let late = one(&*link, read_of(1)).await;
        assert!(matches!(late, Err(TransferError::LinkLost { .. })), "{late:?}");
        assert!(!link.is_healthy());
        assert!(memory.try_into_bytes(0).is_ok(), "nothing holds the memory any more");
        // The next round shows that the pool connects anew.
    }
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let stage = Stage::new().await;
    let (link, connection) = stage.link().await;
    // Idle for longer than the timeout: no answer is due.
    sleep(SHORT * 2).await;
    assert!(link.is_healthy());
    // More than the windows, so that both directions stall.
    let batch = vec![read_of(4), write_of(64 << 20), read_of(1 << 20)];
    for result in results(&link, batch).await {
        assert!(matches!(result, Err(TransferError::TimedOut { after: SHORT })), "{result:?}");
    }
    assert!(!link.is_healthy());
    let closed = timeout(DEADLINE, connection.closed()).await.expect("in time");
    let ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed:?}") };
    assert_eq!(close.error_code.into_inner(), 2);
    eventually(DEADLINE, "every task has ended", || stage.client.stats().tasks == 0).await;
}

#[tokio::test]
async fn refusals_travel_with_their_details() {
    let stage = Stage::new().await;
    let (link, connection) = stage.link().await;
    let batch = vec![read_of(4), write_of(4), read_of(4), write_of(0)];
    let answer = async {
        let (mut send, _receive) = connection.accept_bi().await.unwrap();
        for (id, status) in [1, 2, 3, 0].into_iter().enumerate() {
            send.write_all(&response(status, id as u32, 0)).await.unwrap();
        }
        send.finish().unwrap();
    };
    let (results, ()) = tokio::join!(results(&link, batch), answer);
    assert!(matches!(results[0], Err(TransferError::KeyRefused)));
    let wanted = mc_transport::Access::Write;
    assert!(matches!(results[1], Err(TransferError::AccessDenied { wanted: w }) if w == wanted));
    assert!(matches!(results[2], Err(TransferError::OutOfBounds { offset: 0, len: 4 })));
    assert!(results[3].is_ok() && link.is_healthy());
}

#[tokio::test]
async fn what_greets_wrongly_is_no_peer() {
    let stage = Stage::new().await;
    for greeting in [&b"HTTP/3 400"[..], &[0xff; 32], b""] {
        let greet = async {
            let connection = stage.server.accept().await.unwrap().await.unwrap();
            let (mut send, _receive) = connection.accept_bi().await.unwrap();
            send.write_all(greeting).await.unwrap();
            send.finish().unwrap();
            timeout(DEADLINE, connection.closed()).await.expect("in time");
        };
        let (outcome, ()) = tokio::join!(stage.client.connect(&stage.endpoint), greet);
        let error = outcome.err().unwrap();
        assert!(matches!(error, ConnectError::NotAPeer { .. }), "{greeting:?}: {error:?}");
    }
    let silent = async {
        let connection = stage.server.accept().await.unwrap().await.unwrap();
        timeout(DEADLINE, connection.closed()).await.expect("in time");
    };
    let (outcome, ()) = tokio::join!(stage.client.connect(&stage.endpoint), silent);
    let error = outcome.err().unwrap();
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert_eq!((stage.client.stats().links, stage.client.stats().tasks), (0, 0));
}
