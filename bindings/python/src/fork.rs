//! A client does not survive `fork`: its threads and its connections stay in the parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made something.
///
/// Forks are counted instead of asking for the process's number, which is a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler only adds to an atomic number, which is allowed in the child
            // of a process with threads.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(refused, 0, "no memory to be told of forks");
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether this process is another one, forked from the one that made it.
    pub(crate) fn was_left(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}
