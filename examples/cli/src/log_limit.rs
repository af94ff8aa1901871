//! A limit for each place in the code that logs: something that goes wrong a thousand times a second tells so
//! often enough to be seen, and does not fill a disk or hide what else happens.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one place at a time.
const BURST: u32 = 100;
/// How often each place may write one more line.
const REFILL: Duration = Duration::from_millis(100);
/// The time between two reports of lines that were left out.
const REPORT: Duration = Duration::from_secs(10);
/// The target of these reports.
const TARGET: &str = "log";
/// Targets without a limit: each line of them is wanted.
const UNLIMITED: [&str; 2] = [TARGET, "audit"];

/// The limit of this process's log.
pub(crate) static LIMIT: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// Lets so many lines of each place pass and no more. Lines at the levels debug and trace, which are asked for, all pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLimit(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// Bounded by the places in the code.
    places: HashMap<Identifier, Place>,
    reported: Option<Instant>,
}

#[derive(Debug)]
struct Place {
    metadata: &'static Metadata<'static>,
    left: u32,
    refilled: Instant,
    left_out: u64,
}

/// Lines that a place has left out.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    lines: u64,
    target: &'static str,
    at: String,
}

impl LogLimit {
    /// Logs how many lines were left out since this was last told. Not for a subscriber while it takes a line.
    pub(crate) fn report(&self) {
        tell(self.places().take_left_out(Instant::now()));
    }

    /// Does the same once in a while.
    pub(crate) fn report_if_due(&self) {
        tell(self.places().due(Instant::now()));
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Places> {
        // A panic leaves nothing half done here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(all: Vec<LeftOut>) {
    for LeftOut { lines, target, at } in all {
        tracing::warn!(target: TARGET, lines, of = target, at, "lines of the log were left out: too many of one kind");
    }
}

impl Places {
    /// Whether a line may be written now.
    fn take(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let fresh = || Place { metadata, left: BURST, refilled: now, left_out: 0 };
        let place = self.places.entry(metadata.callsite()).or_insert_with(fresh);
        let refills = now.saturating_duration_since(place.refilled).as_nanos() / REFILL.as_nanos();
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(u32::MAX);
            place.left = place.left.saturating_add(refills).min(BURST);
            place.refilled = now;
        }
        if place.left == 0 {
            place.left_out += 1;
            return false;
        }
        place.left -= 1;
        true
    }

    fn take_left_out(&mut self, now: Instant) -> Vec<LeftOut> {
        self.reported = Some(now);
        let places = self.places.values_mut().filter(|place| place.left_out > 0);
        let told = places.map(|place| LeftOut {
            lines: std::mem::take(&mut place.left_out),
            target: place.metadata.target(),
            at: format!(
                "{}:{}",
                place.metadata.file().unwrap_or_default(),
                place.metadata.line().unwrap_or_default()
            ),
        });
        told.collect()
    }

    /// Lines that were left out, once in a while.
    fn due(&mut self, now: Instant) -> Vec<LeftOut> {
        let since = *self.reported.get_or_insert(now);
        if now.saturating_duration_since(since) < REPORT {
            Vec::new()
        } else {
            self.take_left_out(now)
        }
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || UNLIMITED.contains(&metadata.target()) {
            return true;
        }
        self.places().take(metadata, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flood_of_one_place_is_counted_and_others_are_told() {
        let (written, limit) = (Written::default(), LogLimit::default());
        let out = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || out.clone())
            .with_ansi(false)
            .finish()
            .with(limit.clone());
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..10_000 {
                tracing::warn!(n, "flood");
                tracing::warn!(target: "audit", n, "asked");
            }
            tracing::info!("something else");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let floods = text.matches("flood").count();
        // On a slow machine a few more have passed meanwhile.
        assert!((BURST as usize..1_000).contains(&floods), "{floods}");
        assert_eq!(text.matches("asked").count(), 10_000);
        assert_eq!(text.matches("something else").count(), 1);
        let left_out = limit.places().take_left_out(Instant::now());
        assert_eq!(left_out.iter().map(|of| of.lines).sum::<u64>(), 10_000 - floods as u64);
        assert!(left_out[0].at.contains("log_limit.rs:"), "{left_out:?}");
    }

    #[test]
    fn what_was_left_out_is_told_once_in_a_while() {
        static SITE: std::sync::OnceLock<&'static Metadata<'static>> = std::sync::OnceLock::new();
        struct Site;
        impl<S: Subscriber> Layer<S> for Site {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                SITE.get_or_init(|| event.metadata());
            }
        }
        let subscriber = tracing_subscriber::registry().with(Site);
        tracing::subscriber::with_default(subscriber, || tracing::warn!("here"));
        let (site, begun) = (SITE.get().unwrap(), Instant::now());
        let mut places = Places::default();
        let passed = (0..1_000).filter(|_| places.take(site, begun)).count();
        assert_eq!((passed, places.due(begun)), (BURST as usize, Vec::new()));
        assert!(places.take(site, begun + REFILL) && !places.take(site, begun + REFILL));
        let told = places.due(begun + REPORT);
        assert_eq!((told.len(), told[0].lines), (1, 1_000 - u64::from(BURST) + 1));
        assert_eq!(places.due(begun + REPORT * 2), Vec::new());
        // After a while all of the burst is there again.
        let later = begun + REPORT * 3;
        assert_eq!((0..1_000).filter(|_| places.take(site, later)).count(), BURST as usize);
    }
}
