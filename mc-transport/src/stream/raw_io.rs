//! `sendmsg` and `recvmsg` between a socket and memory that has no references.
//!
//! The standard library's vectored calls take slices, that is references, and
//! registered memory must not have any. These take buffers and memory alike, as
//! addresses that borrow from their owners.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use mc_memory::MemorySlice;

/// Most ranges that one call moves. Enough to fill a socket buffer with small
/// operations; the kernel allows 1024.
const MAX_RANGES: usize = 64;

/// Never raise a signal when the peer is gone, never wait.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const SEND_FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
/// Never wait; signals are switched off by the socket option `SO_NOSIGPIPE`.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT;

/// Address ranges that live for `'a`.
struct Ranges<'a> {
    ranges: [libc::iovec; MAX_RANGES],
    count: usize,
    bytes: usize,
    owners: PhantomData<&'a ()>,
}

impl Ranges<'_> {
    fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { ranges: [none; MAX_RANGES], count: 0, bytes: 0, owners: PhantomData }
    }

    /// Adds a range unless it is empty; `false` when there is no place left.
    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let Some(range) = self.ranges.get_mut(self.count) else { return false };
        *range = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.count += 1;
        self.bytes = self.bytes.saturating_add(len);
        true
    }

    fn push_memory(&mut self, slice: &MemorySlice, skip: usize) -> bool {
        assert!(skip <= slice.len(), "a cursor never passes the end of its piece");
        self.push(slice.address().wrapping_add(skip), slice.len() - skip)
    }

    /// Keeps the first `limit` bytes.
    fn truncate(&mut self, limit: usize) {
        let mut left = limit;
        for (index, range) in self.ranges[..self.count].iter_mut().enumerate() {
            if range.iov_len >= left {
                range.iov_len = left;
                self.count = index + usize::from(left > 0);
                self.bytes = limit;
                return;
            }
            left -= range.iov_len;
        }
    }

    /// The only range, for which a simpler call is cheaper in the kernel.
    fn single(&self) -> Option<(*mut libc::c_void, usize)> {
        (self.count == 1).then(|| (self.ranges[0].iov_base, self.ranges[0].iov_len))
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: `msghdr` is a C structure of integers and pointers, for which
        // zero is a valid value and means "absent".
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.ranges.as_mut_ptr();
        // The field's type differs between C libraries; the count is at most 64.
        message.msg_iovlen = self.count as _;
        message
    }
}

/// The pieces that one `sendmsg` reads.
pub(crate) struct ToSend<'a>(Ranges<'a>);

impl<'a> ToSend<'a> {
    pub(crate) fn new() -> Self {
        Self(Ranges::new())
    }

    /// Adds `bytes`; `false` when there is no place left.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) -> bool {
        self.0.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Adds what follows the first `skip` bytes of `slice`; `false` when there is
    /// no place left.
    pub(crate) fn push_memory(&mut self, slice: &'a MemorySlice, skip: usize) -> bool {
        self.0.push_memory(slice, skip)
    }

    /// Bytes in all ranges.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Keeps the first `limit` bytes.
    pub(crate) fn truncate(&mut self, limit: usize) {
        self.0.truncate(limit);
    }

    /// Sends as much as the socket takes now.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        if let Some((base, len)) = self.0.single() {
            return again_when_interrupted(|| {
                // SAFETY: the range is readable for `len` bytes because its owner
                // is borrowed for 'a; the kernel only reads it.
                unsafe { libc::send(socket.as_raw_fd(), base, len, SEND_FLAGS) }
            });
        }
        let message = self.0.message();
        again_when_interrupted(|| {
            // SAFETY: the message names at most MAX_RANGES ranges, and each is
            // readable for its length because its owner is borrowed for 'a; the
            // kernel only reads them.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &message, SEND_FLAGS) }
        })
    }
}

/// The pieces that one `recvmsg` fills.
pub(crate) struct ToFill<'a>(Ranges<'a>);

impl<'a> ToFill<'a> {
    pub(crate) fn new() -> Self {
        Self(Ranges::new())
    }

    /// Adds a buffer; `false` when there is no place left.
    pub(crate) fn push_buffer(&mut self, buffer: &'a mut [u8]) -> bool {
        self.0.push(buffer.as_mut_ptr(), buffer.len())
    }

