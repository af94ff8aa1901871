//! The life of the process: start, announce, serve, end.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_cli::{LogError, Shutdown};
use mc_http::{BindError, HttpPort};
use mc_store::{EventPublisher, Master, MasterStartError, TickerProblem};
use tokio::sync::watch;
use tracing::{Level, error, info, warn};

use crate::access::UnusableFile;
use crate::args::Args;
use crate::c2c::C2cError;
use crate::change_log::{ChangeLog, change_log};
use crate::journal::MetadataError;
use crate::metadata::{self, Values};
use crate::{events, figures, http};

/// The interval of the summary in the log.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for calls under way after a signal.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// Serves until a signal asks for the end.
pub(crate) fn run(args: &Args) -> Result<(), ServeError> {
    mc_cli::init_tracing(Level::INFO)?;
    mc_cli::block_on_threads("mc-master", args.threads, serve(args)).map_err(ServeError::Runtime)?
}

async fn serve(args: &Args) -> Result<(), ServeError> {
    let mut shutdown = Shutdown::listen().map_err(ServeError::Signals)?;
    let metrics = HttpPort::bind(args.metrics_address()).await?;
    let metrics_address = metrics.local_addr();
    let metadata = match args.metadata_address() {
        Some(address) => Some(HttpPort::bind(address).await.map_err(ServeError::MetadataServer)?),
        None => None,
    };
    let mut server = args.access.server_config()?;
    args.connections.apply(&mut server);
    let (changes, log) = change_log();
    let mut builder = Master::builder()
        .listen(args.rpc_address())
        .server(server)
        .config(args.master_config())
        .sink(changes);
    if let Some(socket) = &args.access.rpc_socket {
        builder = builder.listen_unix(socket);
    }
    let mut announced = String::new();
    if let Some(config) = args.events.config() {
        let publisher = EventPublisher::start(config.clone()).await?;
        announced = events::announcement(&config, publisher.system());
        builder = builder.events(publisher.info_bytes(args.events.info_bytes()));
    }
    if let Some(settings) = args.c2c.settings()? {
        builder = builder.c2c(settings);
    }
    let args_journal = args.journal.clone();
    let opened = tokio::task::spawn_blocking(move || args_journal.open()).await;
    let opened = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    if let Some(journal) = opened? {
        builder = builder.journal(journal);
    }
    let master = builder.start().await?;
    announce(master.local_addr(), args.threads, &announced);
    args.warn_of_doubtful_settings();
    info!("metrics at http://{metrics_address}/metrics");
    if let Some(port) = &metadata {
        info!("metadata server at http://{}/metadata", port.local_addr());
    }
    let attendants = Attendants::start(&master, metrics, metadata, log, args.metric_reporting);

    let ticker = master.ticker_watch();
    let journal = master.journal_watch();
    let gave_up = async {
        match &journal {
            Some(journal) => journal.gave_up().await,
            None => std::future::pending().await,
        }
    };
    let failure = tokio::select! {
        signal = shutdown.requested() => {
            info!(%signal, "shutting down");
            None
        }
        problem = ticker.failed() => {
            error!(%problem, "the master cannot go on; shutting down");
            Some(ServeError::Ticker(problem))
        }
        () = gave_up => Some(ServeError::JournalLost),
    };
    tokio::select! {
        () = end(master, attendants) => {}
        () = tokio::time::sleep(END_PATIENCE) => warn!("cutting off calls that do not end"),
        signal = shutdown.requested() => warn!(%signal, "asked again; ending at once"),
    }
    failure.map_or(Ok(()), Err)
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

/// The tasks that run beside the master.
struct Attendants {
    stop: watch::Sender<()>,
    metrics: tokio::task::JoinHandle<()>,
    metadata: Option<tokio::task::JoinHandle<()>>,
    summaries: Option<tokio::task::JoinHandle<()>>,
    log: tokio::task::JoinHandle<()>,
}

impl Attendants {
    fn start(
        master: &Master,
        metrics: HttpPort,
        metadata: Option<HttpPort>,
        log: ChangeLog,
        report: bool,
    ) -> Self {
        let (stop, stopped) = watch::channel(());
        let stopped = || {
            let mut stopped = stopped.clone();
            async move {
                // It fails when the sender is gone, which is what says stop.
                let _ = stopped.changed().await;
            }
        };
        let state = master.state();
        let events = master.events().map(Arc::clone);
        let pages = http::pages(
            Arc::clone(state),
            master.rpc_watch(),
            master.ticker_watch(),
            events,
            master.journal_watch(),
        );
        let metrics = tokio::spawn(metrics.serve(pages, stopped()));
        let metadata = metadata.map(|port| {
            let (port, values) =
                (port.max_connections(metadata::MAX_CONNECTIONS), Values::default());
            let answer = move |request: &_| values.answer(request);
            tokio::spawn(port.serve_requests(metadata::MAX_VALUE, answer, stopped()))
        });
        let summaries = report.then(|| tokio::spawn(log_summaries(Arc::clone(state))));
        Self { stop, metrics, metadata, summaries, log: tokio::spawn(log.run()) }
    }
}

/// Ends everything in order. Cancelling it leaves the rest to the process's end.
async fn end(master: Master, attendants: Attendants) {
    let Attendants { stop, metrics, metadata, summaries, log } = attendants;
    drop(stop);
    if let Some(summaries) = summaries {
        summaries.abort();
        let _ = summaries.await; // cancelled, which is what was asked for
    }
    master.shutdown().await;
    // Each fails only if it panicked, which was reported then. The log ends when
    // no caller can change the master any more.
    let _ = metrics.await;
    if let Some(metadata) = metadata {
        let _ = metadata.await;
    }
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
    #[error("cannot listen for SIGINT and SIGTERM")]
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
    Metadata(#[from] MetadataError),
    #[error(
        "the journal could not be written for so long that changes were lost; make room in \
         --metadata_dir and start again: what was acknowledged is there"
    )]
    JournalLost,
    #[error("cannot start the master")]
    Master(#[from] MasterStartError),
}
