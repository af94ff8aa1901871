//! The life of the process: start, announce, serve, end.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_cli::{Configured, Hangups, LogError, Reloader, Shutdown};
use mc_http::{BindError, HttpPort};
use mc_rpc::{Authenticate, HaReport, ServerConfig};
use mc_server::{
    EventPublisher, HandOverError, Master, MasterBuilder, MasterStartError, Standby, StandbyError,
    TickerProblem,
};
use parking_lot::RwLock;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::access::UnusableFile;
use crate::args::Args;
use crate::c2c::C2cError;
use crate::change_log::{ChangeLog, change_log};
use crate::cluster::ClusterError;
use crate::http::{Gate, Shown, ShownMaster};
use crate::journal::MetadataError;
use crate::metadata::{self, Values};
use crate::storage::StorageError;
use crate::tuning::{LIVE, Tuning};
use crate::{events, figures, http};

/// The interval of the summary in the log.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for calls under way after a signal.
const END_PATIENCE: Duration = Duration::from_millis(1500);
/// The wait before a journal that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of a request for a page: routers ask about all blocks of a prompt in one query.
const MAX_PAGE_HEAD: usize = 80 << 10;

/// Serves until a signal asks for the end.
pub(crate) fn run(args: &Args, settings: Reloader<Args>) -> Result<(), ServeError> {
    args.server.init_tracing()?;
    mc_cli::block_on_threads("mc-master", args.threads, serve(args, settings))
        .map_err(ServeError::Runtime)?
}

async fn serve(args: &Args, settings: Reloader<Args>) -> Result<(), ServeError> {
    let mut shutdown = Shutdown::listen().map_err(ServeError::Signals)?;
    let hangups = Hangups::listen().map_err(ServeError::Signals)?;
    let tuning = Tuning::new(args);
    let is_clustered = args.cluster.is_on()?;
    let metrics = HttpPort::bind(args.metrics_address()).await?;
    let metadata = match args.metadata_address() {
        Some(address) => Some(HttpPort::bind(address).await.map_err(ServeError::MetadataServer)?),
        None => None,
    };
    let list = blocking(args.access.clone(), |access| access.load_list()).await?;
    let pages =
        Pages::new(metrics, metadata, args.access.gate(list.as_ref()), list, tuning.clone());
    let check = |new: &Configured<Args>| crate::check::check(&new.args);
    let reload =
        mc_cli::reload_on_hangup(hangups, settings, LIVE, check, move |args| tuning.apply(args));
    let reload = tokio::spawn(reload);
    let served = if is_clustered {
        // Larger than what is needed alone.
        Box::pin(serve_terms(args, &mut shutdown, &pages)).await
    } else {
        serve_alone(args, &mut shutdown, &pages).await
    };
    reload.abort();
    pages.end().await;
    served
}

/// Serves as the only master.
async fn serve_alone(
    args: &Args,
    shutdown: &mut Shutdown,
    pages: &Pages,
) -> Result<(), ServeError> {
    let (mut builder, announced, log) = describe(args, pages.list.as_ref()).await?;
    if let Some(journal) = blocking(args.journal.clone(), |args| args.open()).await? {
        builder = builder.journal(journal);
    }
    let master = builder.listen(args.rpc_address()).start().await?;
    announce(master.local_addr(), args.threads, &announced);
    args.warn_of_doubtful_settings();
    pages.announce();
    serve_term(args, master, log, shutdown, pages, None).await.map(drop)
}

