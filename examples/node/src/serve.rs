//! The life of the process: join, announce, serve peers and thin clients, leave.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mc_cli::{Hangups, LogError, Reloader, ServerArgs, Shutdown};
use mc_standalone::{ServeError as StandaloneError, Server};
use mc_store::{Client, ClientBuilder, ClientConfig, ConfigError, StartError};
use tracing::{info, warn};

use crate::args::Args;
use crate::check::{BadSettings, check, check_host};
use crate::host::{BadHost, local_host};

/// Time limit for leaving. A master that does not answer finds out by the
/// missing heartbeat.
const LEAVE_PATIENCE: Duration = Duration::from_millis(1500);

/// The pause before another attempt to join, and how often to log it.
const JOIN_AGAIN: Duration = Duration::from_secs(1);
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// Serves until a signal asks for the end.
pub(crate) fn run(
    args: &Args,
    config: &ClientConfig,
    settings: Reloader<Args>,
) -> Result<(), ServeError> {
    args.server.init_tracing()?;
    check_host(args, config)?;
    mc_cli::block_on_threads("mc-node", args.threads, serve(args, config, settings))
        .map_err(ServeError::Runtime)?
}

async fn serve(
    args: &Args,
    config: &ClientConfig,
    settings: Reloader<Args>,
) -> Result<(), ServeError> {
    let mut shutdown = Shutdown::listen().map_err(ServeError::Signals)?;
    let hangups = Hangups::listen().map_err(ServeError::Signals)?;
    let apply = |new: &Args| new.server.set_levels();
    tokio::spawn(mc_cli::reload_on_hangup(hangups, settings, ServerArgs::LIVE, check, apply));
    let software = concat!("mc-node/", env!("CARGO_PKG_VERSION"));
    let mut builder = ClientBuilder::from_config(config)?.software(software);
    let is_said = config.local_hostname.is_some() || config.listen.is_some();
    let host = args.host.as_deref().unwrap_or("0.0.0.0");
    let (host, listen) = local_host(host, args.data_port)?;
    if !is_said {
        builder = builder.listen(listen).host(&host);
    }
    let client = tokio::select! {
        joined = join(&builder, config) => joined?,
        signal = shutdown.requested() => {
            info!(%signal, "gave up joining");
            return Ok(());
        }
    };
    // Where peers may not come, thin clients find it at the same addresses.
    let port = SocketAddr::new(listen.ip(), args.port);
    let server = match Server::builder(client.clone()).listen(port).start().await {
        Ok(server) => server,
        Err(error) => {
            client.shutdown().await;
            return Err(error.into());
        }
    };
    announce(&client, &server, config);

    let signal = shutdown.requested().await;
    info!(%signal, "leaving the cluster");
    if !args.drain_timeout.is_zero() {
        tokio::select! {
            () = drain(&client, args.drain_timeout) => {}
            signal = shutdown.requested() => {
                warn!(%signal, "second signal: exiting now; objects not yet moved are lost");
            }
        }
    }
    let leave = async {
        server.shutdown().await;
        client.shutdown().await;
    };
    tokio::select! {
        () = leave => {}
        () = tokio::time::sleep(LEAVE_PATIENCE) => {
            warn!(master = config.master, "left without the master's answer; it will notice");
        }
        signal = shutdown.requested() => warn!(%signal, "second signal: exiting at once"),
    }
    Ok(())
}

/// Joins the cluster. Waits for a master that cannot be reached: an operator who starts a cluster starts
/// its parts in any order.
async fn join(builder: &ClientBuilder, config: &ClientConfig) -> Result<Client, StartError> {
    let mut told: Option<Instant> = None;
    loop {
        let error = match builder.clone().connect().await {
            Err(StartError::Master(error)) if error.is_retryable() => error,
            joined => return joined,
        };
        if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
            told = Some(Instant::now());
            warn!(master = config.master, %error, "waiting for the master");
        }
        tokio::time::sleep(JOIN_AGAIN).await;
    }
}

/// Moves what the client's segments hold to other nodes.
async fn drain(client: &Client, limit: Duration) {
    match client.drain(&[], limit).await {
        Ok(report) if report.complete => info!(
            objects = report.moved,
            bytes = report.moved_bytes,
            "moved what the memory held to other nodes"
        ),
        Ok(report) => warn!(
            objects = report.moved,
            bytes = report.moved_bytes,
            blocked = report.blocked,
            failed = report.failed,
            "not all that the memory held was moved to other nodes: {}",
            report.outcome
        ),
        Err(error) => warn!(%error, "what the memory holds is not moved to other nodes"),
    }
}

fn announce(client: &Client, server: &Server, config: &ClientConfig) {
    if let Some(address) = client.http_addr() {
        info!("health and metrics at http://{address}/metrics");
    }
    let segments: Vec<String> = client
        .segments()
        .into_iter()
        .map(|it| format!("segment {}, {} at {}", it.name.escape_debug(), it.size, it.endpoint))
        .collect();
    let contributed =
        if segments.is_empty() { "no segment".to_owned() } else { segments.join(", ") };
    let line = format!(
        "Mooncake client ready: {contributed}, thin clients at {}, master {}\n",
        server.local_addr(),
        config.master.as_deref().unwrap_or_default(),
    );
    let mut out = io::stdout().lock();
    // A reader that closed the pipe does not want the line.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Why the process ends with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ServeError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot start the threads that serve peers; choose a smaller --threads")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT, SIGTERM and SIGHUP")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Settings(#[from] BadSettings),
    #[error(transparent)]
    Host(#[from] BadHost),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot join the cluster")]
    Start(#[from] StartError),
    #[error("--port: thin clients cannot be served")]
    Standalone(#[from] StandaloneError),
}
