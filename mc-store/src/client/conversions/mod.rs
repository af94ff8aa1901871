//! The conversions of a client: their rules, queues and counters.

mod compute;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use mc_c2c::fetch::Fetcher;
use mc_c2c::{C2cConfig, Converter, KeyMatch, LoadError, load_rule};
use mc_environment::Environment;
use mc_rpc::{C2cSettings, MasterClient, RpcError};
use mc_types::{ErrorCode, ObjectKey};
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::client::metrics::{C2cCounts, C2cMetrics, C2cSkip};
pub(super) use compute::Failure;

/// Objects that wait for one worker.
const QUEUE: usize = 4096;

/// Most workers; a master of ours names no more.
const MAX_WORKERS: u32 = 256;

/// Workers move bytes when no object to convert was stored for so long…
const QUIET: Duration = Duration::from_millis(5);
/// … or when they have waited for so long.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Time after which weights that could not be read are tried again.
const RELOAD_PAUSE: Duration = Duration::from_secs(60);

/// How often the log tells how far a download is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The conversions of a client.
#[derive(Debug)]
pub(crate) struct Conversions {
    pub(in crate::client) config: C2cConfig,
    fetcher: Fetcher,
    /// One for each rule.
    converters: Vec<Mutex<Slot>>,
    /// One for each worker. An object's key chooses it, so that values of one key are converted in
    /// the order in which they were stored.
    pub(in crate::client) queues: Vec<mpsc::Sender<Job>>,
    /// Taken by the workers.
    waiting: Mutex<Vec<mpsc::Receiver<Job>>>,
    pub(in crate::client) counts: C2cCounts,
    /// For workers that give way, and for the thread that drives a blocking client.
    last: Mutex<Last>,
    /// Told of each change of `last`.
    changed: Condvar,
}

/// The last events.
#[derive(Debug)]
struct Last {
    /// An object to convert was stored.
    stored: Instant,
    /// The client was closed.
    is_closed: bool,
}

/// A rule's converter.
#[derive(Debug)]
enum Slot {
    Unread,
    Ready(Arc<Converter>),
    Failed(Arc<LoadError>, Instant),
}

/// An object to convert.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: ObjectKey,
    /// The rules that apply to it.
    pub(super) matches: Vec<KeyMatch>,
    /// Whether it replaced an earlier value, and so will the converted one.
    pub(super) replaces: bool,
    /// When it was stored.
    pub(super) since: Instant,
}

impl Conversions {
    /// Asks the master which objects to convert; `None` when there are none, or this client may not
    /// know or cannot read the rules.
    ///
    /// # Errors
    /// When the master cannot be asked.
    pub(super) async fn ask(
        master: &MasterClient,
        environment: &dyn Environment,
    ) -> Result<Option<Self>, RpcError> {
        let settings = match master.c2c_settings().await {
            Ok(settings) => settings,
            Err(RpcError::Refused(refusal))
                if matches!(
                    refusal.code,
                    ErrorCode::NotSupported | ErrorCode::PermissionDenied
                ) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        let Some(C2cSettings { workers, config_json, .. }) = settings else { return Ok(None) };
        match C2cConfig::from_json(&config_json) {
            Ok(config) if config.rules.is_empty() => Ok(None),
            Ok(config) => {
                let workers =
                    (workers.min(MAX_WORKERS) as usize).min(environment.spare_processors());
                Ok(Some(Self::new(config, workers.max(1))))
            }
            Err(error) => {
                let error = with_causes(&error);
                error!(%error, "the master's rules of conversions cannot be used; nothing is converted");
                Ok(None)
            }
        }
    }

    fn new(config: C2cConfig, workers: usize) -> Self {
        let (queues, waiting) = (0..workers).map(|_| mpsc::channel(QUEUE)).unzip();
        Self {
            converters: config.rules.iter().map(|_| Mutex::new(Slot::Unread)).collect(),
            fetcher: Fetcher::from_env(),
            config,
            queues,
            waiting: Mutex::new(waiting),
            counts: C2cCounts::default(),
            last: Mutex::new(Last { stored: Instant::now(), is_closed: false }),
            changed: Condvar::new(),
        }
    }

    /// Bytes that conversions need beside that of the client's reads.
    pub(super) fn buffer_size(&self) -> u64 {
        self.config.buffer_size
    }

    pub(super) fn metrics(&self) -> C2cMetrics {
        self.counts.read()
    }

    pub(in crate::client) fn take_queues(&self) -> Vec<mpsc::Receiver<Job>> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Has an object converted that was stored, and may have replaced another, if rules apply to it.
    /// Never waits.
    pub(super) fn stored(&self, key: &ObjectKey, replaces: bool) {
        let matches = self.config.matching(key.as_str());
        if matches.is_empty() {
            return;
        }
        let count = matches.len();
        let mut hasher = DefaultHasher::new();
        key.as_str().hash(&mut hasher);
        let queue = &self.queues[hasher.finish() as usize % self.queues.len()];
        let since = Instant::now();
        let job = Job { key: key.clone(), matches, replaces, since };
        self.counts.queued(count);
        let refused = queue.try_send(job).is_err();
        if refused {
            self.counts.taken(count);
            self.skip(C2cSkip::QueueFull, count, key.as_str(), &"the queue is full");
        }
        self.last.lock().stored = since;
        self.changed.notify_all();
    }

    /// Blocks the thread until conversions wait; `false` when the client was closed.
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut last = self.last.lock();
        while !last.is_closed && self.counts.waiting() == 0 {
            self.changed.wait(&mut last);
        }
        !last.is_closed
    }

