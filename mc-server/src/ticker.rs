//! The ticker: lets time pass for a master, and shows others that it does.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use mc_environment::{Environment, System};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};
use tracing::{error, warn};

/// Panics without a complete tick between them after which a ticker gives up.
const MAX_PANICS: u32 = 8;

/// How long to rest between ticks when nothing is left over, and after a panic.
const TICK: Duration = Duration::from_millis(20);

/// How long a ticker that is dropped waits for the tick that is under way.
const LAST_TICK: Duration = Duration::from_secs(1);

/// How long a tick may take before the ticker counts as stalled. A tick is bounded work of a few
/// milliseconds.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Calls a function again and again on a thread of its own: what a master needs for everything
/// that is due at some time, such as the end of leases, silent clients and eviction. A thread and
/// not a task, so that no traffic delays what is due.
///
/// A tick that panics is logged and counted, and the next one follows: the locks are free
/// again, and a tick begins with what is still due. After 8 panics in a row the ticker
/// gives up, which [`TickerWatch::failed`] tells. Dropping it ends the thread and drops the function
/// after the tick that is under way, for which it waits a second: a tick that hangs holds up no
/// shutdown.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
///
/// let master = Arc::new(mc_meta::Master::new(mc_meta::MasterConfig::default(), 1)?);
/// let (ticked, begun) = (Arc::clone(&master), Instant::now());
/// let ticker = mc_server::Ticker::start(move || {
///     ticked.tick(mc_types::Time::from_millis(begun.elapsed().as_millis() as u64))
/// })?;
/// assert_eq!(ticker.watch().read().problem, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ticker {
    pulse: Arc<Pulse>,
}

/// Sees whether a [`Ticker`] ticks; it may outlive it.
#[derive(Clone, Debug)]
pub struct TickerWatch(Arc<Pulse>);

/// The state of a [`Ticker`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickerState {
    /// Ticks that are complete.
    pub ticks: u64,
    /// Ticks that panicked.
    pub panics: u64,
    /// The time since the last complete tick, or since the start.
    pub since_last: Duration,
    /// The problem that keeps it from ticking; `None` while it ticks.
    pub problem: Option<TickerProblem>,
}

/// Why a [`Ticker`] does not tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickerProblem {
    /// No tick has been complete for this long; a deadlock or a machine that stands still.
    Stalled(Duration),
    /// Too many ticks panicked; the last one with this message.
    Panicked(String),
}

impl fmt::Display for TickerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled(time) => {
                let secs = time.as_secs();
                write!(f, "no tick was complete for {secs} s: nothing expires or is evicted")
            }
            Self::Panicked(message) => {
                write!(f, "{MAX_PANICS} ticks in a row panicked, the last with: {message}")
            }
        }
    }
}

struct Pulse {
    inner: Mutex<Inner>,
    /// The function to call, locked for as long as it runs; `None` when it is called no more.
    tick: Mutex<Option<Box<dyn FnMut() -> bool + Send>>>,
    /// Notified when the ticker is dropped.
    stopped: Notify,
    /// The problem that ended the ticker, once it has failed.
    failure: watch::Sender<Option<TickerProblem>>,
}

#[derive(Debug)]
struct Inner {
    is_stopped: bool,
    ticks: u64,
    panics: u64,
    last: Instant,
}

impl Ticker {
    /// Starts to call `tick`: at once again while it returns `true`, which means that work is left
    /// over, and otherwise every 20 ms.
    ///
    /// # Errors
    /// The system's when it starts no thread.
    pub fn start(tick: impl FnMut() -> bool + Send + 'static) -> io::Result<Self> {
        Self::start_in(&System, tick)
    }

    /// [`start`](Self::start) on a thread, or what stands for it, of `environment`.
    pub(crate) fn start_in(
        environment: &dyn Environment,
        tick: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let inner = Inner { is_stopped: false, ticks: 0, panics: 0, last: Instant::now() };
        let pulse = Arc::new(Pulse {
            inner: Mutex::new(inner),
            tick: Mutex::new(Some(Box::new(tick))),
            stopped: Notify::new(),
            failure: watch::Sender::new(None),
        });
        let own = Arc::clone(&pulse);
        environment.spawn_apart("mc-master-tick", Box::pin(async move { own.run().await }))?;
        Ok(Self { pulse })
    }

    /// Returns a handle to see its state with.
    #[must_use]
    pub fn watch(&self) -> TickerWatch {
        TickerWatch(Arc::clone(&self.pulse))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.pulse.inner.lock().is_stopped = true;
        self.pulse.stopped.notify_one();
        match self.pulse.tick.try_lock_for(LAST_TICK) {
            Some(mut tick) => *tick = None,
            None => warn!("a tick of the master does not end; its thread is left behind"),
        }
    }
}

impl TickerWatch {
    /// Returns the state of the ticker now.
    #[must_use]
    pub fn read(&self) -> TickerState {
        self.read_with(STALLED_AFTER)
    }

    fn read_with(&self, stalled_after: Duration) -> TickerState {
        let failure = self.0.failure.borrow().clone();
        let Inner { is_stopped, ticks, panics, last, .. } = *self.0.inner.lock();
        let since_last = last.elapsed();
        let is_stalled = !is_stopped && since_last >= stalled_after;
        let problem = failure.or_else(|| is_stalled.then_some(TickerProblem::Stalled(since_last)));
        TickerState { ticks, panics, since_last, problem }
    }

