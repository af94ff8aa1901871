//! Requests with bodies.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::EXPECT;
use http::{Request, StatusCode};
use http_body::Body;

use crate::page::Page;

/// Bytes of a body that is too large which are read and forgotten: many a client reads no answer before
/// it has sent everything.
const MAX_DISCARDED: usize = 64 << 20;

/// Returns the request with all of its body; the page that refuses it when the body exceeds `max`
/// bytes or does not arrive in time.
pub(crate) async fn whole<B>(
    request: Request<B>,
    max: usize,
    timeout: Duration,
) -> Result<Request<Bytes>, Page>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (head, body) = request.into_parts();
    // Who waits for leave to send the body has sent nothing, and reads the answer.
    let max_discarded = if head.headers.contains_key(EXPECT) { 0 } else { MAX_DISCARDED };
    let body = tokio::time::timeout(timeout, collect(body, max, max_discarded)).await;
    let body = body.unwrap_or_else(|_| {
        Err(Page::text("the body took too long\n").status(StatusCode::REQUEST_TIMEOUT))
    })?;
    Ok(Request::from_parts(head, body))
}

async fn collect<B>(mut body: B, max: usize, max_discarded: usize) -> Result<Bytes, Page>
where
    B: Body<Data = Bytes> + Unpin,
{
    let hint = body.size_hint();
    let is_too_large = hint.lower() > max as u64;
    let (mut whole, mut discarded) = (BytesMut::new(), 0);
    // One that announces more than is discarded is not read at all.
    while hint.lower() <= (max + max_discarded) as u64
        && let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
    {
        let Ok(frame) = frame else {
            return Err(Page::text("the body broke off\n").status(StatusCode::BAD_REQUEST));
        };
        let Ok(data) = frame.into_data() else { continue };
        if !is_too_large && discarded == 0 && data.len() <= max - whole.len() {
            whole.extend_from_slice(&data);
            continue;
        }
        whole = BytesMut::new();
        discarded += data.len();
        if discarded > max_discarded {
            break;
        }
    }
    if is_too_large || discarded > 0 {
        let text = format!("the body is larger than {max} bytes\n");
        return Err(Page::text(text).status(StatusCode::PAYLOAD_TOO_LARGE));
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use http_body::Frame;

    use super::*;

    /// A body of which nothing comes.
    struct Never;

    impl Body for Never {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let refused = whole(Request::new(Never), 10, Duration::from_millis(1)).await.unwrap_err();
        let expected = Page::text("the body took too long\n").status(StatusCode::REQUEST_TIMEOUT);
        assert_eq!(refused, expected);
    }
}
