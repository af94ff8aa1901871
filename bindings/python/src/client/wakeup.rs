//! A wake-up descriptor: any thread makes it readable to wake an event loop.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};

#[cfg(target_os = "linux")]
use counter as descriptor;
#[cfg(not(target_os = "linux"))]
use pipe as descriptor;

/// A descriptor that any thread can signal, and that an event loop watches for reading.
#[derive(Debug)]
pub(super) struct WakeUp(descriptor::Ends);

impl WakeUp {
    pub(super) fn new() -> io::Result<Self> {
        descriptor::open().map(Self)
    }

    /// Returns the descriptor to watch.
    pub(super) fn fd(&self) -> RawFd {
        self.0.reader().as_raw_fd()
    }

    /// Makes the descriptor readable. Never blocks.
    pub(super) fn signal(&self) {
        // Fails only when the descriptor is readable already: the counter or the pipe is full.
        let _ = self.0.writer().write(&1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next signal. Never blocks.
    pub(super) fn clear(&self) {
        let mut signals = [0; 512];
        // Fails only when no signal is pending.
        while self.0.reader().read(&mut signals).is_ok_and(|read| read == signals.len()) {}
    }
}

#[cfg(target_os = "linux")]
mod counter {
    use std::fs::File;
    use std::io;
    use std::os::fd::FromRawFd as _;

    /// An eventfd: one read takes all signals.
    #[derive(Debug)]
    pub(super) struct Ends(File);

    pub(super) fn open() -> io::Result<Ends> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Ends(unsafe { File::from_raw_fd(fd) }))
    }

    impl Ends {
        pub(super) fn reader(&self) -> &File {
            &self.0
        }

        pub(super) fn writer(&self) -> &File {
            &self.0
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pipe {
    use std::io;
    use std::os::unix::net::UnixStream;

    #[derive(Debug)]
    pub(super) struct Ends {
        reader: UnixStream,
        writer: UnixStream,
    }

    pub(super) fn open() -> io::Result<Ends> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Ends { reader, writer })
    }

    impl Ends {
        pub(super) fn reader(&self) -> &UnixStream {
            &self.reader
        }

        pub(super) fn writer(&self) -> &UnixStream {
            &self.writer
        }
    }
}