    /// Waits until no conversion waits, or the client was closed.
    pub(crate) async fn idle(&self) {
        while self.counts.waiting() != 0 && !self.last.lock().is_closed {
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Ends what waits for work.
    pub(crate) fn close(&self) {
        self.last.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until the puts of a burst have ended, so that they have the network to themselves.
    pub(in crate::client) async fn give_way(&self) {
        let begun = Instant::now();
        while self.last.lock().stored.elapsed() < QUIET && begun.elapsed() < LONGEST_PAUSE {
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Counts conversions that are not made, and logs the first ones of each cause and then ever
    /// fewer.
    pub(in crate::client) fn skip(
        &self,
        cause: C2cSkip,
        count: usize,
        key: &str,
        why: &dyn std::fmt::Display,
    ) {
        let before = self.counts.skipped(cause, count);
        let after = before + count as u64;
        if cause.is_failure() && before.checked_ilog2() != after.checked_ilog2() {
            warn!(key, cause = cause.as_str(), so_far = after, "not converted: {why}");
        }
    }

    /// The converter of a rule, read when it is first needed. Blocks meanwhile.
    pub(in crate::client) fn converter(
        &self,
        rule: usize,
    ) -> Result<Arc<Converter>, Arc<LoadError>> {
        let mut slot = self.converters[rule].lock();
        match &*slot {
            Slot::Ready(converter) => return Ok(Arc::clone(converter)),
            Slot::Failed(error, at) if at.elapsed() < RELOAD_PAUSE => {
                return Err(Arc::clone(error));
            }
            _ => {}
        }
        let described = &self.config.rules[rule];
        let (source, target) = (&described.source_model_name, &described.target_model_name);
        let mut told = Instant::now();
        let progress = |done: u64, whole: Option<u64>| {
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                info!(%source, %target, bytes = done, of = whole, "fetching weights");
            }
        };
        match load_rule(&self.config, described, &self.fetcher, progress) {
            Ok(converter) => {
                info!(%source, %target, "read the weights of a conversion");
                let converter = Arc::new(converter);
                *slot = Slot::Ready(Arc::clone(&converter));
                Ok(converter)
            }
            Err(error) => {
                warn!(%source, %target, error = with_causes(&error), "no weights for a conversion");
                let error = Arc::new(error);
                *slot = Slot::Failed(Arc::clone(&error), Instant::now());
                Err(error)
            }
        }
    }
}

/// An error with its causes, in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
