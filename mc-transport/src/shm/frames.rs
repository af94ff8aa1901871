//! Bytes over a Unix socket with descriptors beside them, and messages of a fixed length.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Descriptors that one call takes; no message has more than one, and what does not
/// fit is closed by the system.
const ROOM: usize = 4;

/// Messages taken before other tasks get a turn; a fraction of a millisecond.
const MESSAGES_PER_TURN: u32 = 64;

/// Sends `bytes`, and a duplicate of `descriptor` with the first of them.
///
/// # Cancellation
/// Part of the message may have been sent; the connection is of no use then.
pub(super) async fn send(
    stream: &UnixStream,
    mut bytes: &[u8],
    mut descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match try_send(stream, bytes, descriptor) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                descriptor = None;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends what of `bytes` there is room for now, and a duplicate of `descriptor` with the first of
/// them; returns how many bytes.
///
/// # Errors
/// `WouldBlock` when there is no room, what the socket said otherwise.
pub fn try_send(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let descriptors = descriptor.as_slice();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the space is for one descriptor");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    stream.try_io(Interest::WRITABLE, || {
        Ok(retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags))?)
    })
}

/// Receives what has come into `buffer` and hands each descriptor beside it to `take`; returns how
/// many bytes, and whether the system closed descriptors: there were more than there is room for, or
/// this process may have no more.
///
/// The system never joins bytes across descriptors, so those that come belong to these bytes.
///
/// # Errors
/// `WouldBlock` when nothing has come, what the socket said otherwise.
pub fn try_receive(
    stream: &UnixStream,
    buffer: &mut [u8],
    take: impl FnMut(OwnedFd),
) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(ROOM))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = stream.try_io(Interest::READABLE, || {
        let mut rest = [IoSliceMut::new(buffer)];
        Ok(retry_on_intr(|| recvmsg(stream, &mut rest, &mut control, flags))?)
    })?;
    let messages = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    messages.flatten().for_each(take);
    Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
}

/// A message of `N` bytes on its way in.
pub(super) struct Incoming<const N: usize> {
    bytes: [u8; N],
    len: usize,
    descriptors: Received,
}

/// Descriptors that came with a message.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// The first descriptor; further ones were closed.
    pub(super) first: Option<OwnedFd>,
    /// Their number, as far as the system told.
    pub(super) count: usize,
    /// The system closed some, because there were too many or this process has no
    /// room for more.
    pub(super) cut: bool,
}

impl<const N: usize> Incoming<N> {
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], len: 0, descriptors: Received::default() }
    }

    /// The next message, without descriptors: the system closes those that come.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, what the socket said otherwise.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub(super) async fn bytes(&mut self, stream: &UnixStream) -> io::Result<[u8; N]> {
        while self.len < N {
            stream.readable().await?;
            match stream.try_read(&mut self.bytes[self.len..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => self.len += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.len = 0;
        Ok(self.bytes)
    }

    /// The next message, with what came beside it.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub(super) async fn message(&mut self, stream: &UnixStream) -> io::Result<([u8; N], Received)> {
        while self.len < N {
            stream.readable().await?;
            let Received { first, count, .. } = &mut self.descriptors;
            let received = try_receive(stream, &mut self.bytes[self.len..], |descriptor| {
                *count += 1;
                // Those behind the first are closed at once.
                first.get_or_insert(descriptor);
            });
            match received {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((received, cut)) => {
                    self.len += received;
                    self.descriptors.cut |= cut;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.len = 0;
        Ok((self.bytes, std::mem::take(&mut self.descriptors)))
    }
}

/// Lets other tasks run now and then, also when a peer always has something to say.
#[derive(Default)]
pub(super) struct Turn {
    messages: u32,
}

impl Turn {
    /// Takes note of a message.
    pub(super) async fn taken(&mut self) {
        self.messages = (self.messages + 1) % MESSAGES_PER_TURN;
        if self.messages == 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use crate::backend::first::{First, first};
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn descriptors_come_with_their_message() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&near, b"none", None).await.unwrap();
        send(&near, b"this", Some(file.as_fd())).await.unwrap();
        send(&near, b"none", None).await.unwrap();
        let mut incoming = Incoming::<4>::new();
        for (text, count) in [(b"none", 0), (b"this", 1), (b"none", 0)] {
            let (bytes, received) = incoming.message(&far).await.unwrap();
            assert_eq!((&bytes, received.count, received.cut), (text, count, false));
            assert_eq!(received.first.is_some(), count == 1);
        }
        send(&near, b"this", Some(file.as_fd())).await.unwrap();
        assert_eq!(&incoming.bytes(&far).await.unwrap(), b"this", "the descriptor is dropped");
        drop(near);
        assert_eq!(incoming.message(&far).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn surplus_descriptors_are_closed() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        for count in [2, ROOM, 10] {
            let many = vec![file.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(10))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
            sendmsg(&near, &[IoSlice::new(b"many")], &mut control, SendFlags::empty()).unwrap();
            let (bytes, received) = Incoming::<4>::new().message(&far).await.unwrap();
            assert_eq!(&bytes, b"many");
            assert!(received.count >= 2 && received.first.is_some());
            assert_eq!(received.cut, count == 10);
        }
    }

    #[tokio::test]
    async fn a_message_may_come_in_pieces() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::<6>::new();
        near.write_all(b"piec").await.unwrap();
        let waited = first(incoming.message(&far), tokio::task::yield_now()).await;
        assert!(matches!(waited, First::Right(())));
        near.write_all(b"es").await.unwrap();
        assert_eq!(&incoming.bytes(&far).await.unwrap(), b"pieces");
    }
}
