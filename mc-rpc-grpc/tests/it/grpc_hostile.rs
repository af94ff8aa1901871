//! Hostile peers that speak HTTP/2: each harms its own connection only.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Request, Response, StatusCode};
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{ServerConfig, ServerHandle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::{DEADLINE, ME, connect, key, master, segment, serve};

const EXIST: &str = "/mc.store.v1.MasterService/ExistKey";
const BATCH_EXIST: &str = "/mc.store.v1.MasterService/BatchExistKey";
const GET: &str = "/mc.store.v1.MasterService/GetReplicaList";

/// An HTTP/2 client that does what it is told.
struct Raw {
    send: SendRequest<Bytes>,
    /// How the connection ended.
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Raw {
    async fn connect(server: &ServerHandle) -> Self {
        Self::connect_with(server, &h2::client::Builder::new()).await
    }

    async fn connect_with(server: &ServerHandle, builder: &h2::client::Builder) -> Self {
        let stream = TcpStream::connect(server.local_addr()).await.unwrap();
        let (send, connection) = builder.handshake(stream).await.unwrap();
        Self { send, connection: tokio::spawn(connection) }
    }

    async fn open(
        &mut self,
        request: Request<()>,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut send = self.send.clone().ready().await?;
        send.send_request(request, false)
    }

    /// A whole call; the answer as it is.
    async fn call(&mut self, path: &str, body: Bytes) -> Result<Response<RecvStream>, h2::Error> {
        let (response, mut sending) = self.open(post(path)).await?;
        sending.send_data(body, true)?;
        timeout(DEADLINE, response).await.expect("an answer in time")
    }

    /// Waits for the end of the connection while its calls are open.
    async fn ended(&mut self) {
        let ended = timeout(DEADLINE, &mut self.connection).await;
        // Whatever the library makes of it.
        drop(ended.expect("the connection ends in time").unwrap());
    }
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://master{path}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn message(bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::from(&[0][..]);
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend_from_slice(bytes);
    out.freeze()
}

/// The status, from the headers or from the trailers.
async fn status(response: Response<RecvStream>) -> String {
    let (head, mut body) = response.into_parts();
    let told =
        |headers: &http::HeaderMap| Some(headers.get("grpc-status")?.to_str().unwrap().to_owned());
    if let Some(status) = told(&head.headers) {
        return status;
    }
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    told(&body.trailers().await.unwrap().unwrap()).unwrap()
}

async fn assert_serves(server: &ServerHandle) {
    let mut raw = Raw::connect(server).await;
    let response = raw.call(EXIST, message(b"\x0a\x01k")).await.unwrap();
    assert_eq!(status(response).await, "0");
    assert!(!connect(server).await.exist(key("absent")).await.unwrap());
}

/// Waits until the server has closed.
async fn assert_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // Reset or ended, both are closed.
    drop(timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("closed in time"));
}

#[tokio::test]
async fn half_a_preface_does_not_stay() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_millis(50);
    let server = serve(&master(), config).await;
    for hello in [&b"P"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"POST / HTTP/1.1\r\n\r\n", b"PRIx"]
    {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(hello).await.unwrap();
        assert_closed(stream).await;
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn noise_after_the_preface_ends_the_connection() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..200 {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for _ in 0..256 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.push((seed >> 33) as u8);
        }
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_closed(stream).await;
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn requests_that_are_no_grpc_are_answered_in_http() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    let get =
        Request::get(format!("http://master{EXIST}")).header("content-type", "application/grpc");
    let json = Request::post(format!("http://master{EXIST}"))
        .header("content-type", "application/grpc+json");
    let web = Request::post(format!("http://master{EXIST}"))
        .header("content-type", "application/grpc-web");
    let bare = Request::post(format!("http://master{EXIST}"));
    for (request, code) in [
        (get, StatusCode::METHOD_NOT_ALLOWED),
        (json, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (web, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (bare, StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let (response, _sending) = raw.open(request.body(()).unwrap()).await.unwrap();
        assert_eq!(timeout(DEADLINE, response).await.unwrap().unwrap().status(), code);
    }
    let response = raw.call(EXIST, message(b"\x0a\x01k")).await.unwrap();
    assert_eq!(status(response).await, "0");
    server.shutdown().await;
}

#[tokio::test]
async fn bad_framing_of_messages_costs_one_call() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    for (body, expected) in [
        (&b""[..], "3"),
        (b"\0\0\0", "3"),
        (b"\0\0\0\0\x04\x0a\x01k", "3"),
        (b"\0\0\0\0\x03\x0a\x01k\0\0\0\0\0", "3"),
        (b"\x01\0\0\0\x03\x0a\x01k", "12"),
        (b"\0\xff\xff\xff\xff\x0a\x01k", "8"),
    ] {
        let response = raw.call(EXIST, Bytes::from_static(body)).await.unwrap();
        assert_eq!(status(response).await, expected, "{body:?}");
    }
    // A call that is refused before it has been sent whole costs no more, often as it may be.
    for _ in 0..2000 {
        let (response, mut sending) = raw.open(post(EXIST)).await.unwrap();
        sending.send_data(Bytes::from_static(b"\0\xff\xff\xff\xff"), false).unwrap();
        let response = timeout(DEADLINE, response).await.unwrap().unwrap();
        assert_eq!(status(response).await, "8");
    }
    let response = raw.call(EXIST, message(b"\x0a\x01k")).await.unwrap();
    assert_eq!(status(response).await, "0");
    server.shutdown().await;
}

#[tokio::test]
async fn headers_are_limited() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    let mut request = post(EXIST);
    request.headers_mut().insert("authorization", "x".repeat(100_000).parse().unwrap());
    // Answered with a status, reset, or the end of the connection; never taken.
    if let Ok((response, _sending)) = raw.open(request).await
        && let Ok(response) = timeout(DEADLINE, response).await.unwrap()
    {
        assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_flood_of_resets_ends_its_connection() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let mut headers = b"\x83\x86\x01\x01m\x04".to_vec(); // POST, http, :authority, :path
    headers.push(EXIST.len() as u8);
    headers.extend_from_slice(EXIST.as_bytes());
    // A client library would keep back what it is about to reset; this one sends both.
    let flood = async {
        for pair in 0..u32::MAX / 4 {
            let id = (2 * pair + 1).to_be_bytes();
            bytes.extend_from_slice(&[0, 0, headers.len() as u8, 1, 4]);
            bytes.extend_from_slice(&id);
            bytes.extend_from_slice(&headers);
            bytes.extend_from_slice(&[0, 0, 4, 3, 0]);
            bytes.extend_from_slice(&id);
            bytes.extend_from_slice(&8u32.to_be_bytes());
            if bytes.len() > 60_000 {
                if stream.write_all(&bytes).await.is_err() {
                    return pair;
                }
                bytes.clear();
            }
        }
        u32::MAX
    };
    let taken = timeout(DEADLINE, flood).await.expect("the server ends it");
    assert!(taken < 1_000_000, "{taken} calls were taken");
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_request_that_does_not_arrive_is_not_waited_for() {
    let mut config = ServerConfig::default();
    config.stall_timeout = Duration::from_millis(100);
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    let (response, mut sending) = raw.open(post(EXIST)).await.unwrap();
    sending.send_data(Bytes::from_static(b"\0\0\0\0\x03\x0a"), false).unwrap();
    let response = timeout(DEADLINE, response).await.unwrap().unwrap();
    assert_eq!(status(response).await, "4");
    // The others of the connection notice nothing.
    let response = raw.call(EXIST, message(b"\x0a\x01k")).await.unwrap();
    assert_eq!(status(response).await, "0");
    server.shutdown().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    let master = master();
    let mut config = ServerConfig::default();
    config.stall_timeout = Duration::from_millis(500);
    let server = serve(&master, config).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    let replicate = ReplicateConfig::default();
    let start = PutStart { key: key("sliced"), slice_lengths: &[1; 1024], config: &replicate };
    let handle = client.put_start(ME, &start).await.unwrap().handle;
    let end = PutEnd::new(key("sliced"), handle);
    client.put_end(ME, &end).await.unwrap();

    // Never gives room for more than the first bytes of an answer.
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(10);
    let mut raw = Raw::connect_with(&server, &builder).await;
    let _response = raw.call(GET, message(b"\x0a\x06sliced")).await.unwrap();
    raw.ended().await;
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn large_requests_share_a_limit() {
    let mut config = ServerConfig::default();
    config.max_buffered = 1 << 20;
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    let large = message(&b"\x0a\x01k".repeat(1 << 20));
    let (response, mut sending) = raw.open(post(BATCH_EXIST)).await.unwrap();
    sending.send_data(large, true).unwrap();
    let response = timeout(DEADLINE, response).await.unwrap().unwrap();
    assert_eq!(status(response).await, "14");
    let response = raw.call(EXIST, message(b"\x0a\x01k")).await.unwrap();
    assert_eq!(status(response).await, "0");
    assert_serves(&server).await;
    server.shutdown().await;
}
