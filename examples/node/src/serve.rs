//! The life of the process: join, announce, serve peers and thin clients, leave.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mc_cli::{LogError, Shutdown};
use mc_standalone::{ServeError as StandaloneError, Server};
use mc_store::{Client, ClientBuilder, ClientConfig, ConfigError, StartError};
use mc_types::ByteSize;
use tracing::{Level, info, warn};

use crate::args::Args;
use crate::host::{BadHost, local_host, total_memory};
use crate::settings::settings;

/// Time limit for leaving. A master that does not answer finds out by the
/// missing heartbeat.
const LEAVE_PATIENCE: Duration = Duration::from_millis(1500);

/// The pause before another attempt to join, and how often to log it.
const JOIN_AGAIN: Duration = Duration::from_secs(1);
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// Serves until a signal asks for the end.
pub(crate) fn run(args: &Args) -> Result<(), ServeError> {
    mc_cli::init_tracing(Level::INFO)?;
    let config = settings(args)?;
    let size = config.global_segment_size.unwrap_or_default();
    mc_cli::check_segment_size(size)?;
    check_size(size, total_memory())?;
    let has_disk =
        config.ssd_offload_path.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    if args.enable_offload && !has_disk {
        return Err(ServeError::NoDisk);
    }
    if config.keep_segment == Some(true) && !args.drain_timeout.is_zero() {
        return Err(ServeError::KeptAndMoved);
    }
    mc_cli::block_on_threads("mc-node", args.threads, serve(args, &config))
        .map_err(ServeError::Runtime)?
}

/// Refuses what the host cannot hold: the system may well promise more memory
/// than there is, and kill the process that then uses it.
fn check_size(size: ByteSize, total: Option<ByteSize>) -> Result<(), ServeError> {
    match total {
        Some(total) if size > total => Err(ServeError::TooLarge { size, total }),
        _ => Ok(()),
    }
}

async fn serve(args: &Args, config: &ClientConfig) -> Result<(), ServeError> {
    let mut shutdown = Shutdown::listen().map_err(ServeError::Signals)?;
    let mut builder = ClientBuilder::from_config(config)?;
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
    #[error(
        "--global_segment_size: {size} is more than this host's {total} of memory; contribute less"
    )]
    TooLarge { size: ByteSize, total: ByteSize },
    #[error("global_segment_size")]
    TooSmall(#[from] mc_cli::SegmentTooSmall),
    #[error("cannot start the threads that serve peers; choose a smaller --threads")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT and SIGTERM")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Host(#[from] BadHost),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "--enable_offload needs the directory of a disk; give --ssd_offload_path, or set \
         MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
    )]
    NoDisk,
    #[error(
        "--keep_segment keeps the objects in this memory for the next process, and --drain_timeout moves \
         them to other nodes; leave one of them out"
    )]
    KeptAndMoved,
    #[error("cannot join the cluster")]
    Start(#[from] StartError),
    #[error("--port: thin clients cannot be served")]
    Standalone(#[from] StandaloneError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_host_has_is_refused() {
        let total = Some(ByteSize::gib(2));
        assert!(check_size(ByteSize::gib(2), total).is_ok());
        assert!(check_size(ByteSize::gib(64), None).is_ok());
        let refused = check_size(ByteSize::gib(3), total).unwrap_err().to_string();
        assert!(refused.contains("2.00 GB of memory; contribute less"), "{refused}");
    }
}