    /// Adds what follows the first `skip` bytes of `slice`; `false` when there is
    /// no place left.
    pub(crate) fn push_memory(&mut self, slice: &'a MemorySlice, skip: usize) -> bool {
        self.0.push_memory(slice, skip)
    }

    /// Bytes in all ranges.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Keeps the first `limit` bytes.
    pub(crate) fn truncate(&mut self, limit: usize) {
        self.0.truncate(limit);
    }

    /// Receives what the socket has now; zero at the end of the stream, and when
    /// there is no range.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        if let Some((base, len)) = self.0.single() {
            return again_when_interrupted(|| {
                // SAFETY: the range is writable for `len` bytes because its owner
                // is borrowed for 'a: a buffer exclusively, memory under the
                // rules of `MemorySlice`.
                unsafe { libc::recv(socket.as_raw_fd(), base, len, libc::MSG_DONTWAIT) }
            });
        }
        let mut message = self.0.message();
        again_when_interrupted(|| {
            // SAFETY: the message names at most MAX_RANGES ranges, and each is
            // writable for its length because its owner is borrowed for 'a:
            // buffers exclusively, memory under the rules of `MemorySlice`.
            unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) }
        })
    }
}

/// Breaks a TCP connection at once: its peer is told, and nothing that waits to be sent
/// is sent any more. Other sockets are left as they are.
pub(crate) fn abort(socket: BorrowedFd<'_>) {
    // SAFETY: `sockaddr` is a C structure of integers, for which zero is a valid value.
    let mut nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // Fails only when the connection is gone already, or is none of TCP.
    // SAFETY: the address is readable for its length, and the descriptor is open because
    // it is borrowed.
    unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, len) };
}

fn again_when_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(moved) => return Ok(moved),
            Err(_negative) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_memory::Memory;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn ranges_are_gathered_and_scattered_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let memory = Memory::allocate(8).unwrap();
        memory.whole().copy_from(0, b"12345678").unwrap();
        let (from, into) = (memory.slice(2, 4).unwrap(), memory.slice(6, 2).unwrap());
        let mut out = ToSend::new();
        assert!(out.push_bytes(b"ab") && out.push_bytes(b"") && out.push_memory(&from, 1));
        assert_eq!((out.bytes(), out.send(near.as_fd()).unwrap()), (5, 5));

        let mut head = [0; 3];
        let mut fill = ToFill::new();
        assert!(fill.push_buffer(&mut head) && fill.push_memory(&into, 0));
        assert_eq!((fill.bytes(), fill.receive(far.as_fd()).unwrap()), (5, 5));
        assert_eq!((&head, memory.whole().to_vec()), (b"ab4", b"12345656".to_vec()));

        let mut cut = ToSend::new();
        assert!(cut.push_bytes(b"abc") && cut.push_bytes(b"def") && cut.push_bytes(b"ghi"));
        for (limit, ranges) in [(100, 3), (9, 3), (7, 3), (6, 2), (4, 2), (3, 1), (1, 1)] {
            cut.truncate(limit);
            assert_eq!((cut.bytes(), cut.0.count), (limit.min(9), ranges), "{limit}");
        }
        assert_eq!(cut.send(near.as_fd()).unwrap(), 1);
        let mut one = [0; 1];
        let mut fill = ToFill::new();
        fill.push_buffer(&mut one);
        assert_eq!((fill.receive(far.as_fd()).unwrap(), one), (1, *b"a"));

        let empty = ToFill::new().receive(far.as_fd());
        assert!(matches!(empty, Ok(0) | Err(_)), "nothing to fill, nothing is lost");
        let mut more = [0; 1];
        let mut fill = ToFill::new();
        fill.push_buffer(&mut more);
        assert_eq!(fill.receive(far.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(near);
        assert_eq!(fill.receive(far.as_fd()).unwrap(), 0);
    }

    #[test]
    fn ranges_have_a_limit_and_a_dead_peer_no_signal() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let mut out = ToSend::new();
        for _ in 0..MAX_RANGES {
            assert!(out.push_bytes(b"x"));
        }
        assert!(!out.push_bytes(b"x"));
        assert_eq!(out.send(near.as_fd()).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
