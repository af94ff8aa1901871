//! The life of the process: join, announce, serve peers and dummy clients, leave.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mc_cli::{LogError, Shutdown};
use mc_rpc::ClientConfig;
use mc_store::standalone::{ServeError as StandaloneError, Server};
use mc_store::{Client, MemoryOptions, NodeConfig, StartError};
use mc_transport::topology::{Discovery, Topology, TopologyError};
use mc_transport::{BadVariable, TcpConfig};
use mc_types::ByteSize;
use tracing::{Level, info, warn};

use crate::args::{Args, Protocol};
use crate::host::{UnknownHost, reach, total_memory};

/// How long leaving may take. A master that does not answer finds out by the
/// missing heartbeat.
const LEAVE_PATIENCE: Duration = Duration::from_millis(1500);

/// Serves until a signal asks for the end.
pub(crate) fn run(args: &Args, rpc: ClientConfig) -> Result<(), ServeError> {
    mc_cli::init_tracing(Level::INFO)?;
    check_size(args.segment_size, total_memory())?;
    mc_cli::block_on_threads("mc-client", args.threads, serve(args, rpc))
        .map_err(ServeError::Runtime)?
}

/// Refuses what the host cannot hold: the system may well promise more memory
/// than there is, and kill whoever then uses it.
fn check_size(size: ByteSize, total: Option<ByteSize>) -> Result<(), ServeError> {
    match total {
        Some(total) if size > total => Err(ServeError::TooLarge { size, total }),
        _ => Ok(()),
    }
}

async fn serve(args: &Args, rpc: ClientConfig) -> Result<(), ServeError> {
    let mut shutdown = Shutdown::listen().map_err(ServeError::Signals)?;
    let reach = reach(&args.host, args.data_port)?;
    let mut builder = match args.protocol {
        Protocol::Tcp => Client::builder(),
    };
    builder =
        builder.master(&*args.master).rpc(rpc).segment_size(args.segment_size).listen(reach.listen);
    builder = builder.segment_memory(MemoryOptions::from_env()?).node(node()?);
    if let Some(address) = reach.advertise {
        builder = builder.advertise(address);
    }
    if let Some(name) = &args.segment_name {
        builder = builder.segment_name(name);
    }
    let client = tokio::select! {
        joined = builder.connect() => joined?,
        signal = shutdown.requested() => {
            info!(%signal, "gave up joining");
            return Ok(());
        }
    };
    if let Some(url) = &args.metadata_server {
        info!(metadata_server = ?url, "not needed: the master itself says where segments are");
    }
    // Where peers may not come, dummy clients find it at the same addresses.
    let port = SocketAddr::new(reach.listen.ip(), args.port);
    let server = match Server::builder(client.clone()).listen(port).start().await {
        Ok(server) => server,
        Err(error) => {
            client.shutdown().await;
            return Err(error.into());
        }
    };
    announce(&client, &server, args);

    let signal = shutdown.requested().await;
    info!(%signal, "leaving the cluster");
    let leave = async {
        server.shutdown().await;
        client.shutdown().await;
    };
    tokio::select! {
        () = leave => {}
        () = tokio::time::sleep(LEAVE_PATIENCE) => {
            warn!(master = args.master, "left without the master's answer; it will notice");
        }
        signal = shutdown.requested() => warn!(%signal, "asked again; ending at once"),
    }
    Ok(())
}

/// The way of the bytes, over the network cards that the environment asks for.
fn node() -> Result<NodeConfig, ServeError> {
    let discovery = Discovery::from_env()?;
    let mut tcp = TcpConfig::default();
    if discovery.auto {
        let cards = discovery.select(&Topology::read()?)?;
        // One address of each: two would make one card look like two.
        tcp.rails = cards.iter().filter_map(|card| card.addresses.first().copied()).collect();
        let names: Vec<&str> = cards.iter().map(|card| &*card.name).collect();
        info!(interfaces = names.join(","), "using these network interfaces together");
    }
    Ok(NodeConfig::new(tcp))
}

fn announce(client: &Client, server: &Server, args: &Args) {
    let contributed = match (client.segment_name(), client.endpoint()) {
        (Some(name), Some(endpoint)) => {
            format!("segment {}, {} at {endpoint}", name.escape_debug(), args.segment_size)
        }
        _ => "no segment".to_owned(),
    };
    let line = format!(
        "Mooncake client ready: {contributed}, dummy clients at {}, master {}\n",
        server.local_addr(),
        args.master
    );
    let mut out = io::stdout().lock();
    // Whoever closed the pipe does not want to know.
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
    #[error("cannot start the threads that serve peers; choose a smaller --threads")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for SIGINT and SIGTERM")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Host(#[from] UnknownHost),
    #[error(transparent)]
    Variable(#[from] BadVariable),
    #[error("MC_MS_AUTO_DISC: the network interfaces cannot be chosen")]
    Topology(#[from] TopologyError),
    #[error("cannot join the cluster")]
    Start(#[from] StartError),
    #[error("--port: dummy clients cannot be served")]
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
