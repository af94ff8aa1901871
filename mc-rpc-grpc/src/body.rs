//! The body of a request, bounded in size and time.

use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

/// A request's body that ends at the latest when `end` does.
pub(super) struct Bounded {
    body: Incoming,
    /// Gone once it is over.
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Bounded {
    pub(super) fn new(body: Incoming, end: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { body, end: Some(Box::pin(end)) }
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if end.as_mut().poll(cx).is_ready() {
            self.end = None;
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
