//! Whether the owner of a link's regions still has its end of the link's socket.
//!
//! The link's task notices an owner that goes, when something runs it. Callers that make operations on
//! their own thread may run no task for long, and a copy into the memory of a process that is gone
//! succeeds: only they would ever see those bytes. Those that make no operations are told by the
//! transport's [`Watch`](super::watch::Watch).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control::Control;
use super::watch::Watched;

/// How long the last look counts. A look is a system call.
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(super) struct HangUp {
    /// A duplicate of the link's descriptor; `None` when the link has ended.
    socket: Mutex<Option<Socket>>,
    since: Instant,
    /// When to look again, in nanoseconds after `since`.
    next: AtomicU64,
}

/// A descriptor, and who watches it.
struct Socket {
    descriptor: OwnedFd,
    watched: Option<(Arc<Watched>, u64)>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some((by, number)) = &self.watched {
            by.remove(&self.descriptor, *number);
        }
    }
}

impl HangUp {
    pub(super) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let descriptor = socket.as_fd().try_clone_to_owned()?;
        let socket = Mutex::new(Some(Socket { descriptor, watched: None }));
        Ok(Self { socket, since: Instant::now(), next: AtomicU64::new(0) })
    }

    /// Returns whether the owner has hung up, as far as was seen a moment ago.
    pub(super) fn has_come(&self) -> bool {
        let now = self.since.elapsed();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if nanos(now) < self.next.load(Ordering::Relaxed) {
            return false;
        }
        self.next.store(nanos(now + LOOK_EVERY), Ordering::Relaxed);
        // The thread that holds the lock is looking.
        let Some(socket) = self.socket.try_lock() else { return false };
        socket.as_ref().is_some_and(|socket| has_hung_up(&socket.descriptor))
    }

    /// Has the owner watched for `control`, until the link ends.
    pub(super) fn watch(&self, by: &Arc<Watched>, control: &Arc<Control>) -> io::Result<()> {
        if let Some(socket) = &mut *self.socket.lock() {
            socket.watched = Some((Arc::clone(by), by.add(&socket.descriptor, control)?));
        }
        Ok(())
    }

    /// Gives the descriptor back.
    pub(super) fn forget(&self) {
        let socket = self.socket.lock().take();
        drop(socket);
    }
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(gone)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn until(mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !reached() {
            assert!(Instant::now() < deadline, "not in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_end_that_is_closed_is_seen_behind_what_was_not_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let hang_up = HangUp::of(&ours).unwrap();
        assert!(!hang_up.has_come());
        theirs.write_all(b"unread").unwrap();
        assert!(!has_hung_up(&hang_up.socket.lock().as_ref().unwrap().descriptor));
        drop(theirs);
        until(|| hang_up.has_come());
        hang_up.forget();
        let looked = hang_up.next.load(Ordering::Relaxed);
        until(|| !hang_up.has_come() && hang_up.next.load(Ordering::Relaxed) > looked);
    }
}