/// Serves as one of several masters: follows the leader, and leads when it is elected, in turn.
async fn serve_terms(
    args: &Args,
    shutdown: &mut Shutdown,
    pages: &Pages,
) -> Result<(), ServeError> {
    let address = args.rpc_address();
    let listen = args.cluster.listen(address);
    let mut config = blocking(args.clone(), move |args| {
        let journal = args.journal.open_or_memory()?;
        args.cluster.config(address, &args.access, journal).map_err(ServeError::from)
    })
    .await?;
    let mut is_first = true;
    loop {
        let standby = async {
            let server = server_config(args, pages.list.as_ref())?;
            let (config, master) = (config.clone(), args.master_config());
            let standby = if is_first {
                Standby::start(config, master, listen, server).await
            } else {
                Standby::start_after_term(config, master, listen, server).await
            };
            standby.map_err(ServeError::from)
        };
        let standby = tokio::select! {
            standby = standby => match standby {
                // It led, or followed: its directory is good, but for what may pass.
                Err(ServeError::Standby(error)) if !is_first && error.is_retryable() => {
                    if waits_to_retry(&error, shutdown).await {
                        continue;
                    }
                    return Ok(());
                }
                standby => standby?,
            },
            signal = shutdown.requested() => {
                info!(%signal, "shutting down");
                return Ok(());
            }
        };
        let report = standby.report();
        pages.show(Shown { master: None, cluster: Some(Arc::clone(&report)) });
        if std::mem::take(&mut is_first) {
            announce(standby.local_addr(), args.threads, "");
            if args.journal.directory.is_none() {
                warn!(
                    "the metadata is kept in the memory of the masters only; give --metadata_dir \
                     to keep it on disk, too"
                );
            }
            args.warn_of_doubtful_settings();
            pages.announce();
        }
        let seat = tokio::select! {
            seat = standby.lead() => seat?,
            signal = shutdown.requested() => {
                info!(%signal, "shutting down");
                return Ok(());
            }
        };
        let (builder, _, log) = describe(args, pages.list.as_ref()).await?;
        let master = match builder.lead(seat).listen(listen).start().await {
            Ok(master) => master,
            Err(MasterStartError::Term(error)) => {
                warn!(%error, "the term was lost before it began");
                continue;
            }
            // The term is over with the seat; another member leads, if one can.
            Err(MasterStartError::Journal(error)) if error.is_retryable() => {
                if waits_to_retry(&error, shutdown).await {
                    continue;
                }
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        info!("leading");
        config.candidacy.is_forced = false;
        match serve_term(args, master, log, shutdown, pages, Some(report)).await? {
            End::Deposed => {}
            End::Asked => return Ok(()),
        }
    }
}

/// Waits before what failed is tried again; false when the process is to end.
async fn waits_to_retry(failure: &dyn std::error::Error, shutdown: &mut Shutdown) -> bool {
    warn!(%failure, "the journal cannot be used now; trying again");
    tokio::select! {
        () = tokio::time::sleep(RETRY) => true,
        signal = shutdown.requested() => {
            info!(%signal, "shutting down");
            false
        }
    }
}

/// Why a master stopped serving.
enum End {
    /// A signal asked for it.
    Asked,
    /// Its term is over.
    Deposed,
}

/// Serves with this master until it has to end.
async fn serve_term(
    args: &Args,
    master: Master,
    log: ChangeLog,
    shutdown: &mut Shutdown,
    pages: &Pages,
    cluster: Option<Arc<dyn HaReport>>,
) -> Result<End, ServeError> {
    pages.show(Shown { master: Some(ShownMaster::of(&master)), cluster: cluster.clone() });
    let state = master.state();
    pages.tuning.adopt(state);
    let summaries = args.metric_reporting.then(|| tokio::spawn(log_summaries(Arc::clone(state))));
    let log = tokio::spawn(log.run());
    let (ticker, journal) = (master.ticker_watch(), master.journal_watch());
    let gave_up = async {
        match &journal {
            Some(journal) => journal.gave_up().await,
            None => std::future::pending().await,
        }
    };
    let end = tokio::select! {
        signal = shutdown.requested() => {
            info!(%signal, "shutting down");
            leave(&master, shutdown).await;
            Ok(End::Asked)
        }
        problem = ticker.failed() => {
            error!(%problem, "the master cannot go on; shutting down");
            Err(ServeError::Ticker(problem))
        }
        () = gave_up => Err(ServeError::JournalLost),
        () = master.deposed() => Ok(End::Deposed),
    };
    // The pages let the master's parts go.
    pages.show(Shown { master: None, cluster });
    tokio::select! {
        () = end_master(master, summaries, log) => {}
        () = tokio::time::sleep(END_PATIENCE) => warn!("cutting off calls that do not end"),
        signal = shutdown.requested() => warn!(%signal, "second signal: exiting at once"),
    }
    end
}

/// Has another master lead before this one ends, without losing what was acknowledged.
async fn leave(master: &Master, shutdown: &mut Shutdown) {
    tokio::select! {
        handed_over = master.hand_over() => match handed_over {
            Ok(()) => {}
            Err(HandOverError::NobodyInSync) => {}
            Err(error) => warn!(
                %error,
                "ending without a successor that has everything: the last changes are in this master's \
                 journal alone"
            ),
        },
        signal = shutdown.requested() => warn!(%signal, "second signal: exiting without a handover"),
    }
}

/// Runs what reads files.
async fn blocking<A: Send + 'static, T: Send + 'static, E: Send + 'static>(
    args: A,
    work: impl FnOnce(A) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let done = tokio::task::spawn_blocking(move || work(args)).await;
    done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

fn server_config(
    args: &Args,
    list: Option<&Arc<dyn Authenticate>>,
) -> Result<ServerConfig, ServeError> {
    let mut server = args.access.server_config(list)?;
    args.connections.apply(&mut server);
    Ok(server)
}

/// A master of these settings, what is to be announced of it, and the log of its changes.
async fn describe(
    args: &Args,
    list: Option<&Arc<dyn Authenticate>>,
) -> Result<(MasterBuilder, String, ChangeLog), ServeError> {
    let (changes, log) = change_log();
    let server = server_config(args, list)?;
    let mut builder = Master::builder().server(server).config(args.master_config()).sink(changes);
    if let Some(socket) = &args.access.rpc_socket {
        builder = builder.listen_unix(socket);
    }
    let mut announced = String::new();
    if let Some(config) = args.events.config() {
        let publisher = EventPublisher::start(config.clone()).await?;
        announced = events::announcement(&config, publisher.system());
        builder = builder.events(publisher.info_bytes(args.events.info_bytes()));
    }
    let storage = args.storage.settings(args.cluster.cluster_id())?;
    builder = builder.storage(storage);
    if let Some(settings) = args.c2c.settings()? {
        builder = builder.c2c(settings);
    }
    Ok((builder, announced, log))
}

/// The lines by which Mooncake says that it is up, and those of the endpoints of events.
fn announce(address: SocketAddr, threads: usize, events: &str) {
    let lines = format!(
        "Starting Mooncake Master Service\nPort: {}\nMax threads: {threads}\n\
         Master service listening on {address}\n{events}",
        address.port()
    );
    let mut out = io::stdout().lock();
    // A reader that closed the pipe does not want the line.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
}

/// Parts that stay from one term to the next: the ports over HTTP, and settings that may change.
struct Pages {
    shown: Arc<RwLock<Shown>>,
    /// The access list of the master, which holds for the pages, too.
    list: Option<Arc<dyn Authenticate>>,
    tuning: Tuning,
    stop: watch::Sender<()>,
    metrics_address: SocketAddr,
    metadata_address: Option<SocketAddr>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Pages {
    fn new(
        metrics: HttpPort,
        metadata: Option<HttpPort>,
        gate: Gate,
        list: Option<Arc<dyn Authenticate>>,
        tuning: Tuning,
    ) -> Self {
        let (stop, stopped) = watch::channel(());
        let stopped = || {
            let mut stopped = stopped.clone();
            async move {
                // It fails when the sender is gone, which is what says stop.
                let _ = stopped.changed().await;
            }
        };
        let shown = Arc::<RwLock<Shown>>::default();
        let metrics_address = metrics.local_addr();
        let metadata_address = metadata.as_ref().map(HttpPort::local_addr);
        let pages = http::pages(Arc::clone(&shown), gate.clone());
        let of_change = Arc::clone(&shown);
        let change = move |request| http::changed(&of_change, &gate, request);
        let metrics = metrics.max_head(MAX_PAGE_HEAD);
        let serving = metrics.serve_changes(pages, (http::MAX_BODY, change), stopped());
        let mut tasks = vec![tokio::spawn(serving)];
        if let Some(port) = metadata {
            let (port, values) =
                (port.max_connections(metadata::MAX_CONNECTIONS), Values::default());
            let answer = move |request: &_| values.answer(request);
            let serving = port.serve_requests(metadata::MAX_VALUE, answer, stopped());
            tasks.push(tokio::spawn(serving));
        }
        Self { shown, list, tuning, stop, metrics_address, metadata_address, tasks }
    }

    fn show(&self, shown: Shown) {
        *self.shown.write() = shown;
    }

    fn announce(&self) {
        info!("metrics at http://{}/metrics", self.metrics_address);
        if let Some(address) = self.metadata_address {
            info!("metadata server at http://{address}/metadata");
        }
    }

    async fn end(self) {
        drop(self.stop);
        for task in self.tasks {
            // It fails only if it panicked, which was reported then.
            let _ = tokio::time::timeout(END_PATIENCE, task).await;
        }
    }
}

/// Ends everything in order. Cancelling it leaves the rest to the process's end.
async fn end_master(
    master: Master,
    summaries: Option<tokio::task::JoinHandle<()>>,
    log: tokio::task::JoinHandle<()>,
) {
    if let Some(summaries) = summaries {
        summaries.abort();
        let _ = summaries.await; // cancelled, which is what was asked for
    }
    master.shutdown().await;
    // It ends when no caller can change the master any more; it fails only if it panicked.
    let _ = log.await;
}

async fn log_summaries(master: Arc<mc_meta::Master>) {
    let mut timer = tokio::time::interval(SUMMARY_INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    timer.tick().await; // at once
    let mut before = (Instant::now(), master.report());
    loop {
        timer.tick().await;
        let now = (Instant::now(), master.report());
        info!("{}", figures::summary_since(&before.1, now.0 - before.0, &now.1));
        before = now;
    }
}

/// Why the process ends with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ServeError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot start the threads that answer calls; choose a smaller --rpc_thread_num")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT, SIGTERM and SIGHUP")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Access(#[from] UnusableFile),
    #[error("cannot open the metrics port; check --metrics_host and --metrics_port")]
    Metrics(#[from] BindError),
    #[error(
        "cannot open the port of the metadata server; check --http_metadata_server_host and \
         --http_metadata_server_port"
    )]
    MetadataServer(#[source] BindError),
    #[error("the master's own work failed; please report this with the log: {0}")]
    Ticker(TickerProblem),
    #[error("cannot publish KV events; check --kv_event_publisher_endpoint and its like")]
    Events(#[from] mc_events::StartError),
    #[error(transparent)]
    C2c(#[from] C2cError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Standby(#[from] StandbyError),
    #[error(
        "the journal could not be written for so long that changes were lost; make room in \
         --metadata_dir and start again: what was acknowledged is there"
    )]
    JournalLost,
    #[error("cannot start the master")]
    Master(#[from] MasterStartError),
}
