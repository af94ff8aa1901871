//! Detects use of a client after `fork`: its threads and connections exist only in the parent.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number of forks between the process that loaded this library and the current process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process in which a value was made; tells whether the value was inherited through a fork.
///
/// Counts forks, because reading the process id is a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessGuard(u32);

impl ProcessGuard {
    /// Returns a guard of the current process.
    pub(crate) fn current() -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the handler only adds to an atomic integer, which is allowed in the child
            // of a process with threads.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(refused, 0, "no memory for a fork handler");
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether the value was made in a parent process.
    pub(crate) fn is_inherited(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

/// A value of its own for each process, initially the default.
///
/// A thread of the parent may have held a lock inside the value at the fork, and no thread of
/// the child would ever release that lock. So the child makes a new value and never touches the
/// parent's.
pub(crate) struct PerProcess<T>(AtomicPtr<(ProcessGuard, T)>);

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of the current process.
    pub(crate) fn get(&'static self) -> &'static T {
        loop {
            let known = self.0.load(Ordering::Acquire);
            // SAFETY: the pointer is null or points to a box that `make` leaked.
            match unsafe { known.as_ref() } {
                Some((process, value)) if !process.is_inherited() => return value,
                _ => self.make(known),
            }
        }
    }

    #[cold]
    fn make(&self, known: *mut (ProcessGuard, T)) {
        let own = Box::into_raw(Box::new((ProcessGuard::current(), T::default())));
        let set = self.0.compare_exchange(known, own, Ordering::AcqRel, Ordering::Relaxed);
        if set.is_err() {
            // SAFETY: the pointer to this box was not published.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}
