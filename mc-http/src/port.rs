//! The port and its connections.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::crowd::Crowd;
use crate::page::{self, Answer, Page};
use crate::request;

/// Connections at a time. Scrapers and probes are few; a flood takes a while to push one of
/// them out.
const MAX_CONNECTIONS: usize = 256;

/// Connections that wait until they are taken; the system may have a lower limit. Beyond it TCP
/// lets a client try again only after a second.
const BACKLOG: u32 = 4096;
/// Time limit for the head of a request to arrive, and for a kept connection to idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a connection. It ends after the answer under way.
const CONNECTION_LIFE: Duration = Duration::from_secs(300);
/// Time limit for that last answer to be read.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Bytes of a request's head that are looked at before it is refused.
const MAX_HEAD: usize = 16 << 10;
/// The least limit of a head that the HTTP library takes.
const LEAST_HEAD: usize = 8 << 10;
/// A pause after a failed accept, which is most often a want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A port that is open, but does not answer yet.
#[derive(Debug)]
pub struct HttpPort {
    listener: TcpListener,
    address: SocketAddr,
    max_connections: usize,
    max_head: usize,
}

/// Why a port is not open.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum BindError {
    /// The port is in use.
    #[error("{address} is in use by another process; choose another port (0 takes a free one)")]
    InUse { address: SocketAddr, source: io::Error },
    /// The address cannot be listened on for another reason.
    #[error(
        "cannot listen on {address}; choose an address of this host and a port that is allowed"
    )]
    Listen { address: SocketAddr, source: io::Error },
}

