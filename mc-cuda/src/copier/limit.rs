//! The thread that ends copies which take too long, for those that wait for them.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::flight::Flight;
use super::queue::{Shared, State};

/// Watches the copies until the worker has ended. It never calls the driver, in which the worker may be stuck.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    loop {
        while state.deadlines.front().is_some_and(|(_, flight)| flight.is_over()) {
            state.deadlines.pop_front();
        }
        let Some((deadline, _)) = state.deadlines.front() else {
            if state.is_ended {
                return;
            }
            shared.limit.wait(&mut state);
            continue;
        };
        if state.is_ended {
            return;
        }
        let deadline = *deadline;
        if shared.limit.wait_until(&mut state, deadline).timed_out() {
            expire(shared, &mut state);
        }
    }
}

/// Ends the oldest copy for those that wait, and those that the worker has not taken: they would wait as long.
fn expire(shared: &Shared, state: &mut MutexGuard<'_, State>) {
    let Some((_, oldest)) = state.deadlines.pop_front() else { return };
    let waiting = state.jobs.iter().map(|job| Arc::clone(&job.flight));
    let mut late: Vec<Arc<Flight>> =
        waiting.filter(|flight| !Arc::ptr_eq(flight, &oldest)).collect();
    late.push(oldest);
    // Counted before it is told: a caller that was told finds that the GPU takes no other copies.
    state.hung += late.len();
    let were_over = MutexGuard::unlocked(state, || {
        tracing::error!("{}", shared.hung());
        late.iter().filter(|flight| !flight.complete(Err(shared.hung()))).count()
    });
    state.hung = state.hung.saturating_sub(were_over);
    shared.wake_slot_waiters(state);
}