    /// Waits until the ticker has failed for good, and returns why; for ever while it ticks. May be
    /// dropped at any point.
    pub async fn failed(&self) -> TickerProblem {
        let mut failure = self.0.failure.subscribe();
        let failed = match failure.wait_for(Option::is_some).await {
            Ok(failed) => failed.clone(),
            Err(_) => unreachable!("the watch holds the sender"),
        };
        failed.expect("it was waited for")
    }

    /// Logs when the ticker stalls and when it goes on. Runs until it is dropped.
    pub(crate) async fn log_stalls(self, stalled_after: Duration) {
        let mut timer = tokio::time::interval(stalled_after / 10);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut was_stalled = false;
        loop {
            timer.tick().await;
            let problem = self.read_with(stalled_after).problem;
            let is_stalled = matches!(problem, Some(TickerProblem::Stalled(_)));
            match problem {
                Some(problem) if is_stalled && !was_stalled => error!("{problem}"),
                None if was_stalled => warn!("ticks are complete again"),
                _ => {}
            }
            was_stalled = is_stalled;
        }
    }
}

/// The gRPC health service of a master says that it does not serve while this has a problem.
impl mc_rpc::Liveness for TickerWatch {
    fn is_well(&self) -> bool {
        self.read().problem.is_none()
    }
}

impl Pulse {
    async fn run(&self) {
        let mut in_a_row = 0;
        while let Some(outcome) = self.tick() {
            match outcome {
                Ok(more) => {
                    in_a_row = 0;
                    if more {
                        yield_now().await;
                        continue;
                    }
                }
                Err(panic) => {
                    let message = message(&*panic);
                    in_a_row += 1;
                    error!("a tick of the master panicked ({in_a_row} of {MAX_PANICS}): {message}");
                    if in_a_row == MAX_PANICS {
                        self.failure.send_replace(Some(TickerProblem::Panicked(message)));
                        return;
                    }
                }
            }
            // Either way it is time to look again.
            let _ = timeout(TICK, self.stopped.notified()).await;
        }
    }

    /// Calls the function once and counts it; `None` when the ticker was dropped.
    fn tick(&self) -> Option<Result<bool, Box<dyn Any + Send>>> {
        let mut tick = self.tick.lock();
        if self.inner.lock().is_stopped {
            *tick = None;
        }
        let outcome = catch_unwind(AssertUnwindSafe(tick.as_mut()?));
        let mut inner = self.inner.lock();
        match outcome {
            Ok(_) => (inner.ticks, inner.last) = (inner.ticks + 1, Instant::now()),
            Err(_) => inner.panics += 1,
        }
        Some(outcome)
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The text of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use mc_testkit::eventually_blocking;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Waits until the state is as wanted.
    fn wait_for(watch: &TickerWatch, is_wanted: impl Fn(&TickerState) -> bool) -> TickerState {
        eventually_blocking(DEADLINE, "the state is as wanted", || {
            let state = watch.read();
            if is_wanted(&state) { Ok(state) } else { Err(state) }
        })
    }

    #[test]
    fn a_tick_that_panics_is_counted_and_the_next_one_follows() {
        let mut calls = 0;
        let ticker = Ticker::start(move || {
            calls += 1;
            assert!(calls % 3 != 0, "every third fails");
            false
        })
        .unwrap();
        let state = wait_for(&ticker.watch(), |state| state.panics >= 2 && state.ticks >= 5);
        assert_eq!(state.problem, None);
    }

    #[tokio::test]
    async fn a_ticker_that_only_panics_gives_up_and_says_why() {
        let ticker = Ticker::start(|| panic!("nothing {}", "works")).unwrap();
        let watch = ticker.watch();
        let problem = timeout(DEADLINE, watch.failed()).await.expect("it gives up");
        assert_eq!(problem, TickerProblem::Panicked("nothing works".into()));
        let state = watch.read();
        assert_eq!((state.ticks, state.panics), (0, u64::from(MAX_PANICS)));
        assert_eq!(state.problem, Some(problem));
        assert!(!mc_rpc::Liveness::is_well(&watch));
    }

    #[test]
    fn a_tick_that_does_not_end_shows() {
        let (go_on, wait) = mpsc::channel::<()>();
        let ticker = Ticker::start(move || wait.recv().is_ok()).unwrap();
        let watch = ticker.watch();
        let end = Instant::now() + DEADLINE;
        let short = Duration::from_millis(50);
        let stalled = loop {
            match watch.read_with(short).problem {
                Some(problem) => break problem,
                None => assert!(Instant::now() < end, "no tick is complete"),
            }
        };
        assert!(matches!(stalled, TickerProblem::Stalled(time) if time >= short), "{stalled}");
        go_on.send(()).unwrap();
        let state = wait_for(&watch, |state| state.ticks == 1);
        assert_eq!(state.problem, None);
        drop(go_on);
    }

    #[test]
    fn a_tick_that_hangs_holds_up_no_shutdown() {
        let (go_on, wait) = mpsc::channel::<()>();
        let ticker = Ticker::start(move || wait.recv().is_ok()).unwrap();
        let begun = Instant::now();
        drop(ticker);
        assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
        drop(go_on);
    }
}
