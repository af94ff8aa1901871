//! Limits of connections: their number and how long they may be silent, from the
//! command line.

use std::num::NonZeroUsize;
use std::time::Duration;

use mc_cli::parse_connection_count;
use mc_rpc::ServerConfig;

use crate::args::{BadSeconds, parse_seconds};

/// The shortest time that a connection may be silent: heartbeats come each second.
const LEAST_IDLE: Duration = Duration::from_secs(1);
/// The longest: a peer that is silent for a week is gone.
const MOST_IDLE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connections")]
pub(crate) struct ConnectionArgs {
    /// Most connections at a time, and at most three quarters of the file descriptors that the
    /// process may have. When there are as many, an idle one makes room for each new one
    /// [default: 16384].
    #[arg(long = "rpc_max_connections", value_name = "N", value_parser = parse_connection_count)]
    max: Option<NonZeroUsize>,
    /// Most connections of one address at a time (of IPv6 one /64), whose own idle ones make room
    /// [default: 12288].
    #[arg(
        long = "rpc_max_connections_per_address",
        value_name = "N",
        value_parser = parse_connection_count
    )]
    max_per_address: Option<NonZeroUsize>,
    /// Time after which a silent connection is closed, one that has made no call after a minute
    /// at most; clients connect again when they have something to ask. From 1 s to seven days
    /// [default: 300].
    #[arg(long = "rpc_idle_timeout", value_name = "SECONDS", value_parser = parse_idle_timeout)]
    idle_timeout: Option<Duration>,
}

impl ConnectionArgs {
    /// Writes what the flags say into `config`, and leaves the rest.
    pub(crate) fn apply(&self, config: &mut ServerConfig) {
        if let Some(max) = self.max {
            config.max_connections = max.get();
        }
        if let Some(max) = self.max_per_address {
            config.max_connections_per_address = max.get();
        }
        if let Some(timeout) = self.idle_timeout {
            config.idle_timeout = timeout;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum BadIdleTimeout {
    #[error(transparent)]
    Seconds(BadSeconds),
    #[error("choose a time between 1s and 168h")]
    OutOfRange,
}

fn parse_idle_timeout(text: &str) -> Result<Duration, BadIdleTimeout> {
    let timeout = parse_seconds(text).map_err(BadIdleTimeout::Seconds)?;
    let range = LEAST_IDLE..=MOST_IDLE;
    if range.contains(&timeout) { Ok(timeout) } else { Err(BadIdleTimeout::OutOfRange) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Args {
        #[command(flatten)]
        connections: ConnectionArgs,
    }

    fn config(flags: &[&str]) -> ServerConfig {
        let args = std::iter::once("mc-master").chain(flags.iter().copied());
        let args: Args = mc_cli::parse_from(args.map(Into::into)).unwrap();
        let mut config = ServerConfig::default();
        args.connections.apply(&mut config);
        config
    }

    fn limits(config: &ServerConfig) -> (usize, usize, Duration) {
        (config.max_connections, config.max_connections_per_address, config.idle_timeout)
    }

    #[test]
    fn flags_reach_the_server_and_defaults_are_the_library_s() {
        assert_eq!(limits(&config(&[])), limits(&ServerConfig::default()));
        // What --help tells.
        assert_eq!(limits(&config(&[])), (16_384, 12_288, Duration::from_secs(300)));
        let flags = [
            "--rpc_max_connections=7",
            "--rpc-max-connections-per-address=3",
            "--rpc_idle_timeout=2m",
        ];
        assert_eq!(limits(&config(&flags)), (7, 3, Duration::from_secs(120)));
        assert_eq!(config(&["--rpc_idle_timeout=5"]).idle_timeout, Duration::from_secs(5));
    }
}
