//! Syncs that several changes share.

use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

/// One sync serves all callers that came before it began. Those that come while it runs share the next
/// one.
#[derive(Debug, Default)]
pub(super) struct SharedSync {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// The sync that begins next.
    next: Arc<OnceLock<Outcome>>,
}

/// `None` for success, and otherwise the error as far as it can be copied.
type Outcome = Option<(io::ErrorKind, Option<i32>)>;

impl SharedSync {
    /// Makes everything durable that was written before, by a call of `sync` here or in another thread.
    ///
    /// # Errors
    /// That of the call.
    pub(super) fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let mine = Arc::clone(&state.next);
        while state.is_running {
            self.ended.wait(&mut state);
            if let Some(outcome) = mine.get() {
                return result(*outcome);
            }
        }
        // No other has begun it, for it would be set.
        state.is_running = true;
        state.next = Arc::default();
        drop(state);
        let running = SyncUnderWay { shared: self, outcome: &mine };
        let synced = sync();
        let outcome = synced.as_ref().err().map(|error| (error.kind(), error.raw_os_error()));
        // It is set by this thread alone.
        let _ = mine.set(outcome);
        drop(running);
        synced
    }
}

/// Ends a sync, also one that has panicked.
struct SyncUnderWay<'a> {
    shared: &'a SharedSync,
    outcome: &'a OnceLock<Outcome>,
}

impl Drop for SyncUnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let _ = self.outcome.set(Some((io::ErrorKind::Other, None)));
        state.is_running = false;
        self.shared.ended.notify_all();
    }
}

fn result(outcome: Outcome) -> io::Result<()> {
    match outcome {
        None => Ok(()),
        Some((_, Some(errno))) => Err(io::Error::from_raw_os_error(errno)),
        Some((kind, None)) => Err(kind.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Each caller's write is followed by the begin of the sync that serves it.
    #[test]
    fn a_sync_serves_all_that_came_before_it() {
        let (shared, written) = (SharedSync::default(), AtomicUsize::new(0));
        let (durable, syncs) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = written.fetch_add(1, SeqCst) + 1;
                        let synced = shared.run(|| {
                            let all = written.load(SeqCst);
                            std::thread::yield_now();
                            durable.fetch_max(all, SeqCst);
                            syncs.fetch_add(1, SeqCst);
                            Ok(())
                        });
                        synced.unwrap();
                        assert!(durable.load(SeqCst) >= mine);
                    }
                });
            }
        });
        assert!((1..=1600).contains(&syncs.load(SeqCst)));
    }

    #[test]
    fn an_error_is_told_to_all_that_it_concerns() {
        let shared = SharedSync::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let broken = || Err(io::Error::from_raw_os_error(5));
                    let error = shared.run(broken).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(5));
                });
            }
        });
        shared.run(|| Ok(())).unwrap();
    }
}
