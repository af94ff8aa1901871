//! Messages in the bodies of requests and responses: each with a byte that says whether it is
//! compressed and its length in four bytes, most significant first.

use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use mc_rpc::Refusal;
use mc_types::ErrorCode;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::memory_budget::Reservation;
use super::status::{status, status_of};

/// Bytes before a message.
pub(super) const PREFIX_LEN: usize = 5;

/// The one message of a request. `held` counts what has arrived of it, not what it claims to
/// be.
///
/// # Errors
/// The status that the caller gets: the message is longer than `max`, compressed, cut off, or
/// not the only one; the server holds too many bytes; the caller gave up.
pub(super) async fn read_message<B>(
    body: &mut B,
    max: u32,
    held: &mut Reservation,
) -> Result<BytesMut, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut arrived = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(frame) = frame else {
            let message = "the call ended before its request had arrived";
            return Err(status(&Refusal::new(ErrorCode::Cancelled, message)));
        };
        // Trailers say nothing that a call needs.
        let Ok(data) = frame.into_data() else { continue };
        arrived.extend_from_slice(&data);
        held.resize(arrived.capacity()).map_err(|refusal| status(&refusal))?;
        if let Some(len) = announced(&arrived, max)?
            && arrived.len() - PREFIX_LEN > len
        {
            return Err(status(&Refusal::invalid("the request has more than one message")));
        }
    }
    if announced(&arrived, max)?.is_none_or(|len| arrived.len() - PREFIX_LEN < len) {
        return Err(status(&Refusal::invalid("the request's message is missing or cut off")));
    }
    arrived.advance(PREFIX_LEN);
    Ok(arrived)
}

/// The length that the prefix says; `None` when it has not arrived yet.
fn announced(arrived: &[u8], max: u32) -> Result<Option<usize>, Status> {
    let Some(&[compressed, ref len @ ..]) = arrived.first_chunk::<PREFIX_LEN>() else {
        return Ok(None);
    };
    if compressed != 0 {
        let message = "this master takes no compressed messages";
        let mut status = status(&Refusal::new(ErrorCode::NotSupported, message));
        let identity = MetadataValue::from_static("identity");
        status.metadata_mut().insert("grpc-accept-encoding", identity);
        return Err(status);
    }
    let len = u32::from_be_bytes(*len);
    if len > max {
        let message =
            format!("the message has {len} bytes; the limit is {max}; send fewer at a time");
        return Err(status_of(Code::ResourceExhausted, &Refusal::invalid(message)));
    }
    Ok(Some(len as usize))
}

/// Puts the length right of the message that follows the prefix in `bytes`.
pub(super) fn seal(bytes: &mut BytesMut) {
    let len = u32::try_from(bytes.len() - PREFIX_LEN).expect("answers are bounded below 4 GiB");
    bytes[1..PREFIX_LEN].copy_from_slice(&len.to_be_bytes());
}

/// The body of a response: one message, then that all went well.
#[derive(Debug)]
pub(super) struct Reply {
    message: Option<Bytes>,
    ended: bool,
}

impl Reply {
    /// The message, with its prefix.
    pub(super) fn new(message: Bytes) -> Self {
        Self { message: Some(message), ended: false }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = core::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if core::mem::replace(&mut self.ended, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory_budget::MemoryBudget;
    use super::*;
    use core::convert::Infallible;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Pieces(VecDeque<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    fn read(bytes: &[u8], piece: usize, max: u32) -> Result<BytesMut, Status> {
        let mut body = Pieces(bytes.chunks(piece).map(Bytes::copy_from_slice).collect());
        let mut held = MemoryBudget::new(std::sync::Arc::default(), 1 << 20).nothing();
        futures_util::FutureExt::now_or_never(read_message(&mut body, max, &mut held)).unwrap()
    }

    #[test]
    fn bad_messages_are_told_apart() {
        for (bytes, code) in [
            (&b""[..], Code::InvalidArgument),
            (b"\0\0\0", Code::InvalidArgument),
            (b"\0\0\0\0\x02x", Code::InvalidArgument),
            (b"\0\0\0\0\x01xy", Code::InvalidArgument),
            (b"\0\0\0\0\x01x\0\0\0\0\0", Code::InvalidArgument),
            (b"\x01\0\0\0\x01x", Code::Unimplemented),
            (b"\xff\0\0\0\x01x", Code::Unimplemented),
            (b"\0\0\0\0\x09", Code::ResourceExhausted),
            (b"\0\xff\xff\xff\xff", Code::ResourceExhausted),
        ] {
            for piece in 1..=7 {
                assert_eq!(read(bytes, piece, 8).unwrap_err().code(), code, "{bytes:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_message(
            message in prop::collection::vec(any::<u8>(), 0..300),
            piece in 1usize..64,
        ) {
            let mut bytes = BytesMut::zeroed(PREFIX_LEN);
            bytes.extend_from_slice(&message);
            seal(&mut bytes);
            prop_assert_eq!(&read(&bytes, piece, 300).unwrap()[..], &message[..]);
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            piece in 1usize..8,
        ) {
            let _ = read(&bytes, piece, 64);
        }
    }
}
