//! The first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The one of two futures that was ready first.
pub enum First<A, B> {
    /// The first one.
    Left(A),
    /// The second one.
    Right(B),
}

/// Waits for whichever comes first; the other is dropped.
pub async fn first<A, B>(
    left: impl Future<Output = A>,
    right: impl Future<Output = B>,
) -> First<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(output) = left.as_mut().poll(cx) {
            return Poll::Ready(First::Left(output));
        }
        right.as_mut().poll(cx).map(First::Right)
    })
    .await
}
