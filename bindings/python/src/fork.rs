//! A client does not survive `fork`: its threads and its connections stay in the parent.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

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

/// A value of which every process has one of its own, which begins as the default.
///
/// A thread of the parent may have held a lock in it when it was forked; in the child nobody
/// would ever free that. So the child begins with another one and leaves the parent's alone.
pub(crate) struct PerProcess<T>(AtomicPtr<(Home, T)>);

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// That of this process.
    pub(crate) fn get(&'static self) -> &'static T {
        loop {
            let known = self.0.load(Ordering::Acquire);
            // SAFETY: the pointer is null or of a box that `make` leaked.
            match unsafe { known.as_ref() } {
                Some((home, value)) if !home.was_left() => return value,
                _ => self.make(known),
            }
        }
    }

    #[cold]
    fn make(&self, known: *mut (Home, T)) {
        let own = Box::into_raw(Box::new((Home::here(), T::default())));
        let set = self.0.compare_exchange(known, own, Ordering::AcqRel, Ordering::Relaxed);
        if set.is_err() {
            // SAFETY: nobody else was given the box that was made here.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}
