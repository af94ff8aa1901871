//! The thread that ends copies which take too long, for those that wait for them.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::flight::Flight;
use super::queue::{Shared, State};

/// Watches the copies until the worker has ended. It never calls the driver, in which the worker may be stuck.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut state = shared.state.lock();
    while !state.is_ended {
        while state.deadlines.front().is_some_and(|(_, flight)| flight.is_over()) {
            state.deadlines.pop_front();
        }
        let Some((deadline, _)) = state.deadlines.front() else {
            state.is_limit_idle = true;
            shared.limit.wait(&mut state);
            continue;
        };
        let deadline = *deadline;
        if shared.limit.wait_until(&mut state, deadline).timed_out() {
            let late = take_late(&mut state);
            MutexGuard::unlocked(&mut state, || tell(shared, &late));
        }
    }
}

/// Takes the oldest copy, if its time is over, and those that the worker has not taken: they would wait as long.
fn take_late(state: &mut State) -> Vec<Arc<Flight>> {
    // Meanwhile the oldest may have ended, and gone.
    let is_due = state
        .deadlines
        .front()
        .is_some_and(|(deadline, flight)| *deadline <= Instant::now() && !flight.is_over());
    let oldest = state.deadlines.front().filter(|_| is_due).map(|(_, flight)| Arc::clone(flight));
    let Some(oldest) = oldest else { return Vec::new() };
    state.deadlines.pop_front();
    let waiting = state.jobs.iter().map(|job| Arc::clone(&job.flight));
    let mut late: Vec<_> = waiting.filter(|flight| !Arc::ptr_eq(flight, &oldest)).collect();
    late.push(oldest);
    // Counted before it is told: a caller that was told finds that the GPU takes no other copies.
    state.hung += late.len();
    late
}

/// Ends copies for those that wait for them.
fn tell(shared: &Shared, late: &[Arc<Flight>]) {
    if late.is_empty() {
        return;
    }
    tracing::error!("{}", shared.hung());
    let were_over = late.iter().filter(|flight| !flight.complete(Err(shared.hung()))).count();
    shared.change(|state| state.hung = state.hung.saturating_sub(were_over));
}
