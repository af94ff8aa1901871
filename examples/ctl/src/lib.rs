#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod error;
mod ha;
mod list;
mod objects;
mod quota;
mod stat;
mod text;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Verb};
use error::CtlError;
use mc_rpc::ClientConfig;
use mc_store::{Client, NodeConfig, StartError};
use tracing::Level;

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<ExitCode, Box<dyn Error>> {
        let rpc = args.credentials.client_config()?;
        let node = args.transfer.node_config(&args.path)?;
        let below = mc_store::ClientConfig::from_env()?;
        mc_cli::init_tracing(Level::WARN)?;
        // One command at a time needs one thread.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CtlError::Runtime)?;
        Ok(runtime.block_on(run(args, rpc, node, below))?)
    })
}

async fn run(
    args: Args,
    rpc: ClientConfig,
    node: NodeConfig,
    below: mc_store::ClientConfig,
) -> Result<ExitCode, CtlError> {
    if let Verb::Ha(command) = &args.verb {
        return ha::ha(&args.master, rpc, node, command).await;
    }
    let client = Client::builder().master(args.master).rpc(rpc).node(node);
    let client = client.below_memory(&below).map_err(StartError::from)?.connect().await?;
    let outcome = match &args.verb {
        Verb::Put(put) => objects::put(&client, put).await,
        Verb::Get(get) => objects::get(&client, get).await,
        Verb::Exist(exist) => objects::exist(&client, exist).await,
        Verb::Remove(remove) => objects::remove(&client, remove).await,
        Verb::RemoveAll { force } => objects::remove_all(&client, *force).await,
        Verb::Ls(ls) => list::ls(&client, ls).await,
        Verb::Stat(stat) => stat::stat(&client, stat).await,
        Verb::Quota(quota) => quota::quota(&client, quota).await,
        Verb::Ha(_) => unreachable!("answered above, as it asks standbys too"),
    };
    client.shutdown().await;
    outcome
}
