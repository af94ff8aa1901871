//! Frames over a Unix socket, and the descriptors that come with them.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use mc_transport::backend::{try_receive, try_send};
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Bytes asked of the socket at once.
const READ: usize = 64 << 10;

/// Descriptors that may wait for the frames that they came with.
const MAX_DESCRIPTORS: usize = 8;

/// Bytes that count as progress of a peer that has answers to take. Fewer do not buy it more time,
/// so that one byte now and then cannot keep what waits for ever.
const PROGRESS: usize = 64 << 10;

/// Frames taken before other tasks get a turn; a fraction of a millisecond.
const FRAMES_PER_TURN: u32 = 64;

/// Why no further frame comes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the peer announced a frame of {len} bytes, more than the {max} that it may")]
    TooLong { len: usize, max: usize },
    #[error("the peer sent descriptors that belong to no message")]
    StrayDescriptors,
    #[error("a descriptor was lost; this process may have too few left (ulimit -n)")]
    DescriptorsCut,
    #[error("the peer takes nothing for {after:?}")]
    Stalled { after: Duration },
}

/// Frames on their way in.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Longest frame that is taken.
    max_frame: usize,
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    descriptors: VecDeque<OwnedFd>,
    frames: u32,
}

impl Incoming {
    pub(super) fn new(max_frame: usize) -> Self {
        let descriptors = VecDeque::new();
        Self { max_frame, buffer: vec![0; READ], taken: 0, filled: 0, descriptors, frames: 0 }
    }

    /// Takes longer frames, or only shorter ones, from now on.
    pub(super) fn set_max_frame(&mut self, max_frame: usize) {
        self.max_frame = max_frame;
    }

    /// The next frame's bytes.
    ///
    /// # Errors
    /// [`Broken`]; no frame follows.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub(super) async fn frame(&mut self, stream: &UnixStream) -> Result<&[u8], Broken> {
        self.frames = (self.frames + 1) % FRAMES_PER_TURN;
        if self.frames == 0 {
            tokio::task::yield_now().await;
        }
        loop {
            let wanted = match self.announced()? {
                Some(len) if self.filled - self.taken >= 4 + len => {
                    let begin = self.taken + 4;
                    self.taken = begin + len;
                    return Ok(&self.buffer[begin..self.taken]);
                }
                Some(len) => 4 + len,
                None => 4,
            };
            if self.taken == self.filled && !self.descriptors.is_empty() {
                return Err(Broken::StrayDescriptors);
            }
            self.make_room(wanted);
            stream.readable().await?;
            let descriptors = &mut self.descriptors;
            let take = |descriptor| descriptors.push_back(descriptor);
            match try_receive(stream, &mut self.buffer[self.filled..], take) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((_, true)) => return Err(Broken::DescriptorsCut),
                Ok((received, false)) => self.filled += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if self.descriptors.len() > MAX_DESCRIPTORS {
                return Err(Broken::StrayDescriptors);
            }
        }
    }

    /// The oldest descriptor that has come; the one of the frame taken last, if every
    /// frame that has one takes it.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// The length of the frame that comes next, if it has come.
    fn announced(&self) -> Result<Option<usize>, Broken> {
        let Some(head) = self.buffer[self.taken..self.filled].first_chunk() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*head) as usize;
        if len > self.max_frame {
            return Err(Broken::TooLong { len, max: self.max_frame });
        }
        Ok(Some(len))
    }

    /// Makes room for a frame of `wanted` bytes and its length, which begins where the
    /// frames before it end.
    fn make_room(&mut self, wanted: usize) {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
            if self.buffer.len() > READ && wanted <= READ {
                // One long frame must not cost its room for ever.
                self.buffer = vec![0; READ];
            }
        }
        if self.taken + wanted > self.buffer.len() {
            self.buffer.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted, 0);
        }
    }
}

/// Frames on their way out. Each caller pushes its own; most go at once, without a
/// wake-up, and what the socket has no room for is sent by [`drive`](Self::drive).
#[derive(Default)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    pushed: Notify,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Frame>,
    closed: bool,
}

/// A frame, with what it holds until it is sent.
pub(super) struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<OwnedFd>,
    _held: Option<Box<dyn Any + Send>>,
}

