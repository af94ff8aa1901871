//! A line on a terminal while a large value is on its way.

use std::future::Future;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use mc_cli::duration;
use mc_types::ByteSize;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// Nothing is shown of what takes no longer.
const SILENCE: Duration = Duration::from_millis(500);

/// Time between two lines.
const PERIOD: Duration = Duration::from_millis(200);

/// Takes the cursor to the line's beginning and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// Waits for `work`, which moves as many bytes as `len` finds in its outcome. If standard error is a terminal and the
/// caller is not `quiet`, the time that has passed is shown there meanwhile, and the rate at the end: how far a
/// value is while it is on its way is not known.
pub(crate) async fn shown<T>(
    what: &str,
    quiet: bool,
    work: impl Future<Output = T>,
    len: impl FnOnce(&T) -> Option<u64>,
) -> T {
    if quiet || !io::stderr().is_terminal() {
        return work.await;
    }
    let begun = Instant::now();
    let mut work = pin!(work);
    let mut timer = interval_at(begun + SILENCE, PERIOD);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_shown = false;
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut work => break outcome,
            _ = timer.tick() => {
                is_shown = true;
                show(&format!("{CLEAR}{what}: {}", duration(begun.elapsed())));
            }
        }
    };
    if is_shown {
        let end = len(&outcome).map(|len| summary(what, len, begun.elapsed()));
        show(&format!("{CLEAR}{}", end.unwrap_or_default()));
    }
    outcome
}

fn summary(what: &str, len: u64, took: Duration) -> String {
    let rate = len as f64 / took.as_secs_f64().max(1e-3);
    let (size, rate) = (ByteSize::bytes(len), ByteSize::bytes(rate as u64));
    format!("{what}: {size} in {}, {rate} a second\n", duration(took))
}

/// A terminal that is gone is no failure.
fn show(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
