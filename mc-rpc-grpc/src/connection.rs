//! A gRPC connection: HTTP/2, and which service a call is for.

use core::convert::Infallible;
use core::error::Error;
use core::pin::pin;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mc_rpc::frame::check_magic;
use mc_rpc::{CloseReason, Guest, GuestCalls, Refusal, ServerConfig};
use mc_types::ErrorCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::body::Body;

use super::body::Bounded;
use super::health::{self, HealthServer};
use super::memory_budget::MemoryBudget;
use super::metadata::Claim;
use super::reflection::{Reflection, is_reflection};
use super::rewind::Rewind;
use super::status::status;

/// The first bytes of every HTTP/2 connection.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const MASTER_SERVICE: &str = "/mc.store.v1.MasterService/";
const HEALTH: &str = "/grpc.health.v1.Health/";

/// Most calls under way on one connection, whatever
/// [`ServerConfig::max_in_flight`] says: each is a task with headers of its own.
const MAX_STREAMS: u32 = 1024;

/// Most bytes of one call's headers, and of the table that compresses them.
const MAX_HEADERS: u32 = 16 << 10;
const HEADER_TABLE: u32 = 4 << 10;

/// Most bytes that a peer may have sent and this side not looked at: of one call, and of a
/// connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;

const MAX_FRAME: u32 = 16 << 10;

/// Most bytes of answers that the HTTP/2 layer buffers for one call.
const SEND_BUFFER: usize = 64 << 10;

/// Calls that a peer may open and reset before this side has looked at them, and calls that
/// this side may have had to reset; a connection with more ends.
const MAX_RESETS: usize = 64;

/// How long a peer may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves one connection, of which `begun` was read already, to its end.
///
/// # Errors
/// Why this side, or the network, ended the connection.
pub(super) async fn serve_connection<IO>(
    begun: Bytes,
    io: IO,
    mut guest: Guest,
    reflection: Reflection,
) -> Result<(), CloseReason>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (calls, draining) = (Arc::clone(guest.calls()), guest.draining());
    let config = calls.config();
    let preface = timeout(config.handshake_timeout, read_preface(begun, io)).await;
    let io = preface.map_err(|_| CloseReason::SlowHandshake(config.handshake_timeout))??;

    let memory_budget = MemoryBudget::new(calls.buffered(), config.max_buffered);
    let health = health::server(draining.clone(), calls.wellness());
    let connection = Arc::new(Connection {
        calls: Arc::clone(&calls),
        reflection,
        memory_budget: Arc::clone(&memory_budget),
        health: TowerToHyperService::new(health),
        draining,
    });
    let respond = service_fn(move |request| {
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(connection.respond(request).await) }
    });
    let mut http = pin!(http2_of(config).serve_connection(TokioIo::new(io), respond));

    let stall = config.stall_timeout;
    let mut check = interval((stall / 4).max(Duration::from_millis(1)));
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leave = pin!(guest.leave());
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
            () = &mut leave, if !ending => {
                ending = true;
                http.as_mut().graceful_shutdown();
            }
            ended = http.as_mut() => return ended.map_err(end_of),
            now = check.tick() => {
                if memory_budget.oldest().is_some_and(|since| since + stall < now) {
                    return Err(CloseReason::SlowReader(stall));
                }
            }
        }
    }
}

fn http2_of(config: &ServerConfig) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(config.max_in_flight.min(MAX_STREAMS))
        .max_header_list_size(MAX_HEADERS)
        .header_table_size(HEADER_TABLE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .keep_alive_interval(config.keepalive)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Reads what every connection begins with, and stops at the first byte that is something
/// else.
async fn read_preface<IO>(begun: Bytes, mut io: IO) -> Result<Rewind<IO>, CloseReason>
where
    IO: AsyncRead + Unpin,
{
    let mut read = BytesMut::from(begun);
    loop {
        let len = read.len().min(PREFACE.len());
        if read[..len] != PREFACE[..len] {
            check_magic(&read)?;
        }
        if len == PREFACE.len() {
            return Ok(Rewind::new(read.freeze(), io));
        }
        if io.read_buf(&mut read).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

/// Returns why a connection ended: lost by the network, or broken by its client.
fn end_of(error: hyper::Error) -> CloseReason {
    let lost = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    match lost.and_then(h2::Error::get_io) {
        Some(lost) => CloseReason::Io(lost.kind().into()),
        None => CloseReason::Guest(error.into()),
    }
}

/// One connection.
pub(super) struct Connection {
    pub(super) calls: Arc<GuestCalls>,
    reflection: Reflection,
    pub(super) memory_budget: Arc<MemoryBudget>,
    health: TowerToHyperService<HealthServer>,
    draining: watch::Receiver<bool>,
}

/// The response metadata with the leader's term.
const EPOCH: &str = "mc-epoch";

impl Connection {
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let _open = self.calls.open();
        if request.method() != HttpMethod::POST {
            return empty(StatusCode::METHOD_NOT_ALLOWED);
        }
        if !is_grpc(request.headers()) {
            return empty(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        let path = request.uri().path();
        if path.starts_with(MASTER_SERVICE) {
            let answered = self.answer(request).await;
            let mut response = answered.unwrap_or_else(|status| status.into_http());
            if let Some(term) = &self.calls.config().term {
                response.headers_mut().insert(EPOCH, HeaderValue::from(term.epoch.as_u64()));
            }
            return response;
        }
        if path.starts_with(HEALTH) {
            let request = request.map(|body| self.bounded(body));
            return self.health.call(request).await.unwrap_or_else(|never| match never {});
        }
        if is_reflection(path) {
            return self
                .reflect(request)
                .await
                .unwrap_or_else(|refusal| status(&refusal).into_http());
        }
        let message = format!("this master has no {path}; reflection lists what it has");
        status(&Refusal::new(ErrorCode::NotSupported, message)).into_http()
    }

    async fn reflect(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        // The client that may call something may know what there is to be called.
        let Claim { token, tenant } = Claim::read(request.headers())?;
        self.calls.identify(token, tenant)?;
        // The peer ends such a stream, this side some time after; then its answers have as
        // long to be taken as any.
        let stall_timeout = self.calls.config().stall_timeout;
        let waiting = self.memory_budget.wait(Instant::now() + stall_timeout);
        let request = request.map(|body| self.bounded(body));
        self.reflection.answer(request, waiting).await
    }

    /// The body of a request to the end of its peer's part, or until the server is to end, or
    /// no longer than a request may take.
    fn bounded(&self, body: Incoming) -> Bounded {
        let mut draining = self.draining.clone();
        let stall_timeout = self.calls.config().stall_timeout;
        Bounded::new(body, async move {
            // Over in either case: in time, or too late.
            drop(timeout(stall_timeout, draining.wait_for(|draining| *draining)).await);
        })
    }
}

/// Returns whether the request is gRPC with protobuf messages, by its content type.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    let Some(rest) = value.and_then(|value| value.strip_prefix(b"application/grpc")) else {
        return false;
    };
    let rest = rest.strip_prefix(b"+proto").unwrap_or(rest);
    rest.is_empty() || rest.starts_with(b";")
}

fn empty(code: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = code;
    response
}
