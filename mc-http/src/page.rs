//! Pages, and how they answer requests.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue,
};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::task::JoinError;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::openmetrics;

/// Time limit for a page of events, which comes to its end before its connection is cut.
const EVENTS_LIFE: Duration = Duration::from_secs(240);

/// The type of a page of metrics.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The answer for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    status: StatusCode,
    content_type: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Whole(Bytes),
    Events(Events),
}

impl Page {
    /// Text for people.
    #[must_use]
    pub fn text(body: impl Into<Bytes>) -> Self {
        Self::of("text/plain; charset=utf-8", body.into())
    }

    /// Prometheus' text format, version 0.0.4; for a client that prefers it, OpenMetrics' version 1.0.0. The text is
    /// that of a [`MetricsText`](crate::MetricsText).
    #[must_use]
    pub fn prometheus(body: impl Into<Bytes>) -> Self {
        Self::of(PROMETHEUS, body.into())
    }

    /// JSON.
    #[must_use]
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self::of("application/json", body.into())
    }

    /// HTML.
    #[must_use]
    pub fn html(body: impl Into<Bytes>) -> Self {
        Self::of("text/html; charset=utf-8", body.into())
    }

    /// Server-sent events, as browsers follow them: one at once and another each `period`, until `next` has
    /// none, the client leaves, or four minutes are over, before the connection's life is; clients ask again then.
    /// `next` runs on the runtime and must not block. Its data must not contain a line break.
    ///
    /// ```
    /// use std::time::Duration;
    /// let clock = mc_http::Page::events(Duration::from_secs(1), || Some("{\"tick\":1}".to_owned()));
    /// ```
    #[must_use]
    pub fn events(
        period: Duration,
        next: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let mut page = Self::of("text/event-stream", Bytes::new());
        page.body = Content::Events(Events { period, next: Arc::new(next) });
        page.header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
    }

    /// The same, with the status 503: a probe takes it for a no.
    #[must_use]
    pub fn unavailable(self) -> Self {
        self.status(StatusCode::SERVICE_UNAVAILABLE)
    }

    /// The same, with this status in place of 200.
    #[must_use]
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds a header. `Content-Type` is the page's own and cannot be replaced.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    const fn of(content_type: &'static str, body: Bytes) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            headers: Vec::new(),
            body: Content::Whole(body),
        }
    }
}

/// The source of an endless page.
#[derive(Clone)]
pub(crate) struct Events {
    period: Duration,
    next: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Events {
    fn next(&self) -> Option<Bytes> {
        (self.next)().map(|data| format!("data: {data}\n\n").into())
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("period", &self.period).finish_non_exhaustive()
    }
}

/// Two are the same that tell the same.
impl PartialEq for Events {
    fn eq(&self, other: &Self) -> bool {
        self.period == other.period && Arc::ptr_eq(&self.next, &other.next)
    }
}

impl Eq for Events {}

/// Answers a request whose body, if it has one, is not read.
pub(crate) fn answer<B>(
    request: Request<B>,
    pages: &impl Fn(&Request<()>) -> Option<Page>,
) -> Response<Answer> {
    let request = request.map(drop);
    let Some(page) = pages(&request) else {
        return refusal(StatusCode::NOT_FOUND, "no such page\n");
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED, "pages are for GET and HEAD\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    response(as_wanted(page, &request))
}

/// Metrics in the format that the client prefers.
fn as_wanted(page: Page, request: &Request<()>) -> Page {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let (PROMETHEUS, Content::Whole(text), Some(accept)) = (page.content_type, &page.body, accept)
    else {
        return page;
    };
    match str::from_utf8(text) {
        Ok(text) if openmetrics::is_wanted(accept) => Page {
            body: Content::Whole(openmetrics::from_prometheus(text).into()),
            content_type: openmetrics::CONTENT_TYPE,
            ..page
        },
        _ => page,
    }
}

/// The answer to a request whose page panicked.
pub(crate) fn failed(error: &JoinError) -> Response<Answer> {
    tracing::error!(%error, "a page could not be made");
    refusal(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made; the log says why\n")
}

fn refusal(status: StatusCode, text: &'static str) -> Response<Answer> {
    response(Page::text(text).status(status))
}

pub(crate) fn response(page: Page) -> Response<Answer> {
    let mut response = Response::new(Answer::of(page.body));
    *response.status_mut() = page.status;
    response.headers_mut().extend(page.headers);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    response
}

/// A response to a request of which not all was read, after which the connection ends.
pub(crate) fn last_response(page: Page) -> Response<Answer> {
    let mut response = response(page);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// All of it is there.
    Whole(Bytes),
    /// Events, the time of the next, and when they end.
    Events(Events, Pin<Box<Sleep>>, Instant),
}

impl Answer {
    fn of(content: Content) -> Self {
        match content {
            Content::Whole(bytes) => Self::Whole(bytes),
            Content::Events(events) => {
                let now = Instant::now();
                Self::Events(events, Box::pin(sleep_until(now)), now + EVENTS_LIFE)
            }
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Whole(body) => Some(std::mem::take(body)).filter(|body| !body.is_empty()),
            Self::Events(events, due, end) => {
                ready!(due.as_mut().poll(cx));
                let now = Instant::now();
                due.as_mut().reset(now + events.period);
                if now < *end { events.next() } else { None }
            }
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(body) if body.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.len() as u64),
            Self::Events(..) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_end_before_their_connection_is_cut() {
        let page = Page::events(Duration::from_secs(1), || Some("tick".into()));
        let (begun, mut body, mut events) = (Instant::now(), Answer::of(page.body), 0);
        while let Some(Ok(event)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            assert_eq!(event.into_data().ok().as_deref(), Some(&b"data: tick\n\n"[..]));
            events += 1;
        }
        assert_eq!((events, begun.elapsed().as_secs()), (240, 240));
    }
}
