//! Progress of the replay, on standard error: a bar on a terminal, a line for each
//! tenth elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// The interval at which a bar redraws while nothing finishes.
const REDRAW: Duration = Duration::from_millis(250);

/// Counts finished requests; workers share it.
#[derive(Debug)]
pub(crate) struct Progress {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Bar(ProgressBar),
    Lines { total: u64, done: AtomicU64, started: Instant },
}

impl Progress {
    pub(crate) fn start(total: u64) -> Self {
        if !io::stderr().is_terminal() {
            let (done, started) = (AtomicU64::new(0), Instant::now());
            return Self { kind: Kind::Lines { total, done, started } };
        }
        let style = ProgressStyle::with_template(
            "{elapsed} {wide_bar} {human_pos}/{human_len} requests, {per_sec}, {eta} left",
        );
        let bar = ProgressBar::new(total).with_style(style.expect("the template is well-formed"));
        bar.enable_steady_tick(REDRAW);
        Self { kind: Kind::Bar(bar) }
    }

    /// One more request is served.
    pub(crate) fn request_done(&self) {
        match &self.kind {
            Kind::Bar(bar) => bar.inc(1),
            Kind::Lines { total, done, started } => {
                let before = done.fetch_add(1, Ordering::Relaxed);
                if let Some(tenths) = tenth_reached(before, *total) {
                    // Progress that cannot be shown is no reason to stop.
                    let _ = writeln!(
                        io::stderr(),
                        "{} of {total} requests ({} %) after {:.1} s",
                        before + 1,
                        tenths * 10,
                        started.elapsed().as_secs_f64()
                    );
                }
            }
        }
    }

    /// Takes the bar away, so that the result stands alone.
    pub(crate) fn finish(&self) {
        if let Kind::Bar(bar) = &self.kind {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    /// An error's line must not be drawn over by a bar.
    fn drop(&mut self) {
        self.finish();
    }
}

/// The number of whole tenths done, if the request after `before` completes one.
fn tenth_reached(before: u64, total: u64) -> Option<u64> {
    let tenths = |done: u64| u128::from(done) * 10 / u128::from(total.max(1));
    let reached = tenths(before + 1);
    (reached > tenths(before)).then(|| u64::try_from(reached).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenth_is_told_once() {
        for total in [10, 11, 99, 12_031] {
            let told: Vec<u64> = (0..total).filter_map(|done| tenth_reached(done, total)).collect();
            assert_eq!(told, (1..=10).collect::<Vec<_>>(), "{total}");
        }
        assert_eq!((0..2).filter_map(|done| tenth_reached(done, 2)).collect::<Vec<_>>(), [5, 10]);
    }
}