impl Frame {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0, descriptor: None, _held: None }
    }

    /// Sends a duplicate of `descriptor` along.
    pub(super) fn with_descriptor(mut self, descriptor: OwnedFd) -> Self {
        self.descriptor = Some(descriptor);
        self
    }

    /// Drops `held` when the frame is sent or dropped.
    pub(super) fn holding(mut self, held: impl Send + 'static) -> Self {
        self._held = Some(Box::new(held));
        self
    }

    /// Sends what there is room for; whether all is sent.
    fn send(&mut self, stream: &UnixStream) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let descriptor = self.descriptor.as_ref().map(AsFd::as_fd);
            match try_send(stream, &self.bytes[self.sent..], descriptor) {
                Ok(sent) => {
                    self.sent += sent;
                    self.descriptor = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Outgoing {
    /// Sends `frame`, now or when those before it are sent. Frames for a connection that
    /// is closed are dropped.
    pub(super) fn push(&self, stream: &UnixStream, mut frame: Frame) {
        let mut queue = self.queue.lock();
        if queue.closed {
            return;
        }
        // A socket that is broken is found so by `drive`, too.
        if queue.frames.is_empty() && matches!(frame.send(stream), Ok(true)) {
            return;
        }
        queue.frames.push_back(frame);
        drop(queue);
        self.pushed.notify_one();
    }

    /// Sends what waits, until the connection breaks or the peer takes less than
    /// [`PROGRESS`] of it within `patience`.
    pub(super) async fn drive(&self, stream: &UnixStream, patience: Duration) -> Broken {
        loop {
            match timeout(patience, self.send_some(stream)).await {
                Ok(Ok(true)) => self.pushed.notified().await,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => return Broken::Io(error),
                Err(_) => return Broken::Stalled { after: patience },
            }
        }
    }

    /// Sends what waits, or [`PROGRESS`] of it; whether nothing waits any more.
    async fn send_some(&self, stream: &UnixStream) -> io::Result<bool> {
        let mut taken = 0;
        loop {
            let (all, sent) = self.send_waiting(stream)?;
            taken += sent;
            if all || taken >= PROGRESS {
                return Ok(all);
            }
            stream.writable().await?;
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// [`Broken::Io`] when the connection breaks.
    ///
    /// # Cancellation
    /// What was not sent waits on.
    pub(super) async fn flush(&self, stream: &UnixStream) -> Result<(), Broken> {
        while !self.send_waiting(stream)?.0 {
            stream.writable().await?;
        }
        Ok(())
    }

    /// Drops what waits and what is pushed later.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.frames);
        drop(queue);
        drop(dropped);
    }

    /// Sends what there is room for; whether nothing waits any more, and the bytes that were sent.
    fn send_waiting(&self, stream: &UnixStream) -> io::Result<(bool, usize)> {
        let (mut sent, mut bytes) = (Vec::new(), 0);
        let mut queue = self.queue.lock();
        let outcome = loop {
            let Some(frame) = queue.frames.front_mut() else { break Ok(true) };
            let before = frame.sent;
            let outcome = frame.send(stream);
            bytes += frame.sent - before;
            match outcome {
                Ok(true) => sent.extend(queue.frames.pop_front()),
                other => break other,
            }
        };
        drop(queue);
        Ok((outcome?, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn framed(bytes: &[u8]) -> Frame {
        Frame::new([&(bytes.len() as u32).to_le_bytes()[..], bytes].concat())
    }

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[tokio::test]
    async fn frames_arrive_whole_and_in_order_with_their_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        let outgoing = Outgoing::default();
        let lens = [0, 1, READ - 5, READ, READ + 1, 900_000, 3, 2_000_000, 7];
        let send = async {
            for (n, len) in lens.into_iter().enumerate() {
                let frame = framed(&vec![n as u8; len]);
                let frame = if n % 2 == 1 { frame.with_descriptor(null()) } else { frame };
                outgoing.push(&near, frame);
            }
            outgoing.drive(&near, PATIENCE).await
        };
        let receive = async {
            let mut incoming = Incoming::new(2 << 20);
            for (n, len) in lens.into_iter().enumerate() {
                let frame = incoming.frame(&far).await.unwrap();
                assert!(frame.len() == len && frame.iter().all(|&byte| byte == n as u8), "{n}");
                assert_eq!(n % 2 == 1, n % 2 == 1 && incoming.descriptor().is_some(), "{n}");
            }
            assert!(incoming.descriptor().is_none());
        };
        tokio::select! {
            broken = send => panic!("{broken}"),
            () = receive => {}
        }
    }

    #[tokio::test]
    async fn what_does_not_belong_there_ends_the_connection() {
        let (near, far) = UnixStream::pair().unwrap();
        let outgoing = Outgoing::default();
        outgoing.push(&near, framed(b"this").with_descriptor(null()));
        outgoing.flush(&near).await.unwrap();
        let mut incoming = Incoming::new(100);
        assert_eq!(incoming.frame(&far).await.unwrap(), b"this");
        let broken = incoming.frame(&far).await.unwrap_err();
        assert!(matches!(broken, Broken::StrayDescriptors), "{broken}");

        let (near, far) = UnixStream::pair().unwrap();
        outgoing.push(&near, framed(&[0; 101]));
        outgoing.flush(&near).await.unwrap();
        let broken = Incoming::new(100).frame(&far).await.map(|_| ()).unwrap_err();
        assert!(matches!(broken, Broken::TooLong { len: 101, max: 100 }), "{broken}");

        let (near, far) = UnixStream::pair().unwrap();
        near.writable().await.unwrap();
        near.try_write(&[9, 0, 0, 0, 1]).unwrap();
        drop(near);
        let broken = Incoming::new(100).frame(&far).await.map(|_| ()).unwrap_err();
        assert!(matches!(broken, Broken::Closed), "{broken}");
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (near, _far) = UnixStream::pair().unwrap();
        let outgoing = Outgoing::default();
        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        outgoing.push(&near, framed(&vec![0; 4 << 20]).holding(held));
        let broken = outgoing.drive(&near, Duration::from_millis(20)).await;
        assert!(matches!(broken, Broken::Stalled { .. }), "{broken}");
        outgoing.close();
        assert!(dropped.await.is_err(), "what it held is dropped");
    }
}