impl HttpPort {
    /// Opens the port.
    ///
    /// # Errors
    /// [`BindError`]; nothing stays open then.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let open = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restarted program must get its port back while old connections are in TIME_WAIT.
            #[cfg(unix)]
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(BACKLOG)?;
            Ok::<_, io::Error>((listener.local_addr()?, listener))
        };
        match mc_net::bind_patiently(address.port(), open).await {
            Ok((address, listener)) => {
                let (max_connections, max_head) = (MAX_CONNECTIONS, MAX_HEAD);
                Ok(Self { listener, address, max_connections, max_head })
            }
            Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
                Err(BindError::InUse { address, source })
            }
            Err(source) => Err(BindError::Listen { address, source }),
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves so many connections at a time in place of 256. One more is not refused: the
    /// oldest ends that has asked nothing, from the address that has most.
    #[must_use]
    pub const fn max_connections(mut self, max: usize) -> Self {
        self.max_connections = max;
        self
    }

    /// Takes heads of requests of up to this many bytes in place of 16 KiB, and at least 8 KiB. The
    /// target of a request, which is its path and query, has at most 65,534 bytes in any case.
    #[must_use]
    pub const fn max_head(mut self, bytes: usize) -> Self {
        self.max_head = if bytes < LEAST_HEAD { LEAST_HEAD } else { bytes };
        self
    }

    /// Answers with what `pages` has for each path until `stop` is over, then lets the
    /// answers under way come to their end, which takes half a second at most.
    ///
    /// # Cancellation
    /// Dropping the future closes everything at once.
    pub async fn serve<P>(self, pages: P, stop: impl Future<Output = ()>)
    where
        P: Fn(&str) -> Option<Page> + Send + Sync + 'static,
    {
        self.serve_queries(move |request| pages(request.uri().path()), stop).await;
    }

    /// As [`serve`](Self::serve), for pages that depend on more of a request than its path, such as its
    /// query and its headers.
    ///
    /// # Cancellation
    /// Dropping the future closes everything at once.
    pub async fn serve_queries<P>(self, pages: P, stop: impl Future<Output = ()>)
    where
        P: Fn(&Request<()>) -> Option<Page> + Send + Sync + 'static,
    {
        let pages = Arc::new(pages);
        self.attend(move |request| ready(page::answer(request, &*pages)), stop).await;
    }

    /// As [`serve_queries`](Self::serve_queries) for GET and HEAD. Requests of other methods, with bodies of at
    /// most `max_body` bytes, are answered with what `change` makes of them; it may take its time. Where it returns
    /// `None` the path has no such method. `pages` runs on a thread for work that blocks, so that no other task waits for
    /// a long page. The other end of the connection is in the
    /// [extensions](Request::extensions) of its requests, a [`SocketAddr`].
    ///
    /// # Cancellation
    /// Dropping the future closes everything at once. A `change` whose client leaves is dropped.
    pub async fn serve_changes<P, C, F>(
        self,
        pages: P,
        (max_body, change): (usize, C),
        stop: impl Future<Output = ()>,
    ) where
        P: Fn(&Request<()>) -> Option<Page> + Send + Sync + 'static,
        C: Fn(Request<Bytes>) -> Option<F> + Send + Sync + 'static,
        F: Future<Output = Page> + Send + 'static,
    {
        let (pages, change) = (Arc::new(pages), Arc::new(change));
        let service = move |request: Request<Incoming>| {
            let (pages, change) = (Arc::clone(&pages), Arc::clone(&change));
            async move {
                if matches!(*request.method(), Method::GET | Method::HEAD) {
                    let head = request.map(drop);
                    let page = tokio::task::spawn_blocking(move || page::answer(head, &*pages));
                    return page.await.unwrap_or_else(|error| page::failed(&error));
                }
                let request = match request::whole(request, max_body, BODY_TIMEOUT).await {
                    Ok(request) => request,
                    Err(refusal) => return page::last_response(refusal),
                };
                let asked = request.clone().map(drop);
                match change(request) {
                    Some(answer) => page::response(answer.await),
                    None => page::answer(asked, &*pages),
                }
            }
        };
        self.attend(service, stop).await;
    }

    /// As [`serve`](Self::serve), but answers every request with what `answer` makes of it, its
    /// body included. One with a body of more than `max_body` bytes is refused with the status 413,
    /// one whose body takes longer than 30 seconds with the status 408.
    ///
    /// `answer` must not block either.
    ///
    /// # Cancellation
    /// Dropping the future closes everything at once.
    pub async fn serve_requests<A>(self, max_body: usize, answer: A, stop: impl Future<Output = ()>)
    where
        A: Fn(&Request<Bytes>) -> Page + Send + Sync + 'static,
    {
        let answer = Arc::new(answer);
        let service = move |request| {
            let answer = Arc::clone(&answer);
            async move {
                let whole = request::whole(request, max_body, BODY_TIMEOUT);
                match whole.await {
                    Ok(request) => page::response(answer(&request)),
                    Err(refusal) => page::last_response(refusal),
                }
            }
        };
        self.attend(service, stop).await;
    }

    async fn attend<S, F>(self, service: S, stop: impl Future<Output = ()>)
    where
        S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = http::Response<Answer>> + Send + 'static,
    {
        let (stopping, stopped) = watch::channel(());
        let (mut connections, mut crowd) = (JoinSet::new(), Crowd::default());
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                Some(ended) = connections.join_next_with_id() => {
                    crowd.remove(ended.map_or_else(|error| error.id(), |(task, ())| task));
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    crowd.make_room(self.max_connections);
                    let (service, stopped) = (service.clone(), stopped.clone());
                    let asked = Arc::new(AtomicBool::new(false));
                    let asks = Arc::clone(&asked);
                    let service = move |mut request: Request<Incoming>| {
                        asks.store(true, Ordering::Relaxed);
                        request.extensions_mut().insert(peer);
                        service(request)
                    };
                    let max_head = self.max_head;
                    let task = connections.spawn(async move {
                        if let Err(error) = converse(stream, max_head, service, stopped).await {
                            debug!(%peer, %error, "a connection for pages failed");
                        }
                    });
                    crowd.add(peer.ip(), asked, task);
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection for pages");
                    crowd.make_room(self.max_connections / 2);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        drop(stopping);
        while connections.join_next().await.is_some() {}
    }
}

/// One connection, from its first byte to its last.
async fn converse<S, F>(
    stream: TcpStream,
    max_head: usize,
    service: S,
    mut stop: watch::Receiver<()>,
) -> Result<(), hyper::Error>
where
    S: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = http::Response<Answer>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = service(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(max_head)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        // It fails when the sender is gone, which is what says stop.
        _ = stop.changed() => {}
        () = tokio::time::sleep(CONNECTION_LIFE) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
}
