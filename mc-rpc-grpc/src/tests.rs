//! Connections without sockets: what a server that is set up otherwise answers.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use mc_rpc::{
    Access, Authenticate, Call, Completion, Refusal, Server, ServerConfig, ServerHandle, Service,
    Streams,
};
use mc_testkit::eventually;
use parking_lot::{Condvar, Mutex};
use tokio::io::duplex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{Grpc, message};

const DEADLINE: Duration = Duration::from_secs(30);

/// Calls that take long and run at a time on one connection.
const AT_A_TIME: usize = 2;

/// Counts what it executes, and holds up the calls that say so.
#[derive(Default)]
struct Gate {
    executed: AtomicUsize,
    held: AtomicUsize,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

impl Service for Gate {
    fn call(&self, call: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        assert_ne!(call.payload, b"panic", "on purpose");
        if call.payload == b"hold" {
            self.held.fetch_add(1, Ordering::SeqCst);
            let mut open = self.open.lock();
            while !*open {
                assert!(!self.opened.wait_for(&mut open, DEADLINE).timed_out());
            }
        }
        self.executed.fetch_add(1, Ordering::SeqCst);
        out.extend_from_slice(call.caller.name().as_bytes());
        Ok(Completion::Now)
    }
}

struct Peer {
    gate: Arc<Gate>,
    server: ServerHandle,
    streams: Streams,
    send: SendRequest<Bytes>,
    /// How the connection ended.
    connection: JoinHandle<Result<(), h2::Error>>,
}

async fn serve(config: ServerConfig) -> Peer {
    let gate = Arc::<Gate>::default();
    let (server, streams) = Server::over_streams(Arc::clone(&gate), config).unwrap();
    let server = server.with_guest(Arc::new(Grpc::new())).spawn();
    let (ours, theirs) = duplex(64 << 10);
    streams.hand_in(theirs, "127.0.0.1:1".parse().unwrap()).unwrap();
    let (send, connection) = h2::client::handshake(ours).await.unwrap();
    Peer { gate, server, streams, send, connection: tokio::spawn(connection) }
}

impl Peer {
    async fn open(
        &self,
        path: &str,
        metadata: &[(&'static str, &str)],
        body: &[u8],
    ) -> ResponseFuture {
        let mut request = Request::post(format!("http://master{path}"))
            .header("content-type", "application/grpc");
        for &(name, value) in metadata {
            request = request.header(name, value);
        }
        let mut send = self.send.clone().ready().await.unwrap();
        let (response, mut sending) = send.send_request(request.body(()).unwrap(), false).unwrap();
        let mut message = BytesMut::zeroed(message::PREFIX_LEN);
        message.extend_from_slice(body);
        message::seal(&mut message);
        sending.send_data(message.freeze(), true).unwrap();
        response
    }

    /// The status, and the bytes before it.
    async fn call(
        &self,
        path: &str,
        metadata: &[(&'static str, &str)],
        body: &[u8],
    ) -> (String, Vec<u8>) {
        let response = self.open(path, metadata, body).await;
        ended(response).await.unwrap()
    }

    fn executed(&self) -> usize {
        self.gate.executed.load(Ordering::SeqCst)
    }
}

async fn ended(response: ResponseFuture) -> Result<(String, Vec<u8>), h2::Error> {
    let told = |headers: &HeaderMap| {
        headers.get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
    };
    let (head, mut body) = timeout(DEADLINE, response).await.unwrap()?.into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = timeout(DEADLINE, body.data()).await.unwrap() {
        bytes.extend_from_slice(&data?);
    }
    let trailers = body.trailers().await?;
    let status = told(&head.headers).or_else(|| told(&trailers.unwrap())).unwrap();
    Ok((status, bytes))
}

const EXIST: &str = "/mc.store.v1.MasterService/ExistKey";
const REPORT: &str = "/mc.store.v1.MasterService/ClusterReport";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

impl Peer {
    /// Takes all turns of this connection for calls that take long.
    async fn hold_all(&self) -> Vec<ResponseFuture> {
        let mut held = Vec::new();
        for _ in 0..AT_A_TIME {
            held.push(self.open(REPORT, &[], b"hold").await);
        }
        let waiting = || self.gate.held.load(Ordering::SeqCst) == AT_A_TIME;
        eventually(DEADLINE, "all are held", waiting).await;
        held
    }

    async fn release(&self, held: Vec<ResponseFuture>) {
        release(&self.gate, held).await;
    }
}

async fn release(gate: &Gate, held: Vec<ResponseFuture>) {
    gate.open();
    for response in held {
        assert_eq!(ended(response).await.unwrap().0, "0");
    }
}

#[tokio::test]
async fn a_deadline_that_passes_in_the_queue_is_kept() {
    let peer = serve(ServerConfig::default()).await;
    let held = peer.hold_all().await;
    assert_eq!(peer.call(REPORT, &[("grpc-timeout", "20m")], b"").await.0, "4");
    // Short calls wait for no other call.
    assert_eq!(peer.call(EXIST, &[], b"").await.0, "0");
    let in_time = peer.open(REPORT, &[("grpc-timeout", "1H")], b"").await;
    peer.release(held).await;
    assert_eq!(ended(in_time).await.unwrap().0, "0");
    assert_eq!(peer.executed(), AT_A_TIME + 2);
    assert_eq!(peer.call(EXIST, &[("grpc-timeout", "0n")], b"").await.0, "4");
    assert_eq!(peer.executed(), AT_A_TIME + 2);
}

#[tokio::test]
async fn a_call_that_its_caller_gave_up_is_not_executed() {
    let peer = serve(ServerConfig::default()).await;
    let held = peer.hold_all().await;
    let given_up = peer.open(REPORT, &[], b"").await;
    // Its answer says that what was sent before has arrived; so it does after the reset.
    assert_eq!(peer.call(EXIST, &[], b"").await.0, "0");
    drop(given_up);
    assert_eq!(peer.call(EXIST, &[], b"").await.0, "0");
    peer.release(held).await;
    assert_eq!(peer.call(REPORT, &[], b"").await.0, "0");
    assert_eq!(peer.executed(), AT_A_TIME + 3);
}

#[tokio::test]
async fn large_requests_take_their_turn() {
    let peer = serve(ServerConfig::default()).await;
    let held = peer.hold_all().await;
    assert_eq!(peer.call(EXIST, &[], &vec![0; 65_000]).await.0, "0");
    let large = peer.open(EXIST, &[], &vec![0; 70_000]).await;
    assert_eq!(peer.call(EXIST, &[], b"").await.0, "0");
    assert_eq!(peer.executed(), 2);
    peer.release(held).await;
    assert_eq!(ended(large).await.unwrap().0, "0");
    let metrics = peer.server.metrics();
    let calls: Vec<_> = metrics.calls.iter().map(|calls| (calls.calls, calls.refused)).collect();
    assert_eq!(calls, [(3, 0), (AT_A_TIME as u64, 0)]);
    assert!(metrics.bytes_in > 135_000 && metrics.bytes_out > 0);
}

#[tokio::test]
async fn a_call_that_panics_costs_itself() {
    let peer = serve(ServerConfig::default()).await;
    assert_eq!(peer.call(REPORT, &[], b"panic").await.0, "13");
    let response = peer.open(EXIST, &[], b"panic").await;
    assert!(ended(response).await.is_err());
    assert_eq!(peer.call(EXIST, &[], b"").await.0, "0");
}

#[tokio::test]
async fn credentials_are_asked_for_where_something_is_told() {
    let access = "token:secret-of-a-reader reader team-a name=somebody";
    let authenticator: Arc<dyn Authenticate> = Arc::new(Access::parse(access).unwrap());
    let mut config = ServerConfig::default();
    config.authenticator = Some(authenticator);
    let peer = serve(config).await;
    let right = [("authorization", "Bearer secret-of-a-reader"), ("mc-tenant", "team-a")];
    let wrong = [("authorization", "Bearer secret-of-a-writer"), ("mc-tenant", "team-a")];
    assert_eq!(peer.call(CHECK, &[], b"").await.0, "0");
    for path in [EXIST, REPORT, REFLECT] {
        assert_eq!(peer.call(path, &[], b"").await.0, "16", "{path}");
        assert_eq!(peer.call(path, &wrong, b"").await.0, "16", "{path}");
    }
    assert_eq!(peer.executed(), 0);
    let (status, answer) = peer.call(EXIST, &right, b"").await;
    assert_eq!((&*status, &answer[message::PREFIX_LEN..]), ("0", &b"somebody"[..]));
    // `list_services`, empty.
    let (status, answer) = peer.call(REFLECT, &right, b"\x3a\x00").await;
    assert!(status == "0" && !answer.is_empty());
}

#[tokio::test]
async fn draining_ends_the_connection_when_its_calls_are_answered() {
    let mut config = ServerConfig::default();
    config.drain_timeout = 2 * DEADLINE;
    let peer = serve(config).await;
    let held = peer.hold_all().await;
    let Peer { gate, server, streams, connection, .. } = peer;
    let drained = tokio::spawn(server.shutdown());
    let from = "127.0.0.1:2".parse().unwrap();
    let drains = || streams.hand_in(duplex(1).1, from).is_err();
    eventually(DEADLINE, "the server drains", drains).await;
    release(&gate, held).await;
    timeout(DEADLINE, drained).await.unwrap().unwrap();
    timeout(DEADLINE, connection).await.unwrap().unwrap().unwrap();
}
