//! The lookup of one cluster's masters, which all clients of a process share.

use core::fmt;
use core::future::pending;
use core::pin::Pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mc_ha::election::ElectionError;
use mc_ha::election::etcd::{MasterLookup, Masters};
use mc_ha::etcd::EtcdConfig;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::EtcdSettings;
use super::directory::{Directory, Unknown};

/// How long a caller waits for the thread of a lookup beyond the time that etcd may take.
const SLACK: Duration = Duration::from_secs(5);

type Answer = Result<Vec<String>, Unknown>;

/// A message of a client to the thread of a lookup.
enum Request {
    /// No master takes connections: where are they?
    Find { etcd: Box<EtcdConfig>, answer: SyncSender<Answer> },
    /// A master took a connection.
    Reached(String),
}

/// One cluster's lookup: a thread with at most one question to etcd under way, which ends with the
/// last handle.
pub(super) struct Lookup {
    requests: UnboundedSender<Request>,
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
    }
}

/// A lookup of the process with this number, for a cluster.
type LookupUnderWay = (u32, EtcdSettings, EtcdConfig, Weak<Lookup>);

/// The lookups of this process, each with the cluster that it is for. A process that was forked has
/// none of the threads.
static LOOKUPS: Mutex<Vec<LookupUnderWay>> = Mutex::new(Vec::new());

impl Lookup {
    /// Returns the lookup of this cluster, which other clients may have, too. `etcd` is without a
    /// password.
    ///
    /// # Errors
    /// [`ElectionError::Thread`].
    pub(super) fn of(
        settings: &EtcdSettings,
        etcd: &EtcdConfig,
    ) -> Result<Arc<Self>, ElectionError> {
        let process = std::process::id();
        let mut lookups = LOOKUPS.lock();
        lookups.retain(|(.., lookup)| lookup.strong_count() > 0);
        let known = lookups.iter().find(|(its_process, its_settings, its_etcd, _)| {
            (its_process, its_settings, its_etcd) == (&process, settings, etcd)
        });
        if let Some(known) = known.and_then(|(.., lookup)| lookup.upgrade()) {
            return Ok(known);
        }
        let lookup = Arc::new(Self::start()?);
        lookups.push((process, settings.clone(), etcd.clone(), Arc::downgrade(&lookup)));
        Ok(lookup)
    }

    fn start() -> Result<Self, ElectionError> {
        let failed = |source| ElectionError::Thread { source: Arc::new(source) };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (requests, received) = unbounded_channel();
        let run = move || runtime.block_on(Finder::new().serve(received));
        thread::Builder::new().name("etcd-lookup".into()).spawn(run).map_err(failed)?;
        Ok(Self { requests })
    }

    /// Returns the masters to try when none takes connections. Blocks while none is known, as long as
    /// one question to etcd takes.
    pub(super) fn find(&self, etcd: EtcdConfig) -> Answer {
        let endpoints = u32::try_from(etcd.endpoints().count()).unwrap_or(u32::MAX);
        let limit = etcd.request_timeout().saturating_mul(endpoints).saturating_mul(2) + SLACK;
        let (answer, answered) = sync_channel(1);
        let closed = || Unknown::Etcd(ElectionError::Closed);
        self.requests.send(Request::Find { etcd: Box::new(etcd), answer }).map_err(|_| closed())?;
        answered.recv_timeout(limit).unwrap_or_else(|_| Err(closed()))
    }

    /// Notes that a master took a connection.
    pub(super) fn reached(&self, address: &str) {
        // The thread ends only with the last handle.
        let _ = self.requests.send(Request::Reached(address.to_owned()));
    }
}

type Question = Pin<Box<dyn Future<Output = Result<Masters, ElectionError>>>>;

/// The state of the thread of a lookup.
struct Finder {
    directory: Directory,
    /// How etcd is reached, as the last caller said.
    etcd: Option<EtcdConfig>,
    /// The connection to etcd while it is asked again and again.
    connection: Option<Arc<MasterLookup>>,
    question: Option<Question>,
    /// Callers that wait for the answer.
    waiting: Vec<SyncSender<Answer>>,
}

impl Finder {
    const fn new() -> Self {
        let directory = Directory::new();
        Self { directory, etcd: None, connection: None, question: None, waiting: Vec::new() }
    }

    async fn serve(mut self, mut requests: UnboundedReceiver<Request>) {
        loop {
            let refresh = self.directory.refresh_at();
            tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(Request::Find { etcd, answer }) => self.find(*etcd, answer),
                    Some(Request::Reached(address)) => {
                        self.directory.reached(&address, Instant::now(), random());
                        self.connection = None;
                    }
                    None => return,
                },
                found = ended(&mut self.question) => self.found(found),
                () = at(refresh) => {
                    if self.directory.refreshes(Instant::now()) {
                        self.ask();
                    }
                }
            }
        }
    }

    fn find(&mut self, etcd: EtcdConfig, answer: SyncSender<Answer>) {
        if self.etcd.as_ref() != Some(&etcd) {
            // Another password, most likely, since the last one was wrong.
            self.etcd = Some(etcd);
            self.connection = None;
            self.directory.forget_pause();
        }
        if self.directory.no_master_answered(Instant::now(), random()) {
            self.ask();
        }
        if self.directory.has_answer() {
            // The caller may have given up.
            let _ = answer.send(self.directory.masters());
        } else {
            self.waiting.push(answer);
        }
    }

    /// Begins a question, of which none is under way.
    fn ask(&mut self) {
        let connection = match (&self.connection, &self.etcd) {
            (Some(connection), _) => Ok(Arc::clone(connection)),
            (None, Some(etcd)) => MasterLookup::new(etcd).map(Arc::new),
            (None, None) => Err(ElectionError::Closed),
        };
        self.connection = connection.as_ref().ok().cloned();
        self.question = Some(Box::pin(async move { connection?.find().await }));
    }

    fn found(&mut self, found: Result<Masters, ElectionError>) {
        self.question = None;
        self.directory.found(found, Instant::now(), random());
        if self.directory.refresh_at().is_some() {
            self.connection = None;
        }
        for answer in self.waiting.drain(..) {
            let _ = answer.send(self.directory.masters());
        }
    }
}

/// Waits for the answer to the question that is under way, if one is.
async fn ended(question: &mut Option<Question>) -> Result<Masters, ElectionError> {
    match question {
        Some(question) => question.await,
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => pending().await,
    }
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    fastrand::f64()
}
