#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod check;
mod text;

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use mc_cli::{CredentialArgs, LogError, Shutdown};
use mc_events::subscribe::{
    EventSubscriber, Index, IndexFull, SubscribeError, SubscriberConfig, Update,
};
use mc_rpc::{ClientConfig, MasterClient, RpcError};
use mc_types::ByteSize;
use tokio::time::{Instant, timeout};
use tracing::{Level, warn};

/// A summary is printed after this time without updates, or after the longer one with them.
const SUMMARY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Follows the KV events of a store and keeps an index of which node holds which object.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-index", version)]
struct Args {
    /// Where events are published in the form s4: tcp://HOST:PORT or ipc://PATH.
    #[arg(long = "endpoint", value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:19997")]
    endpoint: String,
    /// The replay endpoint that belongs to it.
    #[arg(
        long = "replay_endpoint",
        value_name = "ENDPOINT",
        default_value = "tcp://127.0.0.1:19998"
    )]
    replay_endpoint: String,
    /// Take only messages whose topic begins with this.
    #[arg(long = "topic", value_name = "TEXT", default_value = "", hide_default_value = true)]
    topic: String,
    /// Print all objects with their replicas, sorted, and end.
    #[arg(long = "once")]
    once: bool,
    /// Compare the index with the master's own state and end: with 0 if they are equal, else 1. The
    /// address is as for mc-ctl.
    #[arg(long = "check", value_name = "ADDRESS")]
    check: Option<String>,
    /// Most memory for the index.
    #[arg(
        long = "index_memory",
        value_name = "SIZE",
        default_value = "1GB",
        value_parser = mc_cli::parse_positive_size
    )]
    index_memory: ByteSize,
    #[command(flatten)]
    credentials: CredentialArgs,
}

#[derive(Debug, thiserror::Error)]
enum IndexError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    #[error("{0}; raise --index_memory")]
    Full(IndexFull),
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error("cannot write to standard output")]
    WriteOutput(#[source] io::Error),
}

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<ExitCode, Box<dyn Error>> {
        let rpc = args.credentials.client_config()?;
        mc_cli::init_tracing(Level::WARN)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(IndexError::Start)?;
        Ok(runtime.block_on(run(args, rpc))?)
    })
}

async fn run(args: Args, rpc: ClientConfig) -> Result<ExitCode, IndexError> {
    let mut shutdown = Shutdown::listen().map_err(IndexError::Start)?;
    let work = async {
        let mut keeper = Keeper::connect(&args).await?;
        match &args.check {
            Some(master) => {
                let master = MasterClient::connect(master, rpc).await?;
                check::check(&mut keeper, &master).await
            }
            None if args.once => {
                keeper.catch_up().await?;
                text::print(&text::all(&keeper.index))?;
                Ok(ExitCode::SUCCESS)
            }
            None => keeper.follow().await,
        }
    };
    tokio::select! {
        outcome = work => outcome,
        _ = shutdown.requested() => Ok(ExitCode::SUCCESS),
    }
}

/// An index and the events that it is kept from.
struct Keeper {
    events: EventSubscriber,
    index: Index,
    /// The number of the next message, while the index is the publisher's state.
    current: Option<u64>,
}

impl Keeper {
    async fn connect(args: &Args) -> Result<Self, IndexError> {
        let config = SubscriberConfig {
            endpoint: args.endpoint.clone(),
            replay_endpoint: args.replay_endpoint.clone(),
            topic: args.topic.clone(),
            ..SubscriberConfig::default()
        };
        let max_bytes = usize::try_from(args.index_memory.as_u64()).unwrap_or(usize::MAX);
        let (events, index) = (EventSubscriber::connect(config).await?, Index::new(max_bytes));
        Ok(Self { events, index, current: None })
    }

    fn apply(&mut self, update: Update) -> Result<(), IndexError> {
        match &update {
            Update::Current { next } => self.current = Some(*next),
            Update::Lost(cause) => {
                warn!(%cause, "lost the publisher; connecting again");
                self.current = None;
            }
            Update::Reset => self.current = None,
            _ => {}
        }
        self.index.apply(update).map_err(IndexError::Full)
    }

    /// Waits until the index is the publisher's state.
    async fn catch_up(&mut self) -> Result<(), IndexError> {
        while self.current.is_none() {
            let update = self.events.next().await?;
            self.apply(update)?;
        }
        Ok(())
    }

    /// Prints a summary after changes, for ever.
    async fn follow(&mut self) -> Result<ExitCode, IndexError> {
        let (pause, longest) = SUMMARY_PAUSES;
        let (mut printed, mut at) = (String::new(), Instant::now());
        loop {
            let quiet = match timeout(pause, self.events.next()).await {
                Ok(update) => {
                    self.apply(update?)?;
                    false
                }
                Err(_) => true,
            };
            if self.current.is_some() && (quiet || at.elapsed() > longest) {
                at = Instant::now();
                let summary = self.summary();
                if summary != printed {
                    text::print(&summary)?;
                    printed = summary;
                }
            }
        }
    }

    fn summary(&self) -> String {
        text::summary(&self.index, self.current.unwrap_or_default())
    }
}
