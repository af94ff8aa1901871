//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use mc_cli::{UsageError, parse_duration};
use mc_history::{History, Rules};

/// Records what clients of a KV-cache store see, and checks it against the promised consistency.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-history", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Put, get and remove objects at random, and log every operation.
    Record(Record),
    /// Check logs, and print the operations that prove a violation.
    ///
    /// Exit code 0: no violation; 1: violations; 2: a log cannot be read.
    Check(Check),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Record {
    /// The master: host:port, or several with ';' or ',' between them, of which one leads; or
    /// etcd://host:port;host:port/cluster, where the masters elect their leader.
    #[arg(
        long = "master",
        visible_alias = "master_server_address",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:50051"
    )]
    pub(crate) master: String,
    /// The log to write. An existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Clients, each with one operation at a time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub(crate) clients: u32,
    /// Number of the first client. Processes that share keys need different clients.
    #[arg(long = "first_client", value_name = "N", default_value_t = 0)]
    pub(crate) first_client: u32,
    /// Keys that all clients share: history/0, history/1, and so on.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) keys: u32,
    /// How long to record.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub(crate) seconds: u64,
    /// A client's pause between two operations.
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = parse_duration)]
    pub(crate) pause: Duration,
    /// Seed of the operations.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Exchange bytes with nodes of this host through shared memory. A process that is stopped in the
    /// middle of a copy for longer than its grant lasts damages what lies there by then.
    #[arg(long = "shared_memory")]
    pub(crate) shared_memory: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Check {
    /// Logs of one workload.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) logs: Vec<PathBuf>,
    /// Objects may vanish at any moment, because they are evicted or nodes are killed.
    #[arg(long = "may_lose")]
    pub(crate) may_lose: bool,
    /// A put that is answered "existing" may have found its own value: masters with a standby.
    #[arg(long = "may_store_existing")]
    pub(crate) may_store_existing: bool,
    /// For so long after its end an operation that failed may still take effect; longer than any
    /// process was stopped.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) late: Duration,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Record {
    /// The number of the last client.
    pub(crate) fn last_client(&self) -> Result<u32, UsageError> {
        self.first_client.checked_add(self.clients - 1).ok_or_else(|| {
            UsageError::new(format!(
                "--first_client: with {} clients it is at most {}",
                self.clients,
                u32::MAX - self.clients + 1
            ))
        })
    }
}

impl Check {
    /// The rules for a history of real clients.
    pub(crate) fn rules(&self, history: &History) -> Rules {
        Rules {
            late: self.late,
            losses: history.losses.clone(),
            may_evict: self.may_lose,
            // Nodes may be silent, and clients repeat calls.
            may_suspend: true,
            may_repeat: true,
            may_store_existing: self.may_store_existing,
            ..Rules::default()
        }
    }
}
