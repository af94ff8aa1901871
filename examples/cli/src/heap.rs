//! Memory that a server has freed goes back to the system.
//!
//! glibc keeps what a program frees for what it will allocate next, in an arena for each few
//! threads. What lies at an arena's end it gives back only beyond a limit that grows with the
//! largest block ever freed, up to 64 MiB for each: after some dozen of the largest requests a
//! master that needs 4 MiB had 142, for ever. With limits that do not grow it has 7. What lies
//! elsewhere a thread asks for from time to time.
#![allow(unsafe_code, reason = "glibc is asked by a call of C")]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::ffi::c_int;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two looks, at least.
const PAUSE: Duration = Duration::from_secs(5);

/// Blocks from this size on are mapped and unmapped one by one, and so much at the end of an
/// arena is kept. Few requests are so long, and zeroing pages costs less than reading them from
/// a socket.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LIMIT: c_int = 1 << 20;

/// The least ratio of the pause after a look to the look's duration. A look holds an arena
/// for a while, and threads that allocate there wait.
const REST: u32 = 2000;

/// Gives freed memory back for as long as it lives.
pub(crate) struct Trimming {
    _stop: Sender<()>,
}

impl Trimming {
    /// Begins; `None` where there is nothing to do, or no thread to do it.
    pub(crate) fn begin() -> Option<Self> {
        if !cfg!(all(target_os = "linux", target_env = "gnu")) {
            return None;
        }
        set_limits();
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let mut pause = PAUSE;
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let begun = Instant::now();
                trim();
                pause = PAUSE.max(begun.elapsed() * REST);
            }
        };
        let thread = thread::Builder::new().name("mc-trim".to_owned()).spawn(work);
        thread
            .map(|_| Self { _stop: stop })
            .inspect_err(|error| {
                tracing::debug!(%error, "memory that is freed stays with the process");
            })
            .ok()
    }
}

fn set_limits() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for limit in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: the call sets a number of the allocator, under its lock.
        let set = unsafe { libc::mallopt(limit, LIMIT) };
        if set != 1 {
            tracing::debug!(limit, "the allocator keeps its own limit");
        }
    }
}

/// Gives back what no allocation uses.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call touches free memory only, under the locks of the arenas.
    unsafe {
        libc::malloc_trim(0)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_with_its_server() {
        let (stop, stopped) = mpsc::channel::<()>();
        drop(Trimming { _stop: stop });
        assert_eq!(stopped.recv_timeout(PAUSE), Err(RecvTimeoutError::Disconnected));
        trim();
    }
}
