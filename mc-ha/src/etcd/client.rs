//! Calls that turn to another member of etcd when one does not answer.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::config::{EtcdConfig, EtcdConfigError};
use super::failure::Failure;
use super::messages::{
    AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse, watch_request,
};
use crate::election::{ElectionError, ServiceOutage};

/// A connection without any sign of life is closed after this and its half. etcd closes
/// connections that ask more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A client of one cluster of etcd. Belongs to the runtime in which it was made.
#[derive(Debug)]
pub(crate) struct Client {
    servers: Vec<Server>,
    /// The server that answered last.
    preferred: AtomicUsize,
    credentials: Option<(Box<str>, Box<str>)>,
    token: Mutex<Option<AsciiMetadataValue>>,
    timeout: Duration,
    prefix: Box<str>,
    outage: Mutex<Option<ServiceOutage>>,
}

#[derive(Debug)]
struct Server {
    address: Box<str>,
    endpoint: Endpoint,
    channel: Mutex<Channel>,
}

impl Client {
    /// A client that connects when it is used.
    ///
    /// # Errors
    /// [`ElectionError::Tls`].
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, ElectionError> {
        let timeout = config.request_timeout();
        let servers = config.endpoints.iter().map(|address| {
            let scheme = if address.encrypted { "https" } else { "http" };
            let uri = format!("{scheme}://{}", address.authority);
            let endpoint = Endpoint::from_shared(uri).map_err(|error| {
                ElectionError::Unreachable { failures: error.to_string().into() }
            })?;
            let endpoint = endpoint
                .connect_timeout(timeout)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_INTERVAL / 2);
            let endpoint = if address.encrypted { encrypted(&endpoint, config)? } else { endpoint };
            let channel = Mutex::new(endpoint.connect_lazy());
            Ok(Server { address: address.authority.clone(), endpoint, channel })
        });
        Ok(Self {
            servers: servers.collect::<Result<_, ElectionError>>()?,
            preferred: AtomicUsize::new(0),
            credentials: config.credentials.clone(),
            token: Mutex::new(None),
            timeout,
            prefix: config.prefix().into(),
            outage: Mutex::new(None),
        })
    }

    /// The number of the server that calls turn to first.
    pub(crate) fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// Reads one key or, up to `range_end`, several. Linearizable, unless the request says
    /// serializable: the member that is asked answers without the others then, and may be behind.
    pub(crate) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, ElectionError> {
        self.call("/etcdserverpb.KV/Range", range).await
    }

    /// Writes a key.
    pub(crate) async fn put(
        &self,
        key: &str,
        value: Bytes,
        lease: i64,
    ) -> Result<(), ElectionError> {
        let key = Bytes::copy_from_slice(key.as_bytes());
        let put = PutRequest { key, value, lease };
        self.call("/etcdserverpb.KV/Put", put).await.map(|PutResponse {}| ())
    }

    /// Runs a transaction. It may run twice: when a server does not answer, another one is asked.
    pub(crate) async fn transact(
        &self,
        transaction: TxnRequest,
    ) -> Result<TxnResponse, ElectionError> {
        self.call("/etcdserverpb.KV/Txn", transaction).await
    }

    /// Lets etcd forget what its keys were before this revision.
    pub(crate) async fn compact(&self, revision: i64) -> Result<(), ElectionError> {
        let call = self.call("/etcdserverpb.KV/Compact", CompactionRequest { revision });
        call.await.map(|CompactionResponse {}| ())
    }

    /// Makes a lease of so many seconds. etcd may lengthen it.
    pub(crate) async fn grant(&self, ttl: i64) -> Result<LeaseGrantResponse, ElectionError> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl }).await
    }

    /// Ends a lease, and deletes its keys.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), ElectionError> {
        let revoked = self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }).await;
        match revoked {
            Ok(LeaseRevokeResponse {}) | Err(ElectionError::LeaseEnded) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Renews a lease.
    ///
    /// # Errors
    /// [`ElectionError::LeaseEnded`] when there is no such lease any more.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<(), ElectionError> {
        // A stream of requests in etcd's definition. A stream of one request and one response
        // cannot be told from a plain call.
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let kept: LeaseKeepAliveResponse = self.call(path, LeaseKeepAliveRequest { id }).await?;
        if kept.ttl > 0 { Ok(()) } else { Err(ElectionError::LeaseEnded) }
    }

    /// Follows the keys from `key` up to `range_end`, from a revision on. Returns the number of the
    /// server too.
    pub(crate) async fn watch(
        &self,
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
    ) -> Result<(usize, Streaming<WatchResponse>), ElectionError> {
        let create = WatchCreateRequest { key, range_end, start_revision };
        let request = WatchRequest {
            request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
        };
        let at = self.preferred();
        let open = async {
            let token = self.token(at).await?;
            // The stream of requests stays open: its end would end the watch.
            let requests = stream::iter([request]).chain(stream::pending());
            let mut grpc = Grpc::new(self.servers[at].channel.lock().clone());
            ready(&mut grpc).await?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let request = with_metadata(requests, token.as_ref());
            let opened = grpc.streaming(request, path, ProstCodec::default()).await;
            opened.map(Response::into_inner).map_err(Failure::of)
        };
        match self.within_timeout(at, open).await {
            Ok(stream) => Ok((at, stream)),
            Err(failure) => {
                self.turn_away(at);
                Err(self.error(at, "Watch", failure))
            }
        }
    }

    /// Returns since when no call was answered, and why.
    pub(crate) fn outage(&self) -> Option<ServiceOutage> {
        self.outage.lock().clone()
    }

    /// Notes what became of a call.
    fn note(&self, failure: Option<&ElectionError>) {
        let mut outage = self.outage.lock();
        // A lease that has ended is an answer.
        let failure = failure.filter(|error| !matches!(error, ElectionError::LeaseEnded));
        *outage = failure.map(|cause| {
            let since = outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
            ServiceOutage { since, cause: cause.clone() }
        });
    }

    /// Calls the servers one after the other, until one answers.
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, ElectionError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let answered = self.call_any(path, request).await;
        self.note(answered.as_ref().err());
        answered
    }

    async fn call_any<Q, A>(&self, path: &'static str, request: Q) -> Result<A, ElectionError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let first = self.preferred();
        let (mut failures, mut answered) = (String::new(), false);
        for step in 0..self.servers.len() {
            let at = (first + step) % self.servers.len();
            let separator = if step == 0 { "" } else { "; " };
            let address = &self.servers[at].address;
            let failure = match self.within_timeout(at, self.call_at(at, path, &request)).await {
                Ok(answer) => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(Failure::Unreachable(failure)) => failure,
                Err(Failure::NoLeader(failure)) => {
                    answered = true;
                    failure
                }
                Err(failure) => return Err(self.error(at, path, failure)),
            };
            self.turn_away(at);
            // Writing to a string cannot fail.
            let _ = write!(failures, "{separator}{address}: {failure}");
        }
        let failures = failures.into();
        Err(if answered {
            ElectionError::NoQuorum { failures }
        } else {
            ElectionError::Unreachable { failures }
        })
    }

    /// Lets the next calls begin with another server than this one.
    fn turn_away(&self, at: usize) {
        let next = (at + 1) % self.servers.len();
        // Unless another call has found a better one already.
        let _ = self.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn within_timeout<T>(
        &self,
        at: usize,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        if let Ok(result) = tokio::time::timeout(self.timeout, call).await {
            return result;
        }
        // The connection may lead nowhere, and would for as long as the system tries.
        let server = &self.servers[at];
        *server.channel.lock() = server.endpoint.connect_lazy();
        Err(Failure::Unreachable(format!("no answer within {:?}", self.timeout).into()))
    }

    async fn call_at<Q, A>(&self, at: usize, path: &'static str, request: &Q) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token(at).await?;
        match self.call_once(at, path, request.clone(), token.as_ref()).await {
            // It lasts for five minutes, and not beyond a restart of etcd.
            Err(Failure::StaleToken(status)) if self.credentials.is_some() => {
                self.forget(token.as_ref());
                let token = self.token(at).await?;
                let again = self.call_once(at, path, request.clone(), token.as_ref()).await;
                again.map_err(|failure| match failure {
                    Failure::StaleToken(_) => Failure::Credentials(status),
                    failure => failure,
                })
            }
            result => result,
        }
    }

    async fn call_once<Q, A>(
        &self,
        at: usize,
        path: &'static str,
        request: Q,
        token: Option<&AsciiMetadataValue>,
    ) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.servers[at].channel.lock().clone());
        ready(&mut grpc).await?;
        let path = PathAndQuery::from_static(path);
        let answered = grpc.unary(with_metadata(request, token), path, ProstCodec::default()).await;
        answered.map(Response::into_inner).map_err(Failure::of)
    }

    /// The token for calls; `None` without authentication.
    async fn token(&self, at: usize) -> Result<Option<AsciiMetadataValue>, Failure> {
        let Some((name, password)) = &self.credentials else { return Ok(None) };
        if let Some(token) = self.token.lock().clone() {
            return Ok(Some(token));
        }
        let request =
            AuthenticateRequest { name: name.to_string(), password: password.to_string() };
        let answered = self.call_once(at, "/etcdserverpb.Auth/Authenticate", request, None).await;
        let token = match answered {
            Ok(AuthenticateResponse { token }) => token,
            // Without authentication every caller has all permissions.
            Err(Failure::NoAuthentication) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let token = AsciiMetadataValue::try_from(token).map_err(|_| {
            Failure::Rejected(Status::new(Code::Internal, "a token that no header can carry"))
        })?;
        *self.token.lock() = Some(token.clone());
        Ok(Some(token))
    }

    /// Forgets a token, unless it was replaced already.
    fn forget(&self, token: Option<&AsciiMetadataValue>) {
        self.token.lock().take_if(|kept| Some(&*kept) == token);
    }

    fn error(&self, at: usize, call: &'static str, failure: Failure) -> ElectionError {
        let endpoint = self.servers[at].address.clone();
        let user = match &self.credentials {
            Some((name, _)) => format!("user {name:?}").into(),
            None => "a request without a user".into(),
        };
        match failure {
            Failure::Unreachable(failure) => {
                ElectionError::Unreachable { failures: format!("{endpoint}: {failure}").into() }
            }
            Failure::NoLeader(failure) => {
                ElectionError::NoQuorum { failures: format!("{endpoint}: {failure}").into() }
            }
            Failure::StaleToken(status) | Failure::Credentials(status) => {
                ElectionError::Credentials { endpoint, user, source: Arc::new(status) }
            }
            Failure::Forbidden(status) => {
                let (prefix, source) = (self.prefix.clone(), Arc::new(status));
                ElectionError::Forbidden { endpoint, user, prefix, source }
            }
            Failure::LeaseEnded => ElectionError::LeaseEnded,
            Failure::NoAuthentication => {
                let source = Arc::new(Status::new(Code::Internal, "authentication is not enabled"));
                ElectionError::Rejected { endpoint, call, source }
            }
            Failure::Rejected(status) => {
                ElectionError::Rejected { endpoint, call, source: Arc::new(status) }
            }
        }
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Failure> {
    grpc.ready().await.map_err(|error| Failure::of(Status::from_error(error.into())))
}

fn with_metadata<T>(message: T, token: Option<&AsciiMetadataValue>) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    // A member that knows no leader says so, rather than letting the call wait.
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token.clone());
    }
    request
}

