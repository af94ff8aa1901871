//! Reflection: the messages and calls, for clients that have no `.proto`.

use core::convert::Infallible;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use mc_rpc::Refusal;
use mc_rpc::proto::FILE_DESCRIPTOR_SET;
use mc_types::ErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic_reflection::server::Builder;

use super::body::Bounded;
use super::memory_budget::Waiting;

const V1: &str = "/grpc.reflection.v1.ServerReflection/";
const V1ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";

/// Most streams under way at a time over all connections. Each holds up to two copies of the
/// whole `.proto` for a peer that does not read.
const MAX_STREAMS: usize = 64;

/// Longest question in bytes.
const MAX_QUESTION: usize = 4 << 10;

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Server = Arc<dyn Fn(Request<Bounded>) -> Answering + Send + Sync>;

/// Returns whether a call with this path is one of reflection.
pub(super) fn is_reflection(path: &str) -> bool {
    path.starts_with(V1) || path.starts_with(V1ALPHA)
}

/// The reflection service, in both of its versions.
#[derive(Clone)]
pub(super) struct Reflection {
    v1: Server,
    v1alpha: Server,
    streams: Arc<Semaphore>,
}

impl fmt::Debug for Reflection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reflection").field("streams", &self.streams).finish_non_exhaustive()
    }
}

impl Reflection {
    pub(super) fn new() -> Self {
        let builder = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let built = "the descriptors come from a compiler";
        let v1 = builder().build_v1().expect(built);
        let v1alpha = builder().build_v1alpha().expect(built);
        Self {
            v1: server(TowerToHyperService::new(v1.max_decoding_message_size(MAX_QUESTION))),
            v1alpha: server(TowerToHyperService::new(
                v1alpha.max_decoding_message_size(MAX_QUESTION),
            )),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }

    /// Answers one stream of questions. `waiting` lasts as long as its answers do.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`] when too many streams are under way.
    pub(super) async fn answer(
        &self,
        request: Request<Bounded>,
        waiting: Waiting,
    ) -> Result<Response<Body>, Refusal> {
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let message = "the master answers too many reflection streams; retry shortly";
            Refusal::new(ErrorCode::Overloaded, message)
        })?;
        let server = match request.uri().path().starts_with(V1ALPHA) {
            false => &self.v1,
            true => &self.v1alpha,
        };
        let response = server(request).await;
        Ok(response.map(|body| Body::new(Kept { body, _permit: permit, _waiting: waiting })))
    }
}

fn server<T>(service: T) -> Server
where
    T: Service<Request<Bounded>, Response = Response<Body>, Error = Infallible>
        + Send
        + Sync
        + 'static,
    T::Future: Send + 'static,
{
    Arc::new(move |request| {
        let answering = service.call(request);
        Box::pin(async move { answering.await.unwrap_or_else(|never| match never {}) })
    })
}

/// A response's body with what must live as long.
struct Kept {
    body: Body,
    _permit: OwnedSemaphorePermit,
    _waiting: Waiting,
}

impl http_body::Body for Kept {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
