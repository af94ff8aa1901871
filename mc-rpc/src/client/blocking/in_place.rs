//! Calls of the async client that are made on the thread that polls them.

use core::cell::Cell;
use core::time::Duration;
use std::thread;

/// How often a call asks whether its caller still wants it. A signal asks at once, but may have
/// interrupted another thread.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// Whether calls are made in place, and what tells them to give up.
    static GIVE_UP: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
    /// Whether that has been told: a signal is seen once.
    static GIVEN_UP: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which every call of an async [`MasterClient`](crate::MasterClient) whose
/// future is polled for the first time is made then and there: it blocks this thread, on a
/// socket that it has to itself, and is over when the poll returns.
///
/// For callers that have nothing else to do on this thread: they are spared the way to the
/// thread that drives the runtime, and back. The sockets are those of a
/// [`blocking::MasterClient`](super::MasterClient) with the settings of the async one, made
/// when they are needed; [`metrics`](crate::MasterClient::metrics) counts both.
///
/// When a signal interrupts the wait for an answer, and every 50 ms, `give_up` is asked
/// whether it is no longer wanted; the call then fails with
/// [`RpcError::GivenUp`](crate::RpcError::GivenUp), as do those that `work` makes afterwards.
/// `|| false` waits in any case.
///
/// ```
/// # use std::pin::pin;
/// # use std::task::{Context, Poll, Waker};
/// use mc_rpc::{ClientConfig, MasterClient, RpcError, blocking};
/// let mut config = ClientConfig::default();
/// config.retry = false;
/// let client = MasterClient::lazy("127.0.0.1:1", config);
/// let call = pin!(client.cluster_report());
/// // No runtime, and yet there is an answer at once: no process listens there.
/// let mut context = Context::from_waker(Waker::noop());
/// let polled = blocking::in_place(|| false, || call.poll(&mut context));
/// assert!(matches!(polled, Poll::Ready(Err(RpcError::Unreachable { .. }))));
/// ```
pub fn in_place<T>(give_up: fn() -> bool, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<fn() -> bool>, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            GIVE_UP.set(self.0);
            GIVEN_UP.set(self.1);
        }
    }
    let _restore = Restore(GIVE_UP.replace(Some(give_up)), GIVEN_UP.replace(false));
    work()
}

/// Returns whether calls on this thread are to be made in place.
pub(in crate::client) fn is_wanted() -> bool {
    GIVE_UP.get().is_some()
}

/// Returns whether the caller has cancelled the call that is made on this thread.
pub(super) fn was_given_up() -> bool {
    if !GIVEN_UP.get() && GIVE_UP.get().is_some_and(|give_up| give_up()) {
        GIVEN_UP.set(true);
    }
    GIVEN_UP.get()
}

/// Waits for so long, and says whether the call is still wanted.
pub(super) fn pause(wait: Duration) -> bool {
    let mut left = wait;
    while !left.is_zero() && !was_given_up() {
        let piece = left.min(CHECK_INTERVAL);
        thread::sleep(piece);
        left -= piece;
    }
    !was_given_up()
}