#[cfg(feature = "tls")]
fn encrypted(endpoint: &Endpoint, config: &EtcdConfig) -> Result<Endpoint, ElectionError> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    /// Longest file of certificates or keys in bytes.
    const MAX_PEM: usize = 1 << 20;
    let read = |path: &std::path::Path| {
        let bytes = mc_tls::read_file(path, MAX_PEM);
        bytes.map_err(|error| ElectionError::Tls { source: Arc::new(error) })
    };
    let ca = config.tls.ca.as_deref().ok_or_else(|| {
        let endpoint = endpoint.uri().to_string().into();
        ElectionError::Tls { source: Arc::new(EtcdConfigError::NoAuthority { endpoint }) }
    })?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
    if let Some((certificate, key)) = &config.tls.identity {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    if let Some(name) = &config.tls.server_name {
        tls = tls.domain_name(&**name);
    }
    endpoint.clone().tls_config(tls).map_err(|error| ElectionError::Tls { source: Arc::new(error) })
}

#[cfg(not(feature = "tls"))]
fn encrypted(endpoint: &Endpoint, _: &EtcdConfig) -> Result<Endpoint, ElectionError> {
    let endpoint = endpoint.uri().to_string().into();
    Err(ElectionError::Tls { source: Arc::new(EtcdConfigError::NoTls { endpoint }) })
}
