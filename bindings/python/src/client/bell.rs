//! A descriptor that is readable after it was rung: what wakes an event loop from another
//! thread.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};

#[cfg(target_os = "linux")]
use counter as descriptor;
#[cfg(not(target_os = "linux"))]
use pipe as descriptor;

/// Rung by any thread, heard by whoever waits for its descriptor to be readable.
#[derive(Debug)]
pub(super) struct Bell(descriptor::Ends);

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        descriptor::open().map(Self)
    }

    /// What to wait for.
    pub(super) fn fd(&self) -> RawFd {
        self.0.heard().as_raw_fd()
    }

    /// Makes the descriptor readable. Never blocks.
    pub(super) fn ring(&self) {
        // It fails only when it has been rung so often unheard that nothing is to be added.
        let _ = self.0.rung().write(&1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until it is rung again. Never blocks.
    pub(super) fn silence(&self) {
        let mut rings = [0; 512];
        // It fails only when there is nothing to be heard.
        while self.0.heard().read(&mut rings).is_ok_and(|read| read == rings.len()) {}
    }
}

#[cfg(target_os = "linux")]
mod counter {
    use std::fs::File;
    use std::io;
    use std::os::fd::FromRawFd as _;

    /// An eventfd: its reads take all rings at once.
    #[derive(Debug)]
    pub(super) struct Ends(File);

    pub(super) fn open() -> io::Result<Ends> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        Ok(Ends(unsafe { File::from_raw_fd(fd) }))
    }

    impl Ends {
        pub(super) fn heard(&self) -> &File {
            &self.0
        }

        pub(super) fn rung(&self) -> &File {
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
        heard: UnixStream,
        rung: UnixStream,
    }

    pub(super) fn open() -> io::Result<Ends> {
        let (heard, rung) = UnixStream::pair()?;
        heard.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        Ok(Ends { heard, rung })
    }

    impl Ends {
        pub(super) fn heard(&self) -> &UnixStream {
            &self.heard
        }

        pub(super) fn rung(&self) -> &UnixStream {
            &self.rung
        }
    }
}
