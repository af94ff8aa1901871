//! Pages, and how they answer requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

/// The answer for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    status: StatusCode,
    content_type: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Page {
    /// Text for people.
    #[must_use]
    pub fn text(body: impl Into<Bytes>) -> Self {
        Self::of("text/plain; charset=utf-8", body.into())
    }

    /// Prometheus' text format, version 0.0.4.
    #[must_use]
    pub fn prometheus(body: impl Into<Bytes>) -> Self {
        Self::of("text/plain; version=0.0.4; charset=utf-8", body.into())
    }

    /// JSON.
    #[must_use]
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self::of("application/json", body.into())
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
        Self { status: StatusCode::OK, content_type, headers: Vec::new(), body }
    }
}

/// Answers a request whose body, if it has one, is not read.
pub(crate) fn answer<B>(
    request: Request<B>,
    pages: &impl Fn(&Request<()>) -> Option<Page>,
) -> Response<Whole> {
    let request = request.map(drop);
    let Some(page) = pages(&request) else {
        return refusal(StatusCode::NOT_FOUND, "no such page\n");
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED, "pages are for GET and HEAD\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    response(page)
}

fn refusal(status: StatusCode, text: &'static str) -> Response<Whole> {
    response(Page::text(text).status(status))
}

pub(crate) fn response(page: Page) -> Response<Whole> {
    let mut response = Response::new(Whole(page.body));
    *response.status_mut() = page.status;
    response.headers_mut().extend(page.headers);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    response
}

/// A response to a request of which not all was read, after which the connection ends.
pub(crate) fn last_response(page: Page) -> Response<Whole> {
    let mut response = response(page);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A body that is there as a whole.
#[derive(Debug)]
pub(crate) struct Whole(Bytes);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = std::mem::take(&mut self.0);
        Poll::Ready((!body.is_empty()).then(|| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
